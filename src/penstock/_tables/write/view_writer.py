"""Writes the changes of a materialized view: new rows, all rows of some keys, or some rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._model.sql_text import quoted
from penstock._tables.commits import CommitResult
from penstock._tables.write.fenced import TableTransaction
from penstock._tables.write.kept import keep_and_count
from penstock._tables.write.key_joins import key_struct, key_type
from penstock._tables.write.keyed import MOST_KEYS, NULL_TEXTS, KeyedTable, Way, text_partitions
from penstock._tables.write.row_files import Written
from penstock._tables.write.staging import RowCounts
from penstock._tables.write.writer import Batch, FlowWriter, WriterOptions

_MERGES = {"sum": F.sum, "min": F.min, "max": F.max}
_OTHER_ROWS = "the table does not have the rows of the last refresh"
COPIES = "__penstock_copies"


class ViewChangedError(Exception):
    """The table is not at the version of the last refresh, or cannot be changed by keys."""


class ViewWriter(FlowWriter):
    """Adds rows to a view whose newest version is `version`, or replaces rows.

    After `collect`, the rows of the collected keys are replaced. `merges` maps columns to the
    aggregate (sum, min or max) that merges a row with the old row of its key. After
    `collect_removed`, rows are removed and the written rows are added.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        version: int,
        is_streamed: bool,
        on_vectors: Callable[[], None],
        **options: Unpack[WriterOptions],
    ) -> None:
        super().__init__(spark, **options)
        self._version = version
        self._keyed = KeyedTable(self._target, None, is_streamed, on_vectors)
        self._keys: Any = None
        self._count = 0
        self._touched: DataFrame | None = None
        self._merge: Callable[[DataFrame, DataFrame], DataFrame] | None = None
        """Computes the rows of the keys from the old and the written rows, if both are needed."""
        self._removed: int | None = None
        self._added = 0

    def collect_removed(self, changed: Any, key: str) -> None:
        """Collect the rows that `write_batch` removes, in addition to those that it adds.

        `changed` is Penstock's `ChangedRows`. The removed rows are searched by their values in the
        column `key`.

        Raises:
            ViewChangedError: the rows of these keys cannot be replaced.
        """
        txn = self._begin()
        names = {name.lower(): name for name in txn.metadata.schema.names}
        self._collect(txn, changed.removedKeys(key, names.get(key.lower(), key)))
        changes = DataFrame(changed.rows(), self._delta.spark)
        self._merge = lambda old, _: _with_copies(old, changes)
        self._removed, self._added = int(changed.removed()), int(changed.added())

    def collect(
        self,
        keys: DataFrame,
        merges: Mapping[str, str] | None = None,
        row_count: str | None = None,
        count: int | None = None,
    ) -> tuple[int, DataFrame]:
        """Collect the keys whose rows `write_batch` replaces.

        Merged rows are omitted if the column `row_count` is 0. `count` is the number of keys, if
        they are distinct. Returns the number of distinct keys, and the distinct keys.

        Raises:
            ViewChangedError: the rows of these keys cannot be replaced.
        """
        touched = keys.select(key_struct(keys.columns).alias("k"))
        txn = self._begin()
        texts = text_partitions(txn, key_type(touched))
        if merges:
            self._merge = partial(_aggregates, merges=merges, row_count=row_count)
        if count is not None and count <= MOST_KEYS:
            self._touched, self._count = touched, count
            if self._keyed.way_for(txn, touched, count) is Way.TABLE:
                if texts:  # all rows of the table are merged
                    self._check_partitions(texts, self._target.rows(txn, keys))
                self._check_partitions(texts, keys)
                return count, keys
        if not keys.columns:  # the aggregates of all rows, in one row
            raise ViewChangedError("the row of its table cannot be replaced")
        if not self._keyed.can_collect(touched):
            raise ViewChangedError("the types of its keys cannot be searched")
        distinct = self._collect(txn, self._keyed.collected(txn, touched))
        self._check_partitions(texts, distinct)
        return self._count, distinct

    def _check_partitions(self, names: Sequence[str], rows: DataFrame) -> None:
        for name in names:
            text = F.col(quoted(name))
            if not rows.where(text.isNull() | text.isin(*NULL_TEXTS)).isEmpty():
                raise ViewChangedError(f"NULL and '' are the same partition of {name}")

    def _collect(self, txn: TableTransaction, keys: Any) -> DataFrame:
        spark = self._delta.spark
        distinct = DataFrame(keys.frame(spark._jsparkSession), spark)
        self._keys, self._count = keys, int(keys.distinct())
        self._touched = distinct.select(key_struct(distinct.columns).alias("k"))
        if self._count > MOST_KEYS:
            raise ViewChangedError(f"rows of more than {MOST_KEYS} keys changed")
        if self._keyed.way_for(txn, self._touched, self._count) is Way.MERGE:
            raise ViewChangedError(
                "rows of its table cannot be replaced by key (change data feed, row tracking, "
                "identity columns, partitions)"
            )
        return distinct

    def _begin(self) -> TableTransaction:
        txn = self._target.begin(None)
        self._check(txn)
        return txn

    def _check(self, txn: TableTransaction) -> None:
        # A change of the table between now and the commit must fail the commit.
        txn.jvm.readWholeTable()
        if txn.version != self._version:
            raise ViewChangedError("the table was changed by another writer")

    @property
    def _removes(self) -> bool:
        return self._touched is not None

    def _write_files(self, df: DataFrame, txn: TableTransaction, schema: StructType) -> Written:
        self._check(txn)
        if self._touched is None:
            return super()._write_files(df, txn, schema)
        if self._merge is not None:
            count = self._count if self._removed is None else self._added
            return Written(RowCounts(count, 0, {}), rows=df)
        self._kept, counts = keep_and_count(self._delta, df, None)
        return Written(counts, rows=self._kept)

    def _commit_target(self, batch: Batch) -> CommitResult:
        if self._touched is None:
            return super()._commit_target(batch)
        result, rows = batch.result, batch.written.rows
        assert rows is not None
        # A key may have many rows, or no new row.
        count = max(self._count, min(result.rows_written, MOST_KEYS))
        if self._merge is None:
            version = self._keyed.replace(
                batch.txn, self._touched, rows, result, count=count, keys=self._keys
            )
        else:
            version = self._keyed.merge(
                batch.txn,
                self._touched,
                rows,
                self._merge,
                result,
                count=count,
                keys=self._keys,
                removed=self._removed,
            )
        return replace(result, version=version)


