"""Plans an update of a pipeline, or runs it with all its observers."""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from penstock._launch import OpenPipeline, Selection, open_pipeline, source_digest
from penstock._model.alert import AlertKind
from penstock._model.pipeline import PipelineDefinition, PipelineSettings
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
from penstock._observe.log import event_directory, event_log, last_batch
from penstock._observe.retention import Retention
from penstock._observe.schemas import recorded_schemas
from penstock._observe.state import ObservedUpdate
from penstock._observe.status_file import StatusFile, status_path
from penstock._observe.unfinished import end_unfinished
from penstock._plan.planner import PlanOptions, make_plan
from penstock._plan.steps import Plan
from penstock._project.event_store import kept_events
from penstock._project.secrets import remember_settings, resolve_secrets
from penstock._project.sources import find_sources
from penstock._runtime.boundary import as_penstock_error
from penstock._runtime.definitions import definitions
from penstock._runtime.leases import PipelineLeases
from penstock._runtime.reporter import error_info
from penstock._runtime.update import Update, UpdateResult
from penstock._session import spark_log
from penstock._spark.executors import executor_watch
from penstock._spark.session import jvm_watch
from penstock._tables.files import local_path
from penstock.errors import PlanError

if TYPE_CHECKING:
    from penstock._analysis.external_tables import ExternalTables
    from penstock._graph.dataflow import DataflowGraph


@dataclass(frozen=True, kw_only=True)
class UpdateOptions(PlanOptions):
    """Options of an update.

    Attributes:
        replace_where: Flow to the condition of the rows that it replaces in this update.
        stop_timeout_seconds: Time from the request to stop to the interrupt.
        arguments: Arguments of the program of a job.
        retry: Number of this retry of an update whose JVM died; 0 for the first run.
    """

    replace_where: Mapping[str, str] = field(default_factory=dict)
    stop_timeout_seconds: float = 60.0
    arguments: tuple[str, ...] = ()
    retry: int = 0

    def without_resets(self) -> "UpdateOptions":
        """The same selection without full refreshes."""
        refresh = (*self.refresh, *self.full_refresh)
        return replace(self, refresh=refresh, full_refresh=(), full_refresh_all=False)

    @property
    def selection(self) -> Selection:
        """The part of the pipeline to analyse for the update."""
        names = (*self.refresh, *self.full_refresh)
        return Selection(names=names, replace_where=self.replace_where)


def plan_update(
    settings: PipelineSettings, options: UpdateOptions, *, plan_texts: dict[str, str] | None = None
) -> "tuple[DataflowGraph, Plan]":
    """Analyse a pipeline and plan an update, without changing its storage.

    `plan_texts` is filled with the analysed plan of each flow as text. Raises the errors of
    `open_pipeline`, and `PlanError` if the options cannot be applied.
    """
    evaluator = None
    if plan_texts is not None:
        from penstock._analysis.observing import PlanTexts

        evaluator = partial(PlanTexts, plan_texts)
    with open_pipeline(settings, selection=options.selection, evaluator=evaluator) as pipeline:
        return pipeline.graph, _plan(pipeline, options)


def run_update(
    settings: PipelineSettings,
    options: UpdateOptions,
    *,
    bus: EventBus,
    on_running: Callable[[Update], None] | None = None,
    edit: "Callable[[PipelineDefinition, ExternalTables], PipelineDefinition] | None" = None,
) -> UpdateResult:
    """Run one update; return when it and Spark's JVM have ended.

    Called on the main thread. `bus` gets every event; the event log in the storage root is
    subscribed here. `on_running` is called once, before the first step, with an object that can
    stop the update. Raises `PenstockError` if it cannot start: failures of flows are in the result.
    """
    if options.arguments:
        raise PlanError(
            "SOURCE_IS_NOT_JOB",
            f"pipeline `{settings.name}` takes no arguments",
            hint="only the program of a job does; pass values with --conf or --param",
        )
    if not settings.source_patterns:
        find_sources(settings)  # a folder without a pipeline gets no storage
    with (
        observed_update(settings, options, bus) as observed,
        open_pipeline(
            settings,
            observed.leases,
            update_id=observed.origin.update_id,
            selection=replace(options.selection, keeps_refused=True),
            on_hooks=observed.hooks.start,
            edit=edit,
        ) as pipeline,
        contextlib.ExitStack() as stack,
    ):
        from penstock._execution.event_tables import EventTables

        stack.enter_context(
            EventTables(pipeline.spark, settings, observed.origin, bus.emit, observed.retention)
        )
        # A remote storage is leased with the session: an update that waits for the lease, or is
        # refused, must not delete events of the update that holds it.
        observed.retention.start()
        return _run(pipeline, options, bus, observed, on_running)


@dataclass(frozen=True, kw_only=True)
class ObservedStart:
    """A starting update: its leases and its observers."""

    origin: EventOrigin
    leases: PipelineLeases
    hooks: EventHooks
    retention: Retention


