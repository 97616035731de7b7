"""Composition root: the one place where project, engine, runtime and observers are wired.

No policy and no loop here; both live in the rooms that are wired. Spark is imported inside the
functions, so that importing this module stays light.
"""

import contextlib
import hashlib
import os
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._api.modules import installed_modules
from penstock._graph.index import DefinitionIndex, build_index
from penstock._graph.windows import with_windows
from penstock._local.cds import is_training, java_options
from penstock._local.jars import class_path
from penstock._local.java import require_java
from penstock._model.alert import AlertKind
from penstock._model.paths import PathMap
from penstock._model.pipeline import EventHook, PipelineSettings
from penstock._observe.alert_delivery import Alerts
from penstock._observe.bus import EventBus
from penstock._observe.events import (
    CreateUpdate,
    Event,
    EventOrigin,
    PlanWarning,
    UpdateProgress,
    UpdateState,
)
from penstock._observe.exports import Exports
from penstock._observe.hooks import EventHooks
from penstock._observe.log import EventLog, event_directory, last_batch
from penstock._observe.retention import Retention
from penstock._observe.schemas import recorded_schemas
from penstock._observe.state import ObservedUpdate
from penstock._observe.status_file import StatusFile, status_path
from penstock._observe.unfinished import end_unfinished
from penstock._plan.planner import Wishes, make_plan
from penstock._plan.steps import Plan
from penstock._project.imports import project_imports
from penstock._project.loader import load_definitions
from penstock._project.notebook_globals import notebook_globals
from penstock._project.secrets import remember_settings, resolve_secrets
from penstock._project.sources import find_sources
from penstock._runtime.boundary import as_penstock_error
from penstock._runtime.definitions import definitions
from penstock._runtime.lease import Lease
from penstock._runtime.lease_paths import pipeline_lease_path, table_lease_path
from penstock._runtime.reporter import error_info
from penstock._runtime.update import RunningUpdate, Update, UpdateResult
from penstock._tables.files import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock._engine.assumptions import Assumptions
    from penstock._engine.flow_state import StateStore
    from penstock._engine.state_reader import StateSection
    from penstock._engine.surroundings import Surroundings
    from penstock._graph.dataflow import DataflowGraph

__all__ = [
    "RunningUpdate",
    "UpdateOptions",
    "UpdateResult",
    "plan_update",
    "read_flow_state",
    "run_update",
    "spark_log",
]

SPARK_JAR_SETS = ("delta", "local-fs", "kafka", "avro", "postgresql")
"""Jar sets that every session gets."""


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """What the user asked of an update.

    Attributes:
        refresh: Tables to update; empty = all.
        full_refresh: Tables to empty and rebuild.
        full_refresh_all: Empty and rebuild everything that allows it.
        continuous: Run until stopped.
        replace_where: Flow to the condition of the rows that it replaces in this update.
        stop_timeout_seconds: From the request to stop to the interrupt.
        retry: Number of this retry of an update whose JVM died; 0 = a first run.
    """

    refresh: tuple[str, ...] = ()
    full_refresh: tuple[str, ...] = ()
    full_refresh_all: bool = False
    continuous: bool = False
    replace_where: Mapping[str, str] = field(default_factory=dict)
    stop_timeout_seconds: float = 60.0
    retry: int = 0

    def without_resets(self) -> "UpdateOptions":
        """The same selection, and no full refresh."""
        refresh = (*self.refresh, *self.full_refresh)
        return replace(self, refresh=refresh, full_refresh=(), full_refresh_all=False)


def plan_update(
    settings: PipelineSettings,
    options: UpdateOptions,
    *,
    plan_texts: dict[str, str] | None = None,
) -> "tuple[DataflowGraph, Plan]":
    """Analyse a pipeline and plan an update, without touching its storage.

    Args:
        settings: The pipeline.
        options: What is asked.
        plan_texts: Takes the analysed plan of each flow as text.

    Raises:
        DefinitionErrors: Everything that is wrong with the pipeline.
        SpecError: A selected name does not exist.
        PlanError: What was asked is not possible.
        SetupError: No Java, no jars, no Spark.
    """
    with (
        tempfile.TemporaryDirectory(prefix="penstock-dry-run-") as scratch,
        open_session(
            settings, log_file=Path(scratch) / "spark.log", warehouse=scratch, analysis_only=True
        ) as spark,
        installed_modules(),
        project_imports(settings),
    ):
        index, graph = _analyse(
            settings,
            spark,
            surroundings(settings, spark),
            options,
            plan_texts=plan_texts,
        )
        return graph, _plan(index, graph, settings, options)


