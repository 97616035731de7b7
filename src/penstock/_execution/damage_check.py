"""Compares checkpoints, states and tables before a flow runs."""

from collections.abc import Callable, Iterable, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any

from penstock._execution.flow_state import FlowState
from penstock._execution.tables import PipelineTables
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._model.name import path_segment, segment_name
from penstock._tables.commit_note import TARGET, NotedCommit
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import StorageFiles, local_path
from penstock._tables.layout import TableRef, app_id
from penstock._tables.read.checkpoint_doctor import unreadable_files
from penstock._tables.read.checkpoint_files import (
    Checkpoint,
    batches,
    newest_of_checkpoint,
    read_checkpoint,
)
from penstock._tables.read.damage import (
    Damage,
    behind,
    check_log,
    is_lost,
    older,
    restored,
    restored_to,
    sink_checkpoint_lost,
    state_lost,
    unreadable,
)
from penstock._tables.write.fenced import last_number
from penstock.errors import CheckpointError

_COMMITS_BEHIND = 20
"""Number of later commits that are checked for a RESTORE."""


class DamageCheck:
    """Checks for loss of data in storage since the last update."""

    def __init__(self, tables: PipelineTables, warn: Callable[[FlowNode, str], None]) -> None:
        self._delta = DeltaJvm(tables.spark)
        self._files = StorageFiles(tables.spark)
        self._tables = tables
        self._warn = warn

    def check_tables(
        self,
        dataset: DatasetNode,
        nodes: Mapping[str, FlowNode],
        states: Mapping[str, FlowState | None],
    ) -> None:
        """Compare the tables of a dataset with the recorded commits of its flows.

        Raises `TABLE_BEHIND_CHECKPOINT`, `FLOW_STATE_MISSING` or `TABLE_LOG_DAMAGED`.
        """
        tables = self._tables.by_role(dataset)
        for name, node in nodes.items():
            state = states[name]
            if state is None:
                self.check_state(node, tables[TARGET])
                continue
            for role, commit in self._tables.note(node, state.epoch).load().items():
                if role in tables:
                    self._check_commit(node, state, dataset, tables[role], role, commit)

    def _check_commit(
        self,
        node: FlowNode,
        state: FlowState,
        dataset: DatasetNode,
        table: TableRef,
        role: str,
        commit: NotedCommit,
    ) -> None:
        name, path, epoch = node.flow.name, table.path, state.epoch

        def read(version: int) -> list[str] | None:
            return self._delta.commit_lines(path, version)

        if not is_lost(commit, read, lambda: self._delta.version(path)):
            if role == TARGET:
                self._check_restored(node, epoch, dataset, commit, read)
            return
        check_log(self._delta, table)
        snapshot = self._delta.snapshot(path)
        newest = int(snapshot.version())
        # A table that was dropped or recreated is a different table: see `TABLE_REPLACED`.
        if newest < 0 or self._delta.metadata(snapshot).id != commit.table_id:
            return
        checkpoint = self._checkpoint(name, epoch)
        if not (state.once_done or self._has_finished(checkpoint, commit.batch_id)):
            return  # the batch runs again
        last = last_number(self._delta, path, commit.app_id)
        damage = behind(checkpoint, dataset.display, role, commit, last, newest)
        raise _error("TABLE_BEHIND_CHECKPOINT", node, damage)

    def _check_restored(
        self,
        node: FlowNode,
        epoch: str,
        dataset: DatasetNode,
        commit: NotedCommit,
        read: Callable[[int], list[str] | None],
    ) -> None:
        for version in islice(count(commit.version + 1), _COMMITS_BEHIND):
            lines = read(version)
            if lines is None:
                return
            to = restored_to(lines)
            if to is not None and to < commit.version:
                name = node.flow.name
                checkpoint = self._checkpoint(name, epoch)
                self._warn(node, restored(name, dataset.display, commit, to, checkpoint))
                return

    def check_state(self, node: FlowNode, target: TableRef | None) -> None:
        """Refuse a flow with a checkpoint, but without state: `FLOW_STATE_MISSING`."""
        name, layout = node.flow.name, self._tables.layout
        folder = f"{layout.checkpoints}/{path_segment(name)}"
        for epoch in self._files.names(folder):
            checkpoint = f"{folder}/{epoch}"
            if target is None:
                is_used = bool(batches(self._files, checkpoint, "commits"))
            else:
                # Without the state, the name of the pipeline in the app id is unknown.
                identity = app_id("", name, segment_name(epoch))
                is_used = any(each.endswith(identity) for each in self._app_ids(target))
            if is_used:
                uris = (checkpoint, layout.flow_state(name))
                paths = [str(local_path(uri) or uri) for uri in uris]
                damage = state_lost(name, None if target is None else node.flow.target, *paths)
                raise _error("FLOW_STATE_MISSING", node, damage)

    def _app_ids(self, table: TableRef) -> Iterable[str]:
        if self._delta.version(table.path) < 0:
            return ()
        return self._delta.last_transactions(self._delta.snapshot(table.path))

    def check_checkpoint(self, node: FlowNode, state: FlowState) -> None:
        """Refuse a checkpoint that lacks batches of the table or sink, before its query starts.

        Raises `CHECKPOINT_MISSING` or `CHECKPOINT_BEHIND_TABLE`.
        """
        path = self._tables.layout.checkpoint_path(node.flow.name, state.epoch)
        last = self._last_number(node, state.epoch)
        # A sink may have no batch numbers; its flow is marked as deployed at the end of an update,
        # which may have had no batch.
        if last is None and state.deployed and not self._files.exists(f"{path}/metadata"):
            raise _error("CHECKPOINT_MISSING", node, sink_checkpoint_lost(node.flow.name, path))
        if last is None or last < 0:
            return
        # A batch is planned before it is written: newer batches of the table were lost here.
        planned = self._planned(path)
        if not planned or planned[-1] < last:
            condition = "CHECKPOINT_BEHIND_TABLE" if planned else "CHECKPOINT_MISSING"
            newest = planned[-1] if planned else None
            damage = older(node.flow.name, node.flow.target, path, last=last, newest=newest)
            raise _error(condition, node, damage)

    def has_batches_of_no_query(self, node: FlowNode, epoch: str) -> bool:
        """Whether batches of an epoch were written, or begun, without a streaming query."""
        if self._planned(self._tables.layout.checkpoint_path(node.flow.name, epoch)):
            return False
        last = self._last_number(node, epoch)
        is_written = last is not None and last >= 0
        return is_written or self._tables.decisions(node, epoch).newest() is not None

    def _planned(self, checkpoint: str) -> list[int]:
        is_used = self._files.exists(f"{checkpoint}/metadata")
        return batches(self._files, checkpoint, "offsets") if is_used else []

    def _last_number(self, node: FlowNode, epoch: str) -> int | None:
        """The number of the last batch in the table; `None` for a sink."""
        table = self._tables.paths.get(node.target)
        if table is None:
            return None
        return last_number(self._delta, table, self._tables.app_id(node.flow.name, epoch))

    def check_files(self, node: FlowNode, epoch: str) -> None:
        """Refuse a checkpoint with files that Spark cannot read: `CHECKPOINT_DAMAGED`."""
        name = node.flow.name
        folder = local_path(self._tables.layout.checkpoint_path(name, epoch))
        if folder is None or not folder.is_dir():
            return
        checkpoint = newest_of_checkpoint(name, epoch, folder)
        files = unreadable_files(checkpoint)
        if files:
            last = -1 if checkpoint.last_finished is None else checkpoint.last_finished
            app_id = self._tables.app_id(name, epoch)
            noted = self._tables.note(node, epoch).load()
            number = self._last_number(node, epoch)
            is_new = (
                number is not None
                and number <= last
                and all(note.batch_id <= last for note in noted.values())
                and self._tables.decisions(node, epoch).load(app_id, last + 1) is None
            )
            damage = unreadable(checkpoint, node.flow.target, files, is_unwritten=is_new)
            raise _error("CHECKPOINT_DAMAGED", node, damage)

    def _has_finished(self, checkpoint: Checkpoint, batch_id: int) -> bool:
        if checkpoint.exists:
            return checkpoint.has_finished(batch_id)
        # In remote storage, only this file is read.
        folder = self._tables.layout.checkpoint_path(checkpoint.flow, checkpoint.epoch)
        return self._files.exists(f"{folder}/commits/{batch_id}")

    def _checkpoint(self, flow: str, epoch: str) -> Checkpoint:
        path = self._tables.layout.checkpoint_path(flow, epoch)
        return read_checkpoint(flow, epoch, local_path(path) or Path(path))


def _error(condition: str, node: FlowNode, damage: Damage) -> CheckpointError:
    options: dict[str, Any] = {"flow": node.flow.name, "origin": node.flow.origin}
    return CheckpointError(condition, damage.message, hint=damage.hint, **options)
