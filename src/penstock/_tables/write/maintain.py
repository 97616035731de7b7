"""OPTIMIZE and VACUUM of one table, and the decision which files are compacted.

Small files of small tables are merged here. Delta's OPTIMIZE computes the state of the table by a
query, and takes about four times the CPU time.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._model.sql_text import delta_table, quoted
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.read.live_files import LiveFiles
from penstock._tables.session_conf import own_session
from penstock._tables.write.schema import has_identity

_MIB = 1024 * 1024
TARGET_BYTES = 128 * _MIB
"""Size of compacted files, the same as in Delta's auto compaction."""

# A file is rewritten about once per level. With one level, each compaction would rewrite a file
# until it has its final size.
_LEVELS = (1 * _MIB, 16 * _MIB, TARGET_BYTES)
# Divisor of the minimum number of files, for the files of a higher level.
_HIGHER_LEVELS = 4
# Files with a larger share of deleted rows are rewritten, as by Delta.
_MOST_DELETED = 0.05
# Maximum number of bytes that one commit compacts.
_BATCH_BYTES = 1024 * _MIB
_PREFIX = "spark.databricks.delta."
_METRICS = {  # names of the metrics in events and in Delta's history
    "files_removed": "numRemovedFiles",
    "files_added": "numAddedFiles",
    "bytes_removed": "numRemovedBytes",
    "bytes_added": "numAddedBytes",
}
# Table features that require additional data in rewritten files, which Delta preserves.
_FEATURES_OF_DELTA = ("domainMetadata", "rowTracking", "icebergCompat")


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """The result of an OPTIMIZE; `metrics` are files and bytes, as its event reports them."""

    metrics: Mapping[str, int]
    version: int


def maintenance_session(spark: SparkSession) -> SparkSession:
    """A copy of `spark` with the settings for OPTIMIZE and VACUUM."""
    conf = {
        "optimize.maxFileSize": str(TARGET_BYTES),
        # One file at a time: the batches of flows need the cores. A long run commits in parts.
        "optimize.maxThreads": "1",
        "optimize.batchSize": str(_BATCH_BYTES),
        # Clustering rewrites every part of the table below this size; Delta's default is 100 GB.
        "optimize.clustering.mergeStrategy.minCubeSize.threshold": str(1024 * _MIB),
        "optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": str(1536 * _MIB),
        # A commit of VACUUM would be a new version, for which materialized views are refreshed.
        "vacuum.logging.enabled": "false",
        "vacuum.parallelDelete.enabled": "false",
    }
    return own_session(spark, {_PREFIX + key: value for key, value in conf.items()})