def run_update(
    settings: PipelineSettings,
    options: UpdateOptions,
    *,
    bus: EventBus,
    on_running: Callable[[RunningUpdate], None] | None = None,
) -> UpdateResult:
    """Run one update; return when it has ended and Spark's JVM is gone.

    Called on the main thread. Changes the working directory to the project's root, where relative
    paths of the pipeline start.

    Args:
        settings: The pipeline.
        options: What is asked.
        bus: Gets every event; the event log in the storage root is subscribed here.
        on_running: Called once, before the first step, with what can stop the update.

    Raises:
        PenstockError: The update could not start. Failures of flows are in the result.
    """
    remember_settings(settings)
    update_id = str(uuid.uuid4())
    origin = EventOrigin(pipeline_name=settings.name, update_id=update_id)
    log_file = spark_log(settings, update_id)
    holder = {"pipeline": settings.name, "update": update_id}
    with contextlib.ExitStack() as leases:
        # Given up last, when Spark's JVM is gone.
        place = pipeline_lease_path(settings.storage)
        lease = leases.enter_context(Lease.acquire(place, holder=holder))
        state = ObservedUpdate()
        bus.subscribe(state)
        exports = Exports(
            settings, bus, origin, state, lambda text: resolve_secrets(text, root=settings.root)
        )
        with contextlib.suppress(OSError):  # a full disk is reported by the first event
            end_unfinished(event_directory(settings))
        log = EventLog(event_directory(settings), settings.events)
        bus.subscribe(log)
        retention = Retention(log, settings.events, update_id)
        status = StatusFile(status_path(settings), state)
        bus.subscribe(status)
        alerts = _alerts(settings, bus, origin)
        hooks = EventHooks(bus, origin)
        bus.subscribe(hooks)
        try:
            bus.emit(_create_update(settings, options, origin, log_file, exports.metrics_url))
            again = f" again (retry {options.retry})" if options.retry else ""
            starting = f"starting Spark{again}{exports.note}"
            bus.emit(Event(origin, UpdateProgress(UpdateState.INITIALIZING), starting))
            exports.warn()
            with (
                open_session(settings, log_file=log_file, pass_fds=(lease.fd,)) as spark,
                installed_modules(),
                project_imports(settings),
            ):
                held = (leases, holder)
                return _run(settings, options, bus, hooks, origin, spark, held, on_running)
        except KeyboardInterrupt:
            bus.emit(Event(origin, UpdateProgress(UpdateState.CANCELED), "interrupted"))
            raise
        except Exception as error:
            known = as_penstock_error(error, "starting the update")
            info = error_info(known)
            bus.emit(Event(origin, UpdateProgress(UpdateState.FAILED), info.message, error=info))
            raise
        finally:
            hooks.close()
            if alerts is not None:
                alerts.close()
            exports.close()
            retention.close()
            log.close()
            status.close()


def _run(
    settings: PipelineSettings,
    options: UpdateOptions,
    bus: EventBus,
    hooks: EventHooks,
    origin: EventOrigin,
    spark: "SparkSession",
    leases: tuple[contextlib.ExitStack, dict[str, str]],
    on_running: Callable[[RunningUpdate], None] | None,
) -> UpdateResult:
    from penstock._engine.evaluation import Evaluator
    from penstock._engine.queries import EngineContext, SparkEngine
    from penstock._engine.table_sources import DeltaSource
    from penstock._engine.tables import PipelineTables
    from penstock._spark.session import jvm_watch
    from penstock._tables.layout import StorageLayout

    state = _state_store(settings, spark)
    around = surroundings(settings, spark, state=state)
    index, graph = _analyse(
        settings, spark, around, options, on_hooks=hooks.start, keeps_refused=True
    )
    plan = _plan(index, graph, settings, options)
    tables = PipelineTables(spark, graph, StorageLayout(settings.storage), settings)
    for event in definitions(graph, origin, tables.paths):
        bus.emit(event)
    for warning in plan.warnings:
        bus.emit(Event(origin, PlanWarning(warning), warning))
    source = DeltaSource(tables.paths, tables.append_only_start)
    evaluator = Evaluator(spark, index, source, around)
    events = event_directory(settings)
    engine = SparkEngine(
        spark,
        graph,
        evaluator,
        source,
        tables,
        state,
        EngineContext(
            pipeline=settings.name,
            source_digest=_source_digest(settings),
            emit=bus.emit,
            origin=origin,
            last_batch=lambda flow: last_batch(events, flow),
            resolve_secrets=resolve_secrets,
        ),
    )
    update = Update(
        plan,
        engine,
        bus,
        pipeline_name=settings.name,
        update_id=origin.update_id,
        stop_timeout_seconds=options.stop_timeout_seconds,
    )
    if on_running is not None:
        on_running(update)
    # Tables are leased as well: another pipeline may write to the same path.
    stack, holder = leases
    for place in sorted(table_lease_path(tables.paths[step.dataset]) for step in plan.tables):
        stack.enter_context(Lease.acquire(place, holder=holder))

    def jvm_died(exit_code: int) -> None:
        engine.jvm_died(exit_code)
        update.engine_died()

    try:
        with jvm_watch(spark, jvm_died):
            return update.run()
    finally:
        engine.close()


