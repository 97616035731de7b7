"""New files are detected by name, without a listing of those that were read."""

import json
import os
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from file_stream import FileStream

from penstock._formats.options import file_options
from penstock._tables.kill_points import step_callback
from penstock.errors import FlowError
from penstock.sources.files.announced import AnnouncedFiles
from penstock.sources.files.batch_log import SourceLogs
from penstock.sources.files.discovery import Discovery
from penstock.sources.files.key_inbox import KeyInbox
from penstock.sources.files.listing import FileRoots, FoundFile, file_name, file_name_of_uri
from penstock.sources.files.name_inbox import LocalNames, NameInbox

pytestmark = pytest.mark.spark

TEXT = {"cloudFiles.format": "text", "cloudFiles.maxFilesPerTrigger": "2"}
NAMES = ("a.json", "b", "c d+%41é#.json", "_x", "_k=1", ".x", "x._COPYING_", "k=1", "[1]", "a;b,c")


@pytest.mark.parametrize("seed", range(4))
def test_new_names_are_the_files_of_a_full_listing(spark, tmp_path: Path, seed: int):
    choose = random.Random(seed)
    paths = [f"{tmp_path}/in", f"{tmp_path}//in/{{a.json,k=1}}/", f"{tmp_path}/in/k=1/../*[!d]"]
    paths += [f"file://{tmp_path}/in/b", f"{tmp_path}/in/*/_k=1", f"{tmp_path}/none"]
    options = {"format": "text"} | ({"pathGlobFilter": "{a,c d}*.json"} if seed % 2 else {})
    parsed = file_options(options, has_schema=True, streaming=True)
    roots = FileRoots(spark, choose.sample(paths, 3), parsed)
    names, known = LocalNames(spark, roots), set[Path]()
    (tmp_path / "in").mkdir()
    for _ in range(5):
        for _ in range(8):
            _change(tmp_path / "in", choose)
        new = names.new()
        assert new == names.new()
        names.confirm()
        assert not names.new()
        # A file that was removed and written again in the meantime is not new.
        known = {path for path in known if path.is_file()} | {_path(uri) for uri in new}
        listed = {Path(file_name(file.path)): (file.size, file.modified) for file in roots.list()}
        assert known == set(listed)
        assert all(listed[_path(uri)] == entry for uri, entry in new.items())


def _path(uri: str) -> Path:
    return Path(file_name_of_uri(uri))


def _change(folder: Path, choose: random.Random) -> None:
    for _ in range(choose.randrange(3)):
        folder = folder / choose.choice(NAMES)
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
            return
        folder.mkdir(exist_ok=True)
    path = folder / choose.choice(NAMES)
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif not path.exists() and choose.randrange(8) == 0:
        path.symlink_to(folder / "nothing")
    elif not path.exists():
        path.write_text("x" * choose.randrange(3), encoding="utf-8")


def test_no_file_is_skipped_or_read_again_when_the_listing_mode_changes(spark, tmp_path: Path):
    files = FileStream(spark, tmp_path, TEXT, "value STRING")
    for number in range(6):
        incremental = ("auto", "false", "true")[number % 3]
        files.options = {**TEXT, "cloudFiles.useIncrementalListing": incremental}
        for name in ("a b+é%41#", "d/k=1"):
            files.put(f"{name}{number}.txt", f"{name}{number}")
        rows = [row["value"] for row in files.run()]
        assert sorted(rows) == [f"a b+é%41#{number}", f"d/k=1{number}"]
        assert files.run() == []


def test_excluded_existing_files_need_no_batch_and_stay_excluded(spark, tmp_path: Path):
    options = {**TEXT, "cloudFiles.includeExistingFiles": "false", "pathGlobFilter": "*.txt"}
    files = FileStream(spark, tmp_path, options, "value STRING")
    files.put("another.name", "old")
    for number in range(9):
        files.put(f"{number} old.txt", "old")
    assert files.run() == []
    files.put("new.txt", "new")
    assert [row["value"] for row in files.run()] == ["new"]
    (logged,) = SourceLogs(spark, files._checkpoint).entries(0)
    assert logged[0].endswith("/new.txt")
    files.options = TEXT
    files.put("later.txt", "later")
    assert [row["value"] for row in files.run()] == ["later"]


def test_no_file_is_lost_or_read_again_when_a_process_ends_after_announcement(
    spark, tmp_path: Path
):
    files = FileStream(spark, tmp_path, TEXT, "value STRING")
    files.put("1.txt", "1")

    def end(step: str, flow: str, batch: int | None) -> None:
        assert step == "after_announcement"
        raise KeyboardInterrupt

    with step_callback(end), pytest.raises(KeyboardInterrupt):
        files.run()
    files.put("2.txt", "2")
    assert sorted(row["value"] for row in files.run()) == ["1", "2"]
    assert files.run() == []


def test_files_are_announced_by_the_next_scan_when_writing_the_log_fails(
    spark, tmp_path: Path, monkeypatch
):
    files = FileStream(spark, tmp_path, TEXT, "value STRING")
    source = files._open()
    inbox = NameInbox(source, files._checkpoint, [source.roots], "f")
    inbox.prepare()
    log, update, stop = inbox._log, AnnouncedFiles.update, threading.Event()
    files.put("1.txt", "1")
    files.put("2.txt", "2").unlink()

    def fail(*arguments: object) -> int:
        monkeypatch.setattr(AnnouncedFiles, "update", update)
        raise OSError("disk full")

    monkeypatch.setattr(AnnouncedFiles, "update", fail)
    with pytest.raises(OSError, match="disk full"):
        inbox._look(stop)
    assert inbox._look(stop) >= 0.1
    assert log.update({}) == 1
    files.put("2.txt", "2")
    inbox._look(stop)
    assert log.update({}) == 2


