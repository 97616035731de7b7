"""Writers that compare the keys of a batch with the table: update mode and `deduplicate_by`."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Unpack

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._model.sql_text import quoted
from penstock._tables.commits import CommitResult
from penstock._tables.jvm import iterate
from penstock._tables.write.decision import BatchDecision
from penstock._tables.write.fenced import TableTransaction
from penstock._tables.write.kept import keep_and_count
from penstock._tables.write.key_joins import count_keys, key_struct
from penstock._tables.write.keyed import (
    MOST_KEYS,
    KeyedTable,
    Way,
    with_stored_keys,
    with_stored_texts,
)
from penstock._tables.write.row_files import Written
from penstock._tables.write.schema import conform
from penstock._tables.write.staging import valid_rows
from penstock._tables.write.writer import Batch, FlowWriter, WriterOptions
from penstock.errors import FlowError, InternalError
from penstock.quality.split import row_json


class UpsertWriter(FlowWriter):
    """Writes the batches of one update-mode flow; in keys, NULL equals NULL.

    A row that violates a drop rule leaves the row with its key in the table unchanged. `way` and
    `is_streamed` are as in `KeyedTable`.
    """

    kind = "upsert"

    def __init__(
        self,
        spark: SparkSession,
        *,
        keys: Sequence[str],
        way: Way | None = None,
        is_streamed: bool = False,
        on_vectors: Callable[[], None] | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        if not keys:
            flow = options["flow"]
            raise InternalError("WRITER_MISUSED", f"update mode of {flow!r} needs keys")
        options["stateful"] = True
        super().__init__(spark, **options)
        self._target.keys = keys
        self._key = key_struct(keys)
        self._keys = keys
        self._collected: Any = None
        self._keyed = KeyedTable(self._target, way, is_streamed, on_vectors)

    def _write_files(self, df: DataFrame, txn: TableTransaction, schema: StructType) -> Written:
        kept, counts = keep_and_count(self._delta, df, self._split)
        self._kept, rows = kept, valid_rows(kept, self._split)
        self._check_keys(txn, rows, counts.clean_rows)
        return Written(counts, bad=self._files.write_bad(kept, counts), rows=rows)

    def _check_keys(self, txn: TableTransaction, rows: DataFrame, count: int) -> None:
        """Refuse a batch in which two rows have the same key: the result would be arbitrary."""
        touched = with_stored_keys(txn, rows.select(self._key.alias("k")))
        self._collected = None
        if count <= MOST_KEYS and self._keyed.can_collect(touched):
            self._collected = self._keyed.collected(txn, touched)
            shared = count - int(self._collected.distinct())
        else:
            _, shared = count_keys(touched, F.col("k"))
        if shared:
            raise FlowError(
                "MERGE_KEYS_NOT_UNIQUE",
                f"{shared} rows of one batch share their key"
                f" ({', '.join(self._keys)}) with another",
                flow=self._flow,
                hint="declare the keys that identify a row, or deduplicate before the upsert",
            )

    def _with_rows(self, decision: BatchDecision, batch: Batch) -> BatchDecision:
        assert batch.written.rows is not None and self._decisions is not None
        self._decisions.delete_rows()
        folder = uuid.uuid4().hex  # a driver that has lost its lease may still write its own
        batch.written.rows.write.parquet(f"{self._decisions.rows}/{folder}")
        return replace(decision, rows=folder)

    def _with_recorded_rows(self, batch: Batch, decision: BatchDecision) -> Batch:
        assert self._decisions is not None
        rows = self._delta.spark.read.parquet(f"{self._decisions.rows}/{decision.rows}")
        rows = conform(rows, batch.txn.metadata.schema)
        self._collected = None
        return replace(batch, written=replace(batch.written, rows=rows))

    def _commit_target(self, batch: Batch) -> CommitResult:
        result, rows = batch.result, batch.written.rows
        assert rows is not None
        touched = rows.select(self._key.alias("k"))
        version = self._keyed.replace(
            batch.txn,
            touched,
            rows,
            result,
            count=result.rows_written,
            keys=self._collected,
            deletes=False,
        )
        if batch.quarantine_schema is not None and self._decisions is not None:
            self._decisions.delete_rows()
        return replace(result, version=version)


# The maximum number of keys of a batch that are broadcast to the tasks that read the table.
_BROADCAST_ROWS = 500_000
_ATTEMPTS = 20
_RANK = "penstock_rank"
_KEY = "penstock_key_"


class UniqueWriter(FlowWriter):
    """Adds the rows of a batch whose key is not in the table, one row per key.

    Like an insert-only MERGE, but in a transaction with the fence and the counts of any other
    batch. The transaction reads the table, so it fails on a concurrent commit of another flow, and
    the batch is compared with the table again.

    Among rows with the same key, the one with the smallest hash of its values is added, so the
    order of the rows does not matter. A row with NULL in its key is always added: NULL equals no
    value.
    """

    def __init__(
        self, spark: SparkSession, *, keys: Sequence[str], **options: Unpack[WriterOptions]
    ) -> None:
        super().__init__(spark, **options)
        self._coalesce = False
        self._keys = tuple(keys)

    def _run(self, df: DataFrame, batch_id: int | None, fingerprint: str | None) -> CommitResult:
        for _ in range(_ATTEMPTS - 1):
            try:
                return super()._run(df, batch_id, fingerprint)
            except Exception as error:
                # Another flow has added rows since, which may have keys of this batch.
                if "DELTA_CONCURRENT_APPEND" not in str(error):
                    raise
        return super()._run(df, batch_id, fingerprint)

    def _write_files(self, df: DataFrame, txn: TableTransaction, schema: StructType) -> Written:
        kept, counts = keep_and_count(self._delta, df, self._split)
        self._kept = kept
        written = Written(counts, bad=self._files.write_bad(kept, counts))
        if not counts.clean_rows:
            return written
        rows = with_stored_texts(txn, valid_rows(kept, self._split))
        return self._write_new(txn, written, self._unique(rows))

    def _write_new(self, txn: TableTransaction, written: Written, rows: DataFrame) -> Written:
        counts = written.counts
        files = txn.jvm.writeFiles(self._without_known(txn, rows, counts.clean_rows)._jdf)
        new = self._files.row_count(self._delta.file_contents(files))
        return replace(
            written,
            counts=replace(counts, clean_rows=new),
            actions=list(iterate(files)) if new else [],
            duplicates=written.duplicates + counts.clean_rows - new,
        )

    def _with_recorded_rows(self, batch: Batch, decision: BatchDecision) -> Batch:
        is_same = batch.txn.version == decision.target_version
        if is_same or not decision.counts["clean"]:
            batch.txn.jvm.readWholeTable()
            return super()._with_recorded_rows(batch, decision)
        # Another flow may have added keys of the batch since.
        batch, rows = self._recorded_rows(batch, decision)
        written = self._write_new(batch.txn, batch.written, rows)
        result = replace(
            batch.result, rows_written=written.counts.clean_rows, rows_duplicate=written.duplicates
        )
        return replace(batch, written=written, result=result)

    def _unique(self, rows: DataFrame) -> DataFrame:
        keys = [F.col(quoted(key)) for key in self._keys]
        digest = F.xxhash64(row_json(rows, rows.columns))
        rank = F.row_number().over(Window.partitionBy(*keys).orderBy(digest))
        has_null = reduce(Column.__or__, [key.isNull() for key in keys])
        return rows.withColumn(_RANK, rank).where((F.col(_RANK) == 1) | has_null).drop(_RANK)

    def _without_known(self, txn: TableTransaction, rows: DataFrame, count: int) -> DataFrame:
        table = self._target.rows(txn, rows)
        have = {column.lower() for column in table.columns}
        if not all(key.lower() in have for key in self._keys):
            return rows  # a key column that this batch adds: no row of the table has a value of it
        names = {f"{_KEY}{number}": F.col(quoted(key)) for number, key in enumerate(self._keys)}
        keys = [column.alias(name) for name, column in names.items()]
        ours, theirs = rows.select(*keys), table.select(*keys)
        wanted = F.broadcast(ours) if count <= _BROADCAST_ROWS else ours
        known = theirs.join(wanted, list(names), "left_semi")
        matches = [column == F.col(name) for name, column in names.items()]
        return rows.join(known, reduce(Column.__and__, matches), "left_anti")