# -- parts --------------------------------------------------------------------------------------


def _analyse(
    settings: PipelineSettings,
    spark: "SparkSession",
    around: "Surroundings",
    options: UpdateOptions,
    on_hooks: Callable[[tuple[EventHook, ...]], None] | None = None,
    plan_texts: dict[str, str] | None = None,
    keeps_refused: bool = False,
) -> "tuple[DefinitionIndex, DataflowGraph]":
    from penstock._engine.analysis import analyse
    from penstock._engine.evaluation import Evaluator, OutsideReads
    from penstock._engine.plan_texts import keeping
    from penstock._engine.redirection import redirected

    with redirected(OutsideReads(spark, around)):
        namespace = notebook_globals(spark, settings, map_path=around.map_path)
        declared = load_definitions(settings, namespace=namespace)
    if on_hooks is not None:
        on_hooks(declared.hooks)
    index = with_windows(build_index(declared, settings), options.replace_where)
    evaluator = Evaluator if plan_texts is None else keeping(plan_texts)
    graph = analyse(
        spark,
        index,
        around,
        evaluator,
        selected=index.select((*options.refresh, *options.full_refresh)),
        keeps_refused=keeps_refused,
    )
    return replace(index, notes=(*index.notes, *around.notes)), graph


def _alerts(settings: PipelineSettings, bus: EventBus, origin: EventOrigin) -> Alerts | None:
    if not settings.alerts.rules:
        return None
    wants_schemas = any(r.kind is AlertKind.SCHEMA_CHANGE for r in settings.alerts.rules)
    alerts = Alerts(
        bus,
        origin,
        settings.alerts,
        resolve_secrets=lambda text: resolve_secrets(text, root=settings.root),
        schemas=recorded_schemas(event_directory(settings)) if wants_schemas else None,
    )
    bus.subscribe(alerts)
    return alerts


def _state_store(settings: PipelineSettings, spark: "SparkSession") -> "StateStore":
    from penstock._engine.flow_state import StateStore
    from penstock._tables.files import StorageFiles
    from penstock._tables.layout import StorageLayout

    return StateStore(StorageFiles(spark), StorageLayout(settings.storage).state_dir)


def surroundings(
    settings: PipelineSettings,
    spark: "SparkSession",
    *,
    state: "StateStore | None" = None,
    assumptions: "Assumptions | None" = None,
) -> "Surroundings":
    """What reads of the pipeline's code need to know of the world around it.

    Args:
        settings: The pipeline.
        spark: Its session.
        state: Epochs of the flows; made anew if not given.
        assumptions: Stands in for what is missing; `None` = that is an error.
    """
    from penstock._engine.file_states import FileStates
    from penstock._engine.outside import OutsideTables
    from penstock._engine.surroundings import Surroundings
    from penstock._tables.files import StorageFiles
    from penstock._tables.layout import StorageLayout

    layout = StorageLayout(settings.storage)
    notes: dict[str, None] = {}
    states = FileStates(StorageFiles(spark), layout, state or _state_store(settings, spark))

    return Surroundings(
        outside=OutsideTables(
            spark,
            settings.tables,
            layout,
            catalog=settings.catalog,
            schema=settings.schema,
        ),
        map_path=_path_map(settings, notes),
        resolve_secrets=resolve_secrets,
        memories=states.store,
        events=event_directory(settings),
        configuration=settings.configuration,
        assumptions=assumptions,
        notes=notes,
    )


def _path_map(settings: PipelineSettings, notes: dict[str, None]) -> Callable[[str], str]:
    """What paths stand for; relative ones that only the folder of the start has are taken there."""
    mapped_by = PathMap(settings.paths).map
    root, start = Path(settings.root), Path(settings.started_in or settings.root)

    def mapped(path: str) -> str:
        place = mapped_by(path)
        head, *wildcards = re.split(r"[*?{\[]", place, maxsplit=1)
        known = Path(head.rpartition("/")[0] if wildcards else place)
        if known.is_absolute() or ":" in place or start == root:
            return place
        if (root / known).exists() or not (start / known).exists():
            return place
        notes[f"{path!r} is read from {start}, where the command was started: {root} has none"] = (
            None
        )
        return str(start / place)

    return mapped


def _plan(
    index: DefinitionIndex,
    graph: "DataflowGraph",
    settings: PipelineSettings,
    options: UpdateOptions,
) -> Plan:
    wishes = Wishes(
        refresh=options.refresh,
        full_refresh=options.full_refresh,
        full_refresh_all=options.full_refresh_all,
        continuous=options.continuous,
    )
    return make_plan(graph, wishes, configuration=settings.configuration, notes=index.notes)


