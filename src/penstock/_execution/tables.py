"""The Delta tables of a pipeline: tables and quarantines of its datasets."""

import json
from collections.abc import Mapping, Sequence
from threading import Lock
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock._execution.flow_state import FlowState, StateStore
from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode
from penstock._graph.replacing import replaces_rows
from penstock._model.dataset import DatasetKind, LateRows
from penstock._model.expectation import OnViolation
from penstock._model.pipeline import PipelineSettings
from penstock._model.table_properties import effective_properties
from penstock._plan.settings import widening
from penstock._tables.commit_note import CDC_STATE, QUARANTINE, TARGET, CommitNote
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import StorageFiles
from penstock._tables.layout import QUARANTINE_SUFFIX, StorageLayout, TableRef, app_id
from penstock._tables.metastore import HiveMetastore, Registration
from penstock._tables.read.log_scan import append_only_start
from penstock._tables.write.assignment import assigned
from penstock._tables.write.create import reset_table
from penstock._tables.write.decision import DecisionFile
from penstock._tables.write.prepare import prepare_quarantine, prepare_table
from penstock._tables.write.schema import with_types
from penstock._tables.write.table_spec import (
    OWNER,
    TableSpec,
    TableState,
    parse_schema,
    read_version,
    table_state,
)
from penstock._tables.write.widening import common_schema
from penstock.errors import CheckpointError

_CHANGE_FEED = "delta.enableChangeDataFeed"
_EXPECTATIONS = "penstock.expectations"
"""Property of registered tables: their rules as JSON."""


