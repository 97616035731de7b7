"""The local copy of an event log; a folder replaces the remote pyarrow file system."""

import os
from pathlib import Path
from typing import Any

import pytest
from pyarrow import ArrowException
from pyarrow.fs import FileInfo, FileSelector, FileType, LocalFileSystem

from penstock._observe.segments import updates
from penstock._project.event_store import EventStore


class Broken:
    """A file system on which downloads of one file fail."""

    def __init__(self, name: str) -> None:
        self._files, self._name = LocalFileSystem(), name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open_input_stream(self, path: str) -> Any:
        if path.endswith(self._name):
            raise OSError("the connection was lost")
        return self._files.open_input_stream(path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_remote_file_is_kept_when_its_download_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    remote.mkdir()
    (remote / "a.jsonl").write_text("1")
    (remote / "b.jsonl").write_text("2")
    store = EventStore(Broken("b.jsonl"), str(remote), local)
    store.attempt(store.pull)
    assert "the connection was lost" in caplog.text
    store.push()
    assert names(remote) == ["a.jsonl", "b.jsonl"]


def test_file_that_grows_during_its_download_is_not_uploaded(tmp_path: Path) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    remote.mkdir()
    (remote / "a.jsonl").write_text("1")

    class Growing(Broken):
        def open_input_stream(self, path: str) -> Any:
            (remote / "a.jsonl").write_text("12")
            return self._files.open_input_stream(path)

    store = EventStore(Growing(""), str(remote), local)
    store.pull()
    (remote / "a.jsonl").write_text("123")
    store.push()
    assert (remote / "a.jsonl").read_text() == "123"


def test_copy_has_changed_added_and_removed_files(tmp_path: Path) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    remote.mkdir()
    (remote / "a.jsonl").write_text("1")
    store = EventStore(LocalFileSystem(), str(remote), local)
    store.pull()
    (local / "b.jsonl").write_text("2")
    (local / ".queried").write_text("")
    store.push()
    (local / "b.jsonl").write_text("22")
    (local / "a.jsonl").unlink()
    store.push()
    assert names(remote) == ["b.jsonl"]
    assert (remote / "b.jsonl").read_text() == "22"


def test_copy_has_the_newest_last_batches(tmp_path: Path) -> None:
    remote, local, other = (tmp_path / name for name in ("remote", "local", "other"))
    remote.mkdir()
    local.mkdir()
    writer = EventStore(LocalFileSystem(), str(remote), local)
    reader = EventStore(LocalFileSystem(), str(remote), other)
    for second, text in enumerate(('{"a":[7,1]}', '{"a":[8,2]}', '{"a":[9,3]}')):
        (local / ".last_batches").write_text(text)
        os.utime(local / ".last_batches", (second, second))
        writer.push()
        os.utime(remote / ".last_batches", (second + 10, second + 10))
        reader.pull()
        assert (other / ".last_batches").read_text() == text


def test_reader_of_the_copy_gets_all_events_while_segments_grow(tmp_path: Path) -> None:
    """The reader follows a local folder into which another process downloads the log."""
    written, remote, read = tmp_path / "written", tmp_path / "remote", tmp_path / "read"
    writer = EventStore(LocalFileSystem(), str(remote), written)
    reader = EventStore(LocalFileSystem(), str(remote), read)
    remote.mkdir()
    written.mkdir()
    first, second = (f"20260304T100000000000Z-u1{end}.jsonl" for end in ("", ".0002"))

    class Listed:
        """Lists the second segment before the first and records the downloads."""

        def __init__(self) -> None:
            self.order: list[str] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(LocalFileSystem(), name)

        def get_file_info(self, selector: FileSelector) -> list[FileInfo]:
            infos = LocalFileSystem().get_file_info(selector)
            return sorted(infos, key=lambda info: info.base_name)

        def open_input_stream(self, path: str) -> Any:
            self.order.append(Path(path).name)
            return LocalFileSystem().open_input_stream(path)

    (written / first).write_text('{"n":1}\n')
    writer.push()
    reader.pull()
    (update,) = updates(read)
    assert update.update_id == "u1"
    steps = iter(range(4))

    def wait() -> bool:
        step = next(steps)
        if step == 0:
            (written / first).write_text('{"n":1}\n{"n":2}\n')
        elif step == 1:
            (written / first).write_text('{"n":1}\n{"n":2}\n{"n":3}\n')
            (written / second).write_text('{"n":4}\n')
        writer.push()
        reader.pull()
        return step < 3

    lines = [line.decode().strip() for line in update.lines(wait)]
    assert lines == [f'{{"n":{number}}}' for number in (1, 2, 3, 4)]
    files = Listed()
    EventStore(files, str(remote), tmp_path / "third").pull()  # type: ignore[arg-type]
    assert files.order == [first, second]


@pytest.mark.parametrize("kind", ["local", "gcs"])
def test_folders_of_the_store_are_listed(tmp_path: Path, kind: str) -> None:
    for name in ("orders", "customers"):
        (tmp_path / "pipelines" / name / "events").mkdir(parents=True)
        (tmp_path / "pipelines" / name / "events" / "a.jsonl").write_text("1")
    (tmp_path / "pipelines" / "file").write_text("")

    class Listed:
        type_name = kind

        def get_file_info(self, selector: FileSelector) -> list[FileInfo]:
            infos = LocalFileSystem().get_file_info(selector)
            # Google's file system lists objects only.
            return [info for info in infos if kind == "local" or info.type is FileType.File]

    files: Any = Listed()
    store = EventStore(files, str(tmp_path / "events"), tmp_path / "here")
    assert store.folders("pipelines") == ["customers", "orders"]


def test_credential_error_is_logged_as_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = EventStore(LocalFileSystem(), str(tmp_path), tmp_path)

    def refused() -> None:
        raise ArrowException("no token")  # pyarrow raises it for Azure; it is not an OSError

    store.attempt(refused)
    assert "no token" in caplog.text
