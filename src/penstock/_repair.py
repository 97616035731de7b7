"""Repairs a pipeline that does not run: what commands do that change its tables between updates."""

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock._api.modules import installed_modules
from penstock._graph.index import build_index
from penstock._launch import open_session, spark_log, surroundings
from penstock._model.pipeline import PipelineSettings
from penstock._project.imports import project_imports
from penstock._project.loader import load_definitions
from penstock._project.notebook_globals import notebook_globals
from penstock._runtime.lease import Lease
from penstock._runtime.lease_paths import pipeline_lease_path, table_lease_path
from penstock._tables.checkpoint_files import checkpoints
from penstock.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock._graph.dataflow import DataflowGraph
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
    holder = {"pipeline": settings.name, "command": "penstock quarantine replay"}
    with contextlib.ExitStack() as leases:
        place = pipeline_lease_path(settings.storage)
        lease = leases.enter_context(Lease.acquire(place, holder=holder))
        log_file = spark_log(settings, f"replay-{uuid.uuid4()}")
        with (
            open_session(settings, log_file=log_file, pass_fds=(lease.fd,)) as spark,
            installed_modules(),
            project_imports(settings),
        ):
            from penstock._engine.tables import PipelineTables
            from penstock._tables.layout import StorageLayout

            graph = _graph(settings, spark)
            node = graph.find(table)
            if node is None or not node.is_stored:
                raise SpecError(
                    "TABLE_NOT_FOUND",
                    f"the pipeline has no table {table!r}",
                    hint="tables: " + ", ".join(one.display for one in graph.stored()),
                )
            tables = PipelineTables(spark, graph, StorageLayout(settings.storage), settings)
            path = table_lease_path(tables.paths[node.key])
            leases.enter_context(Lease.acquire(path, holder=holder))
            return tables.replay(node, reached)


@dataclass(frozen=True, kw_only=True)
class ResetPlan:
    """What a reset of a flow does.

    Attributes:
        flow: Its name.
        old_epoch: Of the checkpoint that it had.
        new_epoch: Of the one that it gets; `None` while it is only a plan.
        old_checkpoint: The folder that is used no more.
        steps: One sentence each.
    """

    flow: str
    old_epoch: str
    new_epoch: str | None
    old_checkpoint: str
    steps: tuple[str, ...]


def plan_reset(settings: PipelineSettings, flow: str) -> ResetPlan:
    """What `reset_flow` would do. Nothing is changed.

    Raises:
        SpecError: `CHECKPOINT_NOT_FOUND`, `STORAGE_NOT_LOCAL`.
    """
    found = checkpoints(settings, flow)
    one = next((one for one in found if one.is_current), None)
    if one is None:
        raise SpecError(
            "CHECKPOINT_NOT_FOUND",
            f"flow {flow!r} goes on with none of its {len(found)} old checkpoints",
            hint="its next start makes a new one anyway",
        )
    return ResetPlan(
        flow=one.flow,
        old_epoch=one.epoch,
        new_epoch=None,
        old_checkpoint=str(one.path),
        steps=(
            f"the checkpoint of epoch {one.epoch} (batch {one.last_finished}) is used no more; "
            f"its {one.size:,} bytes stay in {one.path}",
            "the flow gets a new epoch: its next start reads its sources from where they begin, as "
            "far as they still have rows and their options say so",
            "the rows in its target stay: those that the sources still have will be there TWICE, "
            "unless the target is emptied first or the flow writes by key",
            "state (windows, joins, duplicates that were seen) begins empty",
        ),
    )


def reset_flow(settings: PipelineSettings, flow: str) -> ResetPlan:
    """Give a flow a new epoch. The old checkpoint and the target stay as they are.

    Raises:
        SpecError: `CHECKPOINT_NOT_FOUND`, `STORAGE_NOT_LOCAL`.
        SetupError: The pipeline runs.
    """
    place = pipeline_lease_path(settings.storage)
    holder = {"pipeline": settings.name, "command": "penstock checkpoint reset"}
    with Lease.acquire(place, holder=holder):
        from penstock._engine.flow_state import StateStore
        from penstock._tables.files import StorageFiles
        from penstock._tables.layout import StorageLayout

        plan = plan_reset(settings, flow)
        # Only local storage gets here: no Spark is needed to replace a file.
        store = StateStore(StorageFiles(None), StorageLayout(settings.storage).state_dir)
        return replace(plan, new_epoch=store.new_flow(plan.flow).epoch)


def _graph(settings: PipelineSettings, spark: "SparkSession") -> "DataflowGraph":
    from penstock._engine.analysis import analyse
    from penstock._engine.evaluation import OutsideReads
    from penstock._engine.redirection import redirected

    around = surroundings(settings, spark)
    with redirected(OutsideReads(spark, around)):
        namespace = notebook_globals(spark, settings, map_path=around.map_path)
        declared = load_definitions(settings, namespace=namespace)
    return analyse(spark, build_index(declared, settings), around)
