"""What waits in folders that a flow streams from."""

import re
import time
from collections.abc import Callable, Collection
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock.sources.base import age_of_oldest

_STATUS = re.compile(
    r"\w*FileStatus\{path=(.*?); isDirectory=false; length=(\d+);"
    r"(?:[^{}\n]*?; modification_time=(\d+))?"
)
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/:._=,+@-]+")
_MOST_SPECIAL = 1000

UNKNOWN_FILES = {"kind": "files", "files": None, "bytes": None, "seconds_behind": None}
"""Of a folder about which nothing can be told."""


def _now_ms() -> int:
    return round(time.time() * 1000)


class PendingFiles:
    """Counts the files that Spark's file source has not taken into a batch yet.

    Spark lists its folder as it does for every batch, and what it remembers is taken away, all in
    its JVM: the figures are those that the next batch would see.
    """

    def __init__(self, spark: SparkSession, now_ms: Callable[[], int] = _now_ms) -> None:
        self._now_ms = now_ms
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway

    def measure(self, source: Any) -> dict[str, Any]:
        """Files, bytes, age of the oldest of a `FileStreamSource`; `None` where unknown."""
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
            "seconds_behind": age_of_oldest(times, self._now_ms()),
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
        text = "\n".join(spelling for several in spellings.values() for spelling in several)
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
