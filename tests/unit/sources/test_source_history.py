"""What a table that is computed anew would lack: nothing is lost without a word."""

from pathlib import Path
from typing import Any

from penstock._engine.rereading.history import lost_files, lost_offsets, lost_versions
from penstock._tables.checkpoint_files import Checkpoint
from penstock._tables.log_scan import LoggedRemovals
from penstock.sources.position import Position
from penstock.sources.rewind import (
    Progress,
    SourceKind,
    StreamSource,
    progress_of,
)

TABLE = StreamSource(kind=SourceKind.DELTA, name="table /t", path="/t")


def test_offsets_that_were_read_and_are_gone_are_named():
    done = Progress(
        offsets={"t": {"0": 100, "1": 20}, "gone": {"0": 7}},
        first_offsets={"t": {"0": 0, "1": 5}},
    )
    assert lost_offsets({"t": {"0": 0, "1": 5}, "gone": {"0": 0}}, done) == ""
    # Retention took a part of one partition, and the flow had begun behind the part of the other.
    text = lost_offsets({"t": {"0": 40, "1": 5}}, done)
    assert "t-0 0 to 39" in text
    assert "t-1" not in text
    assert "gone-0 0 to 6" in text  # a topic that is not there any more
    # What was never read cannot be lost.
    assert lost_offsets({"t": {"0": 900}}, Progress(offsets={"t": {"0": 3}})).endswith(
        "t-0 0 to 2 are not read"
    )


def test_removals_count_from_the_birth_of_the_checkpoint():
    log = LoggedRemovals(0, {3: ("DELETE", 500), 7: ("MERGE", 1500), 9: ("DELETE", 1600)})
    done = Progress(born_ms=1000)
    missing, note = lost_versions(TABLE, log, done, None, read=9)
    assert missing.endswith("by version 7 (MERGE), 9 (DELETE)")
    assert note == ""
    assert lost_versions(TABLE, log, done, None, read=0) == ("", "")  # it has read nothing yet
    own = StreamSource(kind=SourceKind.DELTA, name="t", options=(("startingversion", "2"),))
    assert "3 (DELETE), 7 (MERGE)" in lost_versions(own, log, done, None, read=9)[0]
    assert "before version 4" in lost_versions(TABLE, log, done, 4, read=9)[0]
    missing, note = lost_versions(TABLE, LoggedRemovals(5, {}), done, None, read=9)
    assert missing == ""
    assert "begins at version 5" in note


def test_files_that_are_gone_or_too_old_are_counted(tmp_path: Path):
    here = tmp_path / "a.json"
    here.touch()
    taken = {here.as_uri(): 10, f"{here.as_uri()}#1": 10, str(tmp_path / "b.json"): 20}
    nothing: Any = None
    text = lost_files(nothing, taken, Position(from_the_start=True))
    assert text.startswith("1 files")
    assert "b.json" in text
    later = Position(modified_after="2026-01-01T00:00:00.000Z")
    assert lost_files(nothing, taken, later).startswith("3 files")


def test_a_checkpoint_tells_where_kafka_was_begun(tmp_path: Path):
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "metadata").write_text('{"id": "x"}')
    # A zero byte stands before the version: Spark writes it so.
    (tmp_path / "sources" / "0" / "0").write_text('\0v1\n{"t":{"0":12}}')
    one = Checkpoint(
        flow="f",
        epoch="e",
        path=tmp_path,
        is_current=True,
        exists=True,
        query_id="x",
        planned=(_Batch(),),  # type: ignore[arg-type]
        finished=(0,),
        damaged={},
        state=(),
        size=0,
    )
    found = progress_of(one)
    assert found.first_offsets == {"t": {"0": 12}}
    assert found.offsets == {"t": {"0": 30}}
    assert found.born_ms > 0


class _Batch:
    offsets = ({"t": {"0": 30}},)
