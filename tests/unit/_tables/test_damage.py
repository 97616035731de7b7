"""Damage of a Delta log and of a checkpoint, recognized from the content of their files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock._tables.commit_note import CommitNote, NotedCommit, commits_of
from penstock._tables.commits import actions_of, lines_of
from penstock._tables.files import StorageFiles, commit_file, commit_lines
from penstock._tables.read.checkpoint_files import newest_of_checkpoint, read_checkpoint
from penstock._tables.read.damage import (
    behind,
    is_lost,
    last_batch_of,
    local_log,
    log_of,
    restored,
    restored_to,
    torn,
    unreadable,
)

APP = "shop/silver/writer/e1"
COMMIT = NotedCommit(table_id="t", version=7, batch_id=3, app_id=APP)


def line(**action: object) -> str:
    return json.dumps(action, separators=(",", ":"))


def commit(batch: int, app: str = APP) -> list[str]:
    return [line(commitInfo={"operation": "WRITE"}), line(txn={"appId": app, "version": batch})]


def test_unicode_line_separators_in_values_do_not_split_log_lines(tmp_path: Path) -> None:
    actions = [{"add": {"path": "a\u2028b\u2029\x85c"}}, {"txn": {"appId": APP, "version": 4}}]
    text = "".join(
        json.dumps(action, ensure_ascii=False, separators=(",", ":")) + "\n" for action in actions
    )
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / commit_file(0)).write_text(text, encoding="utf-8")
    lines = commit_lines(tmp_path, 0)
    assert lines is not None
    assert list(actions_of(lines, "add")) == [actions[0]["add"]]
    assert list(actions_of(['{ "add" : {"path": "a"}}'], "add")) == [{"path": "a"}]
    assert last_batch_of(lines, APP) == 4
    assert torn("\n".join(lines)) == ""
    intact = local_log(str(tmp_path))
    assert intact is not None and intact.problem == ""
    assert lines_of("") == [] and lines_of("a\n\nb") == ["a", "", "b"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ('{"add":{}}', ""),  # delta-rs writes no newline at the end
        ('{"add":{}}\n{"add":{}}\n', ""),
        ('{"add":{}}\n{"add":{"pa', "line 2 of 2"),
        ('{"ad\n{"add":{}}\n', "line 1 of 2"),
        ("[1]\n", "line 1 of 1"),
        ('{"add":{}}\n\0\0\0\0', "line 2 of 2"),
    ],
)
def test_commit_is_torn_unless_every_line_is_an_action(text: str, problem: str):
    actual = torn(text)
    assert problem in actual and bool(problem) == bool(actual)


@pytest.mark.parametrize(
    ("names", "newest", "file"),
    [
        ([0, 1, 2], 2, ""),
        ([0, 2], 2, commit_file(1)),
        ([1, 2], 2, commit_file(0)),
        ([11, 12, f"{10:020d}.checkpoint.parquet"], 12, ""),
        ([3, 9, 10, 11, f"{10:020d}.checkpoint.0000000001.0000000002.parquet"], 11, ""),
        ([12, f"{10:020d}.checkpoint.6f-1.json"], 12, commit_file(11)),
        ([9, f"{10:020d}.checkpoint.parquet"], 10, ""),
        ([f"{10:020d}.checkpoint.parquet"], 10, ""),
        ([0, 1, f"{1:020d}.crc", "_last_checkpoint", f".{2:020d}.json.x", "_commits"], 1, ""),
        ([0, 1, f"{2:020d}.{3:020d}.compacted.json"], 1, ""),
        ([], None, ""),
    ],
)
def test_versions_must_be_contiguous_after_the_newest_checkpoint(
    names: list[int | str], newest: int | None, file: str
):
    listed = [commit_file(name) if isinstance(name, int) else name for name in names]
    log = log_of(listed, lambda _: '{"add":{}}')
    assert (log.newest, log.file) == (newest, file)


def test_version_published_during_the_listing_is_not_missing():
    names = [commit_file(0), commit_file(2)]
    assert log_of(names, lambda _: "{}", {commit_file(1)}.__contains__).problem == ""
    assert log_of(names, lambda _: "{}").file == commit_file(1)


def test_only_the_newest_commit_is_read(tmp_path: Path):
    folder = tmp_path / "_delta_log"
    assert local_log(str(tmp_path)) is None
    folder.mkdir()
    (folder / commit_file(0)).write_text("{")
    (folder / commit_file(1)).write_text("{}\n")
    assert local_log(str(tmp_path)) == log_of([commit_file(0), commit_file(1)], lambda _: "{}")
    (folder / commit_file(1)).write_bytes(b'{"a":\xff')
    log = local_log(tmp_path.as_uri())
    assert log is not None
    assert log.file == commit_file(1)
    assert local_log("s3a://bucket/table") is None


@pytest.mark.parametrize(
    ("lines", "newest", "lost"),
    [
        (commit(3), 7, False),
        (commit(3), 12, False),
        (None, 6, True),
        (None, 12, False),  # Delta has deleted the old version
        (commit(3, "shop/gold/writer/e1"), 9, True),  # the version is another commit
        (commit(2), 9, True),
        ([line(commitInfo={}), '{"txn":{"appId'], 9, True),
        ([], 9, True),
    ],
)
def test_commit_is_lost_unless_its_version_has_the_batch(
    lines: list[str] | None, newest: int, lost: bool
):
    assert is_lost(COMMIT, {7: lines}.__getitem__, newest) is lost


def test_restored_version_is_read_from_the_restore_commit():
    info = {"operation": "RESTORE", "operationParameters": {"version": 5, "timestamp": None}}
    assert restored_to([line(commitInfo=info)]) == 5
    info["operationParameters"] = {"version": None, "timestamp": "2026-01-01"}
    assert restored_to([line(commitInfo=info)]) is None
    assert restored_to(commit(1)) is None


def test_commit_note_keeps_entries_of_other_tables(tmp_path: Path):
    path = str(tmp_path / "e1" / "committed.json")
    note = CommitNote(StorageFiles(None), path)
    note.update({"target": COMMIT, "quarantine": COMMIT})
    newer = replace(COMMIT, version=8, batch_id=4)
    again = CommitNote(StorageFiles(None), path)
    again.update({"target": newer})
    assert again.load() == {"target": newer, "quarantine": COMMIT}
    again.replace({})
    assert again.load() == {}


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "7",
        '{"format":2,"tables":{}}',
        '{"format":1}',
        '{"format":1,"tables":{"target":{"version":1}}}',
        '{"format":1,"tables":{"target":{"table_id":"t","version":"x","batch_id":1,"app_id":"a"}}}',
    ],
)
def test_invalid_commit_note_is_empty(text: str | None):
    assert commits_of(text) == {}


def planned(root: Path, *batches: tuple[object, ...], finished: int) -> Path:
    for folder in ("offsets", "commits"):
        (root / folder).mkdir(exist_ok=True)
    (root / "metadata").write_text('{"id":"q"}')
    for number, offsets in enumerate(batches):
        lines = [json.dumps(offset) for offset in offsets]
        (root / "offsets" / str(number)).write_text("\n".join(["v1", "{}", *lines]))
    for number in range(finished + 1):
        (root / "commits" / str(number)).write_text("v1\n{}")
    return root


def test_error_names_missing_batches_offsets_and_start_when_a_table_is_behind(tmp_path: Path):
    offsets = [({"orders": {"0": n * 10}},) for n in range(4)]
    checkpoint = read_checkpoint("silver", "e1", planned(tmp_path, *offsets, finished=3))
    damage = behind(checkpoint, "silver", "target", COMMIT, 1, 5)
    assert "batches 2 to 3 are missing" in damage.message
    assert 'from {"orders":{"0":10}} to {"orders":{"0":30}}' in damage.message
    assert """--from '{"orders":{"0":10}}' --accept-duplicates""" in damage.hint
    assert "penstock backfill silver" in damage.hint
    quarantine = behind(checkpoint, "silver", "quarantine", COMMIT, 2, 5)
    assert "quarantine of silver" in quarantine.message
    assert (
        "--accept-duplicates" not in quarantine.hint
    )  # the table already has the valid rows of these batches
    all_missing = behind(checkpoint, "silver", "target", COMMIT, -1, 0)
    assert "from the beginning to" in all_missing.message
    assert "--from earliest --accept-duplicates" in all_missing.hint


def test_offsets_are_shortened_in_the_message_and_complete_in_the_hint(tmp_path: Path):
    offsets = {"orders": {str(number): number for number in range(1000)}}
    checkpoint = read_checkpoint(
        "silver", "e1", planned(tmp_path, (offsets,), (offsets,), finished=1)
    )
    damage = behind(checkpoint, "silver", "target", replace(COMMIT, batch_id=1), 0, 1)
    assert len(damage.message) < 1200
    assert json.dumps(offsets, separators=(",", ":")) in damage.hint


@pytest.mark.parametrize(
    ("offsets", "start"),
    [
        (({"reservoirId": "r", "reservoirVersion": 9, "index": -1},), "--from version=9"),
        (({"reservoirId": "r", "reservoirVersion": 9, "index": 4},), "--from earliest`"),
        (({"logOffset": 3},), "--from earliest`"),
        (({"orders": {"0": 1}}, {"logOffset": 3}), "--from earliest`"),
        (({"a": {"0": 1}}, {"b": {"0": 2}}), """--from '{"a":{"0":1},"b":{"0":2}}' """),
        ((None,), "--from earliest`"),
    ],
)
def test_hint_names_the_start_position_when_it_is_exact(
    tmp_path: Path, offsets: tuple[object, ...], start: str
):
    checkpoint = read_checkpoint("silver", "e1", planned(tmp_path, offsets, offsets, finished=1))
    commit_1 = replace(COMMIT, version=2, batch_id=1)
    assert start in behind(checkpoint, "silver", "target", commit_1, 0, 1).hint


def test_hint_has_no_backfill_when_the_flow_has_state(tmp_path: Path):
    root = planned(tmp_path, ({"orders": {"0": 1}},), finished=0)
    (root / "state" / "0" / "0").mkdir(parents=True)
    checkpoint = read_checkpoint("silver", "e1", root)
    hint = behind(checkpoint, "silver", "target", COMMIT, 0, 5).hint
    assert "backfill" not in hint and "--accept-duplicates" not in hint
    assert "backfill" not in restored("silver", "silver", COMMIT, 5, checkpoint)


def test_hint_names_the_file_to_remove_when_its_batch_is_unwritten(tmp_path: Path):
    root = planned(tmp_path, *[({"logOffset": n},) for n in range(3)], finished=1)
    (root / "offsets" / "2").write_text("v1\n{")
    checkpoint = newest_of_checkpoint("silver", "e1", root)
    assert list(checkpoint.damaged) == ["offsets/2"]
    damage = unreadable(checkpoint, "silver", ["offsets/2 is cut"], is_unwritten=True)
    assert "The newest batch with readable offsets is 1" in damage.message
    assert "offsets/2: the table has no rows of the batch" in damage.hint
    assert "remove" not in unreadable(checkpoint, "silver", ["x"], is_unwritten=False).hint
    (root / "offsets" / "2").write_text('v1\n{}\n{"logOffset":2}')
    (root / "commits" / "2").write_text("")
    checkpoint = newest_of_checkpoint("silver", "e1", root)
    assert (
        "commits/2: the batch is repeated"
        in unreadable(checkpoint, "silver", ["x"], is_unwritten=False).hint
    )
