"""Answers that the newest commits of a table's log give at once.

Delta would answer all of them from the state of the whole table, which takes a Spark job or two:
the larger part of a small update. Each function gives up (`None`) where the log is long or cleaned
up; the caller then asks Delta.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock._tables.delta_log import DeltaJvm

_NEWEST = 20
_WHOLE = 100


def last_batch(delta: DeltaJvm, path: str, version: int, app_id: str) -> int | None:
    """The last batch of an app id at a version; -1 when the whole log has none."""
    for at in range(version, max(version - _NEWEST, -1), -1):
        lines = delta.commit_lines(path, at)
        if lines is None:
            return None
        for line in lines:
            if line.startswith('{"txn"'):
                fence = json.loads(line)["txn"]
                if fence["appId"] == app_id:
                    return int(fence["version"])
    return -1 if version < _NEWEST else None


def live_files(delta: DeltaJvm, path: str, version: int) -> list[dict[str, Any]] | None:
    """`AddFile` contents of all files of a version."""
    commits: list[list[dict[str, Any]]] = []
    for at in range(version, max(version - _NEWEST, -1), -1):
        lines = delta.commit_lines(path, at)
        if lines is None:
            return None
        commits.append([json.loads(line) for line in lines])
        # What came before a replacement of all rows is gone.
        if at == 0 or _replaces_all(commits[-1]):
            break
    else:
        return None
    live: dict[tuple[str, str], dict[str, Any]] = {}
    for actions in reversed(commits):
        for action in actions:
            if "remove" in action:
                live.pop(file_identity(action["remove"]), None)
        for action in actions:
            if "add" in action:
                live[file_identity(action["add"])] = action["add"]
    return list(live.values())


def append_only_start(
    delta: DeltaJvm, path: str, version: int, *, most: int = _WHOLE
) -> int | None:
    """The version from which a stream sees every row of the table by reading appends alone.

    0, or the one after the last reset. `None` when files were removed since, be it by a compaction
    (VACUUM may have deleted what the older commits name), when columns or partitions changed on the
    way, or when the log is not whole.

    Args:
        delta: The bridge.
        path: The table.
        version: Its newest version.
        most: Give up where the log is longer.
    """
    if version > most:
        return None
    start: int | None = 0
    shape: tuple[str, ...] | None = None
    live: set[tuple[str, str]] = set()
    for at in range(version + 1):
        lines = delta.commit_lines(path, at)
        if lines is None:
            return None
        actions = [json.loads(line) for line in lines]
        new_shape = _shape(actions) or shape
        if shape is not None and new_shape != shape:
            start = None
        shape = new_shape
        removed = [action["remove"] for action in actions if "remove" in action]
        added = [action["add"] for action in actions if "add" in action]
        live -= {file_identity(file) for file in removed}
        live |= {file_identity(file) for file in added}
        if any(file.get("deletionVector") for file in added):
            start = None
        elif removed:
            start = None if live else at + 1
    return start if start is not None and start <= version else None


@dataclass(frozen=True)
class LoggedRemovals:
    """Commits that took rows away, or changed them.

    Attributes:
        first: The oldest version that the log still has.
        versions: Version to its operation and its time in milliseconds; a compaction is none.
    """

    first: int
    versions: Mapping[int, tuple[str, int]]


def logged_removals(delta: DeltaJvm, path: str, version: int) -> LoggedRemovals:
    """The commits of a table, as far back as its log goes, that did more than add rows.

    Args:
        delta: The bridge.
        path: The table.
        version: Its newest version.
    """
    found: dict[int, tuple[str, int]] = {}
    at = version
    while at >= 0:
        lines = delta.commit_lines(path, at)
        if lines is None:
            break
        if any(line.startswith('{"remove"') and _changes_rows(line) for line in lines):
            info = delta.commit_info(path, at) or {}
            found[at] = str(info.get("operation", "unknown")), int(info.get("timestamp", 0))
        at -= 1
    return LoggedRemovals(at + 1, dict(sorted(found.items())))


def replaced_at(delta: DeltaJvm, path: str, version: int) -> int:
    """When all rows of a table were removed or replaced the last time, in milliseconds.

    0 if the log, as far as it goes, does not say. A table that was restored is what it was at the
    version that it went back to.

    Args:
        delta: The bridge.
        path: The table.
        version: Its newest version.
    """
    at = version
    while at >= 0:
        info = delta.commit_info(path, at)
        if info is None:
            break
        kind, parameters = info.get("operation"), info.get("operationParameters", {})
        if kind == "RESTORE" and str(parameters.get("version", "")).isdecimal():
            at = int(parameters["version"])
            continue
        is_whole = kind == "WRITE" and parameters.get("mode") == "Overwrite"
        if (is_whole and "predicate" not in parameters) or (
            kind == "STREAMING UPDATE" and parameters.get("outputMode") == "Complete"
        ):
            return int(info.get("timestamp", 0))
        at -= 1
    return 0


def _changes_rows(line: str) -> bool:
    return bool(json.loads(line)["remove"].get("dataChange", True))


def file_identity(file: Mapping[str, Any]) -> tuple[str, str]:
    """What tells a file with its deleted rows from any other, given the content of its action."""
    vector = file.get("deletionVector")
    return file["path"], json.dumps(vector, sort_keys=True) if vector else ""


def _shape(actions: list[dict[str, Any]]) -> tuple[str, ...] | None:
    """Columns and partition columns that a commit sets."""
    found = [action["metaData"] for action in actions if "metaData" in action]
    return (found[-1]["schemaString"], *found[-1]["partitionColumns"]) if found else None


def _replaces_all(actions: list[dict[str, Any]]) -> bool:
    """Whether this is a commit of ours that removed every file there was."""
    for action in actions:
        info = action.get("commitInfo")
        if info is not None:
            parameters = info.get("operationParameters", {})
            return (
                info.get("operation") == "WRITE"
                and parameters.get("mode") == "Overwrite"
                and "predicate" not in parameters
                and '"penstock"' in (info.get("userMetadata") or "")
            )
    return False
