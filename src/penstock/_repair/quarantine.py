"""Replay of quarantine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock._launch import open_for_command
from penstock._model.pipeline import PipelineSettings
from penstock._tables.quarantine_replay import QuarantineReplay, Replayed, ReplayPreview
from penstock._tables.row_selection import RowSelection
from penstock.errors import SpecError

_ALL = RowSelection()


def replay_quarantine(
    settings: PipelineSettings,
    table: str,
    *,
    selection: RowSelection = _ALL,
    on_step: Callable[[str], None] = lambda _: None,
) -> "Replayed":
    """Let rows in quarantine of a table go through its rules again, and into the table.

    Called on the main thread. Holds the leases that an update holds, so neither runs beside the
    other. Killed at any moment and called again, each row is in exactly one place; what was left
    is finished before the selection is looked at.

    Args:
        settings: The pipeline.
        table: Name of the table.
        selection: Which rows.
        on_step: Called after each step that was committed.

    Raises:
        PenstockError: The pipeline runs, is wrong, or rows of this table cannot be replayed.
    """
    with _replay_of(settings, table, on_step) as replay:
        return replay.run(selection)


def preview_replay(
    settings: PipelineSettings, table: str, *, selection: RowSelection = _ALL
) -> "ReplayPreview":
    """What `replay_quarantine` would do; nothing is changed.

    Raises:
        PenstockError: As there.
    """
    with _replay_of(settings, table, lambda _: None) as replay:
        return replay.preview(selection)


@contextmanager
def _replay_of(
    settings: PipelineSettings, table: str, on_step: Callable[[str], None]
) -> "Iterator[QuarantineReplay]":
    with open_for_command(settings, "quarantine replay") as pipeline:
        node = pipeline.graph.find(table)
        if node is None or not node.is_stored:
            raise SpecError(
                "TABLE_NOT_FOUND",
                f"the pipeline has no table {table!r}",
                hint="tables: " + ", ".join(one.display for one in pipeline.graph.stored()),
            )
        for name in node.flows:
            pipeline.check_migration(pipeline.graph.flows[name])
        pipeline.lease(node)
        yield pipeline.tables.replay(node, on_step)
