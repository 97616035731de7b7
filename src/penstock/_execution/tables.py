"""The Delta tables of a pipeline: tables, quarantines and writers of its datasets."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock._analysis.cdc import event_shape
from penstock._analysis.replacing import Window, window_of
from penstock._execution.flow_state import FlowState
from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode
from penstock._graph.replacing import replaces_rows
from penstock._model.dataset import DatasetKind, LateRows
from penstock._model.expectation import OnViolation
from penstock._model.flow import OutputMode
from penstock._model.pipeline import PipelineSettings
from penstock._model.table_properties import effective_properties
from penstock._observe.events import (
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowProgress,
    FlowStatus,
)
from penstock._plan.settings import tombstone_seconds, widening
from penstock._spark.plans import has_state
from penstock._tables.commit_note import CDC_STATE, QUARANTINE, TARGET, CommitNote
from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm, read_commit_counts
from penstock._tables.files import StorageFiles
from penstock._tables.layout import QUARANTINE_SUFFIX, StorageLayout, TableRef
from penstock._tables.metastore import HiveMetastore, Registration
from penstock._tables.read.log_scan import append_only_start
from penstock._tables.write.assignment import assigned
from penstock._tables.write.cdc_snapshot import SnapshotShape, SnapshotWriter
from penstock._tables.write.cdc_writer import CdcWriter, split_events
from penstock._tables.write.create import reset_table
from penstock._tables.write.decision import DecisionFile
from penstock._tables.write.fenced import last_number
from penstock._tables.write.prepare import prepare_quarantine, prepare_table
from penstock._tables.write.row_files import FindLateRows
from penstock._tables.write.schema import conform, merged
from penstock._tables.write.table_spec import (
    OWNER,
    TableSpec,
    TableState,
    parse_schema,
    read_version,
    table_state,
)
from penstock._tables.write.writer import FlowWriter, WriteMode, app_id
from penstock.errors import CheckpointError
from penstock.quality.split import QUARANTINE_COLUMNS, RowSplit, split_rows

_CHANGE_FEED = "delta.enableChangeDataFeed"
_EXPECTATIONS = "penstock.expectations"
"""Property of registered tables: their rules as JSON."""


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

    @property
    def version(self) -> int | None:
        """Version of the target; `None` for a batch without rows."""
        return self.result.version

    @property
    def rows_written(self) -> int:
        return self.result.rows_written

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


class PipelineTables:
    """Tables of one pipeline; `locations` replace the declared paths, by key of the dataset."""

    def __init__(
        self,
        spark: SparkSession,
        graph: DataflowGraph,
        layout: StorageLayout,
        settings: PipelineSettings,
        locations: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.layout = layout
        self._spark = spark
        self._settings = settings
        self._graph = graph
        self._locations = locations
        self._metastore = None if settings.metastore is None else HiveMetastore(spark)
        self.paths: Mapping[str, str] = MappingProxyType(
            {node.key: self._ref(node).path for node in graph.stored()}
        )
        self.turns: Mapping[str, Lock] = {key: Lock() for key in self.paths}
        """Held by a batch that removes files of a table, and by a compaction of that table."""
        self.warn: Callable[[FlowNode, str], None] = lambda node, text: None
        """Called from the thread of a batch, for the event log."""

    # -- tables --------------------------------------------------------------------------------

    def prepare(self, node: DatasetNode, flows: Sequence[FlowNode]) -> None:
        """Create or alter the table of a dataset, and its quarantine if it has one."""
        declared = node.declared
        schema = self.declared_columns(node.key) or merged(
            StructType.fromJson(json.loads(flow.analysis.schema_json)) for flow in flows
        )
        has_events = any(is_cdc(flow.flow) for flow in flows)
        spec = TableSpec(
            schema=schema,
            declared=declared.schema is not None,
            partition_cols=declared.partition_cols,
            cluster_by=declared.cluster_by,
            comment=declared.comment,
            properties=self._properties(node, flows),
            replace_schema=node.kind is DatasetKind.MATERIALIZED_VIEW,
            # The state of auto CDC has the types of events, and their hashes.
            widen=None if has_events else self._widens(node),
            cast=declared.schema is None and not has_events,
            origin=declared.origin,
            owner=self._settings.name if self._settings.shared_storage else None,
        )
        state = prepare_table(self._spark, self._ref(node), spec)
        self._register(node, self._ref(node), state)
        quarantine = self._quarantine(node)
        keeps = self._keeps(node) or node.declared.late_rows is LateRows.QUARANTINE
        if keeps and not any(flow.flow.cdc for flow in flows):
            kept: TableState | None = prepare_quarantine(
                self._spark, quarantine, state, replace_schema=spec.replace_schema
            )
        else:
            # Of auto CDC it is created with the first invalid event.
            kept = None if self._metastore is None else table_state(self._spark, quarantine.path)
        if kept is not None:
            self._register(node, quarantine, kept, QUARANTINE_SUFFIX)

    def reset(self, node: DatasetNode) -> None:
        """Remove all rows of a dataset and of its quarantine."""
        reset_table(self._spark, self._ref(node))
        reset_table(self._spark, self._quarantine(node))
        reset_table(self._spark, self.layout.cdc_state(node.name))

    def by_role(self, node: DatasetNode) -> dict[str, TableRef]:
        """The tables that flows into a dataset write; they may not exist yet."""
        return {
            TARGET: self._ref(node),
            QUARANTINE: self._quarantine(node),
            CDC_STATE: self.layout.cdc_state(node.name),
        }

    def app_id(self, flow: str, epoch: str) -> str:
        """The `txnAppId` of a flow."""
        return app_id(self._settings.name, flow, epoch)

    def decisions(self, node: FlowNode, epoch: str) -> DecisionFile:
        """The record of the batch of a flow that has several commits."""
        path = self.layout.decision_file(node.flow.name, epoch)
        return DecisionFile(StorageFiles(self._spark), path)

    def quarantine_path(self, node: DatasetNode) -> str:
        """Path of the quarantine of a dataset; it may not exist."""
        return self._quarantine(node).path

    def version(self, node: DatasetNode) -> int | None:
        """Newest version of the table; `None` if it does not exist."""
        return read_version(self._spark, self._ref(node).path)

    def append_only_start(self, path: str) -> int | None:
        """From where a stream reads the whole table as appends; see `_tables.read.log_scan`."""
        delta = DeltaJvm(self._spark)
        return append_only_start(delta, path, int(delta.snapshot(path).version()))

    def check_ownership(self, node: FlowNode, state: FlowState) -> str | None:
        """The id of the target table.

        Raises:
            CheckpointError: `TABLE_REPLACED`: The checkpoint belongs to a table that no longer
                exists: earlier rows would be missing. `CHECKPOINT_MISSING`: The table has batches
                of a checkpoint that is gone: batch ids of a new one would start at 0, and be
                taken for replays.
        """
        path = self.paths.get(node.target)
        if path is None:
            return None
        table = table_state(self._spark, path)
        table_id = table.id if table is not None else None
        if state.target_id is not None and state.target_id != table_id:
            raise CheckpointError(
                "TABLE_REPLACED",
                f"flow {node.flow.name!r} has a checkpoint for a table that is gone: "
                f"{node.target!r} was dropped or recreated",
                flow=node.flow.name,
                origin=node.flow.origin,
                hint=f"--full-refresh {node.flow.target} rebuilds it from its sources; or restore "
                "the old table",
            )
        if table_id is not None and state.stateful_operators is not None:
            self._check_checkpoint(node, path, state.epoch)
        return table_id

    def _check_checkpoint(self, node: FlowNode, table: str, epoch: str) -> None:
        name = node.flow.name
        path = self.layout.checkpoint_path(name, epoch)
        if StorageFiles(self._spark).read(f"{path}/metadata") is not None:
            return
        last = last_number(DeltaJvm(self._spark), table, self.app_id(name, epoch))
        if last < 0:  # before its first batch
            return
        raise CheckpointError(
            "CHECKPOINT_MISSING",
            f"the checkpoint of flow {name!r} is gone: {path} is empty, but "
            f"{node.flow.target!r} has its batches up to {last}",
            flow=name,
            origin=node.flow.origin,
            hint=f"restore it; or --full-refresh {node.flow.target} rebuilds the table; or "
            f"`penstock checkpoint reset {name} --from earliest --accept-duplicates` reads the "
            "whole source again into the existing table",
        )

    # -- writers -------------------------------------------------------------------------------

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
        df = self._conformed(dataset, df)
        split = self._split(dataset, df)
        keeps = (split is not None and split.quarantine) or (late is not None and late.keeps)
        is_stateful = has_state(node.analysis.stateful_operators)
        judge = self._judge(dataset, node, lambda batch: self._split(dataset, batch))
        common: dict[str, Any] = {
            "flow": node.flow.name,
            "app_id": self.app_id(node.flow.name, epoch),
            "target": self._ref(dataset),
            "split": split,
            "quarantine": self._quarantine(dataset) if keeps else None,
            "late": late,
            "apply_rules": judge,
            "decisions": self.decisions(node, epoch),
            "note": self.note(node, epoch),
        }
        writer: Any
        if mode is OutputMode.UPDATE:
            from penstock._tables.write.upsert import UpsertWriter

            writer = UpsertWriter(
                self._spark,
                keys=node.analysis.merge_keys,
                is_streamed=self._is_streamed(dataset),
                on_vectors=partial(self._warn_of_vectors, dataset, node),
                **common,
            )
        elif dataset.declared.deduplicate_by:
            from penstock._tables.write.upsert import UniqueWriter

            writer = UniqueWriter(
                self._spark,
                keys=dataset.declared.deduplicate_by,
                allow_missing=self._allows_missing(dataset),
                stateful=is_stateful,
                **common,
            )
        else:
            writer = FlowWriter(
                self._spark,
                mode=WriteMode.COMPLETE if mode is OutputMode.COMPLETE else WriteMode.APPEND,
                allow_missing=self._allows_missing(dataset),
                stateful=is_stateful,
                **common,
            )
        is_upsert = mode is OutputMode.UPDATE
        removes = is_upsert or bool(dataset.declared.deduplicate_by)

        def write(batch: DataFrame, batch_id: int) -> Commit:
            with self.turns[dataset.key] if removes else nullcontext():
                return Commit(writer.write(batch, batch_id), dataset.key, is_upsert)

        return BatchWriter(df if split is None or judge is not None else split.df, write)

    def _judge(
        self, dataset: DatasetNode, node: FlowNode, split: Callable[[DataFrame], RowSplit | None]
    ) -> Callable[[DataFrame], DataFrame] | None:
        """Applies the rules to each batch, where they cannot be part of the query.

        A stateful query evaluates a repeated batch even if the table has it. A fail rule in the
        query would check its rows again, and stop a flow whose rows were committed.
        """
        fails = any(r.on_violation is OnViolation.FAIL for r in dataset.declared.expectations)
        if not fails or not has_state(node.analysis.stateful_operators):
            return None

        def judged(batch: DataFrame) -> DataFrame:
            parts = split(batch)
            return batch if parts is None else parts.df

        return judged

    def note(self, node: FlowNode, epoch: str) -> CommitNote:
        """The record of the newest commits of a flow."""
        path = self.layout.note_file(node.flow.name, epoch)
        return CommitNote(StorageFiles(self._spark), path)

    def window(self, dataset: DatasetNode, node: FlowNode, df: DataFrame) -> Window:
        return window_of(self._conformed(dataset, df), node.flow)

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
        df = self._conformed(dataset, df)
        split = self._split(dataset, df)
        writer = FlowWriter(
            self._spark,
            flow=node.flow.name,
            app_id=self.app_id(node.flow.name, "view"),
            target=self._ref(dataset),
            split=split,
            quarantine=self._quarantine(dataset)
            if split is not None and split.quarantine
            else None,
            mode=WriteMode.COMPLETE if where is None else WriteMode.WINDOW,
            where=where,
            allow_missing=where is not None and self._allows_missing(dataset),
            row_rules=[rule for rule in dataset.declared.expectations if rule.rows is not None],
        )
        rows = df if split is None else split.df
        result = writer.write_batch(rows, fingerprint=fingerprint)
        if self._metastore is not None and not result.replayed:
            # The rows may have brought other columns.
            state = table_state(self._spark, self._ref(dataset).path)
            assert state is not None
            self._register(dataset, self._ref(dataset), state)
        return Commit(result, dataset.key, deletes=where is not None)

    def unreported(
        self, dataset: DatasetNode, node: FlowNode, epoch: str, known: tuple[int, int | None] | None
    ) -> Iterator[Commit]:
        """Commits of a flow that are newer than the newest in the event log."""
        since = known[1] if known is not None and known[1] is not None else -1
        identity = self.app_id(node.flow.name, epoch)
        for result in read_commit_counts(self._spark, self._ref(dataset).path, since):
            if result.app_id == identity:
                merges = node.analysis.output_mode is OutputMode.UPDATE
                changes = is_cdc(node.flow)
                yield Commit(result, dataset.key, merges or changes, changes)

    # -- auto CDC ------------------------------------------------------------------------------

    def _cdc_writer(
        self, dataset: DatasetNode, node: FlowNode, df: DataFrame, *, epoch: str
    ) -> BatchWriter:
        flows = [self._graph.flows[name].flow for name in dataset.flows]
        events = event_shape(df, node.flow, flows)
        rules = dataset.declared.expectations
        # Rules of the user need the quarantine; without any, it is off if column names conflict.
        keeps = self._wants_quarantine(dataset) and (
            self._keeps(dataset) or not set(QUARANTINE_COLUMNS) & {c.lower() for c in df.columns}
        )

        def split_batch(batch: DataFrame) -> RowSplit:
            return split_events(batch, events, rules, quarantine=keeps, origin=node.flow.origin)

        split = split_batch(df)
        judge = self._judge(dataset, node, split_batch)
        writer = CdcWriter(
            self._spark,
            flow=node.flow.name,
            app_id=self.app_id(node.flow.name, epoch),
            target=self._ref(dataset),
            state=self.layout.cdc_state(dataset.name),
            events=events,
            split=split,
            quarantine=self._quarantine(dataset) if keeps else None,
            allow_missing=self._allows_missing(dataset),
            tombstone_seconds=tombstone_seconds(dataset, node, self._settings.configuration),
            is_streamed=self._is_streamed(dataset),
            on_vectors=partial(self._warn_of_vectors, dataset, node),
            stateful=has_state(node.analysis.stateful_operators),
            apply_rules=judge,
            decisions=self.decisions(node, epoch),
            note=self.note(node, epoch),
        )

        def write(batch: DataFrame, batch_id: int) -> Commit:
            with self.turns[dataset.key]:
                return Commit(writer.write(batch, batch_id), dataset.key, True, True)

        return BatchWriter(split.df if judge is None else df, write)

    def last_batch(self, dataset: DatasetNode, node: FlowNode, epoch: str) -> int:
        """Number of the last batch of a flow in its table; -1 before the first."""
        identity = self.app_id(node.flow.name, epoch)
        return last_number(DeltaJvm(self._spark), self._ref(dataset).path, identity)

    def snapshot_writer(
        self, dataset: DatasetNode, node: FlowNode, shape: SnapshotShape, epoch: str
    ) -> SnapshotWriter:
        return SnapshotWriter(
            self._spark,
            flow=node.flow.name,
            app_id=self.app_id(node.flow.name, epoch),
            target=self._ref(dataset),
            shape=shape,
            allow_missing=self._allows_missing(dataset),
            is_streamed=self._is_streamed(dataset),
            on_vectors=partial(self._warn_of_vectors, dataset, node),
        )

    def _properties(self, node: DatasetNode, flows: Sequence[FlowNode]) -> Mapping[str, str]:
        declared = effective_properties(node.declared.table_properties)
        if self._settings.shared_storage:
            declared = {**declared, OWNER: self._settings.name}
        if self._metastore is not None:
            declared = {**declared, _EXPECTATIONS: _rules(node)}
        known = {key.lower() for key in declared}
        changes = any(is_cdc(flow.flow) or replaces_rows(flow.flow) for flow in flows)
        if _CHANGE_FEED.lower() in known or not changes:
            return declared
        return {**declared, _CHANGE_FEED: "true"} if self._is_streamed(node) else declared

    def _register(
        self, node: DatasetNode, table: TableRef, state: TableState, suffix: str = ""
    ) -> None:
        """Register a table in the metastore, if there is one."""
        # A copy elsewhere, as of a migration, has no name.
        if self._metastore is None or node.key in self._locations:
            return
        wanted = Registration(
            schema=node.name.schema.lower(),
            name=f"{node.name.name}{suffix}".lower(),
            table=table,
            columns=state.schema,
            comment=state.comment,
            properties={**state.properties, "penstock.pipeline": self._settings.name},
            flow=node.flows[0],
            origin=node.declared.origin,
        )
        self._metastore.register(wanted)

    def _widens(self, node: DatasetNode) -> bool:
        if (setting := widening(self._settings.configuration)) is not None:
            return setting
        seen: set[str] = set()
        pending = list(node.flows)
        while pending:
            flow = self._graph.flows[pending.pop()]
            if flow.analysis.widens_types:
                return True
            for key in flow.upstream - seen:
                seen.add(key)
                pending.extend(self._graph.datasets[key].flows)
        return False

    def _warn_of_vectors(self, dataset: DatasetNode, node: FlowNode) -> None:
        self.warn(
            node,
            f"{dataset.display} is larger than 8 MB, so delta.enableDeletionVectors was set: "
            "batches mark changed rows as deleted instead of rewriting their files. All readers of "
            "the table must support deletion vectors; to go without, set the property to false in "
            "table_properties, and run ALTER TABLE ... DROP FEATURE deletionVectors",
        )

    def _is_streamed(self, node: DatasetNode) -> bool:
        return any(
            flow.analysis.is_streaming and node.key in flow.upstream
            for flow in self._graph.flows.values()
        )

    def _allows_missing(self, node: DatasetNode) -> bool:
        return len(node.flows) > 1 or node.declared.schema is not None

    # -- parts ---------------------------------------------------------------------------------

    def _ref(self, node: DatasetNode) -> TableRef:
        location = self._locations.get(node.key, node.declared.path)
        return TableRef(self.layout.table_path(node.name, location), node.display)

    def _quarantine(self, node: DatasetNode) -> TableRef:
        location = self._locations.get(node.key, node.declared.path)
        path = self.layout.quarantine_path(node.name, location)
        return TableRef(path, f"{node.display}_quarantine")

    def _wants_quarantine(self, node: DatasetNode) -> bool:
        wanted = node.declared.quarantine
        wanted = self._settings.quarantine if wanted is None else wanted
        actions = {rule.on_violation for rule in node.declared.expectations}
        return wanted or OnViolation.QUARANTINE in actions

    def _keeps(self, node: DatasetNode) -> bool:
        return self._wants_quarantine(node) and any(
            rule.on_violation.removes for rule in node.declared.expectations
        )

    def declared_columns(self, key: str) -> StructType | None:
        """The declared columns of a table; rows are converted to their types."""
        node = self._graph.datasets.get(key)
        if node is None or node.declared.schema is None:
            return None
        return parse_schema(self._spark, node.declared.schema, origin=node.declared.origin)

    def _conformed(self, node: DatasetNode, df: DataFrame) -> DataFrame:
        """The query with the declared types, or the types of its table if no value changes."""
        if (declared := self.declared_columns(node.key)) is not None:
            return assigned(df, declared)
        if node.kind is DatasetKind.MATERIALIZED_VIEW:
            return df
        state = table_state(self._spark, self._ref(node).path)
        return df if state is None else conform(df, state.schema)

    def _split(self, node: DatasetNode, df: DataFrame) -> RowSplit | None:
        return split_rows(df, node.declared.expectations, quarantine=self._keeps(node))


def _rules(node: DatasetNode) -> str:
    rules = {
        rule.name: {"condition": str(rule.condition), "on_violation": rule.on_violation.value}
        for rule in node.declared.expectations
    }
    return json.dumps(rules, ensure_ascii=False)
