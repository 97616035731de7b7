"""Traces of an update, folded from its events: spans of the update, its flows and their batches.

The spans are made by OpenTelemetry's tracer with the times of the events; it applies the configured
sampling and limits. The number of batch spans per flow and minute is bounded.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock._model.spark_version import installed_version
from penstock._observe.events import (
    FINAL_STATUSES,
    TERMINAL_STATES,
    CreateUpdate,
    ErrorInfo,
    Event,
    FlowMetrics,
    FlowProgress,
    FlowStatus,
    PlanningInformation,
    StreamProgress,
    UpdateProgress,
    UpdateState,
)
from penstock._observe.spark_progress import Progress, began_at, durations_of
from penstock._observe.state import ROW_COUNTS

SCOPE = "penstock"
BATCHES_PER_MINUTE = 60
"""Maximum number of batch spans per flow and minute; further batches are counted."""

Attributes = dict[str, str | int | float]


@dataclass
class _Flow:
    span: Span
    name: str
    about: Attributes
    sums: dict[str, int] = field(default_factory=dict)
    written: tuple[int, Attributes] = (-1, {})
    refresh_began: datetime | None = None
    is_refreshed: bool = False  # by a separate query each time, in a continuous update
    minute: int = -1
    in_minute: int = 0
    left_out: int = 0


class TraceFold:
    """Folds events into spans; each call returns the spans that ended. Not thread-safe.

    TRACEPARENT and TRACESTATE of `environ` define the parent span of the update.
    """

    def __init__(self, resource: Resource, environ: Mapping[str, str]) -> None:
        self._resource = resource
        self._parent = _parent(environ)
        self._ended: list[ReadableSpan] = []
        self._tracer: Tracer | None = None
        self._update: Span | None = None
        self._flows: dict[str, _Flow] = {}
        self._newest: datetime | None = None
        self._is_continuous = False

    def __call__(self, event: Event) -> Iterable[ReadableSpan]:
        self._newest = event.timestamp
        flow = event.origin.flow_name
        if isinstance(event.body, CreateUpdate | UpdateProgress) and self._tracer is None:
            self._begin(event)
        match event.body:
            case UpdateProgress() as body:
                self._update_progress(event, body.state)
            case FlowProgress() as body if flow:
                self._flow_progress(event, body)
            case PlanningInformation() if flow in self._flows:
                self._flows[flow].refresh_began = event.timestamp
                self._flows[flow].is_refreshed = self._is_continuous
            case StreamProgress() as body if flow in self._flows:
                self._batch(self._flows[flow], body.progress_json or {})
        return self._taken()

    def finish(self) -> Iterable[ReadableSpan]:
        """End all open spans after the last event."""
        if self._newest is not None:
            self._end(self._newest)
        return self._taken()

    def _taken(self) -> list[ReadableSpan]:
        ended = list(self._ended)
        self._ended.clear()
        return ended

    # -- the update ----------------------------------------------------------------------------

    def _begin(self, event: Event) -> None:
        self._tracer = _tracer(self._resource, self._ended.append, event.origin.update_id)
        pipeline = event.origin.pipeline_name
        attributes: Attributes = {
            "penstock.pipeline": pipeline,
            "penstock.update_id": event.origin.update_id,
        }
        if isinstance(event.body, CreateUpdate) and "continuous" in event.body.properties:
            self._is_continuous = event.body.is_continuous
            mode = "continuous" if self._is_continuous else "triggered"
            attributes["penstock.mode"] = mode
        self._update = self._tracer.start_span(
            f"update {pipeline}",
            context=self._parent,
            attributes=attributes,
            start_time=_nanos(event.timestamp),
        )

    def _update_progress(self, event: Event, state: UpdateState) -> None:
        if self._update is None or state not in TERMINAL_STATES:
            return
        self._update.set_attribute("penstock.state", state.value)
        if event.error is not None:
            _fail(self._update, event.error, event.timestamp)
        self._end(event.timestamp)

    def _end(self, at: datetime) -> None:
        for flow in list(self._flows):
            self._end_flow(flow, at)
        if self._update is not None:
            self._update.end(_nanos(at))
            self._update = None

    # -- flows ---------------------------------------------------------------------------------

    def _flow_progress(self, event: Event, body: FlowProgress) -> None:
        name, status, metrics = event.origin.flow_name, body.status, body.metrics
        if name not in self._flows:
            is_late = metrics is not None or status in (FlowStatus.QUEUED, FlowStatus.EXCLUDED)
            if is_late or self._update is None:
                return
            target = event.origin.dataset_name or event.origin.sink_name
            about: Attributes = {"penstock.flow": name, "penstock.dataset": target}
            span = self._child(self._update, f"flow {name}", event.timestamp, about)
            self._flows[name] = _Flow(span, name, about)
        flow = self._flows[name]
        if metrics is not None:
            self._figures(event, flow, metrics, body.table_version)
            return
        flow.span.set_attribute("penstock.status", status.value)
        is_end = status in FINAL_STATUSES
        if flow.is_refreshed and status is FlowStatus.COMPLETED:
            is_end = False  # the end of the refresh, not of the flow
        if event.error is not None:
            if is_end and event.error.fatal:
                _fail(flow.span, event.error, event.timestamp)
            else:
                _record(flow.span, event.error, event.timestamp)
        if is_end:
            self._end_flow(name, event.timestamp)

    def _end_flow(self, name: str, at: datetime) -> None:
        flow = self._flows.pop(name)
        for key, count in flow.sums.items():
            flow.span.set_attribute(key, count)
        if flow.left_out:
            flow.span.set_attribute("penstock.batches_without_span", flow.left_out)
        flow.span.end(_nanos(at))

    def _figures(
        self, event: Event, flow: _Flow, metrics: FlowMetrics, table_version: int | None
    ) -> None:
        figures: Attributes = {
            f"penstock.rows.{key}": count
            for name, key in ROW_COUNTS.items()
            if (count := getattr(metrics, name)) is not None
        }
        for key, count in figures.items():
            flow.sums[key] = flow.sums.get(key, 0) + int(count)
        if table_version is not None:
            figures["penstock.table_version"] = table_version
        batch = event.origin.batch_id
        if batch is not None:
            known, before = flow.written
            flow.written = (batch, {**before, **figures} if known == batch else figures)
        elif flow.refresh_began is not None:
            self._add_batch_span(flow, "refresh", flow.refresh_began, event.timestamp, figures)
            flow.refresh_began = None

    def _batch(self, flow: _Flow, progress: Progress) -> None:
        durations = durations_of(progress)
        began, took = began_at(progress), durations.get("triggerExecution")
        batch = progress.get("batchId")
        if began is None or took is None or not isinstance(batch, int):
            return
        if "addBatch" not in durations:
            return  # a trigger without new data
        known, written = flow.written
        attributes: Attributes = {"penstock.batch_id": batch}
        attributes |= written if known == batch else {}
        rows = sum(int(source.get("numInputRows") or 0) for source in progress.get("sources") or ())
        attributes["penstock.rows.input"] = rows
        for phase, milliseconds in durations.items():
            if phase != "triggerExecution":
                attributes[f"penstock.phase.{phase}_seconds"] = milliseconds / 1000
        ended = began + timedelta(milliseconds=took)
        self._add_batch_span(flow, "batch", began, ended, attributes)

    def _add_batch_span(
        self, flow: _Flow, what: str, began: datetime, ended: datetime, attributes: Attributes
    ) -> None:
        minute = int(ended.timestamp() // 60)
        if minute != flow.minute:
            flow.minute, flow.in_minute = minute, 0
        flow.in_minute += 1
        if flow.in_minute > BATCHES_PER_MINUTE:
            flow.left_out += 1
            return
        span = self._child(flow.span, f"{what} {flow.name}", began, {**flow.about, **attributes})
        span.end(_nanos(ended))

    # -- spans ---------------------------------------------------------------------------------

    def _child(
        self, parent: Span, name: str, began: datetime, attributes: Mapping[str, Any]
    ) -> Span:
        assert self._tracer is not None
        return self._tracer.start_span(
            name,
            context=set_span_in_context(parent),
            attributes=dict(attributes),
            start_time=_nanos(began),
        )


def _tracer(resource: Resource, ended: Any, update_id: str) -> Tracer:
    """A tracer whose new traces have the id of the update."""

    class Ids(RandomIdGenerator):
        def generate_trace_id(self) -> int:
            try:
                return UUID(update_id).int or super().generate_trace_id()
            except ValueError:
                return super().generate_trace_id()

    class Ended(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            ended(span)

    provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=Ids())
    provider.add_span_processor(Ended())
    return provider.get_tracer(SCOPE, installed_version("penstock") or "unknown")


def _parent(environ: Mapping[str, str]) -> Context:
    names = {"traceparent": "TRACEPARENT", "tracestate": "TRACESTATE"}
    carrier = {key: environ[name] for key, name in names.items() if environ.get(name)}
    return TraceContextTextMapPropagator().extract(carrier, context=Context())


def _fail(span: Span, error: ErrorInfo, at: datetime) -> None:
    _record(span, error, at)
    span.set_status(Status(StatusCode.ERROR, f"[{error.condition}] {error.message}"))


def _record(span: Span, error: ErrorInfo, at: datetime) -> None:
    attributes: Attributes = {
        "exception.type": error.class_name,
        "exception.message": error.message,
        "penstock.condition": error.condition,
        "penstock.fatal": error.fatal,
    }
    span.add_event("exception", attributes, timestamp=_nanos(at))


def _nanos(at: datetime) -> int:
    return round(at.timestamp() * 1e6) * 1000
