"""The commits of a Delta table that a stream has not read yet."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock._tables.commits import actions_of
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import commit_file, local_path
from penstock.sources.base import age_of_oldest, now_ms

_MOST_COMMITS = 500


@dataclass
class _Commit:
    files: list[tuple[int, int | None]] = field(default_factory=list)
    at: int | None = None


class PendingVersions:
    """Counts the commits of a Delta table that a stream has not read yet.

    A stream `of_changes` reads the change data feed, which also has removed rows.
    """

    def __init__(
        self,
        spark: SparkSession,
        now_ms: Callable[[], int] = now_ms,
        *,
        of_changes: bool = False,
    ) -> None:
        self._now_ms = now_ms
        self._of_changes = of_changes
        self._delta = DeltaJvm(spark)
        self._commits: dict[tuple[str, int], _Commit | None] = {}

    def measure(
        self, path: str, offset: Mapping[str, Any], last: int | None = None
    ) -> dict[str, Any]:
        """Versions, bytes, rows and age of the oldest after an offset; `None` if unknown.

        With `last`, only versions up to this one count.
        """
        unknown: dict[str, Any] = {"kind": "delta", "seconds_behind": None}
        unknown |= dict.fromkeys(("versions", "bytes", "rows"))
        try:
            version, index = int(offset["reservoirVersion"]), int(offset["index"])
            latest = self._latest(path, version) if last is None else last
        except (Py4JError, KeyError, TypeError, ValueError):
            return {**unknown, "latest_version": None}
        unknown["latest_version"] = latest
        if offset.get("isStartingVersion"):
            # The initial snapshot is being read, in an order that Delta chooses.
            return {**unknown, "versions": max(1, latest - version + 1)}
        if latest - version >= _MOST_COMMITS:
            oldest = self._oldest(path, version, index)
            return {**unknown, "versions": latest - version + 1, "seconds_behind": oldest}
        waiting: list[list[tuple[int, int | None]]] = []
        times: list[int | None] = []
        for number in range(version, latest + 1):
            commit = self._commit(path, number)
            if commit is None:
                return {**unknown, "versions": latest - version + 1}
            left = commit.files[max(0, index + 1) :] if number == version else commit.files
            if left:
                waiting.append(left)
                times.append(commit.at)
        files = [file for left in waiting for file in left]
        rows = [count for _, count in files]
        return {
            **unknown,
            "versions": len(waiting),
            "bytes": sum(size for size, _ in files),
            "rows": None if None in rows else sum(count or 0 for count in rows),
            "seconds_behind": age_of_oldest(times, self._now_ms()),
        }

    def _latest(self, path: str, version: int) -> int:
        """The newest version; on a local disk, without listing the whole log."""
        table = local_path(path)
        if table is not None:
            log, at = table / "_delta_log", version
            while (log / commit_file(at)).exists():
                at += 1
            if at > version or (log / commit_file(version - 1)).exists():
                return at - 1
        return int(self._delta.snapshot(path).version())

    def _oldest(self, path: str, version: int, index: int) -> float | None:
        for number in range(version, version + _MOST_COMMITS):
            commit = self._commit(path, number)
            if commit is None:
                return None
            if commit.files[max(0, index + 1) :] if number == version else commit.files:
                return age_of_oldest([commit.at], self._now_ms())
        return None

    def _commit(self, path: str, number: int) -> _Commit | None:
        key = (path, number)
        if key not in self._commits:
            lines = self._delta.commit_lines(path, number)
            if len(self._commits) > 4 * _MOST_COMMITS:
                self._commits.clear()
            self._commits[key] = None if lines is None else self._parsed(lines)
        return self._commits[key]

    def _parsed(self, lines: Sequence[str]) -> _Commit:
        commit = _Commit()
        for info in actions_of(lines, "commitInfo"):
            commit.at = info.get("inCommitTimestamp") or info.get("timestamp")
        # As in Delta's source: change files, if there are any, have all changes of a commit.
        files = list(actions_of(lines, "cdc")) if self._of_changes else []
        if not files:
            kinds = ("add", "remove") if self._of_changes else ("add",)
            changed = (file for kind in kinds for file in actions_of(lines, kind))
            files = [file for file in changed if file.get("dataChange", True)]
        for file in files:
            stats = json.loads(file["stats"]) if file.get("stats") else {}
            commit.files.append((int(file.get("size") or 0), stats.get("numRecords")))
        return commit
