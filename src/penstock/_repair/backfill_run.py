"""Executes a backfill: reads a range of a flow's sources again, into the same table.

Each backfill has its own checkpoint and epoch, so it is a stream like any other: after a kill it
resumes where it stopped, and no batch is committed twice. It must not add rows that the flow has
added before. There are three methods for this; other tables are refused:

* *keys*: columns identify rows. Rows that the table or its quarantine had when the backfill was
  started are skipped.
* *events*: the target is a function of the set of change events, so known events change nothing.
* *window*: the rows are staged first; then the rows of the table that match a condition are
  replaced by the matching rows of the range, in one commit.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock._execution.tables import PipelineTables
from penstock._execution.writers import BatchWriter, Commit, TableWriters
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._launch import OpenPipeline
from penstock._model.expectation import ROW
from penstock._model.flow import OutputMode
from penstock._model.quantity import plural
from penstock._model.sql_text import quoted
from penstock._observe.events import BackfillProgress, Event
from penstock._repair.journal import Journal, Record
from penstock._spark.failures import flow_error
from penstock._spark.plans import fingerprint
from penstock._tables.commits import CommitResult, actions_of
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import StorageFiles
from penstock._tables.kill_points import kill_point
from penstock._tables.read.checkpoint_files import Checkpoint
from penstock._tables.read.log_scan import read_commit_counts
from penstock._tables.write.kept import kept_rows
from penstock.errors import PlanError
from penstock.quality.rules import check_expectations
from penstock.quality.split import filter_view
from penstock.sources.base import OpenedSource, range_invalid
from penstock.sources.flow import is_past_end

PLANNED, BATCH = "backfill_planned", "backfill_batch"
STAGED, COMMITTED = "backfill_staged", "backfill_committed"
"""Kill points of a backfill; it can be resumed after each."""

_POLL_SECONDS = 0.5
_KNOWN = "penstock_known_"
_STAGED = "folder_of_batch_"


class Way(StrEnum):
    """How duplicates of existing rows are avoided."""

    KEYS = "keys"
    EVENTS = "events"
    WINDOW = "window"


@dataclass(frozen=True, kw_only=True)
class BackfillPlan:
    backfill_id: str  # its epoch
    flow: str
    way: str  # see `Way`
    position: Mapping[str, Any]  # start and end of its streams
    by: Sequence[str] = ()  # columns of `keys`
    where: str | None = None  # condition of `window`
    accept_fewer: bool = False  # a window may get fewer rows than it had
    table_id: str | None = None  # Delta's id
    version: int = -1  # of the table at the start
    quarantine_version: int = -1  # at the start; -1 if there is none
    range: str = ""  # for messages
    is_staged: bool = False  # all rows of a window are staged
    epoch: str = ""  # of the flow's checkpoint at the start; empty if unknown


@dataclass
class Counts:
    """Rows of the batches of one run; those of an interrupted run are in the table's commits."""

    batches: int = 0
    read: int = 0
    known: int = 0
    unidentified: int = 0
    added: int = 0
    quarantined: int = 0
    removed: int = 0
    outside: int = 0