def _aggregates(
    old: DataFrame, new: DataFrame, *, merges: Mapping[str, str], row_count: str | None
) -> DataFrame:
    names = [name for name, merge in merges.items() if not merge]
    merged = old.unionByName(new).coalesce(1).groupBy(*[F.col(quoted(name)) for name in names])
    values = [
        _MERGES[merge](F.col(quoted(name))).cast(new.schema[name].dataType).alias(name)
        for name, merge in merges.items()
        if merge
    ]
    rows = merged.agg(*values) if values else merged.count()
    if row_count is not None:
        count = F.col(quoted(row_count))
        rows = rows.where(F.when(count < 0, F.raise_error(_OTHER_ROWS)).otherwise(count) != 0)
    return rows.select(*[F.col(quoted(name)) for name in new.columns])


def _with_copies(old: DataFrame, changes: DataFrame) -> DataFrame:
    columns = [F.col(quoted(name)) for name in changes.columns[:-1]]
    rows = old.select(*columns, F.lit(1).cast("long").alias(COPIES))
    both = rows.unionByName(changes).coalesce(1)
    groups, sums = [], [F.sum(COPIES).alias(COPIES)]
    for column, (name, kind) in zip(columns, changes.dtypes, strict=False):
        if "double" not in kind and "float" not in kind:
            groups.append(column)
            continue
        # GROUP BY treats -0.0 and 0.0 as equal; their strings differ.
        text = column.cast("string").alias(f"{COPIES}_text_{name}")
        groups += [column.alias(f"{COPIES}_{name}"), text]
        sums.append(F.first(column).alias(name))
    grouped = both.groupBy(*groups).agg(*sums)
    copies = F.when(F.col(COPIES) < 0, F.raise_error(_OTHER_ROWS)).otherwise(F.col(COPIES))
    times = F.explode(F.array_repeat(F.lit(1), copies.cast("int"))).alias(COPIES)
    return grouped.select(*columns, times).drop(COPIES)
