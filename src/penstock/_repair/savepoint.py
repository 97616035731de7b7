"""Savepoints: the state of a whole pipeline between two updates, under a name.

A savepoint has the version of each table, and a copy of the checkpoint and of the state of each
flow. It is taken while no update runs, when each flow into a table has finished its last
micro-batch and has read all rows of the pipeline's own tables: then the offsets of the flows, their
state and the tables belong together. Flows into sinks are checked by the restore.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from penstock._execution.flow_state import FlowState
from penstock._execution.savepoints import (
    SavedFlow,
    SavedTable,
    Savepoint,
    Savepoints,
    restore_unfinished,
    unfinished_restore,
)
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._launch import OpenPipeline, open_for_command
from penstock._model.pipeline import PipelineSettings
from penstock._observe.codec import time_text
from penstock._repair.backfill import backfill_journal
from penstock._repair.quarantine_replay import replay_journal
from penstock._repair.reading import stopped_storage, storage_session
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import StorageFiles, local_path
from penstock._tables.layout import layout_of
from penstock._tables.read.checkpoint_files import batches, table_offsets
from penstock._tables.write.fenced import last_number
from penstock.errors import PlanError, SpecError
from penstock.sources.base import path_key
from penstock.sources.delta.lag import PendingVersions
from penstock.sources.delta.source import DeltaStream

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def create_savepoint(settings: PipelineSettings, name: str) -> Savepoint:
    """Take a savepoint of a pipeline that does not run. Called on the main thread.

    Raises:
        SpecError: The name is invalid.
        PlanError: `SAVEPOINT_EXISTS`, or `SAVEPOINT_NOT_POSSIBLE` if a flow into a table has an
            unfinished micro-batch, has not read all rows of another table, or is being repaired.
    """
    if not _NAME.fullmatch(name):
        raise SpecError(
            "SAVEPOINT_NAME_INVALID",
            f"{name!r} cannot be the name of a savepoint",
            hint="use up to 100 letters, digits and `.`, `_` or `-`, beginning with a letter or "
            "digit",
        )
    with open_for_command(settings, "savepoint create") as pipeline:
        pipeline.lease(*pipeline.graph.stored())
        return take_savepoint(pipeline, name)


def take_savepoint(pipeline: OpenPipeline, name: str) -> Savepoint:
    """Take a savepoint of an open pipeline; the leases of its tables are held."""
    files, layout = StorageFiles(pipeline.spark), pipeline.tables.layout
    savepoints, delta = Savepoints(files, layout), DeltaJvm(pipeline.spark)
    if savepoints.find(name) is not None:
        raise PlanError(
            "SAVEPOINT_EXISTS",
            f"there is a savepoint {name!r} already",
            hint=f"use another name, or remove it: penstock savepoint delete {name} --yes",
        )
    tables = tuple(
        table for node in pipeline.graph.stored() for table in _tables(pipeline, delta, node)
    )
    nodes = [n for n in pipeline.graph.flows.values() if n.target in pipeline.tables.paths]
    flows = [
        flow for node in nodes if (flow := _flow(pipeline, files, delta, node, tables)) is not None
    ]
    flows += _removed_flows(pipeline, files, delta, tables)
    savepoints.delete_incomplete()
    try:
        for flow in flows:
            folder, epoch = savepoints.flow_folder(name, flow.flow), flow.state["epoch"]
            files.copy_tree(layout.checkpoint_path(flow.flow, epoch), f"{folder}/checkpoint")
            files.copy_tree(layout.source_files(flow.flow, epoch), f"{folder}/files")
        savepoint = Savepoint(
            name=name,
            created_at=time_text(datetime.now(UTC)),
            tables=tables,
            flows=tuple(flows),
        )
        savepoints.save(savepoint)
    except BaseException:  # for example a full disk
        files.delete_tree(layout.savepoint_folder(name))
        raise
    return savepoint


def list_savepoints(settings: PipelineSettings) -> list[Savepoint]:
    """The savepoints of a pipeline, oldest first; local storage is read without Spark."""
    is_local = local_path(settings.home) is not None
    with nullcontext() if is_local else storage_session(settings) as spark:
        return Savepoints(StorageFiles(spark), layout_of(settings)).all()


def delete_savepoint(settings: PipelineSettings, name: str, *, execute: bool) -> Savepoint:
    """Delete a savepoint, so that VACUUM may remove the files that only it needs.

    Without `execute`, it is only returned.
    """
    with stopped_storage(settings, command="penstock savepoint delete") as spark:
        files, layout = StorageFiles(spark), layout_of(settings)
        savepoints = Savepoints(files, layout)
        savepoint = savepoints.get(name)
        if unfinished_restore(files, layout) == name:
            raise restore_unfinished(name)
        if execute:
            savepoints.delete(name)
        return savepoint


def _tables(pipeline: OpenPipeline, delta: DeltaJvm, node: DatasetNode) -> Iterator[SavedTable]:
    view = pipeline.state.view(node.key)
    for ref in pipeline.tables.by_role(node).values():
        snapshot = delta.snapshot(ref.path)
        version = int(snapshot.version())
        if version >= 0:
            yield SavedTable(
                name=ref.name,
                path=ref.path,
                table_id=delta.metadata(snapshot).id,
                version=version,
                view={} if view is None else asdict(view),
            )


def _flow(
    pipeline: OpenPipeline,
    files: StorageFiles,
    delta: DeltaJvm,
    node: FlowNode,
    tables: tuple[SavedTable, ...],
) -> SavedFlow | None:
    """A flow at rest; `None` before its first start, or if a batch query wrote its rows."""
    name, layout = node.flow.name, pipeline.tables.layout
    state, view = pipeline.state.flow(name), pipeline.state.view(node.target)
    # A batch query may have a checkpoint of an earlier streaming query.
    if state is None or (view is not None and view.deployed):
        return None
    pipeline.check_migration(node)
    if state.reset_pending:
        raise _not_possible(node, "has an unfinished full refresh", "run the pipeline first")
    if backfill_journal(files, layout, name).load() is not None:
        hint = f"end it first: penstock backfill {name} --resume, or --abandon"
        raise _not_possible(node, "has an unfinished backfill", hint)
    target = pipeline.graph.datasets[node.target]
    if replay_journal(files, layout, target).load() is not None:
        hint = f"end it first: penstock quarantine replay {target.display}"
        raise _not_possible(node, "has an unfinished replay of its quarantine", hint)
    checkpoint = layout.checkpoint_path(name, state.epoch)
    planned, finished = (batches(files, checkpoint, kind)[-1:] for kind in ("offsets", "commits"))
    if finished > planned:
        hint = f"penstock checkpoint doctor {name}"
        reason = f"has a checkpoint without the offsets of finished micro-batch {finished[0]}"
        raise _not_possible(node, reason, hint)
    if planned != finished:
        hint = "a triggered update, `penstock run`, finishes it"
        raise _not_possible(node, f"has not finished micro-batch {planned[0]}", hint)
    by_id = {table.table_id: table for table in tables}
    text = files.read(f"{checkpoint}/offsets/{planned[0]}") if planned else ""
    for offset in table_offsets(text or ""):
        table = by_id.get(offset["reservoirId"])
        if table is not None and unread_versions(pipeline, node, table, offset):
            hint = "a triggered update, `penstock run`, reads them"
            raise _not_possible(node, f"has not read all rows of {table.name}", hint)
    paths = {ref.path for ref in pipeline.tables.by_role(target).values()}
    own = [table for table in tables if table.path in paths]
    return _saved(pipeline, delta, name, state, own, planned)


def _removed_flows(
    pipeline: OpenPipeline, files: StorageFiles, delta: DeltaJvm, tables: tuple[SavedTable, ...]
) -> Iterator[SavedFlow]:
    """Flows into the tables that are no longer declared: a restored version may declare them."""
    ids = {table.table_id for table in tables if not table.view.get("deployed")}
    for name in pipeline.state.names("flows"):
        state = pipeline.state.flow(name)
        if name not in pipeline.graph.flows and state is not None and state.target_id in ids:
            checkpoint = pipeline.tables.layout.checkpoint_path(name, state.epoch)
            finished = batches(files, checkpoint, "commits")[-1:]
            saved = _saved(pipeline, delta, name, state, tables, finished)
            yield replace(saved, is_declared=False)


def _saved(
    pipeline: OpenPipeline,
    delta: DeltaJvm,
    name: str,
    state: FlowState,
    tables: Sequence[SavedTable],
    finished: Sequence[int],
) -> SavedFlow:
    app_id = pipeline.tables.app_id(name, state.epoch)
    numbers = {table.path: last_number(delta, table.path, app_id) for table in tables}
    return SavedFlow(
        flow=name,
        batch_id=finished[0] if finished else None,
        state=asdict(state),
        numbers={path: number for path, number in numbers.items() if number >= 0},
    )


def unread_versions(
    pipeline: OpenPipeline,
    node: FlowNode,
    table: SavedTable,
    offset: Mapping[str, Any],
    last: int | None = None,
) -> int | None:
    """The number of versions after an offset, up to `last`, with rows for a flow.

    `None` if it is unknown. Removed rows count only if the flow reads the change data feed.
    """

    def count(*, of_changes: bool) -> int | None:
        pending = PendingVersions(pipeline.spark, of_changes=of_changes)
        versions: int | None = pending.measure(table.path, offset, last)["versions"]
        return versions

    changed = count(of_changes=True)
    if not changed:
        return changed
    added = count(of_changes=False)
    # The query is evaluated only if the counts differ.
    reads_changes = changed != added and any(
        isinstance(source, DeltaStream)
        and source.path == path_key(table.path)
        and source.on_replacement == "changes"
        for source in pipeline.query(node)[1]
    )
    return changed if reads_changes else added


def _not_possible(node: FlowNode, reason: str, hint: str) -> PlanError:
    return PlanError(
        "SAVEPOINT_NOT_POSSIBLE",
        f"the pipeline is not at rest: flow {node.flow.name!r} {reason}",
        origin=node.flow.origin,
        hint=hint,
    )
