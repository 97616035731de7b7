"""Replaces all rows of some keys; for CDC, snapshots and update mode.

Small tables are rewritten as a whole. In larger ones, the rows of the keys are searched by a job
over the key columns alone, and deleted by deletion vectors, or with their files if the table must
not have vectors. Delta's MERGE, which runs a dozen jobs, is used for tables that cannot be changed
otherwise. The commits of rows are fenced. Enabling deletion vectors takes up to two more commits
before that, without a fence.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from penstock._model.sql_text import quoted
from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.jvm import iterate
from penstock._tables.write.fenced import FencedTable, TableTransaction
from penstock._tables.write.key_joins import (
    SMALL_ROWS,
    in_one_task,
    key_names,
    key_type,
    of_keys,
    without_keys,
)
from penstock._tables.write.merge import merge_rows
from penstock._tables.write.schema import COLUMN_MAPPING, is_computed, union

# Tables up to this size are rewritten. Deletion vectors would be faster for most of them, too, but
# some readers refuse them.
REWRITE_BYTES = 2 * 1024 * 1024
# The maximum number of keys that are collected to the driver and sent to the tasks that search.
MOST_KEYS = 500_000
_KEY = "penstock_key"
_VECTORS = "delta.enableDeletionVectors"
_DEFAULT = "spark.databricks.delta.properties.defaults."
_STATISTICS = "spark.databricks.delta.stats.collect"
# For these types, the string of a partition value is the result of a cast.
_PARTITION_TYPES = (
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.BooleanType,
    T.DateType,
    T.StringType,
)
NULL_TEXTS = ("", "__HIVE_DEFAULT_PARTITION__")
"""Delta stores these values of a partition column as NULL."""
# Equal values of these types have equal bytes, unlike those of floating-point numbers.
_EXACT_TYPES = (
    *_PARTITION_TYPES,
    T.TimestampType,
    T.TimestampNTZType,
    T.DecimalType,
    T.BinaryType,
)


class Way(StrEnum):
    """How the rows of some keys are replaced."""

    TABLE = "table"
    """All files of the table are rewritten."""
    VECTORS = "vectors"
    """Deletion vectors delete the old rows."""
    FILES = "files"
    """Files with an old row are rewritten."""
    MERGE = "merge"
    """Delta's MERGE."""


