"""A materialized view in memory, refreshed with the changes that `QueryChanges` computes."""

from collections import Counter
from typing import Any

import duckdb
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

from penstock._spark.plans import batch_sources
from penstock._tables.delta_log import DeltaJvm

MERGES = {"sum": sum, "min": min, "max": max}


class View:
    """A result in memory, refreshed with the changes that `QueryChanges` computes.

    `over_copies` is the same query over copies of its tables, which also exist in `database`.
    """

    def __init__(
        self,
        spark: Any,
        query: str,
        over_copies: str | None = None,
        database: duckdb.DuckDBPyConnection | None = None,
    ) -> None:
        self.spark, self.query, self.over_copies = spark, query, over_copies or query
        # Only Spark supports this clause.
        self.database = None if "LATERAL VIEW" in self.over_copies else database
        self.delta = DeltaJvm(spark)
        self.rows = self.computed()
        self.versions = batch_sources(spark.sql(query)).versions

    def computed(self) -> Counter[Any]:
        if self.database is not None:
            return Counter(self.database.sql(self.over_copies).fetchall())
        return Counter(map(tuple, self.spark.sql(self.over_copies).collect()))

    def refresh(self) -> str:
        """Apply the changes since the last call; returns the technique."""
        df = self.spark.sql(self.query)
        versions = batch_sources(df).versions
        if versions == self.versions:
            return "NO_OP"
        try:
            changes = self.delta.query_changes(df, self.versions)
        except Py4JJavaError as error:
            if "no source changed" not in str(error):
                raise
            return "NO_OP"  # OPTIMIZE, or MERGE without a match
        finally:
            self.versions = versions
        technique = str(changes.technique())
        if technique == "APPEND_ONLY":
            self.rows += self._rows(changes.rows())
        elif technique == "GROUP_AGGREGATE":
            self._merge(list(map(str, changes.merges())), self._rows(changes.rows()))
            if changes.rowCount() is not None:
                index = df.columns.index(changes.rowCount())
                self.rows = Counter({row: n for row, n in self.rows.items() if row[index] != 0})
        elif changes.isLinear():
            for *row, copies in DataFrame(changes.changedRows(1000).rows(), self.spark).collect():
                self.rows[tuple(row)] += copies
            assert min(self.rows.values(), default=0) >= 0
            self.rows = +self.rows
        else:
            self._replace(df.columns, changes)
        return technique

    def _rows(self, frame: Any) -> Counter[Any]:
        return Counter(map(tuple, DataFrame(frame, self.spark).collect()))

    def _merge(self, merges: list[str], new: Counter[Any]) -> None:
        def key(row: Any) -> Any:
            return tuple(v for v, merge in zip(row, merges, strict=True) if not merge)

        old = {key(row): row for row in self.rows}
        for row in new:
            before = old.get(key(row))
            if before is not None:
                self.rows[before] -= 1
                row = tuple(
                    _merged(merge, pair) for merge, *pair in zip(merges, before, row, strict=True)
                )
            self.rows[row] += 1
        self.rows = +self.rows

    def _replace(self, columns: list[str], changes: Any) -> None:
        names = list(map(str, changes.keyColumns()))
        touched = DataFrame(changes.changedKeys(1000), self.spark)
        collected = self.delta.own.BatchKeys(touched._jdf, names)
        keys = DataFrame(collected.frame(self.spark._jsparkSession), self.spark)
        indexes = [columns.index(name) for name in names]
        changed = {tuple(row) for row in keys.collect()}
        unchanged = {
            row: n for row, n in self.rows.items() if tuple(row[i] for i in indexes) not in changed
        }
        self.rows = Counter(unchanged) + self._rows(changes.rowsOf(keys._jdf))


def _merged(merge: str, pair: list[Any]) -> Any:
    values = [value for value in pair if value is not None]
    if not merge:
        return pair[0]
    return MERGES[merge](values) if values else None