def test_read_files_are_pruned_when_another_stream_of_the_query_excludes_them(
    spark, tmp_path: Path
):
    files = FileStream(spark, tmp_path, {**TEXT, "pathGlobFilter": "a*"}, "value STRING")
    files.put("a1.txt", "1")
    assert len(files.run()) == 1
    source = files._open()
    options = {**TEXT, "pathGlobFilter": "b*"}
    parsed = file_options(options, has_schema=True, streaming=True)
    roots = [source.roots, FileRoots(spark, source.roots.paths, parsed)]
    inbox = NameInbox(source, files._checkpoint, roots, "f")
    inbox.prepare()
    assert inbox._log.update({}) == 0


def test_a_file_name_that_java_cannot_decode_is_skipped_and_logged(spark, tmp_path: Path, caplog):
    files = FileStream(spark, tmp_path, {"cloudFiles.format": "json"})
    files.put("1.json", '{"id": 1}')
    Path(os.fsdecode(os.fsencode(files.folder) + b"/caf\xe9.json")).write_text('{"id": 2}')
    files.put("\ufffd.json", '{"id": 3}')
    assert sorted(row["id"] for row in files.run()) == ["1", "3"]
    assert [record.message for record in caplog.records if "caf\\udce9" in record.message]


def test_unreadable_folder_fails_the_start_and_is_a_problem_while_running(
    spark, tmp_path: Path, monkeypatch
):
    files = FileStream(spark, tmp_path, TEXT, "value STRING")
    files.put("d/1.txt", "1")
    source = files._open()
    inbox = NameInbox(source, files._checkpoint, [source.roots], "f")
    scan, stop = os.scandir, threading.Event()

    # Tests may run as root, which can read every folder.
    def refuse(folder: str):
        if folder.endswith("/d"):
            raise PermissionError(13, "Permission denied", folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(FlowError, match="Permission denied") as refused:
        inbox.prepare()
    assert refused.value.condition == "FOLDER_NOT_READABLE"
    assert refused.value.retryable
    thread = threading.Thread(target=inbox.run, args=(stop,))
    thread.start()
    waiting = threading.Event()
    for _ in range(200):
        if inbox.problem is not None:
            break
        waiting.wait(0.05)
    assert "Permission denied" in (inbox.problem or "")
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_listing_by_key_starts_after_objects_that_are_ten_minutes_old(
    spark, tmp_path: Path, monkeypatch
):
    files = FileStream(spark, tmp_path, TEXT, "value STRING")
    opened = files._open()
    roots = FileRoots(spark, ["s3a://b/in"], opened.options)
    source = replace(opened, discovery=Discovery.KEYS, roots=roots)
    objects, starts, listings, clock = dict[str, float](), list[str](), list[float](), [10_000.0]

    def stored(last: str) -> list[FoundFile]:
        newer = sorted((path, at) for path, at in objects.items() if path > last)
        return [FoundFile(path, 1, int(at * 1000)) for path, at in newer]

    def after(_spark, _roots, folder: str, last: str) -> list[FoundFile]:
        assert folder == "s3a://b/in"
        starts.append(last.rpartition("/")[2])
        return stored(last)

    def list_all() -> list[FoundFile]:
        listings.append(clock[0])
        return stored("")

    def put(name: str, age: float = 0.0) -> None:
        objects[f"s3a://b/in/{name}"] = clock[0] - age

    def inbox() -> KeyInbox:
        return KeyInbox(source, files._checkpoint, [roots], "f", lambda: clock[0])

    def names() -> list[str]:
        folder = Path(str(source.announced)) / "_spark_metadata"
        newest = max(folder.glob("*.compact"), key=lambda path: int(path.stem))
        lines = newest.read_text(encoding="utf-8").splitlines()[1:]
        return sorted(json.loads(line)["path"].rpartition("/")[2] for line in lines)

    monkeypatch.setattr("penstock.sources.files.key_inbox.files_after", after)
    monkeypatch.setattr(roots, "list", list_all)
    stop = threading.Event()
    put("2", 700)
    put("3", 500)
    first = inbox()
    first.prepare()
    assert (names(), listings, starts) == (["2", "3"], [10_000.0], [])
    put("25")
    first._look(stop)
    assert (names(), starts) == (["2", "25", "3"], ["2"])
    first._log.update({}, lambda uri: True)  # Spark has read them
    first._look(stop)
    assert names() == []
    clock[0] += 650
    put("1")
    put("4")
    first._look(stop)
    assert names() == ["4"]
    first._look(stop)
    assert starts == ["2"] * 3 + ["3"]
    # The next process starts at the same key, and a complete listing has the other objects.
    second = inbox()
    second.prepare()
    assert (starts[-1], listings) == ("2", [10_000.0])
    inbox().prepare()
    assert starts[-1] == "3"
    clock[0] += 86_400
    inbox().prepare()
    assert len(listings) == 2
    assert "1" in names()


def test_read_files_are_pruned_from_the_log_when_there_are_no_new_ones(
    spark, tmp_path: Path, monkeypatch
):
    files = FileStream(spark, tmp_path, TEXT, "value STRING")
    source, stop = files._open(), threading.Event()
    inbox = NameInbox(source, files._checkpoint, [source.roots], "f")
    inbox.prepare()
    for number in range(101):
        files.put(f"{number}.txt", "x")
    inbox._look(stop)
    assert inbox._log.update({}) == 101
    monkeypatch.setattr(inbox, "_read_before", lambda: lambda uri: not uri.endswith("/7.txt"))
    inbox._look(stop)
    assert inbox._log.update({}) == 101
    inbox._prune_after = 0.0
    inbox._look(stop)
    assert inbox._log.update({}) == 1