@dataclass(frozen=True)
class KeyedTable:
    """A table whose rows are replaced by key.

    If streams read the table, a commit that only adds keys must only add files. `on_vectors` is
    called when a table gets deletion vectors, which older readers of Delta cannot read.
    """

    table: FencedTable
    way: Way | None = None  # None means by size and properties of the table
    is_streamed: bool = False
    on_vectors: Callable[[], None] | None = None

    def replace(
        self,
        txn: TableTransaction,
        touched: DataFrame,
        rows: DataFrame,
        result: CommitResult,
        *,
        count: int,
        keys: Any = None,
        deletes: bool = True,
    ) -> int | None:
        """Replace all rows of some keys; returns the new version.

        `touched` has the keys as structs in a column `k`, without duplicates unless `searches` is
        true; `count` is the approximate number of keys, and `keys` is from `collected`. Without
        `deletes`, each key has a new row. The schema of the transaction is already evolved.
        """
        way = self.way_for(txn, touched, count)
        if txn.metadata.partition_columns:
            touched, rows = with_stored_keys(txn, touched), with_stored_texts(txn, rows)
        if way is Way.TABLE:
            return self._rewrite(txn, touched, rows, result, keys)
        if way is Way.MERGE:
            return merge_rows(self.table, txn, touched, rows, result, deletes=deletes)
        if way is Way.VECTORS:
            txn = self._with_vectors(txn, result.batch_id)
        keys = keys or self.collected(txn, touched)
        search = self.search(txn, keys)
        return self._replace_rows(txn, touched, search, rows, result, way, count=count)

    def merge(
        self,
        txn: TableTransaction,
        touched: DataFrame,
        rows: DataFrame,
        merge: Callable[[DataFrame, DataFrame], DataFrame],
        result: CommitResult,
        *,
        count: int,
        keys: Any,
        removed: int | None = None,
    ) -> int | None:
        """Replace the rows of keys by the result of `merge` for them and `rows`.

        Like `replace`, but not by MERGE. In a small table, `merge` gets all rows. If the keys have
        exactly `removed` rows, these are replaced by `rows` without being read. Returns the new
        version.
        """
        way, session = self.way_for(txn, touched, count), touched.sparkSession
        if way is Way.TABLE:
            old = self._rows_as_stored(txn, session)
            old = in_one_task(self.table.rows(txn, touched)) if old is None else old
            rows = merge(old, rows)
            return self._commit(txn, self.table.removals(txn), rows.coalesce(1), result)
        if way is Way.VECTORS:
            txn = self._with_vectors(txn, result.batch_id)
        if removed is not None:
            search = self.search(txn, keys)
            if search.count() == removed:
                return self._replace_rows(txn, touched, search, rows, result, way, count=count)
        is_partitioned = bool(txn.metadata.partition_columns)
        search = self.search(txn, keys, returns_rows=not is_partitioned)
        old = (
            of_keys(self.table.rows(txn, touched), F.broadcast(touched))
            if is_partitioned
            else DataFrame(search.rows(session._jsparkSession), session)
        )
        rows = merge(old, rows)
        return self._replace_rows(txn, touched, search, rows, result, way, count=count)

    def search(self, txn: TableTransaction, keys: Any, *, returns_rows: bool = False) -> Any:
        """Penstock's `KeyedRows`: the rows of some `BatchKeys` in the table."""
        delta, live_files = self.table.delta, self.table.live_files.jvm
        session = delta.spark._jsparkSession
        return delta.own.KeyedRows(session, txn.jvm, live_files, keys, returns_rows)

    def _rows_as_stored(
        self, txn: TableTransaction, session: SparkSession, without_keys: Any = None
    ) -> DataFrame | None:
        """All rows, read without a query; `None` if only a query of the table can return them."""
        txn.jvm.readWholeTable()
        snapshot, live = txn.jvm.snapshot(), self.table.live_files.jvm
        rows = self.table.delta.own.FileRows.tableRows(
            session._jsparkSession, snapshot, live, without_keys
        )
        return None if rows is None else DataFrame(rows, session)

    def can_collect(self, touched: DataFrame) -> bool:
        return has_exact_keys(self.table.delta, key_type(touched))

    def collected(self, txn: TableTransaction, touched: DataFrame) -> Any:
        """The keys of a batch, collected as `BatchKeys`; `touched` may have duplicates."""
        by_name = {name.lower(): name for name in txn.metadata.schema.names}
        partitioned = {name.lower() for name in txn.metadata.partition_columns}
        fields = key_type(touched).fields
        key = F.col("k")
        texts = [
            _stored(key.getField(field.name).cast("string")).alias(f"{_KEY}_{field.name}")
            for field in fields
            if field.name.lower() in partitioned
        ]
        keys = [key.getField(field.name).alias(field.name) for field in fields]
        names = [by_name.get(field.name.lower(), field.name) for field in fields]
        return self.table.delta.own.BatchKeys(touched.select(*keys, *texts)._jdf, names)

    def searches(self, txn: TableTransaction, touched: DataFrame, count: int) -> bool:
        """Whether `replace` collects the keys and searches their rows."""
        return self.way_for(txn, touched, count) in (Way.VECTORS, Way.FILES)

    def way_for(self, txn: TableTransaction, touched: DataFrame, count: int) -> Way:
        """How `replace` replaces the rows of about `count` keys."""
        if self.way is not None:
            return self.way
        configuration = txn.metadata.configuration
        # Only MERGE supports generated and identity columns, change data feed and row tracking.
        if any(is_computed(column) for column in txn.metadata.schema):
            return Way.MERGE
        for feature in ("delta.enableChangeDataFeed", "delta.enableRowTracking"):
            if configuration.get(feature, "false").lower() == "true":
                return Way.MERGE
        is_small = self.table.live_files.size(txn.jvm.snapshot()) <= REWRITE_BYTES
        if is_small and not self.is_streamed:
            return Way.TABLE
        if count > MOST_KEYS or not self._can_search(txn, touched):
            return Way.MERGE
        conf = self.table.delta.spark.conf
        default = conf.get(
            _DEFAULT + _VECTORS.removeprefix("delta."), "false" if is_small else "true"
        )
        wants = configuration.get(_VECTORS, default or "").lower() == "true"
        has_counts = conf.get(_STATISTICS, "true") == "true"
        return Way.VECTORS if wants and has_counts else Way.FILES

    def _can_search(self, txn: TableTransaction, touched: DataFrame) -> bool:
        if not self.can_collect(touched):
            return False
        if txn.metadata.configuration.get(COLUMN_MAPPING, "none").lower() == "id":
            return False
        fields = key_type(touched).fields
        types = {field.name.lower(): _nullable(field.dataType) for field in txn.metadata.schema}
        if any(types.get(field.name.lower()) != _nullable(field.dataType) for field in fields):
            return False  # values of another type have another binary representation
        partitioned = {name.lower() for name in txn.metadata.partition_columns}
        keys = [(f.name.lower() in partitioned, f.dataType) for f in fields]
        has_texts = all(isinstance(kind, _PARTITION_TYPES) for is_part, kind in keys if is_part)
        return has_texts and not all(is_part for is_part, _ in keys)

    def _with_vectors(self, txn: TableTransaction, batch_id: int | None) -> TableTransaction:
        """A transaction on the table after deletion vectors are enabled, if they are not yet."""
        if txn.metadata.configuration.get(_VECTORS, "").lower() == "true":
            return txn
        txn = self.table.commit_evolution(txn, batch_id)
        txn = self.table.set_property(txn, _VECTORS, "true", batch_id)
        if self.on_vectors is not None:
            self.on_vectors()
        return txn

    def _replace_rows(
        self,
        txn: TableTransaction,
        touched: DataFrame,
        search: Any,
        rows: DataFrame,
        result: CommitResult,
        way: Way,
        *,
        count: int,
    ) -> int:
        small = count <= SMALL_ROWS
        if way is Way.VECTORS and search.hasCounts():
            actions = search.mark(not self.is_streamed)
            kept = search.filesToMerge()
        else:
            way, actions, kept = Way.FILES, search.removals(), search.files()
            small = small and search.bytes() <= REWRITE_BYTES
        if not kept.isEmpty():
            snapshot = txn.jvm.snapshot()
            other = self.table.delta.read_files(snapshot, kept, rows.sparkSession)
            if way is Way.FILES:
                touched = touched.distinct()
                known = in_one_task(touched) if small else F.broadcast(touched)
                other = without_keys(in_one_task(other) if small else other, known)
            rows = union(other, rows)
        return self._commit(txn, iterate(actions), rows.coalesce(1) if small else rows, result)

    def _rewrite(
        self,
        txn: TableTransaction,
        touched: DataFrame,
        rows: DataFrame,
        result: CommitResult,
        keys: Any,
    ) -> int:
        other = None
        if keys is not None and self._can_search(txn, touched):
            # Avoids planning a join.
            other = self._rows_as_stored(txn, rows.sparkSession, without_keys=keys)
        if other is None:
            other = without_keys(in_one_task(self.table.rows(txn, rows)), in_one_task(touched))
        return self._commit(txn, self.table.removals(txn), union(other, rows).coalesce(1), result)

    def _commit(
        self, txn: TableTransaction, removed: Iterable[Any], rows: DataFrame, result: CommitResult
    ) -> int:
        actions = [*removed, *self.table.delta.write_files(txn.jvm, rows)]
        return self.table.commit(txn, actions, result.batch_id, result, complete=False)


