"""Files as sources: Spark's own streams of them, and Auto Loader (`cloudFiles`)."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession

from penstock._formats.options import ANY_AGE, file_options
from penstock._model.flow import Flow
from penstock._model.paths import real_path
from penstock._model.quantity import plural
from penstock._tables.files import StorageFiles
from penstock._tables.read.checkpoint_files import Checkpoint
from penstock.errors import PenstockError
from penstock.sources.base import (
    Loss,
    OpenedSource,
    Position,
    Range,
    RangeReport,
    Read,
    Source,
    StartKind,
    StartPosition,
    StartReport,
    first_ms,
    iso,
    not_read_yet,
    path_key,
)
from penstock.sources.files.batch_log import (
    SourceLogs,
    batch_files,
    forget_overwritten,
    logged_files,
)
from penstock.sources.files.cleaning import Cleaner, refuse_shared
from penstock.sources.files.discovery import Discovery
from penstock.sources.files.inbox import FileInbox
from penstock.sources.files.key_inbox import KeyInbox
from penstock.sources.files.lag import UNKNOWN_FILES, PendingFiles
from penstock.sources.files.listing import FileRoots, file_name, file_name_of_uri, in_range
from penstock.sources.files.name_inbox import NameInbox
from penstock.sources.files.opening import (
    EXISTING,
    OpenedFiles,
    keep_existing,
    open_source,
    read_source,
)
from penstock.sources.files.queue_inbox import QueueInbox
from penstock.sources.files.recovery import check_files, missing_files, recover

FORMATS = ("json", "csv", "parquet", "orc", "text", "avro", "xml")
_DESCRIPTION = "FileStreamSource["
_FOLDER_OPTIONS = ("sourcearchivedir", "cloudfiles.cleansource.movedestination")
_TIME_OPTIONS = {"modifiedAfter": "modified_after", "modifiedBefore": "modified_before"}
_NAME_OPTIONS = ("pathglobfilter", "filenamepattern")
_OF_THE_FLOW = ("cleansource", "cloudfiles.cleansource")
"""Options that a backfill of a range ignores: it must not delete files."""
INBOXES: Mapping[Discovery, type[FileInbox]] = {
    Discovery.QUEUE: QueueInbox,
    Discovery.NAMES: NameInbox,
    Discovery.KEYS: KeyInbox,
}
_EXISTING_FILES = ("includeexistingfiles", "cloudfiles.includeexistingfiles")


class FileSource(Source):
    """Spark's own streams of files, and batches of them."""

    formats: ClassVar[Sequence[str]] = (*FORMATS, "binaryFile")

    def check_options(self, options: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
        if not is_stream or "maxfileage" in {name.lower() for name in options}:
            return dict(options)
        # Spark silently skips files that are more than 7 days older than the newest one seen.
        return {**options, "maxFileAge": ANY_AGE}

    def map_options(
        self, options: Mapping[str, str], map_path: Callable[[str], str]
    ) -> dict[str, str]:
        return {
            name: real_path(value, map_path) if name.lower() in _FOLDER_OPTIONS and value else value
            for name, value in options.items()
        }

    def open(self, read: Read) -> OpenedSource:
        name = f"files {read.paths[0]}" if read.paths else "files"
        if not read.is_stream:
            return OpenedSource(read.load(read.options), name=name)
        # Spark's own streams do not accept the time limits as options.
        rows = read.load(options_at(read.options, read.position, times=False))
        limits = (read.position.get(key) for key in ("files", "modified_after", "modified_before"))
        for condition in in_range(*limits):
            rows = rows.where(condition)
        names = {k: v for k, v in read.options.items() if k.lower() == "pathglobfilter"}
        chosen = file_options({**names, "format": "text"}, has_schema=True, streaming=True)
        roots = FileRoots(read.spark, read.paths, chosen) if read.paths else None
        stream = FileStream(rows, read.spark, name=name, paths=read.paths, roots=roots)
        deep = {v.lower() for k, v in read.options.items() if k.lower() == "recursivefilelookup"}
        stream.is_deep = "true" in deep
        return stream


class AutoLoaderSource(FileSource):
    """Auto Loader: files with an inferred schema that evolves without loss of data."""

    formats = ("cloudfiles",)

    def check_options(self, options: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
        return dict(options)

    def describe(self, read: Read) -> str:
        kinds = [v for k, v in read.options.items() if k.lower() in ("cloudfiles.format", "format")]
        return f"{kinds[0].lower() if kinds else 'files'} {','.join(read.paths)}"

    def open(self, read: Read) -> OpenedSource:
        options = read.options
        if "modified_before" in read.position:  # a range that the flow has read before
            options = {k: v for k, v in options.items() if k.lower() not in _OF_THE_FLOW}
        elif read.position.get("from_the_start") or "modified_after" in read.position:
            # The position determines which of the existing files are read.
            options = {k: v for k, v in options.items() if k.lower() not in _EXISTING_FILES}
        if read.is_stream:
            options = options_at(options, read.position, times=True)
        opened = open_source(replace(read, options=options))
        return AutoLoaderStream(read_source(opened), opened, paths=read.paths, flow=read.flow)


class FileStream(OpenedSource):
    """A stream of files. Positions are modification times; see `OpenedSource`."""

    has_files = True
    is_deep = False
    _roots: FileRoots | None = None

    def __init__(
        self,
        rows: DataFrame,
        spark: SparkSession,
        *,
        name: str,
        paths: Sequence[str] = (),
        roots: FileRoots | None = None,
    ) -> None:
        super().__init__(rows, name=name, unit="files")
        self.paths = paths
        self._roots = roots
        self._spark = spark
        self._lag = PendingFiles(spark)

    def includes(self, path: str) -> bool:
        return self._roots is not None and self._roots.includes(path, deep=self.is_deep)

    def lag(
        self, progress: Mapping[str, Any], java_source: Callable[[], Any]
    ) -> dict[str, Any] | None:
        if not str(progress.get("description", "")).startswith(_DESCRIPTION):
            return None
        java = java_source()
        return dict(UNKNOWN_FILES) if java is None else self._lag.measure(java)

    def start(
        self, at: StartPosition, done: Sequence[Checkpoint], now_ms: int
    ) -> tuple[Position, StartReport]:
        since = first_ms(at, now_ms, "files")
        taken = _taken_by(done)
        if at.kind is StartKind.LATEST:
            # S3 stores whole seconds: a later file may have an earlier time.
            since = min(now_ms, max(now_ms // 1000 * 1000, max(taken.values(), default=0) + 1))
        own = self._own(taken).values()
        again = len([1 for changed in own if since is None or changed >= since])
        if since is None:
            return {"from_the_start": True}, self.start_report(again, 0, done)
        return {"modified_after": iso(since - 1)}, self.start_report(again, None, done)

    def range(self, wanted: Range, done: Checkpoint) -> tuple[Position, RangeReport]:
        since = first_ms(wanted.begin, wanted.now_ms, "files")
        read = _taken_by([done])
        if wanted.end is None:
            # Files that are newer than those that were read are left to the next update.
            before = max(read.values(), default=wanted.now_ms) + 1
        else:
            # No file is before the earliest one.
            before = first_ms(wanted.end, wanted.now_ms, "files") or 0
        taken = [
            path
            for path, changed in self._own(read).items()
            if (since is None or changed >= since)
            and changed < before
            and _is_named(path, wanted.files)
        ]
        text = f"changed from {'the beginning' if since is None else wanted.begin} to {iso(before)}"
        text += f", {wanted.files}" if wanted.files else ""
        position: dict[str, Any] = {"modified_before": iso(before)}
        if since is not None:
            position["modified_after"] = iso(since - 1)
        if wanted.files is not None:
            position["files"] = wanted.files
        return position, self.range_report(len(taken), text)

    def check_range(
        self, position: Position, done: Checkpoint, checkpoint: str, batch: int
    ) -> None:
        after, before = position.get("modified_after"), position.get("modified_before")
        taken = {path_key(path) for path in _taken_by([done])}
        new = [
            path
            for path, changed in batch_files(StorageFiles(self._spark), checkpoint, batch).items()
            if (after is None or iso(changed) > after)
            and (before is None or iso(changed) < before)
            and _is_named(path, position.get("files"))
            and path_key(path) not in taken
        ]
        if new:
            raise not_read_yet(done.flow, f"{len(new)} files such as {new[0]}")

    def history(
        self, at: StartPosition, done: Sequence[Checkpoint], now_ms: int
    ) -> tuple[Position, StartReport]:
        position, report = self.start(at, done, now_ms)
        after = position.get("modified_after")
        gone = [
            path
            for path, changed in self._own(_taken_by(done)).items()
            if (after is not None and iso(changed) <= after)
            or not StorageFiles(self._spark).exists(_file_of(path))
        ]
        missing = ""
        if gone:
            missing = (
                f"{plural(len(gone), 'file')} that the flow has read cannot be read again, such as "
                f"{gone[0]}: deleted, or before the start"
            )
        return position, replace(report, missing=missing)

    def _own(self, taken: Mapping[str, int]) -> dict[str, int]:
        """The files without those that only other streams of the query read."""
        roots = self._roots
        own = {
            path: changed
            for path, changed in taken.items()
            if roots is None or roots.includes(_file_of(path))
        }
        # Hadoop completes some paths, such as `hdfs:///in`, which then include none of the files.
        return own or dict(taken)


class AutoLoaderStream(FileStream):
    """A stream of files that Auto Loader has opened."""

    is_deep = True

    def __init__(
        self, rows: DataFrame, opened: OpenedFiles, *, paths: Sequence[str], flow: str
    ) -> None:
        name = f"files {', '.join(paths)}"
        super().__init__(rows, opened.spark, name=name, paths=paths, roots=opened.roots)
        self.opened = opened
        self._flow = flow
        self._inbox: FileInbox | None = None
        self._has_batch = False
        self._missing: list[str] = []
        self._stop = threading.Event()

    def prepare_start(self, checkpoint: str, siblings: Sequence[OpenedSource]) -> str | None:
        if self.opened.options.cleaning is not None:
            streams = [other for other in siblings if isinstance(other, FileStream)]
            others = [path for other in streams if other is not self for path in other.paths]
            refuse_shared(self.opened, others)
        is_undecided = self.opened.state.note(EXISTING) is None
        if is_undecided and SourceLogs(self._spark, checkpoint).committed():
            # `check_batch` is not called if the flow writes to one of Spark's own sinks.
            keep_existing(self.opened)
        sources = [other.opened for other in siblings if isinstance(other, AutoLoaderStream)]
        again = forget_overwritten(self._spark, sources, checkpoint)
        self._inbox = self._open_inbox(checkpoint, siblings)
        if self._inbox is not None:
            self._inbox.prepare()
        if not again:
            return None
        shown = ", ".join(again[:3]) + (" ..." if len(again) > 3 else "")
        return f"{plural(len(again), 'file')} changed, and will be read again: {shown}"

    def started(self, checkpoint: str, siblings: Sequence[OpenedSource]) -> None:
        if self.opened.options.cleaning is not None:
            self._run_beside("clean", Cleaner(self.opened, checkpoint).run)
        if self._inbox is None:  # the query was evaluated again after `prepare_start`
            self._inbox = self._open_inbox(checkpoint, siblings)
        if self._inbox is not None:
            self._run_beside("receive", self._inbox.run)

    def _open_inbox(self, checkpoint: str, siblings: Sequence[OpenedSource]) -> FileInbox | None:
        """The inbox that announces new files; `None` if Spark lists them."""
        if self.opened.discovery is Discovery.SPARK:
            return None
        streams = [other for other in siblings if isinstance(other, FileStream)]
        roots = [s.opened.roots if isinstance(s, AutoLoaderStream) else None for s in streams]
        return INBOXES[self.opened.discovery](self.opened, checkpoint, roots, self._flow)

    def _run_beside(self, what: str, run: Callable[[threading.Event], None]) -> None:
        name = f"{what} {self.name}"
        threading.Thread(target=run, args=(self._stop,), name=name, daemon=True).start()

    def ended(self) -> None:
        self._stop.set()

    def check_batch(self, checkpoint: str, batch_id: int) -> None:
        if not self._has_batch:
            # Not at the start: a start that fails before its first batch must not decide this.
            keep_existing(self.opened)
            self._has_batch = True
        files: Mapping[str, int] = {}
        if self.opened.compares_files or self.opened.roots.are_local:
            files = batch_files(StorageFiles(self._spark), checkpoint, batch_id)
        if self.opened.roots.are_local:
            self._missing = missing_files(self.opened, files, self._flow)
        check_files(self.opened, files)

    def lost(self, progress: Mapping[str, Any]) -> Sequence[Loss]:
        missing, self._missing = self._missing, []
        return [Loss(text=file, body={"file": file}) for file in missing]

    def explain(self, text: str, flow: Flow) -> PenstockError | None:
        return recover(text, self.opened, flow)

    def description(self, text: str) -> str:
        """See `OpenedSource.description`: Spark shows only the folder of the announced files."""
        return f"{_DESCRIPTION}{', '.join(self.paths)}]" if self._is_announced(text) else text

    def _is_announced(self, text: str) -> bool:
        announced = self.opened.announced
        path = text.removeprefix(_DESCRIPTION).removesuffix("]")
        return announced is not None and file_name(path) == file_name(announced)

    def lag(
        self, progress: Mapping[str, Any], java_source: Callable[[], Any]
    ) -> dict[str, Any] | None:
        if self._inbox is None:
            return super().lag(progress, java_source)
        if not self._is_announced(str(progress.get("description", ""))):
            return None
        body = super().lag(progress, java_source)
        if body is not None and self._inbox.problem is not None:
            body["problem"] = self._inbox.problem
        return body


def options_at(options: Mapping[str, str], position: Position, *, times: bool) -> dict[str, str]:
    """The options with the times and names of a range; a name pattern of the user is kept."""
    own = {option: option.lower().removeprefix("cloudfiles.") for option in options}
    wanted = {
        name: position[key] for name, key in _TIME_OPTIONS.items() if times and key in position
    }
    replaced = {name.lower() for name in wanted}
    if "files" in position and not set(own.values()).intersection(_NAME_OPTIONS):
        wanted["pathGlobFilter"] = position["files"]
    return {option: v for option, v in options.items() if own[option] not in replaced} | wanted


def _is_named(uri: str, pattern: str | None) -> bool:
    return pattern is None or fnmatchcase(_file_of(uri).rpartition("/")[2], pattern)


def _file_of(uri: str) -> str:
    """The file of a log entry; a fragment marks one that was read before it changed."""
    return file_name_of_uri(uri.partition("#")[0])


def _taken_by(done: Sequence[Checkpoint]) -> dict[str, int]:
    files: dict[str, int] = {}
    for checkpoint in done:
        for log in (checkpoint.path / "sources").glob("*/*"):
            if not log.is_file() or not log.name.removesuffix(".compact").isdecimal():
                continue
            for path, changed, _ in logged_files(log.read_text(encoding="utf-8")):
                files[path] = changed
    return files
