"""Opens a pipeline: its session, declarations, graph and tables.

Java takes a second to start; modules that are needed later are imported concurrently, in functions.
"""

import contextlib
import hashlib
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock._api.modules import installed_modules
from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode, deferred_error
from penstock._graph.index import DefinitionIndex
from penstock._graph.indexing import build_index
from penstock._graph.replacing import with_windows
from penstock._model.name import find_name
from penstock._model.pipeline import EventHook, PipelineDefinition, PipelineSettings
from penstock._observe.log import event_directory
from penstock._project.databricks.notebook_globals import notebook_globals
from penstock._project.imports import project_imports
from penstock._project.loader import check_syntax, load_definitions
from penstock._project.path_mapping import path_mapping
from penstock._project.secrets import resolve_secrets
from penstock._project.sources import find_sources
from penstock._runtime.leases import NOT_STOPPABLE, PipelineLeases
from penstock._session import open_session, spark_log
from penstock._spark.call_sites import user_columns
from penstock._spark.executors import starting_executors
from penstock._spark.jvm import import_for_calls
from penstock._tables.files import StorageFiles
from penstock._tables.layout import QUARANTINE_SUFFIX, layout_of
from penstock._tables.metastore import HiveMetastore
from penstock.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock._analysis.assumptions import Assumptions
    from penstock._analysis.context import ReadContext
    from penstock._analysis.evaluation import Evaluator
    from penstock._analysis.external_reads import ExternalReads
    from penstock._analysis.external_tables import ExternalTables
    from penstock._analysis.table_sources import DeltaSource
    from penstock._execution.flow_query import EngineContext
    from penstock._execution.flow_state import StateStore
    from penstock._execution.queries import SparkEngine
    from penstock._execution.tables import PipelineTables
    from penstock.sources.base import OpenedSource, Position

