"""Replaces all rows of some keys in one commit; for CDC, snapshots and update mode.

Small tables are rewritten by a transaction of our own, which needs one or two jobs; large ones are
merged by Delta's MERGE, which needs seven or more. Both are fenced.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm, size_in_bytes
from penstock._tables.read.log_scan import live_files
from penstock._tables.write.cdc_events import START_AT, comparable
from penstock._tables.write.fenced import FencedTable, TableTransaction
from penstock._tables.write.schema import is_computed
from penstock.quality.rules import quoted

# The cost of a rewrite grows with the table; MERGE has a high fixed cost.
REWRITE_BYTES = 8 * 1024 * 1024
_ACTION = "penstock_action"
_KEY = "penstock_key"
_WRITE_CONF = "spark.databricks.delta.write."
_CONSTRAINTS = "spark.sql.constraintPropagation.enabled"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class KeyedTable:
    """A table whose rows belong to keys; `app_id` is that of its batches."""

    delta: DeltaJvm
    table: FencedTable
    app_id: str
    rewrite: bool | None = None  # forces (or forbids) the rewrite of the table; None = by size

    def rows(self, txn: TableTransaction, like: DataFrame) -> DataFrame:
        live = self._live_files(txn)
        if live is None:
            files = txn.jvm.filterFiles()
        else:
            txn.jvm.readWholeTable()
            files = self.delta.seq(self.delta.add_files(live))
        path = self.table.ref.path
        return self.delta.read_files(path, txn.jvm.snapshot(), files, like.sparkSession)

    def replace(
        self,
        txn: TableTransaction,
        touched: DataFrame,
        rows: DataFrame,
        result: CommitResult,
        *,
        deletes: bool = True,
    ) -> int | None:
        """Replace all rows of some keys; returns the new version.

        `touched` has each key once, as structs in a column `k`. Without `deletes`, each of them has
        a new row. The schema of the transaction is evolved.
        """
        if self._rewrites(txn):
            return self._rewrite(txn, touched, rows, result)
        return self._merge(txn, touched, rows, result, deletes=deletes)

    def _live_files(self, txn: TableTransaction) -> list[dict[str, Any]] | None:
        return live_files(self.delta, self.table.ref.path, txn.version)

    def _rewrites(self, txn: TableTransaction) -> bool:
        if any(is_computed(column) for column in txn.metadata.schema):
            return False
        if self.rewrite is not None:
            return self.rewrite
        configuration = txn.metadata.configuration
        for feature in ("delta.enableChangeDataFeed", "delta.enableRowTracking"):
            if configuration.get(feature, "false").lower() == "true":
                return False  # only MERGE keeps them
        live = self._live_files(txn)
        if live is not None:
            return sum(int(file["size"]) for file in live) <= REWRITE_BYTES
        # Without a checksum, Delta computes the state of the table for its size.
        return size_in_bytes(txn.jvm.snapshot()) <= REWRITE_BYTES

    def _rewrite(
        self, txn: TableTransaction, touched: DataFrame, rows: DataFrame, result: CommitResult
    ) -> int:
        removed = self.table.removals(txn)
        other = without_keys(in_one_task(self.rows(txn, rows)), in_one_task(touched))
        written = other.unionByName(rows, allowMissingColumns=True).coalesce(1)
        added = self.delta.write_files(txn.jvm, written)
        return self.table.commit(txn, [*removed, *added], result.batch_id, result, complete=False)

    def _merge(
        self,
        txn: TableTransaction,
        touched: DataFrame,
        rows: DataFrame,
        result: CommitResult,
        *,
        deletes: bool,
    ) -> int | None:
        from delta.tables import DeltaTable

        # MERGE starts its own transaction.
        self.table.commit_evolution(txn, None)
        session = rows.sparkSession
        keys = _field_names(touched)
        has_history = deletes and START_AT in rows.columns
        identity = [*keys, START_AT] if has_history else keys
        changes = rows.withColumn(_ACTION, F.lit(1))
        if deletes:
            if has_history:
                path = self.table.ref.path
                have = of_keys(session.read.format("delta").load(path), touched)
            else:
                # A key that the table does not have matches no row.
                have = touched.select(*[F.col("k").getField(key).alias(key) for key in keys])
            have = have.select(*[F.col(quoted(name)) for name in identity])
            gone = _anti_join(have, rows.select(*[F.col(quoted(n)) for n in identity]))
            deletions = gone.withColumn(_ACTION, F.lit(0))
            changes = changes.unionByName(deletions, allowMissingColumns=True)
        stays = F.col(f"s.{_ACTION}") == 1
        columns: dict[str, str | Column] = {
            quoted(name): f"s.{quoted(name)}" for name in rows.columns
        }
        same = [
            comparable(F.col(f"t.{quoted(f.name)}"), f.dataType).eqNullSafe(
                comparable(F.col(f"s.{quoted(f.name)}"), f.dataType)
            )
            for f in rows.schema
        ]
        matches = [F.col(f"t.{quoted(n)}").eqNullSafe(F.col(f"s.{quoted(n)}")) for n in identity]
        with merge_identity(session, self.app_id, result):
            (
                DeltaTable.forPath(session, self.table.ref.path)
                .alias("t")
                .merge(changes.alias("s"), reduce(Column.__and__, matches))
                .whenMatchedDelete(condition=~stays)
                .whenMatchedUpdate(condition=stays & ~reduce(Column.__and__, same), set=columns)
                .whenNotMatchedInsert(condition=stays, values=columns)
                .execute()
            )
        recorded = self.table.recorded(result.batch_id)
        return recorded.version if recorded else None


@contextmanager
def merge_identity(session: SparkSession, app_id: str, result: CommitResult) -> Iterator[None]:
    """Set the transaction id and the record of the one MERGE in the block.

    MERGE takes both only from the session's configuration, and any later statement of the session
    would inherit them and be skipped without an error.

    Constraint propagation of the optimizer is off meanwhile: its time grows with the square of the
    columns, and for a history of 20 columns exceeds that of the rest of the MERGE.
    """
    settings = {_USER_METADATA: result.to_metadata(), _CONSTRAINTS: "false"}
    if result.batch_id is not None:
        settings[f"{_WRITE_CONF}txnAppId"] = app_id
        settings[f"{_WRITE_CONF}txnVersion"] = str(result.batch_id)
    before = {key: session.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, earlier)


def _field_names(touched: DataFrame) -> list[str]:
    kind = touched.schema["k"].dataType
    assert isinstance(kind, StructType)
    return list(kind.fieldNames())


def count_keys(rows: DataFrame, key: Column) -> tuple[int, int]:
    """The number of rows, and of those that share their key with another."""
    keys = F.countDistinct(key).alias("keys")
    row: Any = rows.agg(F.count(F.lit(1)).alias("rows"), keys).first()
    return int(row["rows"]), int(row["rows"] - row["keys"])


def in_one_task(rows: DataFrame) -> DataFrame:
    """Few rows as one partition: they are joined and grouped without a shuffle, in one job."""
    return rows.coalesce(1).hint("shuffle_hash")


# Spark pushes semi and anti joins below a coalesce, where they need a shuffle again; so the keys,
# which are unique, are joined by inner and outer joins.


def of_keys(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """The rows with one of some keys; NULL equals NULL, as within structs."""
    renamed = keys.withColumnRenamed("k", _KEY)
    return rows.join(renamed, _key_of_row(keys) == F.col(_KEY)).select(*_columns(rows))


def without_keys(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """The rows with none of some keys."""
    marked = keys.withColumnRenamed("k", _KEY).withColumn(_ACTION, F.lit(0))
    joined = rows.join(marked, _key_of_row(keys) == F.col(_KEY), "left_outer")
    return joined.where(F.col(_ACTION).isNull()).select(*_columns(rows))


def _key_of_row(keys: DataFrame) -> Column:
    return F.struct(*[F.col(quoted(name)).alias(name) for name in _field_names(keys)])


def _columns(rows: DataFrame) -> list[Column]:
    return [F.col(quoted(name)) for name in rows.columns]


def _anti_join(rows: DataFrame, other: DataFrame) -> DataFrame:
    names: Sequence[str] = rows.columns
    renamed = other.select(*[F.col(quoted(n)).alias(f"penstock_{i}") for i, n in enumerate(names)])
    same = [F.col(quoted(n)).eqNullSafe(F.col(f"penstock_{i}")) for i, n in enumerate(names)]
    return rows.join(renamed, reduce(Column.__and__, same), "left_anti")
