"""Applies snapshots of a source to a table: inserts, updates and deletes.

Snapshots arrive in the order of their versions, so no state is needed except the table's rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from penstock._model.cdc import ScdType
from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.kill_points import kill_point
from penstock._tables.layout import TableRef
from penstock._tables.write.cdc_events import END_AT, START_AT, RowShape, comparable
from penstock._tables.write.fenced import FencedTable, TableTransaction
from penstock._tables.write.kept import kept_rows
from penstock._tables.write.key_joins import (
    SMALL_ROWS,
    count_keys,
    in_one_task,
    key_struct,
    of_keys,
)
from penstock._tables.write.keyed import KeyedTable, with_stored_texts
from penstock._tables.write.schema import GENERATED, columns_as
from penstock.errors import FlowError


class SnapshotWriter:
    """Applies the snapshots of one flow, each in one commit; batch ids are the snapshots' numbers.

    `is_streamed` and `on_vectors` are as in `KeyedTable`.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        flow: str,
        app_id: str,
        target: TableRef,
        shape: RowShape,
        allow_missing: bool = False,
        is_streamed: bool = False,
        on_vectors: Callable[[], None] | None = None,
    ) -> None:
        self._flow = flow
        self._app_id = app_id
        self._shape = shape
        self._schema = StructType()  # the table's schema, with the columns that are to be added
        self._table = FencedTable(DeltaJvm(spark), target, app_id)
        self._table.keys = shape.shape.keys
        self._keyed = KeyedTable(self._table, is_streamed=is_streamed, on_vectors=on_vectors)
        self._allow_missing = allow_missing

    def apply(
        self, df: DataFrame, version: Any, number: int, *, always: bool
    ) -> CommitResult | None:
        """Apply snapshot `number` (from 0, without gaps); applying it again has no effect.

        Without `always`, nothing is committed and `None` is returned if nothing differs.
        """
        kill_point("before_write", self._flow, number)
        txn = self._table.begin(number)
        result = CommitResult(flow=self._flow, app_id=self._app_id, batch_id=number, version=None)
        if txn.is_committed:
            return self._table.recorded(number) or replace(result, replayed=True)
        evolved = self._table.evolve(
            txn, self._shape.target_schema(), allow_missing=self._allow_missing, replaces=False
        )
        have = {field.name.lower() for field in df.schema}
        columns = StructType([field for field in evolved if field.name.lower() in have])
        # Nested fields may have another order in the table.
        self._shape = replace(self._shape, columns=tuple(columns))
        self._schema = evolved
        rows = with_stored_texts(txn, df.select(*columns_as(columns, df.schema.fields)))
        with kept_rows(rows) as snapshot:
            is_small = self._count(snapshot) <= SMALL_ROWS
            with kept_rows(self._compare(txn, snapshot, small=is_small)) as differences:
                committed = self._commit(txn, differences, version, result, always=always)
        if committed is not None:
            kill_point("after_target_commit", self._flow, number)
        return committed

    def is_newer(self, version: Any) -> bool:
        """Whether a version is later than all those in the history of the table.

        A table of SCD type 1 has no history: applying snapshots again leads to the same rows.
        """
        if self._shape.shape.scd_type is ScdType.ONE:
            return True
        spark, path = self._table.delta.spark, self._table.ref.path
        rows = spark.read.format("delta").load(path)
        if END_AT not in rows.columns:
            return True
        later = F.greatest(START_AT, END_AT) >= self._literal(version)
        return rows.where(later).isEmpty()

    def _count(self, snapshot: DataFrame) -> int:
        count, shared = count_keys(snapshot, _struct(self._shape.keys))
        if shared:
            raise FlowError(
                "SNAPSHOT_KEYS_NOT_UNIQUE",
                f"flow {self._flow!r}: {shared} rows of the snapshot share "
                f"their key ({', '.join(self._shape.shape.keys)}) with another",
                flow=self._flow,
                retryable=False,
                hint="declare the keys that identify a row, or deduplicate the source",
            )
        return count

    def _current(self, txn: TableTransaction, like: DataFrame) -> DataFrame:
        """The rows of the table, with NULL in columns that are to be added."""
        rows = self._table.rows(txn, like)
        return rows.select(*columns_as(self._schema, rows.schema.fields))

    def _compare(self, txn: TableTransaction, snapshot: DataFrame, *, small: bool) -> DataFrame:
        """The keys `k` that differ, with values `old` and `new`, and `start` of the open version.

        `tracked` is whether a column differs whose change starts a new version.
        """
        shape = self._shape
        have = self._current(txn, snapshot)
        start = F.lit(None).cast(shape.sequence)
        if shape.shape.scd_type is ScdType.TWO:
            have, start = have.where(F.col(END_AT).isNull()), F.col(START_AT)
        new = snapshot.select(_struct(shape.keys).alias("k"), _values(shape.values).alias("new"))
        old = have.select(
            _struct(shape.keys).alias("k"), _values(shape.values).alias("old"), start.alias("start")
        )
        if small:
            new, old = in_one_task(new), in_one_task(old)
        tracked = [f for f in shape.values if shape.shape.is_tracked(f.name)]
        both = F.col("old").isNotNull() & F.col("new").isNotNull()
        joined = new.join(old, "k", "full_outer").where(~(both & _same(shape.values)))
        return joined.withColumn("tracked", ~_same(tracked))

    def _commit(
        self,
        txn: TableTransaction,
        differences: DataFrame,
        version: Any,
        result: CommitResult,
        *,
        always: bool,
    ) -> CommitResult | None:
        row: Any = differences.agg(
            F.count("new").alias("written"),
            F.count(F.when(F.col("new").isNull(), 1)).alias("deleted"),
        ).first()
        result = replace(result, rows_written=row["written"], rows_deleted=row["deleted"])
        if not row["written"] and not row["deleted"]:
            if not always:
                return None
            committed = self._table.commit(txn, [], result.batch_id, result, complete=False)
            return replace(result, version=committed)
        touched = differences.select("k")
        if self._shape.shape.scd_type is ScdType.ONE:
            rows = self._rows(differences.where("new IS NOT NULL"), "new")
        else:
            rows = self._versions(txn, differences, touched, version)
        changed = row["written"] + row["deleted"]
        new = self._keyed.replace(txn, touched, rows, result, count=changed)
        return replace(result, version=new)

    def _versions(
        self, txn: TableTransaction, differences: DataFrame, touched: DataFrame, version: Any
    ) -> DataFrame:
        now, never = self._literal(version), self._literal(None)
        closed = self._current(txn, differences).where(F.col(END_AT).isNotNull())
        # Delta computes generated columns that snapshots lack; the union would set them to NULL.
        own = {field.name.lower() for field in self._shape.columns}
        others = [field for field in self._schema if field.name.lower() not in own]
        generated = [field.name for field in others if GENERATED in field.metadata]
        closed = of_keys(closed, touched).drop(*generated)
        old, new = F.col("old").isNotNull(), F.col("new").isNotNull()
        opens = new & (~old | F.col("tracked"))
        ends = old & (~new | F.col("tracked"))
        in_place = old & new & ~F.col("tracked")
        parts = [
            self._rows(differences.where(opens), "new", now, never),
            self._rows(differences.where(ends), "old", F.col("start"), now),
            self._rows(differences.where(in_place), "new", F.col("start"), never),
        ]
        for part in parts:
            closed = closed.unionByName(part, allowMissingColumns=True)
        return closed

    def _literal(self, version: Any) -> Column:
        # For a `datetime` without a time zone, PySpark uses that of the process, not the session's.
        if isinstance(version, datetime) and version.tzinfo is None:
            version = version.isoformat()
        return F.lit(version).cast(self._shape.sequence)

    def _rows(self, differences: DataFrame, side: str, *interval: Column) -> DataFrame:
        return differences.select(
            *[F.col("k").getField(f.name).alias(f.name) for f in self._shape.keys],
            *[F.col(side).getField(f.name).alias(f.name) for f in self._shape.values],
            *[c.alias(n) for c, n in zip(interval, (START_AT, END_AT), strict=False)],
        )


def _struct(fields: Sequence[StructField]) -> Column:
    return key_struct(field.name for field in fields)


def _values(fields: Sequence[StructField]) -> Column:
    return _struct(fields) if fields else F.struct(F.lit(0).alias("none"))


def _same(fields: Sequence[StructField]) -> Column:
    same = F.lit(True)
    for field in fields:
        kind = field.dataType
        old, new = (comparable(F.col(s).getField(field.name), kind) for s in ("old", "new"))
        same = same & old.eqNullSafe(new)
    return same