Loaded = TypeVar("Loaded")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which part of a pipeline is analysed, and how.

    `names` are datasets and sinks that must be valid; all if empty. With `keeps_refused`, flows
    that cannot run as streams are in the graph, with the reason, instead of being errors.
    """

    names: Sequence[str] = ()
    replace_where: Mapping[str, str] = field(default_factory=dict)
    keeps_refused: bool = False


@dataclass(frozen=True, kw_only=True)
class OpenPipeline:
    """A pipeline whose source files were executed and whose flows were analysed.

    `evaluator` calls query functions, which read the pipeline's tables from `source`. `leases` are
    held until the command ends; `None` if nothing may be written. `update_id` is recorded in the
    events of a command.
    """

    settings: PipelineSettings
    spark: "SparkSession"
    index: DefinitionIndex
    graph: "DataflowGraph"
    state: "StateStore"
    tables: "PipelineTables"
    source: "DeltaSource"
    evaluator: "Evaluator"
    leases: PipelineLeases | None
    update_id: str = ""

    def flow(self, name: str) -> "FlowNode":
        """A flow by its name, case-insensitive."""
        known = find_name(name, self.graph.flows)
        if known is not None:
            return self.graph.flows[known]
        target = self.graph.datasets.get(self.index.flow_targets.get(name, ""))
        if target is not None and target.read_from is not None:
            raise deferred_error(self.graph, target)
        raise SpecError(
            "UNKNOWN_FLOW",
            f"the pipeline has no flow {name!r}",
            hint="flows: " + ", ".join(self.graph.flows),
        )

    def query(
        self, node: "FlowNode", position: "Position | None" = None
    ) -> "tuple[DataFrame, list[OpenedSource]]":
        """The query of a flow, and its sources; `position` overrides their start positions."""
        df, evaluation = self.evaluator.evaluate(node.flow, position or {})
        return df, evaluation.sources

    def check_migration(self, node: "FlowNode") -> None:
        """Refuse a flow whose table is being replaced."""
        from penstock._execution.flow_state import check_migration

        check_migration(node.flow, self.state.flow(node.flow.name))

    def engine(self, tables: "PipelineTables", context: "EngineContext") -> "SparkEngine":
        """An engine for the flows, which writes to `tables`."""
        from penstock._execution.queries import SparkEngine

        return SparkEngine(self.evaluator, self.source, tables, context)

    def lease(self, *nodes: "DatasetNode") -> None:
        """Keep other pipelines from writing to tables."""
        if self.leases is None:
            return
        self.leases.add_tables(self.tables.paths[node.key] for node in nodes)
        if self.leases.remote is not None:
            parts = [ref.path for node in nodes for ref in self.tables.by_role(node).values()]
            self.leases.remote.add_tables(parts)


@contextlib.contextmanager
def open_pipeline(
    settings: PipelineSettings,
    leases: PipelineLeases | None = None,
    *,
    update_id: str | None = None,
    selection: Selection = Selection(),
    evaluator: "Callable[..., Evaluator] | None" = None,
    on_hooks: Callable[[tuple[EventHook, ...]], None] | None = None,
    edit: "Callable[[PipelineDefinition, ExternalTables], PipelineDefinition] | None" = None,
    restores: bool = False,
) -> Iterator[OpenPipeline]:
    """Execute the source files of a pipeline and analyse its flows.

    Called on the main thread. Changes the working directory to the project's root, which relative
    paths of the pipeline refer to. When the block ends, Spark's JVM has ended, unless the session
    belongs to the calling process.

    Args:
        settings: The pipeline.
        leases: Leases of a command that writes; `None` means that no queries are run, and the
            storage is not changed.
        update_id: Id in the name of the session's log.
        selection: The part of the pipeline to analyse.
        evaluator: Creates the evaluator of the analysis; `None` means `Evaluator`.
        on_hooks: Called with the event hooks, before the analysis.
        edit: Changes the declarations of the source files; for tests.
        restores: Open it also while the restore of a savepoint is unfinished.

    Raises:
        DefinitionErrors: All definition errors of the pipeline.
        PlanError: The restore of a savepoint is unfinished.
        SpecError: A selected name does not exist.
        SetupError: Java, jars or Spark are missing.
    """
    os.chdir(settings.root)  # origins are relative to it
    check_syntax(settings)  # Spark takes seconds to start
    with (
        project_session(settings, leases, update_id=update_id) as spark,
        starting_executors(spark) as executors_ready,
    ):
        from penstock._analysis.analysis import analyse
        from penstock._analysis.evaluation import Evaluator
        from penstock._analysis.table_sources import DeltaSource
        from penstock._execution.deferral import defer_unchanged
        from penstock._execution.savepoints import restore_unfinished, unfinished_restore
        from penstock._execution.tables import PipelineTables

        layout = layout_of(settings)
        if leases is not None and not restores:
            savepoint = unfinished_restore(StorageFiles(spark), layout)
            if savepoint is not None:
                raise restore_unfinished(savepoint)
        state = state_store(settings, spark)
        context = read_context(settings, spark, state=state)
        declared = execute(settings, spark, context, load_definitions)
        if edit is not None:
            declared = edit(declared, context.external_tables)
        if on_hooks is not None:
            on_hooks(declared.hooks)
        index = with_windows(build_index(declared, settings), selection.replace_where)
        graph = analyse(
            spark,
            index,
            context,
            evaluator or Evaluator,
            selected=index.select(tuple(selection.names)),
            keeps_refused=selection.keeps_refused,
            checks_tables=leases is None,
        )
        tables = PipelineTables(spark, graph, layout, settings, state)
        if settings.defer is not None:
            graph = defer_unchanged(tables, settings.defer, source_digest(settings))
            tables = PipelineTables(spark, graph, layout, settings, state)
            context.external_tables.located.update(_located(graph, tables))
        deferred = {n.key: n.read_from for n in graph.datasets.values() if n.read_from is not None}
        source = DeltaSource(tables.paths, tables.append_only_start, deferred)
        executors_ready()
        yield OpenPipeline(
            settings=settings,
            spark=spark,
            index=replace(index, notes=(*index.notes, *context.notes)),
            graph=graph,
            state=state,
            tables=tables,
            source=source,
            evaluator=Evaluator(spark, index, source, context),
            leases=leases,
        )


def _located(graph: DataflowGraph, tables: "PipelineTables") -> Iterator[tuple[str, str]]:
    """Paths of the tables and quarantines of datasets, by key."""
    for node in graph.datasets.values():
        if node.is_stored or node.read_from is not None:
            yield node.key, tables.table(node).path
            if not node.declared.is_quarantine_taken:
                yield f"{node.key}{QUARANTINE_SUFFIX}", tables.quarantine(node).path


@contextlib.contextmanager
def open_for_command(
    settings: PipelineSettings,
    command: str,
    *,
    records: bool = False,
    restores: bool = False,
) -> Iterator[OpenPipeline]:
    """Open a pipeline for a command that changes it while it does not run.

    `command` is shown to commands that are refused while it runs; with `records`, it emits events.
    """
    update_id = str(uuid.uuid4())
    holder = {"pipeline": settings.name, "command": f"penstock {command}", **NOT_STOPPABLE}
    if records:
        holder["update"] = update_id
    log = f"{command.replace(' ', '-')}-{uuid.uuid4()}"
    with (
        PipelineLeases(settings.home, holder) as leases,
        open_pipeline(settings, leases, update_id=log, restores=restores) as pipeline,
    ):
        try:
            yield replace(pipeline, update_id=update_id)
        except Exception as error:
            from penstock._spark.failures import command_error

            if (known := command_error(error, command)) is None:
                raise
            raise known from error


@contextlib.contextmanager
def project_session(
    settings: PipelineSettings,
    leases: PipelineLeases | None = None,
    *,
    update_id: str | None = None,
) -> "Iterator[SparkSession]":
    """A session in which the source files of a pipeline can be executed; see `open_pipeline`."""
    sources = find_sources(settings)  # fails without source files, before Spark starts
    imports = threading.Thread(target=_import_ahead, name="imports")
    with contextlib.ExitStack() as stack:
        if leases is None:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-analysis-"))
            session = open_session(
                settings,
                log_file=Path(scratch) / "spark.log",
                warehouse=scratch,
                analysis_only=True,
                while_starting=imports.start,
            )
        else:
            log_file = spark_log(settings, update_id or str(uuid.uuid4()))
            session = open_session(
                settings, log_file=log_file, leases=leases, while_starting=imports.start
            )
        spark = stack.enter_context(session)
        if imports.ident is not None:
            imports.join()

        from penstock._analysis.reader_hooks import export_old_functions

        stack.enter_context(installed_modules())
        stack.enter_context(project_imports(settings, sources))
        export_old_functions()
        yield spark


def _import_ahead() -> None:
    """Import modules that are needed after Java has started; later imports report failures."""
    with contextlib.suppress(Exception):
        import_for_calls()

        import penstock._analysis.analysis
        import penstock._execution.deferral
        import penstock._execution.event_tables
        import penstock._execution.queries
        import penstock._execution.savepoints  # noqa: F401


def execute(
    settings: PipelineSettings,
    spark: "SparkSession",
    context: "ReadContext",
    load: Callable[..., Loaded],
    reads: "ExternalReads | None" = None,
) -> Loaded:
    """Execute the source files of a pipeline.

    `load` is `load_definitions`, or `load_sources` to continue after errors. `reads` executes the
    reads of the files.
    """
    from penstock._analysis.external_reads import ExternalReads
    from penstock._analysis.reader_hooks import redirected

    with redirected(reads or ExternalReads(spark, context)), user_columns():
        return load(
            settings, namespace=notebook_globals(spark, settings, map_path=context.map_path)
        )


def source_digest(settings: PipelineSettings) -> str:
    """Digest of the code of Python functions, which plans do not contain.

    It covers the source files and all files of the project that they have imported or run.
    """
    digest = hashlib.sha256()
    with project_imports(settings) as imports:
        imported = set(imports.executor.executed).difference(imports.sources)
        # In an order that does not depend on the path of the project.
        for text in (
            *(file.read_bytes() for file in sorted(set(imports.sources))),
            *sorted(file.read_bytes() for file in imported),
        ):
            digest.update(text)
    return digest.hexdigest()


def state_store(settings: PipelineSettings, spark: "SparkSession") -> "StateStore":
    """The store of the state files of a pipeline's flows."""
    from penstock._execution.flow_state import StateStore

    return StateStore(StorageFiles(spark), layout_of(settings).state_dir, settings.name)


def read_context(
    settings: PipelineSettings,
    spark: "SparkSession",
    *,
    state: "StateStore | None" = None,
    assumptions: "Assumptions | None" = None,
) -> "ReadContext":
    """The context of reads in the pipeline's code.

    `assumptions` replace missing parts; `None` makes a missing part an error.
    """
    from penstock._analysis.context import ReadContext
    from penstock._analysis.external_tables import ExternalTables
    from penstock._execution.file_states import FileStates

    layout = layout_of(settings)
    notes: dict[str, None] = {}
    states = FileStates(StorageFiles(spark), layout, state or state_store(settings, spark))
    return ReadContext(
        external_tables=ExternalTables(
            spark,
            settings.tables,
            layout,
            catalog=settings.catalog,
            schema=settings.schema,
            metastore=None if settings.metastore is None else HiveMetastore(spark),
            production=settings.defer,
        ),
        map_path=path_mapping(settings, notes),
        resolve_secrets=resolve_secrets,
        memories=states.store,
        events=event_directory(settings),
        configuration=settings.configuration,
        assumptions=assumptions,
        notes=notes,
    )