class PipelineTables:
    """Tables of one pipeline; `locations` replace the declared paths, by key of the dataset."""

    def __init__(
        self,
        spark: SparkSession,
        graph: DataflowGraph,
        layout: StorageLayout,
        settings: PipelineSettings,
        state: StateStore,
        locations: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.layout = layout
        self.spark = spark
        self.settings = settings
        self.graph = graph
        self.state = state
        self._locations = locations
        self._metastore = None if settings.metastore is None else HiveMetastore(spark)
        self.paths: Mapping[str, str] = MappingProxyType(
            {node.key: self.table(node).path for node in graph.stored()}
        )
        self.turns: Mapping[str, Lock] = {key: Lock() for key in self.paths}
        """Held by a batch that removes files of a table, and by a compaction of that table."""

    def prepare(self, node: DatasetNode, flows: Sequence[FlowNode]) -> None:
        """Create or alter the table of a dataset, and its quarantine if it has one."""
        spec = self.spec(node, flows)
        state = prepare_table(self.spark, self.table(node), spec)
        self._register(node, self.table(node), state)
        quarantine = self.quarantine(node)
        keeps = self.keeps_dropped(node) or node.declared.late_rows is LateRows.QUARANTINE
        if keeps and not any(flow.flow.cdc for flow in flows):
            kept: TableState | None = prepare_quarantine(
                self.spark, quarantine, state, replace_schema=spec.replace_schema
            )
        else:
            # The quarantine of auto CDC is created by the first invalid event.
            kept = None if self._metastore is None else table_state(self.spark, quarantine.path)
        if kept is not None:
            self._register(node, quarantine, kept, QUARANTINE_SUFFIX)

    def spec(self, node: DatasetNode, flows: Sequence[FlowNode]) -> TableSpec:
        """The declaration of the table of a dataset, with these flows into it."""
        declared = node.declared
        schema = self.declared_columns(node.key) or common_schema(
            node.display,
            {flow.flow.name: flow.analysis.schema_json for flow in flows},
            declared.origin,
        )
        has_events = any(is_cdc(flow.flow) for flow in flows)
        return TableSpec(
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
            owner=self.settings.name if self.settings.shared_storage else None,
            keys=tuple(key for flow in flows for key in _keys(flow)),
        )

    def register(self, node: DatasetNode) -> None:
        """Register a table again: the columns may have changed with its rows."""
        if self._metastore is not None:
            state = table_state(self.spark, self.table(node).path)
            assert state is not None
            self._register(node, self.table(node), state)

    def reset(self, node: DatasetNode) -> None:
        """Remove all rows of a dataset and of its quarantine."""
        reset_table(self.spark, self.table(node))
        reset_table(self.spark, self.quarantine(node))
        reset_table(self.spark, self.layout.cdc_state(node.name))
        # An unfinished replay would add rows of the former quarantine.
        StorageFiles(self.spark).delete_tree(self.layout.replay_staging(node.name))

    def table(self, node: DatasetNode) -> TableRef:
        location = self._locations.get(node.key, node.read_from or node.declared.path)
        return TableRef(self.layout.table_path(node.name, location), node.display)

    def quarantine(self, node: DatasetNode) -> TableRef:
        """The quarantine of a dataset; it may not exist."""
        location = self._locations.get(node.key, node.read_from or node.declared.path)
        path = self.layout.quarantine_path(node.name, location)
        if node.declared.is_quarantine_taken:
            path += "_off"  # never written; the path itself is that of another dataset
        return TableRef(path, f"{node.display}_quarantine")

    def wants_quarantine(self, node: DatasetNode) -> bool:
        wanted = node.declared.quarantine
        wanted = self.settings.quarantine if wanted is None else wanted
        actions = {rule.on_violation for rule in node.declared.expectations}
        return wanted or OnViolation.QUARANTINE in actions

    def keeps_dropped(self, node: DatasetNode) -> bool:
        return self.wants_quarantine(node) and any(
            rule.on_violation.removes for rule in node.declared.expectations
        )

    def declared_columns(self, key: str) -> StructType | None:
        """The declared columns of a table; rows are converted to their types."""
        node = self.graph.datasets.get(key)
        if node is None or node.declared.schema is None:
            return None
        return parse_schema(self.spark, node.declared.schema, origin=node.declared.origin)

    def typed(self, node: FlowNode, df: DataFrame) -> DataFrame:
        """The query of a flow with the types that its writer expects."""
        declared = self.declared_columns(node.target)
        df = with_types(df, declared)
        if declared is None or not is_cdc(node.flow):
            return df
        # Conditions and sequence of events use the declared types, as in the analysis.
        # The keys of earlier versions have no padding.
        return assigned(df, declared, with_lengths=False)

    def is_streamed(self, node: DatasetNode) -> bool:
        return any(node.key in flow.analysis.streams for flow in self.graph.flows.values())

    def by_role(self, node: DatasetNode) -> dict[str, TableRef]:
        """The tables that flows into a dataset write; they may not exist yet."""
        return {
            TARGET: self.table(node),
            QUARANTINE: self.quarantine(node),
            CDC_STATE: self.layout.cdc_state(node.name),
        }

    def app_id(self, flow: str, epoch: str) -> str:
        """The `txnAppId` of a flow."""
        return app_id(self.state.pipeline_of(flow), flow, epoch)

    def decisions(self, node: FlowNode, epoch: str) -> DecisionFile:
        """The record of the batch of a flow that has several commits."""
        path = self.layout.decision_file(node.flow.name, epoch)
        return DecisionFile(StorageFiles(self.spark), path)

    def note(self, node: FlowNode, epoch: str) -> CommitNote:
        """The record of the newest commits of a flow."""
        path = self.layout.note_file(node.flow.name, epoch)
        return CommitNote(StorageFiles(self.spark), path)

    def version(self, node: DatasetNode) -> int | None:
        """Newest version of the table; `None` if it does not exist."""
        return read_version(self.spark, self.table(node).path)

    def append_only_start(self, path: str) -> int | None:
        """The version from which a stream reads the whole table as appends; see `log_scan`."""
        delta = DeltaJvm(self.spark)
        return append_only_start(delta, path, int(delta.snapshot(path).version()))

    def check_ownership(self, node: FlowNode, state: FlowState) -> str | None:
        """The id of the target table.

        Raises:
            CheckpointError: `TABLE_REPLACED`: The checkpoint belongs to another table, or to one
                that no longer exists: earlier rows would be missing.
        """
        path = self.paths.get(node.target)
        table = None if path is None else table_state(self.spark, path)
        table_id = table.id if table is not None else None
        was_sink = path is not None and state.deployed.get("kind") == "sink"
        if was_sink or (state.target_id is not None and state.target_id != table_id):
            change = f"a table that is gone: {node.target!r} was dropped or recreated"
            hint = f"--full-refresh {node.flow.target} rebuilds it from its sources; or restore "
            hint += "the old table"
            before = state.deployed.get("path", path)
            if was_sink or path is None:
                change = f"{before or 'a table'}; its target is {node.flow.target} now"
                hint = "give the flow another name: it reads its sources from the beginning then"
                hint += f"; or --full-refresh {node.flow.target}" if was_sink else ""
            elif before != path:
                change = f"the table {before}; its table is {path} now"
                hint = "if that is the table of another target, set `storage` in each target: a "
                hint += "full refresh would discard the checkpoint of the other; otherwise "
                hint += f"--full-refresh {node.flow.target}"
            raise CheckpointError(
                "TABLE_REPLACED",
                f"flow {node.flow.name!r} has a checkpoint for {change}",
                flow=node.flow.name,
                origin=node.flow.origin,
                hint=hint,
            )
        return table_id

    def _properties(self, node: DatasetNode, flows: Sequence[FlowNode]) -> Mapping[str, str]:
        declared = effective_properties(node.declared.table_properties)
        if self.settings.shared_storage:
            declared = {**declared, OWNER: self.settings.name}
        if self._metastore is not None:
            declared = {**declared, _EXPECTATIONS: _rules(node)}
        known = {key.lower() for key in declared}
        changes = any(is_cdc(flow.flow) or replaces_rows(flow.flow) for flow in flows)
        if _CHANGE_FEED.lower() in known or not changes:
            return declared
        return {**declared, _CHANGE_FEED: "true"} if self.is_streamed(node) else declared

    def _register(
        self, node: DatasetNode, table: TableRef, state: TableState, suffix: str = ""
    ) -> None:
        """Register a table in the metastore, if there is one and the table is not private."""
        # A copy at another location, as in a migration, is not registered.
        is_named = node.key not in self._locations and not node.declared.private
        if self._metastore is None or not is_named:
            return
        wanted = Registration(
            schema=node.name.schema.lower(),
            name=f"{node.name.name}{suffix}".lower(),
            table=table,
            columns=state.schema,
            comment=state.comment,
            properties={**state.properties, "penstock.pipeline": self.settings.name},
            flow=node.flows[0],
            origin=node.declared.origin,
        )
        self._metastore.register(wanted)

    def _widens(self, node: DatasetNode) -> bool:
        if (setting := widening(self.settings.configuration)) is not None:
            return setting
        seen: set[str] = set()
        pending = list(node.flows)
        while pending:
            flow = self.graph.flows[pending.pop()]
            if flow.analysis.widens_types:
                return True
            for key in flow.upstream - seen:
                seen.add(key)
                pending.extend(self.graph.datasets[key].flows)
        return False


def _keys(node: FlowNode) -> tuple[str, ...]:
    """Columns by which a flow finds the rows that it replaces."""
    changes = node.flow.cdc or node.flow.snapshot
    return node.analysis.merge_keys if changes is None else changes.keys


def _rules(node: DatasetNode) -> str:
    rules = {
        rule.name: {"condition": str(rule.condition), "on_violation": rule.on_violation.value}
        for rule in node.declared.expectations
    }
    return json.dumps(rules, ensure_ascii=False)
