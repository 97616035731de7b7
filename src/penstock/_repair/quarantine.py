"""Replay of quarantine: the commands."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock._execution.replay_check import check_replay
from penstock._launch import open_for_command
from penstock._model.pipeline import PipelineSettings
from penstock._repair.quarantine_replay import QuarantineReplay, Replayed, ReplayPreview
from penstock._tables.commit_note import QUARANTINE, TARGET
from penstock._tables.read.row_selection import RowSelection
from penstock.errors import SpecError

_ALL = RowSelection()


def replay_quarantine(
    settings: PipelineSettings,
    table: str,
    *,
    selection: RowSelection = _ALL,
    on_step: Callable[[str], None] = lambda _: None,
) -> Replayed:
    """Apply the rules of a table to rows in quarantine, and move those that pass to the table.

    Called on the main thread. Holds the leases of an update, so neither runs during the other. Each
    row is in exactly one table, even if the command is killed; called again, it completes the
    interrupted replay before it evaluates the selection.
    """
    with _open_replay(settings, table, on_step) as replay:
        return replay.run(selection)


def preview_replay(
    settings: PipelineSettings, table: str, *, selection: RowSelection = _ALL
) -> ReplayPreview:
    """What `replay_quarantine` would do; nothing is changed."""
    with _open_replay(settings, table, lambda _: None) as replay:
        return replay.preview(selection)


@contextmanager
def _open_replay(
    settings: PipelineSettings, table: str, on_step: Callable[[str], None]
) -> Iterator[QuarantineReplay]:
    with open_for_command(settings, "quarantine replay") as pipeline:
        node = pipeline.graph.find(table)
        if node is None or not node.is_stored:
            raise SpecError(
                "TABLE_NOT_FOUND",
                f"the pipeline has no table {table!r}",
                hint="tables: " + ", ".join(each.display for each in pipeline.graph.stored()),
            )
        flows = [pipeline.graph.flows[name] for name in node.flows]
        for flow in flows:
            pipeline.check_migration(flow)
        pipeline.lease(node)
        check_replay(node, flows)
        tables = pipeline.tables.by_role(node)
        yield QuarantineReplay(
            pipeline.spark,
            pipeline=settings.name,
            target=tables[TARGET],
            quarantine=tables[QUARANTINE],
            staging=pipeline.tables.layout.replay_staging(node.name),
            expectations=node.declared.expectations,
            on_step=on_step,
        )
