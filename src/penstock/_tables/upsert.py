"""Update output mode: the rows of a batch replace those with the same keys.

Small tables are rewritten by a transaction of our own, which needs two jobs; large ones are merged
by Delta's MERGE, which needs seven or more. Both are fenced like an append.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._tables.commit_note import CommitNote
from penstock._tables.commits import CommitResult
from penstock._tables.decision import BatchDecision, DecisionFile
from penstock._tables.delta_log import size_in_bytes
from penstock._tables.fenced import Begun
from penstock._tables.layout import TableRef
from penstock._tables.refused_rows import FindLateRows
from penstock._tables.row_files import Written
from penstock._tables.staging import StagedFiles, count_rows, data_columns
from penstock._tables.writer import Batch, FlowWriter
from penstock.errors import FlowError, InternalError
from penstock.quality.rules import quoted
from penstock.quality.split import DESTINATION, TO_TABLE, RowSplit

# Rewriting costs as much as the table is large; MERGE has a high cost to begin with.
REWRITE_BYTES = 8 * 1024 * 1024
_WRITE_CONF = "spark.databricks.delta.write."
_CONSTRAINTS = "spark.sql.constraintPropagation.enabled"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class UpsertWriter(FlowWriter):
    """Writes the batches of one update-mode flow.

    Args:
        spark: Any session of the application.
        flow: Name of the flow.
        app_id: From `writer.app_id`.
        target: The table; must exist.
        keys: Columns that identify a row; NULL equals NULL.
        split: As for `FlowWriter`. A row that breaks a drop rule leaves the row that the table has
            for its key as it is.
        quarantine: As for `FlowWriter`.
        allow_missing: Columns of the table that the query lacks stay as they are.
        late: As for `FlowWriter`.
        rewrite: Force (or forbid) the rewrite of the table; by default its size decides.
        apply_rules: As for `FlowWriter`.
        decisions: As for `FlowWriter`.
        note: As for `FlowWriter`.
    """

    kind = "upsert"

    def __init__(
        self,
        spark: SparkSession,
        *,
        flow: str,
        app_id: str,
        target: TableRef,
        keys: Sequence[str],
        split: RowSplit | None = None,
        quarantine: TableRef | None = None,
        allow_missing: bool = False,
        late: FindLateRows | None = None,
        rewrite: bool | None = None,
        apply_rules: Callable[[DataFrame], DataFrame] | None = None,
        decisions: DecisionFile | None = None,
        note: CommitNote | None = None,
    ) -> None:
        if not keys:
            raise InternalError("WRITER_MISUSED", f"update mode of {flow!r} needs keys")
        super().__init__(
            spark,
            flow=flow,
            app_id=app_id,
            target=target,
            split=split,
            quarantine=quarantine,
            allow_missing=allow_missing,
            late=late,
            stateful=True,
            apply_rules=apply_rules,
            decisions=decisions,
            note=note,
        )
        self._keys = tuple(keys)
        self._rewrite = rewrite
        self._kept: DataFrame | None = None

    def _run(self, df: DataFrame, batch_id: int | None, fingerprint: str | None) -> CommitResult:
        try:
            return super()._run(df, batch_id, fingerprint)
        finally:
            if self._kept is not None:
                self._kept.unpersist()
                self._kept = None

    def _write_files(self, df: DataFrame, begun: Begun, schema: StructType) -> Written:
        # Read three times: counted, written, and looked up in the table.
        self._kept = kept = df.persist()
        counts, clean = self._count(kept), self._clean(kept)
        if self._split is None:
            return Written(counts, rows=clean)
        return Written(counts, bad=self._files.write_bad(kept, counts, self._split), rows=clean)

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

    def _count(self, kept: DataFrame) -> StagedFiles:
        """Count rows and rules, and refuse two rows with one key: either could win."""
        clean = self._clean(kept)
        row: Any = clean.agg(
            F.count(F.lit(1)).alias("rows"),
            F.countDistinct(F.struct(*self._key_columns())).alias("keys"),
        ).first()
        if row["rows"] != row["keys"]:
            raise FlowError(
                "MERGE_KEYS_NOT_UNIQUE",
                f"{row['rows'] - row['keys']} rows of one batch share their key"
                f" ({', '.join(self._keys)}) with another",
                flow=self._flow,
                hint="declare the keys that identify a row, or deduplicate before the upsert",
            )
        if self._split is None:
            return StagedFiles([], [], int(row["rows"]), 0, {})
        return count_rows(kept, self._split)

    def _clean(self, kept: DataFrame) -> DataFrame:
        if self._split is None:
            return kept
        return kept.where(F.col(DESTINATION) == TO_TABLE).select(*data_columns(self._split))

    def _key_columns(self) -> list[Column]:
        return [F.col(quoted(key)) for key in self._keys]

    def _commit_target(self, batch: Batch) -> CommitResult:
        begun, result, clean = batch.begun, batch.result, batch.written.rows
        assert clean is not None
        if self._rewrites(begun):
            actions = self._rewritten(begun, clean)
            version = self._target.commit(begun, actions, result.batch_id, result, complete=False)
            result = replace(result, version=version)
        else:
            result = self._merge(begun, clean, result)
        if batch.quarantine is not None and self._decisions is not None:
            self._decisions.forget_rows()
        return result

    # -- small tables --------------------------------------------------------------------------

    def _rewrites(self, begun: Begun) -> bool:
        return can_rewrite(begun) if self._rewrite is None else self._rewrite

    def _rewritten(self, begun: Begun, clean: DataFrame) -> list[Any]:
        """Replace all files by ones with the rows that stay and the rows of the batch."""
        session: Any = clean.sparkSession
        log = self._delta.log(self._target.ref.path)
        files = begun.transaction.filterFiles()
        current = DataFrame(
            log.createDataFrame(begun.transaction.snapshot(), files, False, self._delta.none),
            session,
        )
        keys = clean.select(
            *[F.col(quoted(key)).alias(f"penstock_key_{i}") for i, key in enumerate(self._keys)]
        )
        same = [
            F.col(quoted(key)).eqNullSafe(F.col(f"penstock_key_{i}"))
            for i, key in enumerate(self._keys)
        ]
        staying = current.join(keys, reduce(Column.__and__, same), "left_anti")
        rows = staying.unionByName(clean, allowMissingColumns=True).coalesce(1)
        added = begun.transaction.writeFiles(rows._jdf)
        removed = [file.remove() for file in self._delta.items(files)]
        return [*removed, *self._delta.items(added)]

    # -- large tables --------------------------------------------------------------------------

    def _merge(self, begun: Begun, clean: DataFrame, result: CommitResult) -> CommitResult:
        from delta.tables import DeltaTable

        # MERGE makes its own transaction.
        self._target.commit_evolution(begun, None)
        session = clean.sparkSession
        matches = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in self._keys)
        columns: dict[str, str | Column] = {
            quoted(name): f"s.{quoted(name)}" for name in clean.columns
        }
        with merge_identity(session, self._app_id, result):
            (
                DeltaTable.forPath(session, self._target.ref.path)
                .alias("t")
                .merge(clean.alias("s"), matches)
                .whenMatchedUpdate(set=columns)
                .whenNotMatchedInsert(values=columns)
                .execute()
            )
        found = self._target.recorded(result.batch_id)
        return replace(result, version=found.version if found else None)


def can_rewrite(begun: Begun, size: int | None = None) -> bool:
    """Whether a table is small enough to be written anew, and has nothing that only MERGE keeps.

    Args:
        begun: A transaction on the table.
        size: Of its files in bytes, if known.
    """
    configuration = begun.metadata.configuration
    for feature in ("delta.enableChangeDataFeed", "delta.enableRowTracking"):
        if configuration.get(feature, "false").lower() == "true":
            return False
    if size is None:
        size = size_in_bytes(begun.transaction.snapshot())
    return size <= REWRITE_BYTES


@contextmanager
def merge_identity(session: SparkSession, app_id: str, result: CommitResult) -> Iterator[None]:
    """Give the one MERGE inside its transaction id and record.

    MERGE takes both only from the session's configuration, and any later statement of the session
    would inherit them and be skipped without a word.

    The optimizer derives no constraints meanwhile: for a history of 20 columns it would need more
    time than all else of the MERGE, and the time grows with the square of the columns.
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
