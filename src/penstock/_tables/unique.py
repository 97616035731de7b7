"""Append mode that takes each key once: a row whose key the table has already is left out.

What Delta calls an insert-only MERGE, as a transaction of our own: the rows that are new are
written as files and committed with the fence and the counts, like any other batch. The transaction
has read the table, so that a commit of another flow in between makes it fail and look again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._tables.commit_note import CommitNote
from penstock._tables.commits import CommitResult
from penstock._tables.decision import BatchDecision, DecisionFile
from penstock._tables.fenced import Begun
from penstock._tables.layout import TableRef
from penstock._tables.refused_rows import FindLateRows
from penstock._tables.row_files import Written
from penstock._tables.staging import StagedFiles, count_rows, data_columns
from penstock._tables.writer import Batch, FlowWriter
from penstock.quality.rules import quoted
from penstock.quality.split import DESTINATION, TO_TABLE, RowSplit, row_json

# Keys of a batch that are sent to every task that reads the table.
_BROADCAST_ROWS = 500_000
_ATTEMPTS = 20
_RANK = "penstock_rank"
_KEY = "penstock_key_"


class UniqueWriter(FlowWriter):
    """Adds the rows of a batch whose key the table does not have; the first one of each key.

    Which row of a batch is the first does not depend on their order: the one with the smallest
    digest of its values is. A row with a NULL in its key is added always: NULL is not a value that
    two rows can share.

    Args:
        spark: Any session of the application.
        flow: Name of the flow.
        app_id: From `writer.app_id`.
        target: The table; must exist.
        keys: Columns that identify a row.
        split: What `quality.split_rows` made of the query.
        quarantine: Where rows that break a drop rule go.
        allow_missing: Columns of the table that the query lacks become NULL.
        late: As for `FlowWriter`.
        stateful: As for `FlowWriter`.
        apply_rules: As for `FlowWriter`.
        decisions: As for `FlowWriter`.
        note: As for `FlowWriter`.
    """

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
        stateful: bool = False,
        apply_rules: Callable[[DataFrame], DataFrame] | None = None,
        decisions: DecisionFile | None = None,
        note: CommitNote | None = None,
    ) -> None:
        super().__init__(
            spark,
            flow=flow,
            app_id=app_id,
            target=target,
            split=split,
            quarantine=quarantine,
            allow_missing=allow_missing,
            late=late,
            stateful=stateful,
            apply_rules=apply_rules,
            decisions=decisions,
            note=note,
        )
        self._coalesce = False
        self._keys = tuple(keys)
        self._kept: DataFrame | None = None

    def _run(self, df: DataFrame, batch_id: int | None, fingerprint: str | None) -> CommitResult:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return super()._run(df, batch_id, fingerprint)
            except Exception as error:
                # Another flow has added rows since: they may have a key of ours.
                if attempt == _ATTEMPTS or "DELTA_CONCURRENT_APPEND" not in str(error):
                    raise
            finally:
                if self._kept is not None:
                    self._kept.unpersist()
                    self._kept = None
        raise AssertionError("unreachable")

    def _write_files(self, df: DataFrame, begun: Begun, schema: StructType) -> Written:
        # Read three times: counted, compared with the table, and written.
        self._kept = kept = df.persist()
        split, bad = self._split, []
        if split is None:
            clean = kept
            counts = StagedFiles([], [], kept.count(), 0, {})
        else:
            counts = count_rows(kept, split)
            bad = self._files.write_bad(kept, counts, split)
            clean = kept.where(F.col(DESTINATION) == TO_TABLE).select(*data_columns(split))
        if not counts.clean_rows:
            return Written(counts, bad=bad)
        return self._fresh(begun, Written(counts, bad=bad), self._first_of_each(clean))

    def _fresh(self, begun: Begun, written: Written, rows: DataFrame) -> Written:
        """Write the rows whose key the table does not have."""
        counts = written.counts
        fresh = self._without_known(begun, rows, counts.clean_rows)
        files = begun.transaction.writeFiles(fresh._jdf)
        left = self._files.row_count(self._delta.file_contents(files))
        return replace(
            written,
            counts=replace(counts, clean_rows=left),
            actions=list(self._delta.items(files)) if left else [],
            duplicates=written.duplicates + counts.clean_rows - left,
        )

    def _with_recorded_rows(self, batch: Batch, decision: BatchDecision) -> Batch:
        is_same = batch.begun.version == decision.target_version
        if is_same or not decision.counts["clean"]:
            batch.begun.transaction.readWholeTable()
            return super()._with_recorded_rows(batch, decision)
        # Another flow may have brought keys of the batch since.
        batch, rows = self._recorded_rows(batch, decision)
        written = self._fresh(batch.begun, batch.written, rows)
        result = replace(
            batch.result,
            rows_written=written.counts.clean_rows,
            rows_duplicate=written.duplicates,
        )
        return replace(batch, written=written, result=result)

    def _first_of_each(self, clean: DataFrame) -> DataFrame:
        keys = [F.col(quoted(key)) for key in self._keys]
        digest = F.xxhash64(row_json(clean, clean.columns))
        rank = F.row_number().over(Window.partitionBy(*keys).orderBy(digest))
        ranked = clean.withColumn(_RANK, rank)
        return ranked.where((F.col(_RANK) == 1) | _any_null(keys)).drop(_RANK)

    def _without_known(self, begun: Begun, fresh: DataFrame, rows: int) -> DataFrame:
        session: Any = fresh.sparkSession
        log = self._delta.log(self._target.ref.path)
        snapshot, files = begun.transaction.snapshot(), begun.transaction.filterFiles()
        table = DataFrame(log.createDataFrame(snapshot, files, False, self._delta.none), session)
        names = [f"{_KEY}{number}" for number in range(len(self._keys))]
        pairs = list(zip(self._keys, names, strict=True))
        have = {column.lower() for column in table.columns}
        if not all(key.lower() in have for key in self._keys):
            return fresh  # a key column that this batch brings: no row of the table has it
        ours = fresh.select(*[F.col(quoted(key)).alias(f"{name}_new") for key, name in pairs])
        theirs = table.select(*[F.col(quoted(key)).alias(name) for key, name in pairs])
        wanted = F.broadcast(ours) if rows <= _BROADCAST_ROWS else ours
        same = [F.col(name) == F.col(f"{name}_new") for name in names]
        known = theirs.join(wanted, _all(same), "left_semi")
        return fresh.join(
            known, _all([F.col(quoted(key)) == F.col(name) for key, name in pairs]), "left_anti"
        )


def _all(conditions: Sequence[Column]) -> Column:
    result = conditions[0]
    for condition in conditions[1:]:
        result = result & condition
    return result


def _any_null(columns: Sequence[Column]) -> Column:
    result = columns[0].isNull()
    for column in columns[1:]:
        result = result | column.isNull()
    return result
