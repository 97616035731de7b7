"""Finds the datasets that are read from a deployed pipeline instead of being built.

A dataset is unchanged if `penstock plan` with the storage of that pipeline would find no change of
it: its recorded declaration, its table and everything upstream of it are as declared here. That
storage is only read.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from py4j.protocol import Py4JError

from penstock._execution.declaration import declaration_of, stored_declaration
from penstock._execution.declaration_changes import flow_differences
from penstock._execution.flow_state import StateStore
from penstock._execution.tables import PipelineTables
from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode, deferring
from penstock._graph.replacing import replaces_rows
from penstock._model.dataset import DatasetKind
from penstock._model.exception_text import first_line
from penstock._model.name import resolve_name
from penstock._model.pipeline import Deferral
from penstock._tables.delta_log import DeltaJvm, file_count
from penstock._tables.files import StorageFiles
from penstock._tables.layout import QUARANTINE_SUFFIX, StorageLayout, TableRef
from penstock._tables.write.alter import planned_changes
from penstock._tables.write.table_spec import state_of
from penstock.errors import PlanError


def defer_unchanged(
    tables: PipelineTables, production: Deferral, source_digest: str
) -> DataflowGraph:
    """The graph without the flows of unchanged datasets, which are read from `production`.

    Raises:
        PlanError: `DEFERRED_STORAGE_NOT_READABLE`: Its state cannot be read.
            `TARGETS_SHARE_TABLE`: A changed table would be written at the path of the deployed one.
    """
    try:
        comparison = _Comparison(tables, production, source_digest)
        built = comparison.built()
    except (OSError, Py4JError) as error:
        raise _not_readable(production, error) from error
    paths = {key: path for key, path in comparison.paths.items() if key not in built}
    return deferring(tables.graph, production.name, paths, built, tuple(comparison.warnings()))


class _Comparison:
    def __init__(self, tables: PipelineTables, production: Deferral, source_digest: str) -> None:
        self._tables = tables
        self._graph = tables.graph
        self._production = production
        self._delta = DeltaJvm(tables.spark)
        self._defaults = {"catalog": tables.settings.catalog, "schema": tables.settings.schema}
        layout = StorageLayout(production.storage, production.home)
        store = StateStore(StorageFiles(tables.spark), layout.state_dir, tables.settings.name)
        try:
            self._flows = {name: store.flow(name) for name in store.names("flows")}
            of_views = [stored_declaration(store.view(key)) for key in store.names("views")]
            of_flows = [stored_declaration(state) for state in self._flows.values()]
        except PlanError as error:  # `STATE_OF_NEWER_VERSION`
            raise _not_readable(production, error) from error
        self._views = {each.display: each for each in of_views if each is not None}
        self._deployed = [each for each in (*of_views, *of_flows) if each is not None]
        self._now = {
            name: declaration_of(tables, node, source_digest)
            for name, node in self._graph.flows.items()
            if node.target in self._graph.sinks or self._graph.datasets[node.target].is_stored
        }
        self.paths = {
            node.key: layout.table_path(
                production.deployed_name(node.name, **self._defaults),
                node.declared.path,
            )
            for node in self._graph.stored()
        }

    def built(self) -> dict[str, str]:
        """Datasets that are built here, with the reason."""
        built = {
            node.key: reason
            for node in self._graph.stored()
            if (reason := next(self._reasons(node), None)) is not None
        }
        upstream = {node.key: self._upstream(node) for node in self._graph.stored()}
        while True:
            more = {
                key: f"{self._graph.datasets[up].display}, which it reads, is built here"
                for key, keys in upstream.items()
                if key not in built and (up := next(filter(built.__contains__, keys), None))
            }
            if not more:
                break
            built |= more
        there = {each.path for each in self._deployed}
        for key in built:
            node = self._graph.datasets[key]
            if node.declared.path is not None and self.paths[key] in there:
                raise PlanError(
                    "TARGETS_SHARE_TABLE",
                    f"{node.display!r} is built here ({built[key]}), but its declared path is that "
                    f"of the table at {self._production.name}: {self.paths[key]}",
                    origin=node.declared.origin,
                    hint="remove `path`, or take it from a setting that each target has",
                )
        return built

    def warnings(self) -> Iterator[str]:
        """Warnings for the user before the update starts."""
        name = self._production.name
        if not self._deployed:
            yield (
                f"nothing is deployed at {name} ({self._production.storage}): everything is built "
                "here"
            )
        there = {each.target: each.path for each in self._deployed if each.kind == "sink"}
        for sink in {now.target: now for now in self._now.values() if now.kind == "sink"}.values():
            if " " in sink.path and there.get(sink.target) == sink.path:
                yield (
                    f"sink {sink.target} writes to the same place as at {name}: {sink.path}; take "
                    "its options from settings that each target has"
                )

    def _upstream(self, node: DatasetNode) -> list[str]:
        keys = {key for name in node.flows for key in self._graph.flows[name].upstream}
        for text in (text for name in node.flows for text in self._now[name].external):
            # A quarantine is read by its name, as a table outside of the pipeline.
            with contextlib.suppress(ValueError):
                read = resolve_name(text.removeprefix("table "), **self._defaults).key
                keys.add(read.removesuffix(QUARANTINE_SUFFIX))
        return [key for key in self.paths if key in keys - {node.key}]

    def _reasons(self, node: DatasetNode) -> Iterator[str]:
        """Reasons to build a dataset here, other than its upstream datasets."""
        name = self._production.name
        snapshot = self._delta.snapshot(self.paths[node.key])
        if snapshot.version() < 0:
            yield f"it is not deployed at {name}"
            return
        flows = [self._graph.flows[flow] for flow in node.flows]
        for flow in flows:
            yield from self._of_flow(flow, node)
        state = state_of(self._delta, snapshot)
        for flow in flows:
            known = self._flows.get(flow.flow.name)
            if known is not None and known.target_id not in (None, state.id):
                yield f"its table at {name} was dropped, or created again"
        spec = self._tables.spec(node, flows)
        # Penstock's properties depend on the storage and the metastore.
        own = {key: text for key, text in spec.properties.items() if "penstock." not in key}
        table = TableRef(self.paths[node.key], node.display)
        try:
            yield from planned_changes(
                table,
                replace(spec, properties=own, owner=None),
                state,
                has_rows=file_count(snapshot) > 0,
            )
        except PlanError as error:
            yield error.message

    def _of_flow(self, flow: FlowNode, node: DatasetNode) -> Iterator[str]:
        name = flow.flow.name
        state, view = self._flows.get(name), self._views.get(node.display)
        of_flow = stored_declaration(state)
        is_refreshed = node.kind is DatasetKind.MATERIALIZED_VIEW or replaces_rows(flow.flow)
        before = (view or of_flow) if is_refreshed else (of_flow or view)
        if before is None:
            yield (
                f"flow {name} has no recorded declaration at {self._production.name}: it has not "
                "finished a batch since its first start or full refresh, or an earlier version ran "
                "it"
            )
            return
        if state is not None and (state.reset_pending or state.migration is not None):
            yield f"a full refresh or migration of flow {name} is unfinished"
        now = self._now[name]
        if before.display == now.display:  # the default schema may differ
            now = replace(now, target=before.target)
        for difference in flow_differences(name, before, now):
            yield difference.text


def _not_readable(production: Deferral, error: Exception) -> PlanError:
    return PlanError(
        "DEFERRED_STORAGE_NOT_READABLE",
        f"the state of the pipeline at {production.name} ({production.storage}) cannot be read: "
        f"{first_line(error)}",
        hint="check the permissions, and that this version of Penstock is not older than the one "
        "that runs there; without `defer_to`, everything is built here",
    )
