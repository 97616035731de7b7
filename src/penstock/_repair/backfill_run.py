"""Reads a range of a flow's sources again, into the table that has most of it already.

Each backfill has a checkpoint and an epoch of its own, so it is a stream like any other: killed at
any moment, it goes on where it was, and no batch is in the table twice. What it must not do is to
add rows that the flow has added before. There are three ways, and a table that takes none of them
is refused:

* *keys*: rows are known by columns. Those that the table or its quarantine had when the backfill
  began are left out.
* *events*: the target is made of the set of change events, so a known one changes nothing.
* *window*: the rows are gathered first; then those of the table that fulfil a condition are
  replaced by those of the range that fulfil it, in one commit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._execution.tables import BatchWriter, Commit, PipelineTables
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._model.flow import OutputMode
from penstock._spark.failures import flow_error
from penstock._spark.plans import fingerprint
from penstock._tables.checkpoint_files import Checkpoint
from penstock.errors import PlanError
from penstock.quality.rules import quoted
from penstock.quality.split import ROW
from penstock.sources.base import OpenedSource
from penstock.sources.flow import is_past_end

_POLL_SECONDS = 0.5
_KNOWN = "penstock_known_"


class Way(StrEnum):
    """How rows that are there already are kept from coming twice."""

    KEYS = "keys"
    EVENTS = "events"
    WINDOW = "window"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a backfill does; stored before anything is written.

    Attributes:
        backfill_id: Its epoch.
        flow: Name of the flow.
        way: See `Way`.
        position: Of its streams, with an end.
        by: Columns of `keys`.
        where: Condition of `window`.
        accept_fewer: A window may get fewer rows than it had.
        table_id: Delta's id of the table.
        version: Of the table when it began.
        quarantine_version: Likewise; -1 if there is none.
        range: In words.
        is_staged: Of a window: all rows are gathered.
        epoch: Of the flow's checkpoint when it began; empty if that was not noted.
    """

    backfill_id: str
    flow: str
    way: str
    position: Mapping[str, Any]
    by: Sequence[str] = ()
    where: str | None = None
    accept_fewer: bool = False
    table_id: str | None = None
    version: int = -1
    quarantine_version: int = -1
    range: str = ""
    is_staged: bool = False
    epoch: str = ""


@dataclass
class Counts:
    """What the batches of one run did; those of a run that died are in the table's commits."""

    batches: int = 0
    read: int = 0
    known: int = 0
    unidentified: int = 0
    added: int = 0
    quarantined: int = 0
    removed: int = 0
    outside: int = 0

    def as_json(self) -> dict[str, int]:
        """For events and the command line."""
        return dict(self.__dict__)


