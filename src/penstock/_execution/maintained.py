"""The tables of a pipeline that are maintained, and which of their old files are still needed."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial

from penstock._execution.savepoints import Savepoints
from penstock._execution.table_care import MaintenanceTimes, TableCare
from penstock._execution.tables import PipelineTables
from penstock._graph.dataflow import DatasetNode
from penstock._model.pipeline import MaintenanceSettings
from penstock._observe.events import EventOrigin
from penstock._plan.maintenance import TableMaintenance, table_maintenance
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import StorageFiles
from penstock._tables.layout import QUARANTINE_SUFFIX, event_table
from penstock._tables.read.checkpoint_files import batches, table_offsets
from penstock._tables.read.log_scan import keeps_rows
from penstock._tables.write.fenced import last_number
from penstock._tables.write.maintain import TableFiles, maintenance_session

Policy = Callable[[Mapping[str, str]], TableMaintenance]

_APPENDED = TableMaintenance(
    compacts=True, compacts_at_end=False, alone=False, z_order=(), vacuums=True
)
_CDC_STATE = replace(_APPENDED, compacts=False)  # its writer compacts it


def maintained_tables(
    tables: PipelineTables,
    settings: MaintenanceSettings,
    origin: EventOrigin,
    keys: Collection[str],
    *,
    with_events: bool = True,
) -> list[TableCare]:
    """The tables of some datasets, their quarantines and CDC states; they may not exist yet.

    `with_events` adds the tables of the setting `events`.
    """
    graph = tables.graph
    delta = DeltaJvm(maintenance_session(tables.spark))
    files = StorageFiles(tables.spark)
    times = MaintenanceTimes(files, tables.layout.state_dir)
    care_of = partial(TableCare, settings=settings, times=times)
    needed = NeededFiles(tables)
    cares = []
    for node in graph.stored():
        if node.key not in keys:
            continue
        policy = partial(table_maintenance, graph, node)
        target, quarantine = tables.paths[node.key], tables.quarantine(node).path
        replays = partial(files.names, tables.layout.replay_staging(node.name))
        parts: list[tuple[str, str, Policy]] = [
            (target, "", policy),
            (quarantine, QUARANTINE_SUFFIX, partial(_of_quarantine, policy, replays)),
        ]
        if any(graph.flows[name].flow.cdc for name in node.flows):
            state_path = tables.layout.cdc_state(node.name).path
            parts.append((state_path, " (CDC state)", lambda _: _CDC_STATE))
        for path, suffix, its_policy in parts:
            care = care_of(
                TableFiles(delta, path),
                f"{node.display}{suffix}",
                replace(origin, dataset_name=node.key),
                policy=its_policy,
                turn=tables.turns[node.key],
                vacuum_problem=partial(needed.problem, node, path),
            )
            cares.append(care)
    for text in tables.settings.events.tables if with_events else ():
        care = care_of(
            TableFiles(delta, event_table(tables.settings, text)[1].path),
            text,
            origin,
            policy=lambda _: _APPENDED,
            turn=contextlib.nullcontext(),
            vacuum_problem=lambda _: None,
        )
        cares.append(care)
    return cares


def _of_quarantine(
    policy: Policy, replays: Callable[[], list[str]], stored: Mapping[str, str]
) -> TableMaintenance:
    # Flows only append to a quarantine. An unfinished replay will remove files of its version.
    of_table = policy(stored)
    compacts = of_table.compacts and not replays()
    return replace(of_table, compacts=compacts, alone=False, z_order=())


class NeededFiles:
    """Old files that were removed from a table, but are needed by flows or savepoints."""

    def __init__(self, tables: PipelineTables) -> None:
        self._delta = DeltaJvm(tables.spark)
        self._files = StorageFiles(tables.spark)
        self._graph = tables.graph
        self._tables = tables
        self._state = tables.state

    def problem(self, node: DatasetNode, path: str, before_ms: int) -> str | None:
        """Why files that were removed before a timestamp must be kept; `None` if they need not."""
        inside = [other for other in self._tables.paths.values() if other.startswith(f"{path}/")]
        if inside:
            return f"the table {inside[0]} is in its folder"
        for name in node.flows:
            if self._is_unfinished(name):
                return f"flow {name} has an unfinished batch"
        table_id = self._delta.metadata(self._delta.snapshot(path)).id
        newest = self._delta.version(path)
        for name in self._graph.flows:
            for version in self._read_from(name, table_id):
                if version > newest or not self._is_older(path, version, before_ms):
                    continue
                if not keeps_rows(self._delta, path, version - 1, newest):
                    # Without the version: an unchanged reason is reported only once.
                    return f"flow {name} has not read all versions older than the retention period"
        for savepoint in Savepoints(self._files, self._tables.layout).all():
            for table in savepoint.tables:
                after = table.version + 1
                if table.table_id != table_id or after > newest:
                    continue
                if self._is_older(path, after, before_ms):
                    return f"savepoint {savepoint.name} needs version {table.version}"
        return None

    def _is_unfinished(self, flow: str) -> bool:
        """Whether there is a recorded batch that is not committed to its table."""
        state = self._state.flow(flow)
        if state is None:
            return False
        node = self._graph.flows[flow]
        decision = self._tables.decisions(node, state.epoch).newest()
        if decision is None or decision.result.batch_id is None:
            return False
        identity = self._tables.app_id(flow, state.epoch)
        last = last_number(self._delta, self._tables.paths[node.target], identity)
        return decision.result.app_id == identity and decision.result.batch_id > last

    def _read_from(self, flow: str, table_id: str) -> Iterator[int]:
        """The versions up to which the last batch of a flow read a table.

        Also the version at which it began, if it is not finished.
        """
        state = self._state.flow(flow)
        if state is None:
            return
        checkpoint = self._tables.layout.checkpoint_path(flow, state.epoch)
        newest = batches(self._files, checkpoint, "offsets")[-2:]
        if newest and self._files.exists(f"{checkpoint}/commits/{newest[-1]}"):
            newest = newest[-1:]
        for batch in newest:
            text = self._files.read(f"{checkpoint}/offsets/{batch}") or ""
            for offset in table_offsets(text):
                if offset["reservoirId"] == table_id:
                    yield int(offset["reservoirVersion"])

    def _is_older(self, path: str, version: int, before_ms: int) -> bool:
        info = self._delta.commit_info(path, version)
        return info is None or int(info.get("timestamp", 0)) < before_ms
