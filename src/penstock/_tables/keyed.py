"""Replacing all rows of some keys in one commit: what CDC and snapshots do to their target.

Small tables are rewritten by a transaction of our own, which needs one job; large ones are merged
by Delta's MERGE. Both are fenced.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._tables.cdc_events import START_AT, comparable
from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.fenced import Begun, FencedTable
from penstock._tables.log_scan import live_files
from penstock._tables.schema import is_computed
from penstock._tables.upsert import can_rewrite, merge_identity
from penstock.quality.rules import quoted

_ACTION = "penstock_action"
_KEY = "penstock_key"


@dataclass(frozen=True)
class KeyedTable:
    """A table whose rows belong to keys.

    Attributes:
        delta: The bridge.
        table: The table.
        app_id: Under which its batches are counted.
        rewrite: Force (or forbid) the rewrite of the table; by default its size decides.
    """

    delta: DeltaJvm
    table: FencedTable
    app_id: str
    rewrite: bool | None = None

    def rows(self, begun: Begun, like: DataFrame) -> DataFrame:
        """The rows of the version that a transaction read.

        Args:
            begun: From `FencedTable.begin`.
            like: Any DataFrame of the session to read in.
        """
        known = self._live_files(begun)
        if known is None:
            files = begun.transaction.filterFiles()
        else:
            begun.transaction.readWholeTable()
            files = self.delta.seq(self.delta.add_files(known))
        log = self.delta.log(self.table.ref.path)
        frame = log.createDataFrame(begun.transaction.snapshot(), files, False, self.delta.none)
        return DataFrame(frame, like.sparkSession)

    def _live_files(self, begun: Begun) -> list[dict[str, Any]] | None:
        return live_files(self.delta, self.table.ref.path, begun.version)

    def _rewrites(self, begun: Begun) -> bool:
        if any(is_computed(column) for column in begun.metadata.schema):
            return False
        if self.rewrite is not None:
            return self.rewrite
        known = self._live_files(begun)
        # Asking Delta for the size would make it compute the state of the table.
        return can_rewrite(begun, None if known is None else sum(int(f["size"]) for f in known))

    def replace(
        self, begun: Begun, touched: DataFrame, wanted: DataFrame, result: CommitResult
    ) -> int | None:
        """Make the rows of some keys what they should be; returns the version made.

        Args:
            begun: From `FencedTable.begin`, with the schema evolved.
            touched: The keys, as structs in a column `k`.
            wanted: All rows that the table shall have for these keys.
            result: Record of the batch.
        """
        if self._rewrites(begun):
            return self._rewrite(begun, touched, wanted, result)
        return self._merge(begun, touched, wanted, result)

    def _rewrite(
        self, begun: Begun, touched: DataFrame, wanted: DataFrame, result: CommitResult
    ) -> int:
        removed = self.table.removals(begun)
        staying = without_keys(in_one_task(self.rows(begun, wanted)), in_one_task(touched))
        rows = staying.unionByName(wanted, allowMissingColumns=True).coalesce(1)
        added = self.delta.items(begun.transaction.writeFiles(rows._jdf))
        return self.table.commit(begun, [*removed, *added], result.batch_id, result, complete=False)

    def _merge(
        self, begun: Begun, touched: DataFrame, wanted: DataFrame, result: CommitResult
    ) -> int | None:
        from delta.tables import DeltaTable

        # MERGE makes its own transaction.
        self.table.commit_evolution(begun, None)
        session = wanted.sparkSession
        keys = _field_names(touched)
        has_history = START_AT in wanted.columns
        identity = [*keys, START_AT] if has_history else keys
        if has_history:
            path = self.table.ref.path
            have = of_keys(session.read.format("delta").load(path), touched)
        else:
            # A key without a row is no harm: there is nothing to delete.
            have = touched.select(*[F.col("k").getField(key).alias(key) for key in keys])
        have = have.select(*[F.col(quoted(name)) for name in identity])
        gone = _anti_join(have, wanted.select(*[F.col(quoted(n)) for n in identity]))
        changes = wanted.withColumn(_ACTION, F.lit(1)).unionByName(
            gone.withColumn(_ACTION, F.lit(0)), allowMissingColumns=True
        )
        stays = F.col(f"s.{_ACTION}") == 1
        columns: dict[str, str | Column] = {
            quoted(name): f"s.{quoted(name)}" for name in wanted.columns
        }
        same = [
            comparable(F.col(f"t.{quoted(f.name)}"), f.dataType).eqNullSafe(
                comparable(F.col(f"s.{quoted(f.name)}"), f.dataType)
            )
            for f in wanted.schema
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
        found = self.table.recorded(result.batch_id)
        return found.version if found else None


def _field_names(touched: DataFrame) -> list[str]:
    kind = touched.schema["k"].dataType
    assert isinstance(kind, StructType)
    return list(kind.fieldNames())


def in_one_task(rows: DataFrame) -> DataFrame:
    """Few rows as one partition: they are joined and grouped without a shuffle, in one job."""
    return rows.coalesce(1).hint("shuffle_hash")


# Spark pushes semi and anti joins below a coalesce, where they need a shuffle again; so the keys,
# each of which is there once, are joined by inner and outer joins.


def of_keys(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """The rows with one of some keys; NULL equals NULL, as it does inside of structs."""
    apart = keys.withColumnRenamed("k", _KEY)
    return rows.join(apart, _key_of_row(keys) == F.col(_KEY)).select(*_columns(rows))


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