@dataclass(frozen=True, kw_only=True)
class BackfillRun:
    """Carries one decision out.

    Attributes:
        spark: The session.
        tables: Of the pipeline.
        node: The flow.
        dataset: Its target.
        decision: What to do.
        staging: Folder for rows of a window.
        sources: Of the query, opened for the range.
        done: The flow's own checkpoint: a batch with rows that it has not read is refused.
        told: Called after each batch.
        commit: Called with each commit.
        staged: Called when all rows of a window are gathered.
    """

    spark: SparkSession
    tables: PipelineTables
    node: FlowNode
    dataset: DatasetNode
    decision: Decision
    staging: str
    sources: Sequence[OpenedSource]
    done: Checkpoint
    told: Callable[[Counts], None]
    commit: Callable[[Commit], None]
    staged: Callable[[], None]
    counts: Counts = field(default_factory=Counts)

    @property
    def checkpoint(self) -> str:
        """Where its progress lies."""
        decision = self.decision
        return self.tables.layout.checkpoint_path(decision.flow, decision.backfill_id)

    def run(self, df: DataFrame) -> Counts:
        """Read the range to its end.

        Args:
            df: The flow's query over its streams, begun at the decision's position.

        Raises:
            PenstockError: As a flow would; or `BACKFILL_WOULD_LOSE_ROWS`.
        """
        if self.decision.way == Way.WINDOW:
            if not self.decision.is_staged:
                self._stream(df, self._stage)
                self.staged()
            self._replace()
            return self.counts
        mode = OutputMode.APPEND
        writer = self.tables.stream_writer(
            self.dataset, self.node, df, epoch=self.decision.backfill_id, mode=mode
        )
        self._stream(writer.df, lambda batch, number: self._write(writer, batch, number))
        return self.counts

    # -- the stream ----------------------------------------------------------------------------

    def _stream(self, df: DataFrame, write: Callable[[DataFrame, int], None]) -> None:
        failed: list[BaseException] = []

        def on_batch(batch: DataFrame, number: int) -> None:
            try:
                for source in self.sources:
                    source.check_range(self.decision.position, self.done, self.checkpoint, number)
                write(batch, number)
                self.counts.batches += 1
                self.told(self.counts)
            except BaseException as error:
                failed.append(error)
                raise

        stream: Any = df.writeStream.foreachBatch(on_batch).queryName(self.decision.flow)
        stream = stream.option("checkpointLocation", self.checkpoint).trigger(availableNow=True)
        query = stream.start()
        try:
            while not query.awaitTermination(_POLL_SECONDS):
                progress = query.lastProgress
                entries = [] if progress is None else progress["sources"]
                if is_past_end(self.sources, self.decision.position, entries):
                    break
        except Exception as error:
            raise flow_error(failed[0] if failed else error, self.node.flow) from error
        finally:
            query.stop()

    # -- rows that are known -------------------------------------------------------------------

    def _write(self, writer: BatchWriter, batch: DataFrame, number: int) -> None:
        if self.decision.way == Way.EVENTS:
            self._committed(writer.write(self._without_quarantined(batch), number))
            return
        kept = batch.persist()
        try:
            new = self._without_known(kept)
            total, nameless = kept.count(), kept.where(_any_null(self.decision.by)).count()
            result = writer.write(new, number)
            if not result.replayed:
                found = result.result
                rows = found.rows_written + found.rows_quarantined + found.rows_dropped
                self.counts.read += total
                self.counts.unidentified += nameless
                self.counts.known += max(0, total - nameless - rows - found.rows_duplicate)
            self._committed(result)
        finally:
            kept.unpersist()

    def _without_known(self, batch: DataFrame) -> DataFrame:
        """The rows that neither the table nor its quarantine had when the backfill began."""
        decision, session = self.decision, batch.sparkSession
        places = [(self.tables.paths[self.dataset.key], decision.version)]
        if decision.quarantine_version >= 0:
            quarantine = self.tables.quarantine_path(self.dataset)
            places.append((quarantine, decision.quarantine_version))
        known = []
        for path, version in places:
            rows = session.read.format("delta").option("versionAsOf", version).load(path)
            have = {column.lower() for column in rows.columns}
            if all(key.lower() in have for key in decision.by):
                known.append(
                    rows.select(
                        *[
                            F.col(quoted(key)).alias(f"{_KNOWN}{number}")
                            for number, key in enumerate(decision.by)
                        ]
                    )
                )
        identified = batch.where(~_any_null(decision.by))
        if not known:
            return identified
        same = [
            F.col(quoted(key)) == F.col(f"{_KNOWN}{number}")
            for number, key in enumerate(decision.by)
        ]
        all_known = reduce(DataFrame.unionAll, known)
        return identified.join(all_known, reduce(Column.__and__, same), "left_anti")

    def _without_quarantined(self, batch: DataFrame) -> DataFrame:
        """The events that are not in quarantine already; those that break no rule all stay."""
        if self.decision.quarantine_version < 0 or ROW not in batch.columns:
            return batch
        quarantine = batch.sparkSession.read.format("delta").option(
            "versionAsOf", self.decision.quarantine_version
        )
        known = quarantine.load(self.tables.quarantine_path(self.dataset))
        if ROW not in known.columns:
            return batch
        known = known.select(F.col(ROW).alias(_KNOWN))
        return batch.join(known, F.col(ROW) == F.col(_KNOWN), "left_anti")

    def _committed(self, result: Commit) -> None:
        if not result.replayed:
            self.counts.added += result.result.rows_written
            self.counts.quarantined += result.result.rows_quarantined
        self.commit(result)

    # -- a window ------------------------------------------------------------------------------

    def _stage(self, batch: DataFrame, number: int) -> None:
        # A batch that is computed again replaces its own rows.
        batch.write.mode("overwrite").parquet(f"{self.staging}/rows/batch_{number:06d}")

    def _replace(self) -> None:
        assert self.decision.where is not None
        rows = self._staged_rows()
        node = replace(self.node, flow=replace(self.node.flow, replace_where=self.decision.where))
        window = self.tables.window(self.dataset, node, rows)
        self.counts.read = rows.count()
        coming = window.df.count()
        self.counts.outside = self.counts.read - coming
        table = self.spark.read.format("delta").load(self.tables.paths[self.dataset.key])
        there = table.where(F.expr(window.where)).count()
        if coming < there and not self.decision.accept_fewer:
            raise PlanError(
                "BACKFILL_WOULD_LOSE_ROWS",
                f"{there:,} rows of {self.dataset.display} fulfil {self.decision.where}, but only "
                f"{coming:,} of the range do: nothing was replaced",
                origin=self.node.flow.origin,
                hint="widen the range or narrow the condition so that the range has all of these "
                "rows; --accept-fewer replaces them nevertheless",
            )
        mark = fingerprint(self.decision.backfill_id)
        result = self.tables.replace(self.dataset, node, window.df, mark, where=window.where)
        self.counts.removed = result.result.rows_deleted
        self._committed(result)

    def _staged_rows(self) -> DataFrame:
        return self.spark.read.parquet(f"{self.staging}/rows/batch_*")


def _any_null(columns: Sequence[str]) -> Column:
    return reduce(Column.__or__, [F.col(quoted(column)).isNull() for column in columns])
