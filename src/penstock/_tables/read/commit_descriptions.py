"""Commits of a local Delta log, as shown by the dashboard, with secrets masked."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock._observe.masking import shown
from penstock._tables.commits import actions_of
from penstock._tables.files import commit_file, commit_lines

_MAX_COMMITS = 500
_SHOWN_VERSIONS = 20
_MOST_BYTES = 8 << 20


class Commits:
    """The commits that added files, read backwards from the newest one as far as needed."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._by_file: dict[str, dict[str, Any]] = {}
        self._newest = -1
        self._oldest = 0

    def of(self, names: set[str], version: int) -> Mapping[str, dict[str, Any]]:
        with self._lock:
            if self._newest < 0:
                self._newest, self._oldest = version, version + 1
            # After very many new commits, only the newest ones are read.
            if version - self._newest > _MAX_COMMITS:
                self._by_file, self._newest, self._oldest = {}, version, version + 1
            for number in range(self._newest + 1, version + 1):
                self._read(number)
            self._newest = max(self._newest, version)
            read = 0
            while read < _MAX_COMMITS and self._oldest > 0 and not names <= self._by_file.keys():
                self._oldest -= 1
                read += 1
                self._read(self._oldest)
            return dict(self._by_file)

    def _read(self, number: int) -> None:
        commit, added = _commit(self._table, number)
        self._by_file |= {file["path"]: commit for file in added}


def newest_versions(table: Path, version: int) -> list[dict[str, Any]]:
    """The last commits up to a version, newest first, until a deleted commit."""
    versions = []
    left = _MOST_BYTES
    for number in range(version, max(-1, version - _SHOWN_VERSIONS), -1):
        try:
            left -= (table / "_delta_log" / commit_file(number)).stat().st_size
        except OSError:
            break
        # Commits with very many files are not read.
        if left < 0:
            break
        commit, _ = _commit(table, number)
        if not commit:
            break
        versions.append(commit)
    return versions


def _commit(table: Path, number: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Operation, flow and counts of a commit, with secrets masked; and the files that it added.

    `at` is in milliseconds; `rows` is the number of added rows, null if unknown. Both results are
    empty if the commit was deleted or cannot be read.
    """
    try:
        lines = commit_lines(table, number)
        if lines is None:
            return {}, []
        info = next(actions_of(lines, "commitInfo"), {})
        added = list(actions_of(lines, "add"))
        removed = list(actions_of(lines, "remove"))
    except (OSError, ValueError):
        return {}, []
    record = _record(info)
    counts = [_rows_of(file) for file in added]
    flow, batch = record.get("flow"), record.get("batch")
    commit = {
        "version": number,
        "at": int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
        "operation": shown(str(info.get("operation") or "")),
        "flow": shown(str(flow or "")),
        "batch_id": batch if isinstance(batch, int) else None,
        "files_added": len(added),
        "files_removed": len(removed),
        "rows": None if None in counts else sum(count or 0 for count in counts),
    }
    return commit, added


def _record(info: dict[str, Any]) -> dict[str, Any]:
    try:
        record = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _rows_of(file: dict[str, Any]) -> int | None:
    try:
        count = json.loads(file.get("stats") or "{}").get("numRecords")
    except (ValueError, AttributeError):
        return None
    return count if isinstance(count, int) else None