@dataclass(frozen=True, kw_only=True)
class BackfillRun:
    pipeline: OpenPipeline
    node: FlowNode
    dataset: DatasetNode
    plan: BackfillPlan
    journal: Journal[BackfillPlan]
    own: Checkpoint  # of the flow: a batch with rows that it has not read is refused
    record: Record
    counts: Counts = field(default_factory=Counts)

    @property
    def tables(self) -> PipelineTables:
        return self.pipeline.tables

    @property
    def _rows(self) -> str:
        """Folder of the staged rows of a window."""
        return f"{self.journal.folder}/rows"

    def emit(self, step: str, message: str, **figures: int) -> None:
        plan = self.plan
        body = BackfillProgress(
            backfill_id=plan.backfill_id, way=plan.way, range=plan.range, step=step, figures=figures
        )
        self.record.emit(Event(self.record.flow, body, message))

    def run(self) -> Counts:
        """Read the range to its end. Raises the errors of a flow, or `BACKFILL_WOULD_LOSE_ROWS`."""
        query, sources = self.pipeline.query(self.node, self.plan.position)
        df = self.tables.typed(self.node, query)
        if self.plan.way == Way.WINDOW:
            # Staged rows have neither other columns of the query, nor the metadata of its files.
            check_expectations(df, self.dataset.declared.expectations, are_stored=True)
            if not self.plan.is_staged:
                self._stream(df, sources, self._stage)
                if not self._staged():
                    raise range_invalid(
                        "its sources do not have its rows any more", "--abandon discards it"
                    )
                self.journal.save(replace(self.plan, is_staged=True))
                self.emit("staged", "all rows of the range are staged", **asdict(self.counts))
                kill_point(STAGED, self.plan.flow, None)
            self._replace()
            return self.counts
        writer = TableWriters(self.tables).stream_writer(
            self.dataset, self.node, df, epoch=self.plan.backfill_id, mode=OutputMode.APPEND
        )
        self._stream(writer.df, sources, lambda batch, number: self._write(writer, batch, number))
        return self.counts

    def _stream(
        self,
        df: DataFrame,
        sources: Sequence[OpenedSource],
        write: Callable[[DataFrame, int], None],
    ) -> None:
        checkpoint = _checkpoint(self.pipeline, self.plan)
        failed: list[BaseException] = []

        def on_batch(batch: DataFrame, number: int) -> None:
            try:
                for source in sources:
                    source.check_range(self.plan.position, self.own, checkpoint, number)
                write(batch, number)
                self.counts.batches += 1
                message = f"{plural(self.counts.batches, 'batch')} of the range committed"
                self.emit("batch", message, **asdict(self.counts))
                kill_point(BATCH, self.plan.flow, number)
            except BaseException as error:
                failed.append(error)
                raise

        stream: Any = df.writeStream.foreachBatch(on_batch).queryName(self.plan.flow)
        stream = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = stream.start()
        try:
            while not query.awaitTermination(_POLL_SECONDS):
                progress = query.lastProgress
                entries = [] if progress is None else json.loads(progress.json)["sources"]
                if is_past_end(sources, self.plan.position, entries):
                    break
        except Exception as error:
            raise flow_error(failed[0] if failed else error, self.node.flow) from error
        finally:
            query.stop()

    def _write(self, writer: BatchWriter, batch: DataFrame, number: int) -> None:
        if self.plan.way == Way.EVENTS:
            self._committed(writer.write(self._without_quarantined(batch), number))
            return
        with kept_rows(batch) as kept:
            new = self._without_known(kept)
            total, unidentified = kept.count(), kept.where(_any_null(self.plan.by)).count()
            result = writer.write(new, number)
            if not result.replayed:
                commit = result.result
                rows = commit.rows_written + commit.rows_quarantined + commit.rows_dropped
                self.counts.read += total
                self.counts.unidentified += unidentified
                self.counts.known += max(0, total - unidentified - rows - commit.rows_duplicate)
            self._committed(result)

    def _without_known(self, batch: DataFrame) -> DataFrame:
        """The rows that neither the table nor its quarantine had at the start of the backfill."""
        plan, session = self.plan, batch.sparkSession
        versions = [(self.tables.paths[self.dataset.key], plan.version)]
        if plan.quarantine_version >= 0:
            quarantine = self.tables.quarantine(self.dataset).path
            versions.append((quarantine, plan.quarantine_version))
        pairs = [(F.col(quoted(key)), f"{_KNOWN}{number}") for number, key in enumerate(plan.by)]
        known = []
        for path, version in versions:
            rows = session.read.format("delta").option("versionAsOf", version).load(path)
            have = {column.lower() for column in rows.columns}
            if all(key.lower() in have for key in plan.by):
                known.append(rows.select(*[key.alias(name) for key, name in pairs]))
        identified = batch.where(~_any_null(plan.by))
        if not known:
            return identified
        same = [key == F.col(name) for key, name in pairs]
        all_known = reduce(DataFrame.unionAll, known)
        return identified.join(all_known, reduce(Column.__and__, same), "left_anti")

    def _without_quarantined(self, batch: DataFrame) -> DataFrame:
        """The events that are not in quarantine; all events that violate no rule are kept."""
        if self.plan.quarantine_version < 0 or ROW not in batch.columns:
            return batch
        quarantine = batch.sparkSession.read.format("delta").option(
            "versionAsOf", self.plan.quarantine_version
        )
        known = quarantine.load(self.tables.quarantine(self.dataset).path)
        if ROW not in known.columns:
            return batch
        known = known.select(F.col(ROW).alias(_KNOWN))
        return batch.join(known, F.col(ROW) == F.col(_KNOWN), "left_anti")

    def _committed(self, result: Commit) -> None:
        if not result.replayed:
            self.counts.added += result.result.rows_written
            self.counts.quarantined += result.result.rows_quarantined
            # Without a batch id: a backfill has other batch ids than the flow.
            self.record.emit(result.event(self.record.flow, "backfill"))
        kill_point(COMMITTED, self.plan.flow, None)

    def _stage(self, batch: DataFrame, number: int) -> None:
        # A driver that has lost its lease may still write its own folder.
        folder = f"{self._rows}/{uuid.uuid4().hex}"
        batch.write.parquet(folder)
        StorageFiles(self.pipeline.spark).write(f"{self._rows}/{_STAGED}{number:06d}", folder)

    def _staged(self) -> list[str]:
        """The folder of each batch; a repeated batch replaces its own."""
        files = StorageFiles(self.pipeline.spark)
        names = [name for name in files.names(self._rows) if name.startswith(_STAGED)]
        return [files.read(f"{self._rows}/{name}") or "" for name in names]

    def _replace(self) -> None:
        assert self.plan.where is not None
        spark = self.pipeline.spark
        rows = spark.read.parquet(*self._staged())
        node = replace(self.node, flow=replace(self.node.flow, replace_where=self.plan.where))
        writers = TableWriters(self.tables)
        window = writers.window(self.dataset, node, rows)
        self.counts.read = rows.count()
        new = window.df.count()
        self.counts.outside = self.counts.read - new
        drop = [rule for rule in self.dataset.declared.expectations if rule.on_violation.removes]
        if drop:
            new = filter_view(window.df, drop).count()
        table = spark.read.format("delta").load(self.tables.paths[self.dataset.key])
        mark = fingerprint(self.plan.backfill_id)
        if (done := self._committed_before(mark)) is not None:
            self.counts.removed = done.rows_deleted
            # It may have been killed before it emitted its event.
            self._committed(Commit(done, self.dataset.key, deletes=True))
            return
        old = table.where(F.expr(window.where)).count()
        if new < old and not self.plan.accept_fewer:
            remove(self.pipeline, self.journal, self.plan)  # another range can be tried
            raise PlanError(
                "BACKFILL_WOULD_LOSE_ROWS",
                f"{old:,} rows of {self.dataset.display} match {self.plan.where}, but only {new:,} "
                "of the range match it and violate no drop rule: nothing was replaced",
                origin=self.node.flow.origin,
                hint="widen the range or narrow the condition so that the range has all of these "
                "rows; --accept-fewer replaces them anyway",
            )
        result = writers.replace(self.dataset, node, window.df, mark, where=window.where)
        self.counts.removed = result.result.rows_deleted
        self._committed(result)

    def _committed_before(self, mark: str) -> CommitResult | None:
        """The commit of this backfill, if it was killed after the commit.

        Raises `PlanError` if other commits have changed rows since the backfill was started: rows
        that they added are not in the range, and would be removed.
        """
        path, first = self.tables.paths[self.dataset.key], self.plan.version + 1
        for done in read_commit_counts(self.pipeline.spark, path, self.plan.version):
            if done.fingerprint == mark:
                return done
        delta = DeltaJvm(self.pipeline.spark)
        for version in range(first, delta.version(path) + 1):
            lines = delta.commit_lines(path, version)
            files = [file for kind in ("add", "remove") for file in actions_of(lines or (), kind)]
            if lines is None or any(file.get("dataChange", True) for file in files):
                raise PlanError(
                    "BACKFILL_NOT_POSSIBLE",
                    f"version {version} of {self.dataset.display} changed rows after the backfill "
                    f"of {self.plan.flow!r} was started: those that match {self.plan.where} would "
                    "be removed",
                    origin=self.node.flow.origin,
                    hint="--abandon discards the backfill; then start it again",
                )
        return None


def remove(pipeline: OpenPipeline, journal: Journal[BackfillPlan], plan: BackfillPlan) -> None:
    """Delete the journal first, then all other files."""
    journal.delete()
    StorageFiles(pipeline.spark).delete_tree(_checkpoint(pipeline, plan))


def _checkpoint(pipeline: OpenPipeline, plan: BackfillPlan) -> str:
    return pipeline.tables.layout.checkpoint_path(plan.flow, plan.backfill_id)


def _any_null(columns: Sequence[str]) -> Column:
    return reduce(Column.__or__, [F.col(quoted(column)).isNull() for column in columns])
