"""The copy of an event log, on a file system of pyarrow that is a folder here."""

from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem

from penstock._project.event_store import EventStore


class Broken:
    """A file system whose downloads of one file fail."""

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


def test_a_file_that_was_not_downloaded_is_not_deleted_from_the_copy(
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


def test_the_copy_follows_files_that_grow_appear_and_go(tmp_path: Path) -> None:
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
