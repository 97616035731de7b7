"""Writers of the flows into the tables of a pipeline: exactly once per batch."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame

from penstock._analysis.cdc import event_shape
from penstock._analysis.replacing import Window, window_of
from penstock._execution.tables import PipelineTables
from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._model.dataset import DatasetKind
from penstock._model.expectation import OnViolation
from penstock._model.flow import OutputMode
from penstock._observe.events import (
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowProgress,
    FlowStatus,
)
from penstock._plan.settings import tombstone_seconds
from penstock._spark.plans import has_state
from penstock._tables.commits import CommitResult
from penstock._tables.read.log_scan import read_commit_counts
from penstock._tables.write.assignment import assigned, filled
from penstock._tables.write.cdc_events import RowShape
from penstock._tables.write.cdc_snapshot import SnapshotWriter
from penstock._tables.write.cdc_writer import CdcWriter, split_events
from penstock._tables.write.keyed import REWRITE_BYTES
from penstock._tables.write.row_files import FindLateRows
from penstock._tables.write.schema import conform
from penstock._tables.write.table_spec import table_state
from penstock._tables.write.upsert import UniqueWriter, UpsertWriter
from penstock._tables.write.view_writer import ViewWriter
from penstock._tables.write.writer import FlowWriter, WriterOptions
from penstock.quality.split import QUARANTINE_COLUMNS, RowSplit, split_rows

_VIEW = "view"  # instead of an epoch


@dataclass(frozen=True)
class Commit:
    """A committed batch of the dataset with this key.

    `is_upsert`: rows were merged rather than added; `deletes`: rows may have been deleted.
    """

    result: CommitResult
    dataset: str
    is_upsert: bool = False
    deletes: bool = False

    @property
    def replayed(self) -> bool:
        """Whether an earlier attempt had already committed it."""
        return self.result.replayed

    def event(self, origin: EventOrigin, message: str, *, duration_ms: int | None = None) -> Event:
        """The `flow_progress` event with the counts of this batch."""
        result = self.result
        dropped = result.rows_quarantined + result.rows_dropped
        has_rules = bool(result.rules)
        metrics = FlowMetrics(
            num_output_rows=None if self.is_upsert else result.rows_written,
            num_upserted_rows=result.rows_written if self.is_upsert else None,
            num_deleted_rows=result.rows_deleted if self.deletes else None,
            dropped_records=dropped if has_rules or dropped else None,
            quarantined_records=result.rows_quarantined
            if has_rules or result.rows_quarantined
            else None,
            late_records=result.rows_late or None,
            duplicate_records=result.rows_duplicate or None,
            batch_duration_ms=duration_ms,
        )
        expectations = tuple(
            ExpectationCounts(
                name=name,
                dataset=self.dataset,
                passed_records=counts.passed,
                failed_records=counts.failed,
            )
            for name, counts in result.rules.items()
        )
        body = FlowProgress(FlowStatus.RUNNING, metrics, expectations, result.version)
        return Event(origin, body, message)


@dataclass(frozen=True)
class BatchWriter:
    """A query with its helper columns, and its writer: exactly once per batch id."""

    df: DataFrame
    write: Callable[[DataFrame, int], Commit]
    close: Callable[[], None] | None = None  # when the query has ended
    cancel: Callable[[], None] | None = None  # when the query is to be stopped


class TableWriters:
    """Writers of flows; `warn` is called from the thread of a batch, for the event log."""

    def __init__(
        self,
        tables: PipelineTables,
        warn: Callable[[FlowNode, str], None] = lambda node, text: None,
    ) -> None:
        self._tables = tables
        self._warn = warn

    def stream_writer(
        self,
        dataset: DatasetNode,
        node: FlowNode,
        df: DataFrame,
        *,
        epoch: str,
        mode: OutputMode,
        late: FindLateRows | None = None,
    ) -> BatchWriter:
        if node.flow.cdc is not None:
            return self._cdc_writer(dataset, node, df, epoch=epoch)
        is_upsert = mode is OutputMode.UPDATE
        df = self.conformed(dataset, df, fills=is_upsert and len(dataset.flows) == 1)
        split = self.split(dataset, df)
        judge = self._judge(dataset, node, partial(self.with_rules, dataset))
        options = self._batch_options(dataset, node, split, epoch, judge)
        options["late"] = late
        writer: FlowWriter
        if is_upsert:
            options["allow_missing"] = False
            writer = UpsertWriter(
                self._tables.spark,
                keys=node.analysis.merge_keys,
                is_streamed=self._tables.is_streamed(dataset),
                on_vectors=partial(self._warn_of_vectors, dataset, node),
                **options,
            )
        elif dataset.declared.deduplicate_by:
            keys = dataset.declared.deduplicate_by
            writer = UniqueWriter(self._tables.spark, keys=keys, **options)
        else:
            replaces = mode is OutputMode.COMPLETE
            writer = FlowWriter(self._tables.spark, replaces=replaces, **options)
        # Batches of other flows into the table wait: each commit would make an upsert fail.
        modes = {self._tables.graph.flows[name].analysis.output_mode for name in dataset.flows}
        removes = OutputMode.UPDATE in modes or bool(dataset.declared.deduplicate_by)

        def write(batch: DataFrame, batch_id: int) -> Commit:
            with self._tables.turns[dataset.key] if removes else nullcontext():
                return Commit(writer.write(batch, batch_id), dataset.key, is_upsert)

        return BatchWriter(df if split is None or judge is not None else split.df, write)

    def _cdc_writer(
        self, dataset: DatasetNode, node: FlowNode, df: DataFrame, *, epoch: str
    ) -> BatchWriter:
        flows = [self._tables.graph.flows[name].flow for name in dataset.flows]
        events = event_shape(df, node.flow, flows)
        rules = dataset.declared.expectations
        # Rules of the user need the quarantine; without any, it is off if column names conflict.
        keeps = self._tables.wants_quarantine(dataset) and (
            self._tables.keeps_dropped(dataset)
            or not set(QUARANTINE_COLUMNS) & {c.lower() for c in df.columns}
        )

        def split_batch(batch: DataFrame) -> RowSplit:
            return split_events(batch, events, rules, quarantine=keeps, origin=node.flow.origin)

        split = split_batch(df)
        judge = self._judge(dataset, node, lambda batch: split_batch(batch).df)
        writer = CdcWriter(
            self._tables.spark,
            state=self._tables.layout.cdc_state(dataset.name),
            events=events,
            tombstone_seconds=tombstone_seconds(
                self._tables.graph, node, self._tables.settings.configuration
            ),
            is_streamed=self._tables.is_streamed(dataset),
            on_vectors=partial(self._warn_of_vectors, dataset, node),
            **self._batch_options(dataset, node, split, epoch, judge),
        )

        def write(batch: DataFrame, batch_id: int) -> Commit:
            with self._tables.turns[dataset.key]:
                return Commit(writer.write(batch, batch_id), dataset.key, True, True)

        return BatchWriter(split.df if judge is None else df, write, writer.close, writer.cancel)

    def window(self, dataset: DatasetNode, node: FlowNode, df: DataFrame) -> Window:
        return window_of(self.conformed(dataset, df), node.flow)

    def snapshot_writer(
        self, dataset: DatasetNode, node: FlowNode, shape: RowShape, epoch: str
    ) -> SnapshotWriter:
        return SnapshotWriter(
            self._tables.spark,
            flow=node.flow.name,
            app_id=self._tables.app_id(node.flow.name, epoch),
            target=self._tables.table(dataset),
            shape=shape,
            allow_missing=self._allows_missing(dataset),
            is_streamed=self._tables.is_streamed(dataset),
            on_vectors=partial(self._warn_of_vectors, dataset, node),
        )

    def replace(
        self,
        dataset: DatasetNode,
        node: FlowNode,
        df: DataFrame,
        fingerprint: str,
        *,
        where: str | None = None,
    ) -> Commit:
        """Replace the contents of a table in one commit.

        A streaming table needs `where`: all rows of `df` match it, and replace those that do.
        """
        df = self.conformed(dataset, df)
        split = self.split(dataset, df)
        options = self._options(dataset, node, split, _VIEW)
        options["allow_missing"] = where is not None and self._allows_missing(dataset)
        writer = FlowWriter(
            self._tables.spark,
            **options,
            replaces=where is None,
            where=where,
            row_rules=[rule for rule in dataset.declared.expectations if rule.rows is not None],
        )
        rows = df if split is None else split.df
        result = writer.write_batch(rows, fingerprint=fingerprint)
        if not result.replayed:
            self._tables.register(dataset)
        return Commit(result, dataset.key, deletes=where is not None)

    def view_writer(
        self, dataset: DatasetNode, node: FlowNode, df: DataFrame, version: int
    ) -> ViewWriter:
        """A writer of changes to a view whose newest version is `version`; `df` has its columns."""
        return ViewWriter(
            self._tables.spark,
            version=version,
            is_streamed=self._tables.is_streamed(dataset),
            on_vectors=partial(self._warn_of_vectors, dataset, node),
            **self._options(dataset, node, self.split(dataset, df), _VIEW),
        )

    def unreported(
        self, dataset: DatasetNode, node: FlowNode, epoch: str, known: tuple[int, int | None] | None
    ) -> Iterator[Commit]:
        """Commits of a flow that are newer than the newest in the event log."""
        since = known[1] if known is not None and known[1] is not None else -1
        identity = self._tables.app_id(node.flow.name, epoch)
        for result in read_commit_counts(
            self._tables.spark, self._tables.table(dataset).path, since
        ):
            if result.app_id == identity:
                merges = node.analysis.output_mode is OutputMode.UPDATE
                changes = is_cdc(node.flow)
                yield Commit(result, dataset.key, merges or changes, changes)

    def conformed(self, node: DatasetNode, df: DataFrame, *, fills: bool = False) -> DataFrame:
        """The query with the declared types, or the types of its table if no value changes.

        Declared columns that the query of a view lacks are NULL; with `fills`, those of any query.
        """
        is_view = node.kind is DatasetKind.MATERIALIZED_VIEW
        if (declared := self._tables.declared_columns(node.key)) is not None:
            df = assigned(df, declared)
            return filled(df, declared) if is_view or fills else df
        if is_view:
            return df
        state = table_state(self._tables.spark, self._tables.table(node).path)
        return df if state is None else conform(df, state.schema)

    def split(self, node: DatasetNode, df: DataFrame) -> RowSplit | None:
        """The rows with the helper columns of the dataset's expectations; `None` without any."""
        return split_rows(
            df, node.declared.expectations, quarantine=self._tables.keeps_dropped(node)
        )

    def with_rules(self, node: DatasetNode, df: DataFrame) -> DataFrame:
        """The rows, with the helper columns of the dataset's expectations if it has any."""
        split = self.split(node, df)
        return df if split is None else split.df

    # -- parts ---------------------------------------------------------------------------------

    def _options(
        self, dataset: DatasetNode, node: FlowNode, split: RowSplit | None, epoch: str
    ) -> WriterOptions:
        return {
            "flow": node.flow.name,
            "app_id": self._tables.app_id(node.flow.name, epoch),
            "target": self._tables.table(dataset),
            "split": split,
            "quarantine": self._tables.quarantine(dataset),  # unused if no rows are kept
        }

    def _batch_options(
        self,
        dataset: DatasetNode,
        node: FlowNode,
        split: RowSplit | None,
        epoch: str,
        judge: Callable[[DataFrame], DataFrame] | None,
    ) -> WriterOptions:
        return {
            **self._options(dataset, node, split, epoch),
            "allow_missing": self._allows_missing(dataset),
            "stateful": has_state(node.analysis.stateful_operators),
            "apply_rules": judge,
            "decisions": self._tables.decisions(node, epoch),
            "note": self._tables.note(node, epoch),
        }

    def _judge(
        self, dataset: DatasetNode, node: FlowNode, with_rules: Callable[[DataFrame], DataFrame]
    ) -> Callable[[DataFrame], DataFrame] | None:
        """A function that applies the rules to each batch, if they cannot be part of the query.

        A stateful query evaluates a repeated batch even if the table already has it. A fail rule in
        the query would check its rows again, and fail a flow whose rows were committed.
        """
        fails = any(r.on_violation is OnViolation.FAIL for r in dataset.declared.expectations)
        return with_rules if fails and has_state(node.analysis.stateful_operators) else None

    def _warn_of_vectors(self, dataset: DatasetNode, node: FlowNode) -> None:
        self._warn(
            node,
            f"{dataset.display} is larger than {REWRITE_BYTES >> 20} MB, so "
            "delta.enableDeletionVectors was set: batches mark changed rows as deleted instead of "
            "rewriting their files. All readers of the table must support deletion vectors. To do "
            "without them, set the property to false in table_properties, and run "
            "ALTER TABLE ... DROP FEATURE deletionVectors",
        )

    def _allows_missing(self, node: DatasetNode) -> bool:
        return len(node.flows) > 1 or node.declared.schema is not None
