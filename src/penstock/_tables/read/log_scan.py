"""Reads facts about a table directly from the newest commits of its log.

Delta would compute the state of the whole table, which takes one or two Spark jobs: most of the
time of a small update. Results are partial, or `None`, if the log is too long or was cleaned up.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

from pyspark.sql import SparkSession

from penstock._tables.commits import CommitResult, actions_of, result_from_commit
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import local_path

NEWEST = 20
_WHOLE = 100
_READERS = 8


def last_batch(delta: DeltaJvm, path: str, version: int, app_id: str) -> int | None:
    """The last batch of an app id at a version; -1 if the whole log has none."""
    for _, lines in _commits(delta, path, range(version, max(version - NEWEST, -1), -1)):
        if lines is None:
            return None
        for transaction in actions_of(lines, "txn"):
            if transaction["appId"] == app_id:
                return int(transaction["version"])
    return -1 if version < NEWEST else None


def last_batches(delta: DeltaJvm, path: str, version: int, after: int = -1) -> dict[str, int]:
    """The last batch of each app id in the newest commits after a version."""
    last: dict[str, int] = {}
    for _, lines in _commits(delta, path, range(version, max(version - NEWEST, after), -1)):
        for transaction in actions_of(lines or (), "txn"):
            last.setdefault(transaction["appId"], int(transaction["version"]))
    return last


def read_commit_counts(
    spark: SparkSession, path: str, since_version: int = -1
) -> list[CommitResult]:
    """The records of Penstock's commits after a version, oldest first, without deleted commits."""
    delta = DeltaJvm(spark)
    results = []
    # Backwards to the first deleted commit: all older ones were deleted, too.
    versions = range(delta.version(path), max(since_version, -1), -1)
    for version, lines in _commits(delta, path, versions):
        if lines is None:
            break
        result = result_from_commit(version, next(actions_of(lines, "commitInfo"), {}))
        if result is not None:
            results.append(result)
    return results[::-1]


def append_only_start(
    delta: DeltaJvm, path: str, version: int, *, most: int = _WHOLE
) -> int | None:
    """The version from which a stream gets every row of the table by reading only appends.

    It is 0, or the version after the last commit that removed all rows. `None` if files were
    removed since, even by a compaction (VACUUM may have deleted the files of older commits), if
    columns or partitions changed, or if the log is incomplete or longer than `most`.
    """
    if version > most:
        return None
    start: int | None = 0
    shape: tuple[str, ...] | None = None
    live: set[tuple[str, str]] = set()
    for at, lines in _commits(delta, path, range(version + 1)):
        if not _is_whole(lines):
            return None
        new_shape = _shape(lines) or shape
        if shape is not None and new_shape != shape:
            start = None
        shape = new_shape
        removed, added = list(actions_of(lines, "remove")), list(actions_of(lines, "add"))
        live -= set(map(file_identity, removed))
        live |= set(map(file_identity, added))
        if any(file.get("deletionVector") for file in added):
            start = None
        elif removed:
            start = None if live else at + 1
    return start if start is not None and start <= version else None


@dataclass(frozen=True)
class LoggedRemovals:
    """Commits that deleted or changed rows, without compactions."""

    first: int  # the oldest version whose commit is still in the log
    versions: Mapping[int, tuple[str, int]]  # version to operation and time in milliseconds


def logged_removals(delta: DeltaJvm, path: str, version: int) -> LoggedRemovals:
    removals: dict[int, tuple[str, int]] = {}
    first = version + 1
    for at, lines in _commits(delta, path, range(version, -1, -1)):
        if lines is None:
            break
        first = at
        if any(file.get("dataChange", True) for file in actions_of(lines, "remove")):
            info = next(actions_of(lines, "commitInfo"), {})
            removals[at] = str(info.get("operation", "unknown")), int(info.get("timestamp", 0))
    return LoggedRemovals(first, dict(sorted(removals.items())))


def keeps_rows(delta: DeltaJvm, path: str, since: int, version: int) -> bool:
    """Whether the commits after a version only rearranged the rows, such as those of OPTIMIZE."""
    if not since <= version <= since + _WHOLE:
        return False
    for _, lines in _commits(delta, path, range(version, since, -1)):
        if not _is_whole(lines) or any(actions_of(lines, "metaData")):
            return False
        files = [*actions_of(lines, "add"), *actions_of(lines, "remove")]
        if any(file.get("dataChange", True) for file in files):
            return False
    return True


def replaced_at(delta: DeltaJvm, path: str, version: int) -> int:
    """The timestamp, in ms, at which all rows of a table were last removed or replaced.

    It is 0 if unknown, or if the rows were never replaced. A RESTORE counts as the version that it
    restored.
    """
    at = version
    while at >= 0:
        info = delta.commit_info(path, at)
        if info is None:
            break
        operation, parameters = info.get("operation"), info.get("operationParameters", {})
        if operation == "RESTORE" and str(parameters.get("version", "")).isdecimal():
            at = int(parameters["version"])
            continue
        if _overwrites(info) or (
            operation == "STREAMING UPDATE" and parameters.get("outputMode") == "Complete"
        ):
            return int(info.get("timestamp", 0))
        at -= 1
    return 0


def file_identity(file: Mapping[str, Any]) -> tuple[str, str]:
    """Path and deletion vector of a file in an action."""
    vector = file.get("deletionVector")
    return file["path"], json.dumps(vector, sort_keys=True) if vector else ""


def _commits(
    delta: DeltaJvm, path: str, versions: Sequence[int]
) -> Iterator[tuple[int, list[str] | None]]:
    """The lines of each commit, `None` if it was deleted.

    On remote storage, each commit is a request: the first one, which is often sufficient, is read
    alone, and the others several at a time.
    """
    read = partial(delta.commit_lines, path)
    if local_path(path) is not None:
        yield from zip(versions, map(read, versions), strict=True)
        return
    yield from zip(versions[:1], map(read, versions[:1]), strict=True)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="log-scan") as pool:
        for start in range(1, len(versions), _READERS):
            part = versions[start : start + _READERS]
            yield from zip(part, pool.map(read, part), strict=True)


def _is_whole(lines: list[str] | None) -> TypeGuard[list[str]]:
    """Whether a commit was not deleted; `ValueError` if its end is missing."""
    if lines:
        json.loads(lines[-1])
    return lines is not None


def _shape(lines: list[str]) -> tuple[str, ...] | None:
    metadata = list(actions_of(lines, "metaData"))
    return (metadata[-1]["schemaString"], *metadata[-1]["partitionColumns"]) if metadata else None


def _overwrites(info: Mapping[str, Any]) -> bool:
    parameters = info.get("operationParameters", {})
    is_overwrite = info.get("operation") == "WRITE" and parameters.get("mode") == "Overwrite"
    return is_overwrite and "predicate" not in parameters
