"""Replay of quarantine."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock._model.pipeline import PipelineSettings
from penstock._repair.opened import opened
from penstock.errors import SpecError

if TYPE_CHECKING:
    from penstock._tables.quarantine_replay import Replayed


def replay_quarantine(
    settings: PipelineSettings,
    table: str,
    *,
    reached: Callable[[str], None] = lambda _: None,
) -> "Replayed":
    """Let the rows in quarantine of a table go through its rules again, and into the table.

    Called on the main thread. Holds the leases that an update holds, so neither runs beside the
    other. Killed at any moment and called again, each row is in exactly one place.

    Args:
        settings: The pipeline.
        table: Name of the table.
        reached: Called after each step that was committed.

    Raises:
        PenstockError: The pipeline runs, is wrong, or rows of this table cannot be replayed.
    """
    with opened(settings, "quarantine replay") as pipeline:
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
        return pipeline.tables.replay(node, reached)