def text_partitions(txn: TableTransaction, fields: StructType) -> list[str]:
    """Partition columns in which Delta stores `NULL_TEXTS` as NULL."""
    partitioned = {name.lower() for name in txn.metadata.partition_columns}
    return [
        field.name
        for field in fields
        if field.name.lower() in partitioned and isinstance(field.dataType, T.StringType)
    ]


def with_stored_keys(txn: TableTransaction, touched: DataFrame) -> DataFrame:
    """Keys as the table stores them."""
    texts = text_partitions(txn, key_type(touched))
    if not texts:
        return touched
    parts = []
    for name in key_names(touched):
        part = F.col("k").getField(name)
        parts.append((_stored(part) if name in texts else part).alias(name))
    return touched.withColumn("k", F.struct(*parts))


def with_stored_texts(txn: TableTransaction, rows: DataFrame) -> DataFrame:
    """Rows as the table stores them."""
    texts = text_partitions(txn, rows.schema)
    return rows.withColumns({name: _stored(F.col(quoted(name))) for name in texts})


def _stored(text: Column) -> Column:
    return F.when(~text.isin(*NULL_TEXTS), text)


def has_exact_keys(delta: DeltaJvm, keys: StructType) -> bool:
    """Whether the JVM can search keys of these types."""
    return delta.has_own_classes and _is_exact(keys)


def _is_exact(kind: T.DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_is_exact(field.dataType) for field in kind)
    return isinstance(kind, _EXACT_TYPES) and "collate" not in kind.simpleString()


def _nullable(kind: T.DataType) -> T.DataType:
    return kind.toNullable() if isinstance(kind, StructType) else kind
