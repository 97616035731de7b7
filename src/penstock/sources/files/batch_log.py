"""The log of Spark's file source: the files of a micro-batch, and those to be read again.

Spark stores each path that it has read in the source's log, and reads no path again. For a stream
that allows files to be overwritten, the entries of changed files get a URI fragment, which no path
of a file has. Entries of a batch that was not committed are not changed: it may be replayed.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from pyspark.sql import SparkSession

from penstock._tables.commits import lines_of
from penstock._tables.files import StorageFiles
from penstock.errors import ConnectorError
from penstock.sources.files.listing import file_name, file_name_of_uri
from penstock.sources.files.log_files import LogFiles
from penstock.sources.files.opening import EXISTING, QUARANTINED, OpenedFiles

_NUMBER = re.compile(r"(\d+)(\.compact)?")


def batch_files(files: StorageFiles, checkpoint: str, batch_id: int) -> dict[str, int]:
    """The files of a planned micro-batch, of all file sources of the query.

    Maps each URI to the file's modification time, in milliseconds since 1970.
    """
    ends = last_entries(files, checkpoint, batch_id)
    starts = last_entries(files, checkpoint, batch_id - 1) if batch_id > 0 else []
    batch: dict[str, int] = {}
    for source, end in enumerate(ends):
        if end is None:
            continue
        start = starts[source] if source < len(starts) else None
        for number in range(-1 if start is None else start, end):
            batch |= _logged(files, f"{checkpoint}/sources/{source}", number + 1)
    return batch


def last_entries(files: StorageFiles, checkpoint: str, batch_id: int) -> list[int | None]:
    """The last log entry of each source up to a batch, in order; `None` for other sources."""
    text = files.read(f"{checkpoint}/offsets/{batch_id}") or ""
    counts: list[int | None] = []
    # Two header lines, then one line for each source.
    for line in lines_of(text)[2:]:
        try:
            offset = json.loads(line)
        except json.JSONDecodeError:
            offset = None
        end = offset.get("logOffset") if isinstance(offset, dict) else None
        counts.append(int(end) if end is not None else None)
    return counts


def _logged(files: StorageFiles, log: str, number: int) -> dict[str, int]:
    for name in (f"{number}", f"{number}.compact"):
        text = files.read(f"{log}/{name}")
        if text is None:
            continue
        # A compacted entry includes all earlier entries.
        return {path: changed for path, changed, batch in logged_files(text) if batch == number}
    return {}


def logged_files(text: str) -> Iterator[tuple[str, int, int]]:
    """Path (a URI), time of the last change, and log entry of each file in the text of a log."""
    for line in lines_of(text)[1:]:
        with suppress(ValueError, KeyError, TypeError):  # initial offsets of another source
            body = json.loads(line)
            yield str(body["path"]), int(body["timestamp"]), int(body["batchId"])


def forget_overwritten(
    spark: SparkSession, sources: Sequence[OpenedFiles], checkpoint: str
) -> list[str]:
    """Make a query read the files again that changed since it read them; returns their names.

    Called before the query starts. If it is interrupted, the next start completes it.
    Changed files are also removed from the lists of quarantined files and of files that existed
    before the first start; a query that was created before still excludes them.
    """
    allowing = [source for source in sources if source.options.allow_overwrites]
    if not allowing:
        return []
    logs = SourceLogs(spark, checkpoint)
    ends = logs.committed()
    if not ends:
        return []
    modified: dict[str, int] = {}
    for source in allowing:
        for file in source.roots.list():
            name = file_name(file.path)
            _refuse_shared(name, sources)
            modified[name] = file.modified
    changed: set[str] = set()
    for number, end in enumerate(ends):
        if end is not None:
            changed |= logs.rename(number, end, modified)
    for source in allowing:
        _forget_notes(source, changed)
    return sorted(changed)


def _refuse_shared(name: str, sources: Sequence[OpenedFiles]) -> None:
    # Which log belongs to which source is unknown, so both would read the file again.
    others = [other for other in sources if not other.options.allow_overwrites]
    if any(other.roots.includes(name) for other in others):
        raise ConnectorError(
            "AUTOLOADER_OPTION_INVALID",
            f"two sources of one query read {name}, and cloudFiles.allowOverwrites is set for one "
            "of them only",
            hint="set it for both, or read the folder once, in a table of its own",
        )


def _forget_notes(source: OpenedFiles, changed: set[str]) -> None:
    listed = source.state.note(QUARANTINED) or []
    kept = [entry for entry in listed if entry["file"] not in changed]
    if len(kept) < len(listed):
        source.state.save_note(QUARANTINED, kept)
    still = [name for name in source.existing if name not in changed]
    if len(still) < len(source.existing):
        source.state.save_note(EXISTING, still)


class SourceLogs(LogFiles):
    """The logs of a query's file sources, below its checkpoint."""

    def committed(self) -> list[int | None]:
        """The last log entry of each source in the newest committed batch; `None` for others."""
        batches = [int(name) for name in self.names("commits") if name.isdigit()]
        return last_entries(self.files, self._root, max(batches)) if batches else []

    def entries(self, source: int) -> list[tuple[str, int, int]]:
        """As `logged_files`, of all files of a source."""
        entries: list[tuple[str, int, int]] = []
        for name in self._current(f"sources/{source}"):
            entries += logged_files(self.read(f"sources/{source}/{name}") or "")
        return entries

    def rename(self, source: int, end: int, modified: Mapping[str, int]) -> set[str]:
        """Change the paths of entries up to `end` whose files are newer; returns their names."""
        folder = f"sources/{source}"
        names: set[str] = set()
        for name in self._current(folder):
            text = self.read(f"{folder}/{name}") or ""
            version, *lines = lines_of(text)
            renamed = [_renamed(line, end, modified) for line in lines]
            changed = {entry[0] for entry in renamed if entry is not None}
            if changed:
                names |= changed
                new = [old if r is None else r[1] for old, r in zip(lines, renamed, strict=True)]
                self.write(f"{folder}/{name}", "\n".join([version, *new]), replace=True)
        return names

    def _current(self, folder: str) -> list[str]:
        """The files that Spark reads at a start: the newest compacted one, and those after it."""
        matches = [m for name in self.names(folder) if (m := _NUMBER.fullmatch(name))]
        compacted = max((int(m[1]) for m in matches if m[2]), default=-1)
        return [m[0] for m in matches if int(m[1]) > compacted or (m[2] and int(m[1]) == compacted)]


def _renamed(line: str, end: int, modified: Mapping[str, int]) -> tuple[str, str] | None:
    entry = json.loads(line)
    name = file_name_of_uri(entry["path"])
    if entry["batchId"] > end or modified.get(name, 0) <= entry["timestamp"]:
        return None
    entry["path"] = f"{entry['path']}#{entry['timestamp']}"
    return name, json.dumps(entry, separators=(",", ":"))
