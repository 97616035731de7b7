"""The files that a stream has not read yet."""

from collections.abc import Callable, Collection
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock._tables.jvm import private_field
from penstock.sources.base import age_of_oldest, now_ms
from penstock.sources.files.listing import FILE_STATUS, PLAIN_PATH, file_uri

_MOST_SPECIAL = 1000

UNKNOWN_FILES = {"kind": "files", "files": None, "bytes": None, "seconds_behind": None}
"""The lag if it is unknown."""


class PendingFiles:
    """Counts the files that Spark's file source has not taken into a batch yet.

    Spark lists the folder as for every batch, and the files that it has seen are removed, all in
    the JVM: the figures are those of the next batch.
    """

    def __init__(self, spark: SparkSession, now_ms: Callable[[], int] = now_ms) -> None:
        self._now_ms = now_ms
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway

    def measure(self, source: Any) -> dict[str, Any]:
        """Files, bytes, age of the oldest of a `FileStreamSource`; `None` where unknown."""
        try:
            files = self._listed(source)
            known = private_field(private_field(source, "seenFiles"), "map").keySet()
            waiting = self._unseen(files, known)
        except Py4JError:
            waiting = None  # Spark changed its map concurrently, or has other private fields
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
        is_log = private_field(source, "sourceHasMetadata").contains(True)
        name = f"allFilesUsing{'MetadataLog' if is_log else 'InMemory'}FileIndex"
        method = next(
            method for method in source.getClass().getDeclaredMethods() if method.getName() == name
        )
        method.setAccessible(True)
        nothing = self._gateway.new_array(self._jvm.java.lang.Object, 0)
        text = str(method.invoke(source, nothing).mkString("\n"))
        return {
            path: (int(length), int(changed) if changed else None)
            for path, length, changed in FILE_STATUS.findall(text)
            if length
        }

    def _unseen(self, files: Collection[str], known: Any) -> list[str] | None:
        special = [path for path in files if not PLAIN_PATH.fullmatch(path)]
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
        path = file_uri(self._spark, path)
        if path.startswith("file:/"):
            rest = path.removeprefix("file:").lstrip("/")
            return [f"file:/{rest}", f"file:///{rest}"]
        return [path]
