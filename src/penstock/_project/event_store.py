"""The event log of a pipeline in an object store: a copy below the storage root.

The driver writes its log to the local disk, and uploads changed files every few seconds and at the
end. Readers on other machines download missing and changed files. Segments only grow, so a change
is detected by size; `.last_batches` is replaced, so its change is detected by modification time.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._model.name import segment_name
from penstock._model.paths import local_path
from penstock._model.pipeline import PIPELINES, PipelineSettings
from penstock._observe.log import LAST_BATCHES, event_directory
from penstock._project.store_files import TIMEOUT_SECONDS, store_of
from penstock._runtime.lease import living_holder
from penstock._runtime.lease_paths import pipeline_lease_path
from penstock._runtime.leases import lease_seconds

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

_PUSH_SECONDS = 5.0
_PULL_SECONDS = 2.0

_logger = logging.getLogger(__name__)


class EventStore:
    """The copy of an event log at a path of a file system."""

    def __init__(self, files: "FileSystem", path: str, directory: Path) -> None:
        self._files = files
        self._path = path
        self._directory = directory
        self._versions: dict[str, int] = {}
        self._has_failed = False

    def pull(self) -> None:
        """Download the files that are newer in the storage than here, or missing here."""
        # In order: a reader considers a segment complete if the next one exists.
        for info in sorted(self._list(self._path), key=lambda info: _order(info.base_name)):
            local = self._directory / info.base_name
            version = info.mtime_ns if local.name == LAST_BATCHES else info.size
            if not local.exists() or _version(local) < version:
                self._directory.mkdir(parents=True, exist_ok=True)
                draft = local.with_name(f".{local.name}.{os.getpid()}")
                with self._files.open_input_stream(info.path) as stream:
                    draft.write_bytes(stream.read())
                os.utime(draft, ns=(info.mtime_ns,) * 2)
                draft.replace(local)
                version = _version(local)  # it may have grown since it was listed
            # Only now: `push` deletes files with a version that do not exist here.
            self._versions[local.name] = version

    def push(self) -> None:
        """Upload the files that changed since the last call, and delete those that are gone."""
        present: dict[str, tuple[int, bytes | None]] = {}
        paths = self._directory.iterdir() if self._directory.is_dir() else ()
        # Read the newest first, so that a segment before it is read only when it is complete.
        for path in sorted(paths, key=lambda path: _order(path.name), reverse=True):
            if path.name == LAST_BATCHES or path.name[0] != ".":
                with contextlib.suppress(FileNotFoundError):  # rolled up meanwhile
                    version = _version(path)
                    is_changed = version != self._versions.get(path.name)
                    present[path.name] = version, path.read_bytes() if is_changed else None
        for name, (version, content) in reversed(present.items()):
            if content is not None:
                with self._files.open_output_stream(f"{self._path}/{name}") as stream:
                    stream.write(content)
                self._versions[name] = version
        for name in self._versions.keys() - present.keys():
            with contextlib.suppress(FileNotFoundError):
                self._files.delete_file(f"{self._path}/{name}")
            del self._versions[name]

    def folders(self, name: str) -> list[str]:
        """Names of the folders in a folder next to the copy."""
        from pyarrow.fs import FileSelector, FileType

        path = f"{self._path.rpartition('/')[0]}/{name}"
        # Google's file system lists a folder only if there is an object for the folder itself.
        is_deep = self._files.type_name == "gcs"
        selector = FileSelector(path, allow_not_found=True, recursive=is_deep)
        names = set()
        for info in self._files.get_file_info(selector):
            folder, slash, _ = info.path.removeprefix(f"{path}/").partition("/")
            if slash or info.type is FileType.Directory:
                names.add(folder)
        return sorted(names)

    def holder(self, seconds: float) -> dict[str, Any] | None:
        """The record of a lease of the storage that was renewed in the last `seconds`."""
        terms = self._list(f"{self._path.rpartition('/')[0]}/state/lease")
        if not terms:
            return None
        newest = max(terms, key=lambda info: info.base_name)
        if time.time() - newest.mtime.timestamp() > seconds:
            return None
        with self._files.open_input_stream(newest.path) as stream:
            record: dict[str, Any] = json.loads(stream.read().splitlines()[0])
        return None if record.get("released") else record

    def _list(self, path: str) -> "list[FileInfo]":
        from pyarrow.fs import FileSelector, FileType

        infos = self._files.get_file_info(FileSelector(path, allow_not_found=True))
        return [info for info in infos if info.type is FileType.File]

    def attempt(self, do: Callable[[], None]) -> None:
        """Call a method of this object; warn once if the storage fails."""
        from pyarrow import ArrowException

        try:
            do()
            self._has_failed = False
        except (OSError, ArrowException) as error:  # the latter for credentials of Azure
            if not self._has_failed:
                _logger.warning("the event log in %s is not up to date: %s", self._path, error)
            self._has_failed = True

    @contextlib.contextmanager
    def repeated(self, do: Callable[[], None], seconds: float) -> Iterator[None]:
        """Call a method of this object at intervals while the block runs, and at its end."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(seconds):
                self.attempt(do)
            self.attempt(do)

        thread = threading.Thread(target=run, name="event log copy", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=2 * TIMEOUT_SECONDS)


