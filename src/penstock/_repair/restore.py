"""Restores a savepoint: all tables of a pipeline, then its checkpoints.

A journal is written first. While it exists, updates are refused, and an interrupted restore resumes
when it is called again. Delta's RESTORE commits the old rows, schema and properties of each table,
so its history is kept. Streams that read the table would process this commit as changes, so each
flow gets its old checkpoint under a new epoch, with the offsets of the pipeline's tables set to the
version after the restore.
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from penstock._execution.file_states import forget_listings
from penstock._execution.flow_state import ViewState, state_of
from penstock._execution.savepoints import (
    RESTORE_JOURNAL,
    SavedFlow,
    SavedTable,
    Savepoints,
    restore_unfinished,
)
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._launch import OpenPipeline, open_for_command
from penstock._model.dataset import DatasetKind
from penstock._model.pipeline import PipelineSettings
from penstock._repair.copied_checkpoint import copy_checkpoint
from penstock._repair.journal import Journal, recording
from penstock._repair.savepoint import take_savepoint, unread_versions
from penstock._repair.shadow import restore_rows
from penstock._spark.failures import command_error
from penstock._tables.commits import CommitResult, actions_of
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import StorageFiles
from penstock._tables.kill_points import kill_point
from penstock._tables.layout import DECISION_FILE, NOTE_FILE, TableRef
from penstock._tables.read.checkpoint_files import batches, table_offsets
from penstock._tables.read.log_scan import file_identity
from penstock._tables.write.create import reset_table
from penstock._tables.write.fenced import FencedTable, last_number
from penstock._tables.write.table_spec import OWNER
from penstock.errors import PlanError, SetupError

_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class RestoreOptions:
    accept_duplicates: bool = False  # sinks may get duplicate rows of later batches
    keeps_undo: bool = True  # take a savepoint of the current state first
    execute: bool = False  # otherwise the plan is only reported


@dataclass(frozen=True, kw_only=True)
class RestoreReport:
    savepoint: str
    created_at: str
    resumed: bool  # an interrupted restore was completed
    undo: str | None  # savepoint of the state before
    steps: tuple[str, ...]  # one sentence each


@dataclass(frozen=True, kw_only=True)
class _Restore:
    """The journal entry."""

    savepoint: str
    undo: str | None
    epochs: Mapping[str, str]  # new epochs by flow
    versions: dict[str, int] = field(default_factory=dict)  # of restored tables, by path


def restore_savepoint(
    settings: PipelineSettings, name: str, options: RestoreOptions = RestoreOptions()
) -> RestoreReport:
    """Plan the restore of a savepoint, and carry it out. Called on the main thread.

    Raises:
        SpecError: `SAVEPOINT_NOT_FOUND`.
        PlanError: `RESTORE_NOT_POSSIBLE`, `RESTORE_REPEATS_ROWS`, `RESTORE_UNFINISHED` (of another
            savepoint), or `SAVEPOINT_NOT_POSSIBLE` for the state before.
    """
    with open_for_command(settings, "savepoint restore", records=True, restores=True) as pipeline:
        run = _Run(pipeline, name)
        report = run.plan(options)
        if not options.execute:
            return report
        pipeline.lease(*pipeline.graph.stored())
        with recording(
            pipeline,
            None,
            command="restore",
            properties={"savepoint": name},
            text=f"savepoint {name}",
        ):
            return run.execute(options, report)


class _Run:
    def __init__(self, pipeline: OpenPipeline, name: str) -> None:
        self._pipeline = pipeline
        self._layout = pipeline.tables.layout
        self._files = StorageFiles(pipeline.spark)
        self._delta = DeltaJvm(pipeline.spark)
        self._savepoints = Savepoints(self._files, self._layout)
        self._journal = Journal(self._files, self._layout.restore_folder, _Restore, RESTORE_JOURNAL)
        self._begun = self._journal.load()
        if self._begun is not None and self._begun.savepoint != name:
            raise restore_unfinished(self._begun.savepoint)
        self._savepoint = self._savepoints.get(name)

    def _after(self, step: str, about: str = "") -> None:
        kill_point(f"restore_{step}", about, None)

    # -- the plan ------------------------------------------------------------------------------

    def plan(self, options: RestoreOptions) -> RestoreReport:
        savepoint, begun = self._savepoint, self._begun
        for table in savepoint.tables:
            self._check(table)
        for node, checkpoint in self._sink_flows() if begun is None else ():
            self._check_sink(node, checkpoint, keeps_undo=options.keeps_undo)
        writing = self._sinks()
        if writing and not options.accept_duplicates and options.execute and begun is None:
            raise PlanError(
                "RESTORE_REPEATS_ROWS",
                f"savepoint {savepoint.name!r} is not restored: the rows that flows write again "
                f"are already in {', '.join(writing)}",
                hint="remove them from the sink, or let it ignore them; then --accept-duplicates",
            )
        return RestoreReport(
            savepoint=savepoint.name,
            created_at=savepoint.created_at,
            resumed=begun is not None,
            undo=None if begun is None else begun.undo,
            steps=tuple(self._steps(writing)),
        )

    def _steps(self, sinks: list[str]) -> list[str]:
        steps = []
        for table in self._savepoint.tables:
            newest = self._delta.version(table.path)
            steps.append(f"restore {table.name} from version {newest} to {table.version}")
        steps += [
            f"remove all rows of {table.name}, which is filled from the beginning"
            for table in self._new_tables()
        ]
        for flow in self._savepoint.flows:
            batch = "no micro-batch" if flow.batch_id is None else f"micro-batch {flow.batch_id}"
            steps.append(f"resume flow {flow.flow} after {batch}, with a new checkpoint")
        steps += [f"start flow {name} from the beginning" for name in self._new_flows()]
        stored = self._pipeline.graph.stored()
        views = [n.display for n in stored if n.kind is DatasetKind.MATERIALIZED_VIEW]
        if views:  # the versions of their inputs do not apply any more
            steps.append(f"recompute {', '.join(views)} with the next update")
        steps += [f"keep the rows of sink {sink}; repeated rows are added" for sink in sinks]
        return steps

    def _check(self, table: SavedTable) -> None:
        """Refuse a table of another pipeline, a recreated table, or an incomplete version."""
        root, name = self._layout.root, self._pipeline.settings.name
        if table.path not in self._declared() and not table.path.startswith(f"{root}/"):
            # In a copy of a storage, savepoints contain the paths of the original tables.
            raise _impossible(table, f"{table.path} is not in the storage {root}")
        snapshot = self._delta.snapshot(table.path)
        newest = int(snapshot.version())
        metadata = self._delta.metadata(snapshot)
        if newest < 0 or metadata.id != table.table_id:
            raise _impossible(table, "the table was dropped or created again since")
        if (owner := metadata.configuration.get(OWNER)) not in (None, name):
            raise _impossible(table, f"it is a table of pipeline {owner!r} now")
        try:
            self._delta.snapshot_at(table.path, table.version)
        except Exception as error:
            known = command_error(error, f"restore of {table.name}")
            if isinstance(known, SetupError):
                raise known from error
            reason = "its log was cleaned up (delta.logRetentionDuration)"
            raise _impossible(table, reason) from error
        uris = list(self._locations(table.path, self._removed_files(table, newest)))
        # Each file needs a request to an object store: sequentially, this takes minutes.
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="restore") as pool:
            for uri, exists in zip(uris, pool.map(self._files.exists, uris), strict=True):
                if not exists:
                    pool.shutdown(cancel_futures=True)
                    raise _impossible(table, f"VACUUM has deleted its file {uri}")

    def _check_sink(self, node: FlowNode, checkpoint: str, *, keeps_undo: bool) -> None:
        """Refuse if a sink does not have all rows of the restored tables.

        The offsets of its flow are set after these rows. With `keeps_undo`, the sink must have all
        current rows, because the undo may restore them.
        """
        planned, finished = (self._table_offsets(checkpoint, of) for of in ("offsets", "commits"))
        for table in self._savepoint.tables:
            if table.table_id not in [offset["reservoirId"] for offset in planned]:
                continue
            sent = [offset for offset in finished if offset["reservoirId"] == table.table_id]
            last = None if keeps_undo else table.version
            counts = [unread_versions(self._pipeline, node, table, at, last) for at in sent]
            if not counts or any(count != 0 for count in counts):
                raise PlanError(
                    "RESTORE_NOT_POSSIBLE",
                    f"flow {node.flow.name!r} has not written all rows of {table.name} to the sink "
                    f"{node.target}" + ("" if keeps_undo else f", up to version {table.version}"),
                    origin=node.flow.origin,
                    hint="nothing was changed; a triggered update, `penstock run`, writes them; "
                    "--no-undo needs only the rows of the savepoint",
                )

    def _table_offsets(self, checkpoint: str, kind: str) -> list[dict[str, Any]]:
        """The offsets of the last planned (`offsets`) or finished (`commits`) micro-batch."""
        text = ""
        for batch in batches(self._files, checkpoint, kind)[-1:]:
            text = self._files.read(f"{checkpoint}/offsets/{batch}") or ""
        return list(table_offsets(text))

    def _removed_files(self, table: SavedTable, newest: int) -> list[dict[str, Any]]:
        """The `remove` actions since the saved version for the files that it contains."""
        seen: set[tuple[str, str]] = set()
        removed = []
        for version in range(table.version + 1, newest + 1):
            lines = self._delta.commit_lines(table.path, version) or ()
            files = list(actions_of(lines, "remove"))
            removed += [file for file in files if file_identity(file) not in seen]
            seen.update(map(file_identity, (*files, *actions_of(lines, "add"))))
        return removed

    def _locations(self, path: str, files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """URIs of data files and deletion vectors."""
        folder = self._delta.jvm.org.apache.hadoop.fs.Path(path)
        for content in files:
            uri = unquote(content["path"])
            yield uri if re.match(r"/|\w+:/", uri) else f"{path}/{uri}"
            vector = self._delta.action({"remove": content}).deletionVector()
            if vector is not None and vector.isOnDisk():
                yield str(vector.absolutePath(folder).toString())

    def _declared(self) -> dict[str, TableRef]:
        """The tables of the current datasets by path; they may not exist."""
        return {
            ref.path: ref
            for node in self._pipeline.graph.stored()
            for ref in self._pipeline.tables.by_role(node).values()
        }

    def _new_tables(self) -> list[TableRef]:
        """Tables that flows fill from the beginning: not in the savepoint, or as views."""
        graph, tables = self._pipeline.graph, self._pipeline.tables
        streamed = {
            ref.path
            for flow in graph.flows.values()
            if flow.analysis.is_streaming and flow.target in tables.paths
            for ref in tables.by_role(graph.datasets[flow.target]).values()
        }
        saved = {
            table.path
            for table in self._savepoint.tables
            if not (table.view.get("deployed") and table.path in streamed)
        }
        return [
            ref
            for path, ref in self._declared().items()
            if path not in saved and self._delta.version(path) >= 0
        ]

    def _new_flows(self) -> list[str]:
        """Flows that are not in the savepoint, including undeclared flows into its tables."""
        saved = {flow.flow for flow in self._savepoint.flows}
        ids = {table.table_id for table in self._savepoint.tables}
        state, flows = self._pipeline.state, self._pipeline.graph.flows
        return [
            name
            for name in state.names("flows")
            if name not in saved
            and (known := state.flow(name)) is not None
            and (
                flows[name].target in self._pipeline.tables.paths
                if name in flows
                else known.target_id in ids
            )
        ]

    def _sinks(self) -> list[str]:
        """Sinks with flows that read restored tables."""
        ids = {table.table_id for table in self._savepoint.tables}
        return sorted(
            {
                node.target
                for node, checkpoint in self._sink_flows()
                for offset in self._table_offsets(checkpoint, "offsets")
                if offset["reservoirId"] in ids
            }
        )

    def _sink_flows(self) -> list[tuple[FlowNode, str]]:
        return [
            (node, self._layout.checkpoint_path(name, state.epoch))
            for name, node in self._pipeline.graph.flows.items()
            if node.target in self._pipeline.graph.sinks
            and (state := self._pipeline.state.flow(name)) is not None
        ]

    # -- the restore ---------------------------------------------------------------------------

    def execute(self, options: RestoreOptions, report: RestoreReport) -> RestoreReport:
        begun = self._begun or self._begin(options)
        starts = {
            table.table_id: self._restore(table, begun) + 1 for table in self._savepoint.tables
        }
        new = self._new_tables()
        for ref in new:
            reset_table(self._pipeline.spark, ref)
            self._after("emptied", ref.name)
        for flow in self._savepoint.flows:
            self._switch(flow, begun.epochs[flow.flow], starts)
            self._after("switched", flow.flow)
        for name in self._new_flows():
            self._pipeline.state.new_flow(name, {})
        for name in self._pipeline.state.names("flows"):
            # An unfinished migration has read rows that flows will write again.
            self._files.delete_tree(self._layout.migration_folder(name))
        for dataset in self._pipeline.graph.stored():
            # An unfinished replay would add rows that flows will write again.
            self._files.delete_tree(self._layout.replay_staging(dataset.name))
            self._restore_view(dataset, {ref.path for ref in new})
        for _, checkpoint in self._sink_flows():
            self._move_offsets(checkpoint, starts)
        self._after("done")
        self._journal.delete()
        return replace(report, undo=begun.undo)

    def _restore_view(self, dataset: DatasetNode, emptied: set[str]) -> None:
        """Make the next refresh complete, but keep the record that the rows are of a view."""
        path, state = self._pipeline.tables.paths[dataset.key], self._pipeline.state
        view = next((table.view for table in self._savepoint.tables if table.path == path), {})
        if view and path not in emptied:
            state.save_view(dataset.key, ViewState(**{**view, "table_version": None}))
        else:
            state.forget_view(dataset.key)

    def _begin(self, options: RestoreOptions) -> _Restore:
        undo = None
        if options.keeps_undo:
            undo = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-before-{self._savepoint.name}"[:100]
            try:
                take_savepoint(self._pipeline, undo)
            except PlanError as error:
                error.hint = f"{error.hint}; --no-undo restores without a way back"
                raise
            self._after("undo")
        epochs = {flow.flow: uuid.uuid4().hex for flow in self._savepoint.flows}
        begun = _Restore(savepoint=self._savepoint.name, undo=undo, epochs=epochs)
        self._journal.save(begun)
        self._after("begun")
        return begun

    def _restore(self, table: SavedTable, begun: _Restore) -> int:
        """Restore a table, continue the batch numbers of its flows, return the new version."""
        if table.path in begun.versions:
            return begun.versions[table.path]
        ref = TableRef(table.path, table.name)
        if self._delta.version(table.path) != table.version:
            restore_rows(self._pipeline.spark, ref, table.version)
            self._after("restored", table.name)
        for flow in self._savepoint.flows:
            number = flow.numbers.get(table.path)
            if number is None:
                continue
            app_id = self._pipeline.tables.app_id(flow.flow, begun.epochs[flow.flow])
            if last_number(self._delta, table.path, app_id) < number:
                fenced = FencedTable(self._delta, ref, app_id)
                result = CommitResult(flow=flow.flow, app_id=app_id, batch_id=number, version=None)
                fenced.commit(fenced.begin(number), [], number, result, complete=False)
                self._after("numbered", f"{flow.flow} in {table.name}")
        begun.versions[table.path] = self._delta.version(table.path)
        self._journal.save(begun)
        self._after("recorded", table.name)
        return begun.versions[table.path]

    def _switch(self, flow: SavedFlow, epoch: str, starts: Mapping[str, int]) -> None:
        state = self._pipeline.state.flow(flow.flow)
        if state is not None and state.epoch == epoch:
            return
        folder = self._savepoints.flow_folder(self._savepoint.name, flow.flow)
        checkpoint = self._layout.checkpoint_path(flow.flow, epoch)
        if copy_checkpoint(self._files, f"{folder}/checkpoint", checkpoint):
            for name in (DECISION_FILE, NOTE_FILE):  # of batches under the old epoch
                self._files.delete_tree(f"{checkpoint}/{name}")
            if flow.is_declared:  # others may have unread rows, and stop if these were removed
                self._move_offsets(checkpoint, starts)
            self._files.copy_tree(f"{folder}/files", self._layout.source_files(flow.flow, epoch))
            forget_listings(self._files, self._layout, flow.flow, epoch)
            self._after("copied", flow.flow)
        saved = state_of(flow.state)
        # `starts` apply to a first batch, which would be planned with old versions.
        self._pipeline.state.save_flow(flow.flow, replace(saved, epoch=epoch, starts={}))

    def _move_offsets(self, checkpoint: str, starts: Mapping[str, int]) -> None:
        """Set the offsets of restored tables to the version after their newest one.

        Spark reads the last two entries: it repeats the last batch of each source without data.
        """
        for batch in batches(self._files, checkpoint, "offsets")[-2:]:
            path = f"{checkpoint}/offsets/{batch}"
            text = self._files.read(path) or ""
            moved = moved_offsets(text, starts)
            if moved != text:
                self._files.write(path, moved)


def moved_offsets(text: str, starts: Mapping[str, int]) -> str:
    """The text of an offsets file with the tables in `starts` at the start of a version."""
    lines = []
    for line in text.split("\n"):
        offset = next(table_offsets(line), None)
        if offset is not None and offset["reservoirId"] in starts:
            # Before the first file of a version, in the two formats of Delta's offsets.
            index = -1 if offset["sourceVersion"] == 1 else -100
            at = {"reservoirVersion": starts[offset["reservoirId"]], "index": index}
            line = json.dumps({**offset, **at, "isStartingVersion": False}, separators=(",", ":"))
        lines.append(line)
    return "\n".join(lines)


def _impossible(table: SavedTable, reason: str) -> PlanError:
    return PlanError(
        "RESTORE_NOT_POSSIBLE",
        f"{table.name} cannot be restored to version {table.version}: {reason}",
        hint="nothing was changed; a full refresh recomputes the pipeline: "
        "penstock run --full-refresh-all",
    )
