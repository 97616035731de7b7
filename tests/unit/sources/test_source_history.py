"""Rows that a table would lack after a full refresh, because sources have deleted them."""

from pathlib import Path

from paper_sources import PaperFolder, PaperTopics, checkpoint

from penstock._tables.read.log_scan import LoggedRemovals
from penstock.sources import checkpoints
from penstock.sources.base import EARLIEST, parse_start
from penstock.sources.delta.source import lost_versions
from penstock.sources.kafka.offsets import lost_offsets


def test_expired_offsets_of_read_rows_are_named():
    ends = {"t": {"0": 100, "1": 20}, "gone": {"0": 7}}
    first = {"t": {"0": 0, "1": 5}}
    assert lost_offsets({"t": {"0": 0, "1": 5}, "gone": {"0": 0}}, ends, first) == ""
    # Offsets before 40 have expired in partition 0. The flow started at offset 5 of partition 1.
    text = lost_offsets({"t": {"0": 40, "1": 5}}, ends, first)
    assert "t-0 0 to 39" in text
    assert "t-1" not in text
    assert "gone-0 0 to 6" in text  # a topic that was deleted
    # Offsets that the flow has not read are not lost.
    assert lost_offsets({"t": {"0": 900}}, {"t": {"0": 3}}, {}).endswith("t-0 0 to 2 are not read")


def test_removed_rows_are_counted_since_the_creation_of_the_checkpoint():
    log = LoggedRemovals(0, {3: ("DELETE", 500), 7: ("MERGE", 1500), 9: ("DELETE", 1600)})

    def lost(
        removals: LoggedRemovals = log,
        own_start: str = "",
        start: int | None = None,
        read: int = 9,
    ) -> tuple[str, str]:
        return lost_versions(removals, own_start=own_start, start=start, read=read, created_ms=1000)

    missing, note = lost()
    assert missing.endswith("by version 7 (MERGE), 9 (DELETE)")
    assert note == ""
    assert lost(read=0) == ("", "")  # the flow has not read any version
    assert "3 (DELETE), 7 (MERGE)" in lost(own_start="2")[0]
    assert "versions before 4" in lost(start=4)[0]
    missing, note = lost(LoggedRemovals(5, {}))
    assert missing == ""
    assert "begins at version 5" in note


def test_deleted_and_too_old_files_are_counted(tmp_path: Path):
    here = tmp_path / "a.json"
    here.touch()
    taken = {here.as_uri(): 10, f"{here.as_uri()}#1": 10, str(tmp_path / "b.json"): 20}
    done = [checkpoint(tmp_path / "checkpoint", {}, files=taken)]
    position, history = PaperFolder().history(EARLIEST, done, 90_000)
    assert position == {"from_the_start": True}
    assert history.again == 3
    assert history.missing.startswith("1 file that")
    assert "b.json" in history.missing
    later = parse_start("2026-01-01")
    assert PaperFolder().history(later, done, 90_000)[1].missing.startswith("3 files that")


def test_checkpoint_has_the_initial_offsets_of_kafka(tmp_path: Path):
    done = checkpoint(tmp_path, {"t": {"0": 30}}, first={"t": {"0": 12}})
    assert list(checkpoints.first_offsets(done)) == [{"t": {"0": 12}}]
    assert list(checkpoints.last_offsets(done)) == [{"t": {"0": 30}}]
    assert checkpoints.created_ms(done) > 0
    # Offsets before 20 have expired, and the flow started at offset 12.
    topics = PaperTopics({"t": {"0": 20}}, {"t": {"0": 40}})
    _, history = topics.history(EARLIEST, [done], 90_000)
    assert (history.again, history.missing) == (10, "offsets of t-0 12 to 19 are not read")