def _version(path: Path) -> int:
    """A number that grows with each change of a file."""
    status = path.stat()
    return status.st_mtime_ns if path.name == LAST_BATCHES else status.st_size


def _order(name: str) -> tuple[int, str]:
    """The sort key of a segment by number, which the first segment's name does not contain."""
    return len(name), name


def event_store(settings: PipelineSettings) -> EventStore | None:
    """The store of a pipeline; `None` unless its storage is an object store."""
    store = store_of(settings, settings.home)
    if store is None:
        return None
    files, path = store
    return EventStore(files, f"{path}/events", event_directory(settings))


@contextlib.contextmanager
def kept_events(settings: PipelineSettings) -> Iterator[None]:
    """Keep the copy in the storage up to date while a command writes the event log."""
    store = _pulled(settings)
    with store.repeated(store.push, _PUSH_SECONDS) if store else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def followed_events(settings: PipelineSettings) -> Iterator[Path]:
    """The folder of the event log, with what other machines write while the block runs."""
    store = _pulled(settings)
    with store.repeated(store.pull, _PULL_SECONDS) if store else contextlib.nullcontext():
        yield event_directory(settings)


def read_events_of(settings: PipelineSettings) -> Path:
    """The folder of the event log, with what other machines have written."""
    _pulled(settings)
    return event_directory(settings)


def _pulled(settings: PipelineSettings) -> EventStore | None:
    store = event_store(settings)
    if store is not None:
        store.attempt(store.pull)
    return store


def pipelines_of(settings: PipelineSettings) -> list[PipelineSettings]:
    """The settings of each pipeline that may exist in the storage of a pipeline."""
    alone = replace(settings, shared_storage=False)
    local, store = local_path(settings.storage), event_store(alone)
    names: list[str] = []
    if local is not None and (local / PIPELINES).is_dir():
        names = [path.name for path in (local / PIPELINES).iterdir()]
    elif store is not None:
        names = store.folders(PIPELINES)
    shared = (
        replace(settings, shared_storage=True, name=segment_name(name)) for name in sorted(names)
    )
    return [alone, *shared]


def holder_of(settings: PipelineSettings) -> Mapping[str, Any] | None:
    """The record of the holder of a pipeline's lease (`pid`, `host`, ...), on any machine."""
    holder = living_holder(pipeline_lease_path(settings.home))
    store = None if holder is not None else event_store(settings)
    if store is not None:
        from pyarrow import ArrowException

        with contextlib.suppress(OSError, ValueError, ArrowException):
            return store.holder(lease_seconds(settings.configuration))
    return holder
