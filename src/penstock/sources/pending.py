"""What waits in folders and in Delta tables that a flow streams from."""

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import local_path

_STATUS = re.compile(
    r"\w*FileStatus\{path=(.*?); isDirectory=false; length=(\d+);"
    r"(?:[^{}\n]*?; modification_time=(\d+))?"
)
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/:._=,+@-]+")
_MOST_COMMITS = 500
_MOST_SPECIAL = 1000

UNKNOWN_FILES = {"kind": "files", "files": None, "bytes": None, "seconds_behind": None}
"""Of a folder about which nothing can be told."""


def _now_ms() -> int:
    return round(time.time() * 1000)


def _seconds_behind(times: Iterable[int | None], now: int) -> float | None:
    """Age of the oldest; 0 if nothing waits, `None` if that of one is not known."""
    known = list(times)
    if None in known:
        return None
    oldest = min((at for at in known if at is not None), default=now)
    return round(max(0, now - oldest) / 1000, 1)


@dataclass
class _Added:
    """Size and rows of each file that a commit added, and when it was made."""

    files: list[tuple[int, int | None]] = field(default_factory=list)
    at: int | None = None


class PendingFiles:
    """Counts the files that Spark's file source has not taken into a batch yet.

    Spark is asked to list its folder as it does for every batch, and what it remembers is taken
    away, all in its JVM: the figures are those that the next batch would see.

    Args:
        spark: The session.
        now_ms: The time as file systems have it.
    """

    def __init__(self, spark: SparkSession, now_ms: Callable[[], int] = _now_ms) -> None:
        self._now_ms = now_ms
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway

    def measure(self, source: Any) -> dict[str, Any]:
        """Files, bytes, age of the oldest file; `None` where they cannot be told.

        Args:
            source: Spark's `FileStreamSource`.
        """
        try:
            files, known = self._listed(source), self._seen(source)
            waiting = self._unseen(files, known)
        except Py4JError:
            waiting = None  # Spark was changing its memory meanwhile, or its inside is another one
        if waiting is None:
            return dict(UNKNOWN_FILES)
        times = [files[path][1] for path in waiting]
        return {
            "kind": "files",
            "files": len(waiting),
            "bytes": sum(files[path][0] for path in waiting),
            "seconds_behind": _seconds_behind(times, self._now_ms()),
        }

    def _listed(self, source: Any) -> dict[str, tuple[int, int | None]]:
        """Size and time of the last change, in milliseconds, of each file."""
        method = next(
            method
            for method in source.getClass().getDeclaredMethods()
            if method.getName() == "allFilesUsingInMemoryFileIndex"
        )
        method.setAccessible(True)
        nothing = self._gateway.new_array(self._jvm.java.lang.Object, 0)
        text = str(method.invoke(source, nothing).mkString("\n"))
        return {
            path: (int(length), int(changed) if changed else None)
            for path, length, changed in _STATUS.findall(text)
        }

    def _seen(self, source: Any) -> Any:
        seen = _field(source, "seenFiles")
        return _field(seen, "map").keySet()

    def _unseen(self, files: Collection[str], known: Any) -> list[str] | None:
        special = [path for path in files if not _PLAIN_PATH.fullmatch(path)]
        if len(special) > _MOST_SPECIAL:
            return None
        spellings = {path: self._spellings(path) for path in files}
        text = "\n".join(one for several in spellings.values() for one in several)
        if not text:
            return []
        split = self._jvm.java.util.regex.Pattern.compile("\n").splitAsStream(text)
        left = self._jvm.java.util.HashSet(split.toList())
        left.removeAll(known)
        unseen = set(str(self._jvm.java.lang.String.join("\n", left)).split("\n"))
        return [path for path, several in spellings.items() if unseen.issuperset(several)]

    def _spellings(self, path: str) -> list[str]:
        """How Spark may have remembered a file."""
        if not _PLAIN_PATH.fullmatch(path):
            path = str(self._jvm.org.apache.hadoop.fs.Path(path).toUri().toString())
        if path.startswith("file:/"):
            rest = path.removeprefix("file:").lstrip("/")
            return [f"file:/{rest}", f"file:///{rest}"]
        return [path]


