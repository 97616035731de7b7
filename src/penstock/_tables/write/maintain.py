"""Delta's OPTIMIZE and VACUUM of one table, and the decision which files are small."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._model.sql_text import delta_table, quoted
from penstock._tables.delta_log import DeltaJvm

_MIB = 1024 * 1024
TARGET_BYTES = 128 * _MIB
"""Size of compacted files, as of Delta's auto compaction."""

# A file is rewritten about once per level. With one level, each compaction would rewrite a file
# until that has its final size.
_LEVELS = (1 * _MIB, 16 * _MIB, TARGET_BYTES)
# Share of the minimum number of files at which the files of a higher level are merged.
_HIGHER_LEVELS = 4
_PREFIX = "spark.databricks.delta."


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """What an OPTIMIZE did; `metrics` are files and bytes, as its event reports them."""

    metrics: Mapping[str, int]
    version: int


def maintenance_session(spark: SparkSession) -> SparkSession:
    """A session like `spark`, with the settings of the commands here."""
    java: Any = spark._jsparkSession
    session = SparkSession(spark.sparkContext, java.cloneSession())
    conf = {
        "optimize.maxFileSize": str(TARGET_BYTES),
        # One file at a time: the batches of flows need the cores. A long run commits in parts.
        "optimize.maxThreads": "1",
        "optimize.batchSize": str(1024 * _MIB),
        # Clustering rewrites every part of the table that is smaller: 100 GB by Delta's default.
        "optimize.clustering.mergeStrategy.minCubeSize.threshold": str(1024 * _MIB),
        "optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": str(1536 * _MIB),
        # A commit of VACUUM would be a new version, for which materialized views are refreshed.
        "vacuum.logging.enabled": "false",
        "vacuum.parallelDelete.enabled": "false",
    }
    for key, value in conf.items():
        session.conf.set(_PREFIX + key, value)
    return session


class TableFiles:
    """The files of one table; `delta` has the session of `maintenance_session`."""

    def __init__(self, delta: DeltaJvm, path: str) -> None:
        self._session = delta.spark
        self._path = path
        self._delta = delta
        self._sql = delta_table(path)

    def known(self) -> Any:
        """Delta's newest snapshot in memory, without a look at the storage."""
        return self._delta.log(self._path).unsafeVolatileSnapshot()

    def newest(self) -> Any:
        return self._delta.snapshot(self._path)

    def largest_to_merge(self, snapshot: Any, *, at_least: int) -> int | None:
        """The size below which files are to be compacted; `None` if there are not enough of them.

        A compaction must be able to remove `at_least` files.
        """
        level = F.lit(len(_LEVELS))
        for number, size in reversed(list(enumerate(_LEVELS))):
            level = F.when(F.col("size") < size, F.lit(number)).otherwise(level)
        files = DataFrame(snapshot.allFiles().toDF(), self._session)
        counted = (
            files.where(F.col("size") < _LEVELS[-1])
            .groupBy(F.to_json("partitionValues"), level.alias("level"))
            .agg((F.count(F.lit(1)) - 1).alias("removable"))
        )
        removable = [0] * len(_LEVELS)
        for row in counted.collect():
            removable[row["level"]] += row["removable"]
        for number in reversed(range(len(_LEVELS))):
            wanted = at_least if number == 0 else max(1, at_least // _HIGHER_LEVELS)
            if removable[number] >= wanted:
                return _LEVELS[number]
        return None

    def compact(self, below: int) -> Rewritten | None:
        """Merge the files below a size; `None` if none can be merged.

        Of a table with clustering columns, all files that are not clustered yet are rewritten.
        """
        self._session.conf.set(f"{_PREFIX}optimize.minFileSize", str(below))
        return self._optimize(f"OPTIMIZE {self._sql}")

    def z_order(self, columns: Sequence[str]) -> Rewritten | None:
        names = ", ".join(map(quoted, columns))
        return self._optimize(f"OPTIMIZE {self._sql} ZORDER BY ({names})")

    def vacuum(self) -> None:
        """Delete the files that no version of the retention period needs.

        The period is `delta.deletedFileRetentionDuration` of the table, 7 days by default.
        """
        self._session.sql(f"VACUUM {self._sql}").collect()

    def retention_ms(self) -> int:
        delta_log = self._delta.jvm.org.apache.spark.sql.delta.DeltaLog
        return int(delta_log.tombstoneRetentionMillis(self.known().metadata()))

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