class TableFiles:
    """The files of one table; `delta` has the session of `maintenance_session`."""

    def __init__(self, delta: DeltaJvm, path: str) -> None:
        self._session = delta.spark
        self._path = path
        self._delta = delta
        self._sql = delta_table(path)

    def known(self) -> Any:
        """Delta's newest snapshot in memory, without reading the log."""
        return self._delta.log(self._path).unsafeVolatileSnapshot()

    def newest(self) -> Any:
        return self._delta.snapshot(self._path)

    def _largest_to_merge(
        self, snapshot: Any, listed: Sequence[Mapping[str, Any]] | None, at_least: int
    ) -> int | None:
        """The size below which files are to be compacted; `None` if there are not enough of them.

        A compaction must be able to remove `at_least` files of the lowest level, or a quarter as
        many of a higher one.
        """
        removable = [0] * len(_LEVELS)
        for (_, level), files in self._small_files(snapshot, listed).items():
            removable[level] += files - 1
        for number in reversed(range(len(_LEVELS))):
            wanted = at_least if number == 0 else max(1, at_least // _HIGHER_LEVELS)
            if removable[number] >= wanted:
                return _LEVELS[number]
        return None

    def _small_files(
        self, snapshot: Any, listed: Sequence[Mapping[str, Any]] | None
    ) -> Counter[tuple[str, int]]:
        """Number of small files by partition and level."""
        if listed is not None:
            sizes = [(_partition(file), int(file["size"])) for file in listed]
            return Counter((part, _level(size)) for part, size in sizes if size < TARGET_BYTES)
        level = F.lit(len(_LEVELS))
        for number, size in reversed(list(enumerate(_LEVELS))):
            level = F.when(F.col("size") < size, F.lit(number)).otherwise(level)
        files = DataFrame(snapshot.allFiles().toDF(), self._session)
        small = files.where(F.col("size") < TARGET_BYTES)
        grouped = small.groupBy(F.to_json("partitionValues"), level).count()
        return Counter({(row[0], row[1]): row[2] for row in grouped.collect()})

    def compact(self, *, at_least: int = 1, below: int | None = None) -> Rewritten | None:
        """Merge the files below a size; `None` if there is nothing to merge.

        Without `below`, the largest size with enough small files is chosen: `at_least` files of the
        lowest level can be removed, or a quarter as many of a higher one. In a table with
        clustering columns, all files that are not clustered yet are rewritten.
        """
        txn = self._delta.begin(self._path, writes=True)
        snapshot = txn.snapshot()
        listed = LiveFiles(self._delta, self._path).listed(snapshot)
        if below is None:
            below = self._largest_to_merge(snapshot, listed, at_least)
        if below is None:
            return None
        if listed is not None and _is_plain(self._delta, txn):
            groups = _mergeable(listed, below)
            if sum(int(file["size"]) for group in groups for file in group) <= _BATCH_BYTES:
                return self._merge(txn, groups) if groups else None
        self._session.conf.set(f"{_PREFIX}optimize.minFileSize", str(below))
        return self._optimize(f"OPTIMIZE {self._sql}")

    def z_order(self, columns: Sequence[str]) -> Rewritten | None:
        names = ", ".join(map(quoted, columns))
        return self._optimize(f"OPTIMIZE {self._sql} ZORDER BY ({names})")

    def vacuum(self) -> None:
        """Delete the files that are not needed by any version within the retention period.

        The period is `delta.deletedFileRetentionDuration` of the table, 7 days by default.
        """
        self._session.sql(f"VACUUM {self._sql}").collect()

    def retention_ms(self) -> int:
        delta_log = self._delta.jvm.org.apache.spark.sql.delta.DeltaLog
        return int(delta_log.tombstoneRetentionMillis(self.known().metadata()))

    def _merge(self, txn: Any, groups: Sequence[Sequence[dict[str, Any]]]) -> Rewritten:
        """Rewrite each group of files as one; fails if another commit has removed one of them."""
        removed: list[Any] = []
        added: list[dict[str, Any]] = []
        for group in groups:
            files = self._delta.add_files(group)
            rows = self._delta.read_files(txn.snapshot(), files)
            merged = rows.coalesce(1)._jdf
            written = txn.writeFiles(merged, self._delta.none, True, self._delta.seq([]))
            # Without `dataChange`, the commit does not conflict with appends; streams ignore it.
            added += [{**file, "dataChange": False} for file in self._delta.file_contents(written)]
            now = int(time.time() * 1000)
            removed += [file.removeWithTimestamp(now, False) for file in files]
        done = {
            "files_removed": len(removed),
            "files_added": len(added),
            "bytes_removed": sum(int(file["size"]) for group in groups for file in group),
            "bytes_added": sum(int(file["size"]) for file in added),
        }
        metrics = {_METRICS[name]: value for name, value in done.items()}
        operation = self._delta.optimize_operation(txn, metrics)
        actions = [*self._delta.add_files(added), *removed]
        return Rewritten(metrics=done, version=self._delta.commit(txn, actions, operation))

    def _optimize(self, statement: str) -> Rewritten | None:
        (row,) = self._session.sql(statement).collect()
        metrics = row["metrics"]
        if not metrics["numFilesRemoved"]:
            return None
        done = {
            "files_removed": int(metrics["numFilesRemoved"]),
            "files_added": int(metrics["numFilesAdded"]),
            "bytes_removed": int(metrics["filesRemoved"]["totalSize"] or 0),
            "bytes_added": int(metrics["filesAdded"]["totalSize"] or 0),
        }
        return Rewritten(metrics=done, version=int(self.known().version()))


def _is_plain(delta: DeltaJvm, txn: Any) -> bool:
    """Whether merged files only have to contain the rows of the old ones."""
    features = txn.protocol().readerAndWriterFeatureNames().mkString(",")
    is_special = any(name in features for name in _FEATURES_OF_DELTA)
    return not is_special and not has_identity(delta.metadata(txn).schema)


def _partition(file: Mapping[str, Any]) -> str:
    return json.dumps(file["partitionValues"], sort_keys=True)


def _level(size: int) -> int:
    return sum(size >= limit for limit in _LEVELS)


def _mergeable(files: Sequence[dict[str, Any]], below: int) -> list[list[dict[str, Any]]]:
    """Groups of files to merge into one file each, formed like those of Delta's OPTIMIZE.

    Each has at least two files of one partition that are small or have many deleted rows.
    """
    partitions: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in sorted(files, key=lambda file: int(file["size"])):
        if int(file["size"]) < below or _has_many_deleted(file):
            partitions[_partition(file)].append(file)
    groups: list[list[dict[str, Any]]] = []
    for small in partitions.values():
        total = TARGET_BYTES + 1
        for file in small:
            if total + int(file["size"]) > TARGET_BYTES:
                groups.append([])
                total = 0
            groups[-1].append(file)
            total += int(file["size"])
    return [group for group in groups if len(group) > 1]


def _has_many_deleted(file: Mapping[str, Any]) -> bool:
    vector = file.get("deletionVector")
    if not vector:
        return False
    rows = json.loads(file.get("stats") or "{}").get("numRecords", 0)
    return int(vector["cardinality"]) > _MOST_DELETED * int(rows)