def read_flow_state(
    settings: PipelineSettings, flow: str, *, operator: int | None, limit: int
) -> "tuple[StateSection, ...]":
    """What a flow remembers; see `penstock._engine.state_reader.read_flow`.

    Raises:
        SetupError: The pipeline is running.
        PlanError: The flow has never run, or it keeps no state.
    """
    holder = {"pipeline": settings.name, "update": "state show"}
    log = spark_log(settings, str(uuid.uuid4()))
    with (
        Lease.acquire(pipeline_lease_path(settings.storage), holder=holder) as lease,
        open_session(settings, log_file=log, pass_fds=(lease.fd,), analysis_only=True) as spark,
    ):
        from penstock._engine.state_reader import read_flow
        from penstock._tables.layout import StorageLayout

        layout, store = StorageLayout(settings.storage), _state_store(settings, spark)
        return read_flow(spark, layout, store, flow, operator=operator, limit=limit)


@contextlib.contextmanager
def open_session(
    settings: PipelineSettings,
    *,
    log_file: Path,
    warehouse: str | None = None,
    pass_fds: tuple[int, ...] = (),
    analysis_only: bool = False,
) -> "Iterator[SparkSession]":
    """The session that a pipeline runs in, and its working directory.

    Args:
        settings: The pipeline.
        log_file: Takes what Spark's JVM prints.
        warehouse: Spark's warehouse folder instead of the default.
        pass_fds: Open files that the JVM inherits.
        analysis_only: No queries will run.
    """
    remember_settings(settings)
    os.chdir(settings.root)
    borrowed = _active_session()
    if borrowed is not None:
        with _configured(borrowed, settings):
            yield borrowed
        return
    require_java()
    jars = class_path(SPARK_JAR_SETS)
    from penstock._spark.session import (
        SessionOptions,
        build_session,
        jvm_died,
        jvm_exit_code,
        log_tail,
        stop_session,
    )

    spark = build_session(
        SessionOptions(
            app_name=settings.name,
            storage_root=settings.storage,
            warehouse=warehouse,
            master=settings.master,
            configuration=_configuration(settings),
            jars=tuple(str(jar) for jar in jars),
            java_options=tuple(java_options(jars)),
            log_file=str(log_file),
            pass_fds=pass_fds,
            analysis_only=analysis_only,
        )
    )
    try:
        yield spark
    except Exception as error:
        exit_code = jvm_exit_code(spark, error)
        if exit_code is None:
            raise
        raise jvm_died(exit_code, log=log_tail(spark)) from None
    finally:
        # Writing a class archive at the end of a training run takes longer than any stop.
        stop_session(spark, timeout_seconds=300.0 if is_training() else 30.0)


def _active_session() -> "SparkSession | None":
    """A session that the calling process has started itself, as tests do; it is left running."""
    if "pyspark" not in sys.modules:
        return None
    from penstock._spark.session import borrow_session

    return borrow_session()


def _configuration(settings: PipelineSettings) -> dict[str, str]:
    """What `spark.conf.get` finds: parameters and configuration, secrets filled in."""
    given = {**settings.parameters, **settings.configuration}
    return {key: resolve_secrets(value, root=settings.root) for key, value in given.items()}


@contextlib.contextmanager
def _configured(spark: "SparkSession", settings: PipelineSettings) -> Iterator[None]:
    given = _configuration(settings)
    before = {key: spark.conf.get(key, None) for key in given}
    for key, value in given.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def spark_log(settings: PipelineSettings, update_id: str) -> Path:
    """Where the output of Spark's JVM goes: below the storage root when that is local."""
    root = local_path(settings.storage) or Path(settings.root) / ".penstock"
    return root / "logs" / f"spark-{update_id}.log"


def _source_digest(settings: PipelineSettings) -> str:
    digest = hashlib.sha256()
    for file in sorted(find_sources(settings)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _create_update(
    settings: PipelineSettings,
    options: UpdateOptions,
    origin: EventOrigin,
    log_file: Path,
    metrics_url: str | None,
) -> Event:
    body = CreateUpdate(
        {
            "storage": settings.storage,
            "root": settings.root,
            "spark_log": str(log_file),
            "event_log": str(event_directory(settings)),
            **({} if metrics_url is None else {"metrics_url": metrics_url}),
            "continuous": options.continuous,
            **({"cause": "RETRY_ON_FAILURE", "retry": options.retry} if options.retry else {}),
            "refresh_selection": list(options.refresh),
            "full_refresh_selection": list(options.full_refresh),
            "full_refresh": options.full_refresh_all,
            "replace_where_overrides": [
                {"flow_name": flow, "predicate_override": where}
                for flow, where in options.replace_where.items()
            ],
        }
    )
    return Event(origin, body, f"update of pipeline {settings.name!r}")
