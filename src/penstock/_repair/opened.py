"""A pipeline that does not run, opened by a command that changes it: leases, session, graph."""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
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
from penstock.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock._engine.evaluation import Evaluator
    from penstock._engine.flow_state import StateStore
    from penstock._engine.table_sources import DeltaSource
    from penstock._engine.tables import PipelineTables
    from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode
    from penstock.sources.base import OpenedSource, Position


@dataclass(frozen=True, kw_only=True)
class OpenedPipeline:
    """A pipeline whose leases are held.

    Attributes:
        settings: As given.
        spark: Its session.
        graph: What it declares.
        evaluator: Over `source`.
        source: The real tables.
        tables: Delta side of it.
        state: Epochs of its flows.
        leases: Held until the command ends.
        holder: Whom the leases name.
    """

    settings: PipelineSettings
    spark: "SparkSession"
    graph: "DataflowGraph"
    evaluator: "Evaluator"
    source: "DeltaSource"
    tables: "PipelineTables"
    state: "StateStore"
    leases: contextlib.ExitStack
    holder: dict[str, str]

    def flow(self, name: str) -> "FlowNode":
        """A flow by its name, in any case.

        Raises:
            SpecError: `UNKNOWN_FLOW`.
        """
        for known, node in self.graph.flows.items():
            if known.lower() == name.lower():
                return node
        raise SpecError(
            "UNKNOWN_FLOW",
            f"the pipeline has no flow {name!r}",
            hint="flows: " + ", ".join(self.graph.flows),
        )

    def query(
        self, node: "FlowNode", position: "Position | None" = None
    ) -> "tuple[DataFrame, list[OpenedSource]]":
        """The query of a flow over its real sources, and these.

        Args:
            node: The flow.
            position: Where its streams begin, and end; `None` = where their options say.
        """
        df, evaluation = self.evaluator.evaluate(node.flow, position or {})
        return df, evaluation.sources

    def check_migration(self, node: "FlowNode") -> None:
        """Refuse a flow whose table is being replaced.

        Raises:
            PlanError: `MIGRATION_UNFINISHED`.
        """
        from penstock._engine.flow_state import check_migration

        check_migration(node.flow, self.state.flow(node.flow.name))

    def target_name(self, node: "FlowNode") -> str:
        """How messages call the table or sink of a flow."""
        dataset = self.graph.datasets.get(node.target)
        return node.target if dataset is None else dataset.display

    def lease(self, node: "DatasetNode") -> None:
        """Keep other pipelines from writing to a table.

        Raises:
            SetupError: `LEASE_HELD`.
        """
        path = table_lease_path(self.tables.paths[node.key])
        self.leases.enter_context(Lease.acquire(path, holder=self.holder))


@contextlib.contextmanager
def opened(
    settings: PipelineSettings, command: str, *, update_id: str | None = None
) -> Iterator[OpenedPipeline]:
    """Open a pipeline; called on the main thread.

    Args:
        settings: The pipeline.
        command: For whoever is refused meanwhile.
        update_id: Under which the command records events.

    Raises:
        PenstockError: The pipeline runs, or is wrong.
    """
    holder = {"pipeline": settings.name, "command": f"penstock {command}"}
    if update_id is not None:
        holder["update"] = update_id
    with contextlib.ExitStack() as leases:
        place = pipeline_lease_path(settings.storage)
        lease = leases.enter_context(Lease.acquire(place, holder=holder))
        log_file = spark_log(settings, f"{command.replace(' ', '-')}-{uuid.uuid4()}")
        with (
            open_session(settings, log_file=log_file, pass_fds=(lease.fd,)) as spark,
            installed_modules(),
            project_imports(settings),
        ):
            yield _opened(settings, spark, leases, holder)


def _opened(
    settings: PipelineSettings,
    spark: "SparkSession",
    leases: contextlib.ExitStack,
    holder: dict[str, str],
) -> OpenedPipeline:
    from penstock._engine.analysis import analyse
    from penstock._engine.evaluation import Evaluator, OutsideReads
    from penstock._engine.flow_state import StateStore
    from penstock._engine.redirection import redirected
    from penstock._engine.table_sources import DeltaSource
    from penstock._engine.tables import PipelineTables
    from penstock._tables.files import StorageFiles
    from penstock._tables.layout import StorageLayout

    layout = StorageLayout(settings.storage)
    state = StateStore(StorageFiles(spark), layout.state_dir)
    around = surroundings(settings, spark, state=state)
    with redirected(OutsideReads(spark, around)):
        namespace = notebook_globals(spark, settings, map_path=around.map_path)
        declared = load_definitions(settings, namespace=namespace)
    index = build_index(declared, settings)
    graph = analyse(spark, index, around)
    tables = PipelineTables(spark, graph, layout, settings)
    source = DeltaSource(tables.paths, tables.append_only_start)
    return OpenedPipeline(
        settings=settings,
        spark=spark,
        graph=graph,
        evaluator=Evaluator(spark, index, source, around),
        source=source,
        tables=tables,
        state=state,
        leases=leases,
        holder=holder,
    )
