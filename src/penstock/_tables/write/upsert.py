"""Update output mode: the rows of a batch replace those with the same keys."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._tables.commits import CommitResult
from penstock._tables.write.decision import BatchDecision, DecisionFile
from penstock._tables.write.fenced import TableTransaction
from penstock._tables.write.keyed import KeyedTable
from penstock._tables.write.row_files import Written
from penstock._tables.write.staging import StagedFiles, count_rows, valid_rows
from penstock._tables.write.writer import Batch, FlowWriter, WriterOptions
from penstock.errors import FlowError, InternalError
from penstock.quality.rules import quoted


class UpsertWriter(FlowWriter):
    """Writes the batches of one update-mode flow; in keys, NULL equals NULL.

    Columns of the table that the query lacks stay as they are. A row that breaks a drop rule leaves
    the row with its key in the table unchanged. `rewrite` as in `KeyedTable`.
    """

    kind = "upsert"

    def __init__(
        self,
        spark: SparkSession,
        *,
        keys: Sequence[str],
        rewrite: bool | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        if not keys:
            flow = options["flow"]
            raise InternalError("WRITER_MISUSED", f"update mode of {flow!r} needs keys")
        options["stateful"] = True
        super().__init__(spark, **options)
        self._key = F.struct(*[F.col(quoted(key)).alias(key) for key in keys])
        self._keys = keys
        self._keyed = KeyedTable(self._delta, self._target, self._app_id, rewrite)

    def _write_files(self, df: DataFrame, txn: TableTransaction, schema: StructType) -> Written:
        # Read three times: counted, written, and joined with the table.
        self._kept = kept = df.persist()
        rows = valid_rows(kept, self._split)
        row_count = self._check_keys(rows)
        if self._split is None:
            return Written(StagedFiles([], [], row_count, 0, {}), rows=rows)
        counts, _ = count_rows(kept, self._split)
        return Written(counts, bad=self._files.write_bad(kept, counts, self._split), rows=rows)

    def _check_keys(self, rows: DataFrame) -> int:
        """Count the rows; two rows with one key are refused, because either could win."""
        row: Any = rows.agg(
            F.count(F.lit(1)).alias("rows"), F.countDistinct(self._key).alias("keys")
        ).first()
        if row["rows"] != row["keys"]:
            raise FlowError(
                "MERGE_KEYS_NOT_UNIQUE",
                f"{row['rows'] - row['keys']} rows of one batch share their key"
                f" ({', '.join(self._keys)}) with another",
                flow=self._flow,
                hint="declare the keys that identify a row, or deduplicate before the upsert",
            )
        return int(row["rows"])

    def _with_rows(
        self, decision: BatchDecision, batch: Batch, file: DecisionFile
    ) -> BatchDecision:
        assert batch.written.rows is not None
        batch.written.rows.write.mode("overwrite").parquet(file.rows)
        return replace(decision, has_rows=True)

    def _with_recorded_rows(self, batch: Batch, decision: BatchDecision) -> Batch:
        assert self._decisions is not None
        rows = self._delta.spark.read.parquet(self._decisions.rows)
        return replace(batch, written=replace(batch.written, rows=rows))

    def _commit_target(self, batch: Batch) -> CommitResult:
        result, rows = batch.result, batch.written.rows
        assert rows is not None
        touched = rows.select(self._key.alias("k"))
        version = self._keyed.replace(batch.txn, touched, rows, result, deletes=False)
        if batch.quarantine is not None and self._decisions is not None:
            self._decisions.delete_rows()
        return replace(result, version=version)