@contextlib.contextmanager
def observed_update(
    settings: PipelineSettings, options: UpdateOptions, bus: EventBus
) -> Iterator[ObservedStart]:
    """Lease the storage, subscribe all observers of an update, and report its start.

    An exception of the block is reported as the end of the update.
    """
    remember_settings(settings)
    update_id = str(uuid.uuid4())
    origin = EventOrigin(pipeline_name=settings.name, update_id=update_id)
    holder = {"pipeline": settings.name, "update": update_id}
    # The lease is released last, after Spark's JVM has ended.
    with (
        PipelineLeases(settings.home, holder) as leases,
        bus.scope(),
        contextlib.ExitStack() as stack,
    ):
        hooks, exports, retention = _observe(settings, bus, origin, stack)
        try:
            bus.emit(_create_update(settings, options, origin, exports.metrics_url))
            again = f" again (retry {options.retry})" if options.retry else ""
            starting = f"starting Spark{again}{exports.note}"
            bus.emit(Event(origin, UpdateProgress(UpdateState.INITIALIZING), starting))
            leases.on_wait = lambda reason: bus.emit(
                Event(origin, UpdateProgress(UpdateState.INITIALIZING), reason)
            )
            exports.warn()
            yield ObservedStart(origin=origin, leases=leases, hooks=hooks, retention=retention)
        except KeyboardInterrupt:
            bus.emit(Event(origin, UpdateProgress(UpdateState.CANCELED), "interrupted"))
            raise
        except Exception as error:
            known = as_penstock_error(error, "starting the update")
            info = error_info(known)
            bus.emit(Event(origin, UpdateProgress(UpdateState.FAILED), info.message, error=info))
            raise


def _observe(
    settings: PipelineSettings, bus: EventBus, origin: EventOrigin, stack: contextlib.ExitStack
) -> tuple[EventHooks, Exports, Retention]:
    """Subscribe all observers of an update; `stack` closes them in reverse order."""
    state = ObservedUpdate()
    bus.subscribe(state)
    status = StatusFile(status_path(settings), state)
    stack.callback(status.close)
    stack.enter_context(kept_events(settings))
    if local_path(settings.storage) is not None:
        with contextlib.suppress(OSError):  # a full disk is reported by the first event
            end_unfinished(event_directory(settings))
    log = event_log(settings)
    stack.callback(log.close)
    hooks = EventHooks(bus, origin)
    stack.callback(hooks.close)
    retention = Retention(log, settings.events, origin.update_id)
    stack.callback(retention.close)
    resolve = partial(resolve_secrets, root=settings.root)
    exports = Exports(settings, bus, origin, state, resolve)
    stack.callback(exports.close)
    bus.subscribe(log)
    bus.subscribe(status)
    if settings.alerts.rules:
        wants_schemas = any(r.kind is AlertKind.SCHEMA_CHANGE for r in settings.alerts.rules)
        alerts = Alerts(
            bus,
            origin,
            settings.alerts,
            resolve_secrets=resolve,
            schemas=recorded_schemas(event_directory(settings)) if wants_schemas else None,
        )
        bus.subscribe(alerts)
        stack.callback(alerts.close)
    bus.subscribe(hooks)
    return hooks, exports, retention


def _run(
    pipeline: OpenPipeline,
    options: UpdateOptions,
    bus: EventBus,
    observed: ObservedStart,
    on_running: Callable[[Update], None] | None,
) -> UpdateResult:
    from penstock._execution.flow_query import EngineContext

    settings, tables = pipeline.settings, pipeline.tables
    origin, lease = observed.origin, observed.leases.remote
    plan = _plan(pipeline, options)
    for event in definitions(pipeline.graph, origin, tables.paths):
        bus.emit(event)
    for key, text in pipeline.graph.deferral_texts().items():
        shown = f"{pipeline.graph.datasets[key].display}: {text}"
        bus.emit(Event(origin, UpdateProgress(UpdateState.INITIALIZING), shown))
    for warning in plan.warnings:
        bus.emit(Event(origin, PlanWarning(warning), warning))
    events = event_directory(settings)
    context = EngineContext(
        source_digest=source_digest(settings),
        emit=bus.emit,
        origin=origin,
        last_batch=lambda flow: last_batch(events, flow),
        lost_lease=(lambda: None) if lease is None else lease.failure,
        resets=[flow for step in reversed(plan.resets) for flow in step.flows],
    )
    engine = pipeline.engine(tables, context)
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
    pipeline.lease(*(pipeline.graph.datasets[step.dataset] for step in plan.tables))
    if settings.maintenance.enabled:
        engine.maintain({step.dataset for step in plan.tables}, settings.maintenance)

    def jvm_died(exit_code: int) -> None:
        engine.jvm_died(exit_code)
        update.engine_died()

    def lease_lost(failure: str) -> None:
        engine.abandon(failure)
        update.engine_died()

    if lease is not None:
        lease.on_lost(lease_lost)
        with contextlib.suppress(OSError):
            end_unfinished(events, own=origin.update_id)
    try:
        with jvm_watch(pipeline.spark, jvm_died), executor_watch(pipeline.spark, origin, bus.emit):
            return update.run()
    finally:
        engine.close()


def _plan(pipeline: OpenPipeline, options: UpdateOptions) -> Plan:
    return make_plan(
        pipeline.graph,
        options,
        configuration=pipeline.settings.configuration,
        notes=pipeline.index.notes,
        registered_catalog=pipeline.settings.registered_catalog,
    )


def _create_update(
    settings: PipelineSettings, options: UpdateOptions, origin: EventOrigin, metrics_url: str | None
) -> Event:
    body = CreateUpdate(
        {
            "storage": settings.storage,
            "root": settings.root,
            "spark_log": str(spark_log(settings, origin.update_id)),
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