def _field(holder: Any, name: str) -> Any:
    field = holder.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(holder)


class PendingVersions:
    """Counts the commits of a Delta table that a stream has not read yet.

    Args:
        spark: The session.
        now_ms: The time as Delta's commits have it.
    """

    def __init__(self, spark: SparkSession, now_ms: Callable[[], int] = _now_ms) -> None:
        self._now_ms = now_ms
        self._delta = DeltaJvm(spark)
        self._commits: dict[tuple[str, int], _Added | None] = {}

    def measure(self, path: str, offset: Mapping[str, Any]) -> dict[str, Any]:
        """Versions with rows, bytes, rows, age of the oldest; `None` where it cannot be told.

        Args:
            path: The table.
            offset: How far the stream has read, as Delta's source writes it.
        """
        unknown: dict[str, Any] = {"kind": "delta", "seconds_behind": None}
        unknown |= dict.fromkeys(("versions", "bytes", "rows"))
        try:
            version, index = int(offset["reservoirVersion"]), int(offset["index"])
            latest = self._latest(path, version)
        except (Py4JError, KeyError, TypeError, ValueError):
            return {**unknown, "latest_version": None}
        unknown["latest_version"] = latest
        if offset.get("isStartingVersion"):
            # A snapshot is being read, in an order of Delta's own.
            return {**unknown, "versions": latest - version + 1}
        if latest - version >= _MOST_COMMITS:
            oldest = self._oldest(path, version, index)
            return {**unknown, "versions": latest - version + 1, "seconds_behind": oldest}
        waiting: list[list[tuple[int, int | None]]] = []
        times: list[int | None] = []
        for number in range(version, latest + 1):
            added = self._added(path, number)
            if added is None:
                return {**unknown, "versions": latest - version + 1}
            left = added.files[max(0, index + 1) :] if number == version else added.files
            if left:
                waiting.append(left)
                times.append(added.at)
        files = [file for left in waiting for file in left]
        rows = [count for _, count in files]
        return {
            **unknown,
            "versions": len(waiting),
            "bytes": sum(size for size, _ in files),
            "rows": None if None in rows else sum(count or 0 for count in rows),
            "seconds_behind": _seconds_behind(times, self._now_ms()),
        }

    def _latest(self, path: str, version: int) -> int:
        """The newest version, which is at least the one before `version`.

        On a local disk by the names of the commits: Delta would list the whole log, for each of the
        flows that read the table.
        """
        table = local_path(path)
        if table is not None:
            log, at = table / "_delta_log", version
            while (log / f"{at:020d}.json").exists():
                at += 1
            if at > version or (log / f"{version - 1:020d}.json").exists():
                return at - 1
        return int(self._delta.snapshot(path).version())

    def _oldest(self, path: str, version: int, index: int) -> float | None:
        """Age of the first of very many commits that has rows to read."""
        for number in range(version, version + _MOST_COMMITS):
            added = self._added(path, number)
            if added is None:
                return None
            if added.files[max(0, index + 1) :] if number == version else added.files:
                return _seconds_behind([added.at], self._now_ms())
        return None

    def _added(self, path: str, number: int) -> "_Added | None":
        """What a commit added as new rows; `None` if it is gone."""
        key = (path, number)
        if key not in self._commits:
            lines = self._delta.commit_lines(path, number)
            found = None
            if lines is not None:
                found = _Added()
                for line in lines:
                    if line.startswith('{"commitInfo"'):
                        info = json.loads(line)["commitInfo"]
                        found.at = info.get("inCommitTimestamp") or info.get("timestamp")
                    file = json.loads(line).get("add") if line.startswith('{"add"') else None
                    if file is not None and file.get("dataChange", True):
                        stats = json.loads(file["stats"]) if file.get("stats") else {}
                        found.files.append((int(file["size"]), stats.get("numRecords")))
            if len(self._commits) > 4 * _MOST_COMMITS:
                self._commits.clear()
            self._commits[key] = found
        return self._commits[key]
