"""Decides from events which alerts fire and which are resolved. Pure: the time is an argument.

An alert is *firing* or not for one subject: a flow, or a rule of a dataset. Changes of that state
are notified; a state that lasts, or that flaps, is notified again after `repeat_seconds`.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from penstock._model.alert import AlertKind, AlertRule
from penstock._observe.codec import time_text
from penstock._observe.events import (
    AlertProgress,
    DatasetDefinition,
    Event,
    ExpectationCounts,
    FlowProgress,
    FlowStatus,
    LagProgress,
    PlanningInformation,
    SourceRowsLost,
    StreamProgress,
    UpdateProgress,
    UpdateState,
)
from penstock._observe.lag import waiting_rows
from penstock._observe.schemas import differences
from penstock._observe.spark_progress import Progress, event_times
from penstock._observe.state import ENDED

OBSERVED = (
    UpdateProgress,
    FlowProgress,
    StreamProgress,
    LagProgress,
    PlanningInformation,
    SourceRowsLost,
    DatasetDefinition,
)
"""Bodies of the events that an `AlertBook` evaluates."""

_EVOLVED = "SCHEMA_EVOLVED"


@dataclass
class _State:
    is_firing: bool = False
    is_notified: bool = False
    notified_at: datetime | None = None
    suppressed: int = 0
    value: float | None = None
    message: str = ""


@dataclass
class _Watermark:
    """A watermark, and the times of the first and last batch with rows since its last advance."""

    value: str
    first: datetime | None = None
    last: datetime | None = None


class AlertBook:
    """The alerts of one update; `schemas` are those of the last update. Not thread-safe."""

    def __init__(
        self,
        rules: tuple[AlertRule, ...],
        *,
        repeat_seconds: float,
        schemas: Mapping[str, str] | None = None,
    ) -> None:
        self._rules = rules
        self._repeat_seconds = repeat_seconds
        self._schemas = dict(schemas or {})
        self._watermarks: dict[str, _Watermark] = {}
        self._states: dict[tuple[str, str], _State] = {}
        self._counts: dict[tuple[str, str, str], deque[tuple[int, int]]] = {}
        self._running: dict[str, datetime] = {}
        self._pipeline = ""
        self._update_id = ""

    def observe(self, event: Event) -> list[AlertProgress]:
        """Evaluate an event; returns the notifications to send."""
        self._pipeline = event.origin.pipeline_name or self._pipeline
        self._update_id = event.origin.update_id or self._update_id
        flow = event.origin.flow_name
        match event.body:
            case UpdateProgress(state=UpdateState.FAILED):
                self._failed("", event)
            case FlowProgress() as body if flow:
                self._flow(event, body)
            case StreamProgress() as body if flow:
                self._watermark(flow, body.progress_json or {}, event.timestamp)
            case LagProgress() as body if flow:
                self._lag(flow, body)
            case PlanningInformation() as body if flow and body.technique != "NO_OP":
                # A continuous update reports only the first refresh of a view as running.
                self._running.setdefault(flow, event.timestamp)
            case SourceRowsLost() if flow:
                self._retention(flow, 0.0, "happened")
            case DatasetDefinition() as body:
                self._schema(event.origin.dataset_name, body.schema_json or "")
        # While flows are busy, `tick` is not called between events.
        return self.tick(event.timestamp)

    def tick(self, now: datetime) -> list[AlertProgress]:
        """Evaluate alerts that depend on time; returns the notifications to send."""
        for flow, since in self._running.items():
            self._running[flow] = since = min(since, now)  # the clock may have been set back
            for rule in self._of(AlertKind.NO_PROGRESS, flow):
                waited = (now - since).total_seconds()
                if waited <= rule.threshold:
                    continue  # only a finished batch resolves it
                text = f"flow {flow} has finished no batch for {waited:,.0f} seconds"
                self._set(rule, f"flow {flow}", waited, text, fires=True)
        return list(self._notices(now))

    # -- events --------------------------------------------------------------------------------

    def _flow(self, event: Event, body: FlowProgress) -> None:
        flow, status, metrics = event.origin.flow_name, body.status, body.metrics
        if event.error is not None and event.error.condition == _EVOLVED:
            self._changed(f"flow {flow}", f"flow {flow}: {event.error.message}", flow=flow)
        if metrics is None:
            if status is FlowStatus.FAILED:
                self._failed(flow, event)
            if status is FlowStatus.RUNNING:
                # A restart is not progress: the alert must fire for a flow that fails repeatedly.
                self._running.setdefault(flow, event.timestamp)
            elif status in ENDED:
                self._running.pop(flow, None)
                self._watermarks.pop(flow, None)
                self._resolve(AlertKind.WATERMARK, f"flow {flow}", f"flow {flow} has ended")
                self._resolve(AlertKind.NO_PROGRESS, f"flow {flow}", f"flow {flow} has ended")
            return
        if flow in self._running:
            self._running[flow] = event.timestamp
            self._resolve(AlertKind.NO_PROGRESS, f"flow {flow}", f"flow {flow} continues")
        for about in (f"flow {flow}", event.origin.dataset_name):
            text = f"{about} has rows with the new columns"
            self._resolve(AlertKind.SCHEMA_CHANGE, about, text)
        self._backlog(flow, metrics.backlog_records)
        for counts in body.expectations:
            self._quality(counts)

    def _backlog(self, flow: str, waiting: int | None) -> None:
        if waiting is not None:
            text = f"flow {flow} has a backlog of {waiting:,} records"
            self._compare(AlertKind.BACKLOG, flow, float(waiting), text)

    def _lag(self, flow: str, body: LagProgress) -> None:
        """Evaluate a measurement; unknown values neither fire nor resolve an alert."""
        # A batch that hangs or fails does not report the backlog.
        self._backlog(flow, waiting_rows(body.sources))
        behind, loss, left = body.seconds_behind, body.loss, body.seconds_to_loss
        if behind is not None:
            text = f"the oldest unread record of flow {flow} is {behind:,.0f} seconds old"
            self._compare(AlertKind.LAG, flow, float(behind), text)
        if loss in ("none", None):  # None: the batches of the source report lost rows
            text = f"flow {flow} has no unread rows to lose"
            self._resolve(AlertKind.RETENTION, f"flow {flow}", text)
        if left is not None:
            self._retention(flow, float(left), loss)

    def _retention(self, flow: str, left: float, loss: str | None) -> None:
        for rule in self._of(AlertKind.RETENTION, flow):
            text = (
                f"rows that flow {flow} has not read were removed from its source"
                if loss == "happened"
                else f"the source of flow {flow} may remove unread rows in {left:,.0f} seconds"
            )
            self._set(rule, f"flow {flow}", left, text, fires=left < rule.threshold)

    def _watermark(self, flow: str, progress: Progress, at: datetime) -> None:
        """Only batches with rows count: without rows a watermark does not advance."""
        value = event_times(progress).get("watermark")
        if value is None:
            return
        known = self._watermarks.get(flow)
        if known is None or known.value != value:
            known = self._watermarks[flow] = _Watermark(value)
            text = f"the watermark of flow {flow} advances"
            self._resolve(AlertKind.WATERMARK, f"flow {flow}", text)
        elif known.first is not None and known.last is not None:
            # A batch advances the watermark of the next batch, so its effect is not known yet.
            stood = (known.last - known.first).total_seconds()
            text = (
                f"the watermark of flow {flow} has not advanced from {value} for {stood:,.0f} "
                "seconds although rows arrived"
            )
            self._compare(AlertKind.WATERMARK, flow, stood, text)
        if any(source.get("numInputRows") for source in progress.get("sources") or ()):
            known.first, known.last = min(known.first or at, at), at

    def _schema(self, dataset: str, schema: str) -> None:
        before = self._schemas.get(dataset)
        if before and schema and (changes := differences(before, schema)):
            text = f"the columns of {dataset} changed since the last update: {', '.join(changes)}"
            self._changed(dataset, text, dataset=dataset)
        self._schemas[dataset] = schema or before or ""

    def _changed(self, about: str, message: str, *, flow: str = "", dataset: str = "") -> None:
        for rule in self._of(AlertKind.SCHEMA_CHANGE, flow, dataset):
            self._set(rule, about, None, message, fires=True)

    def _quality(self, counts: ExpectationCounts) -> None:
        dataset, name = counts.dataset, counts.name
        for rule in self._of(AlertKind.FAILURE_RATE, dataset=dataset):
            if rule.rule and rule.rule != name:
                continue
            window = self._counts.setdefault((rule.name, dataset, name), deque(maxlen=rule.batches))
            window.append((counts.passed_records, counts.failed_records))
            failed = sum(broken for _, broken in window)
            total = failed + sum(passed for passed, _ in window)
            if total < max(1, rule.min_rows):
                continue
            rate = failed / total
            text = f"{failed:,} of {total:,} rows ({rate:.2%}) violate {name} of {dataset}"
            self._set(rule, f"{dataset}: {name}", rate, text, fires=rate > rule.threshold)

    def _failed(self, flow: str, event: Event) -> None:
        about = f"flow {flow}" if flow else "update"
        reason = f": [{event.error.condition}] {event.error.message}" if event.error else ""
        for rule in self._of(AlertKind.FAILED, flow):
            self._set(rule, about, None, f"{about} failed{reason}", fires=True)

    # -- states --------------------------------------------------------------------------------

    def _of(
        self, kind: AlertKind, flow: str | None = None, dataset: str | None = None
    ) -> list[AlertRule]:
        """The rules of a kind; with `flow` or `dataset`, only those that apply to it."""
        return [
            rule
            for rule in self._rules
            if rule.kind is kind
            and (flow is None or rule.flow.lower() in ("", flow.lower()))
            and (dataset is None or _names(rule.dataset, dataset))
        ]

    def _compare(self, kind: AlertKind, flow: str, value: float, message: str) -> None:
        for rule in self._of(kind, flow):
            self._set(rule, f"flow {flow}", value, message, fires=value > rule.threshold)

    def _set(
        self, rule: AlertRule, about: str, value: float | None, message: str, *, fires: bool
    ) -> None:
        state = self._states.setdefault((rule.name, about), _State())
        state.suppressed += state.is_firing is not fires
        state.is_firing, state.value, state.message = fires, value, message

    def _resolve(self, kind: AlertKind, about: str, message: str) -> None:
        for rule in self._of(kind):
            state = self._states.get((rule.name, about))
            if state is not None and state.is_firing:
                self._set(rule, about, None, message, fires=False)

    def _notices(self, now: datetime) -> Iterator[AlertProgress]:
        for rule in self._rules:
            for (name, about), state in self._states.items():
                if name == rule.name and self._is_due(state, now):
                    yield self._notice(rule, about, state, now)

    def _is_due(self, state: _State, now: datetime) -> bool:
        if not state.is_firing:
            return state.is_notified  # immediately
        waited = None if state.notified_at is None else (now - state.notified_at).total_seconds()
        # Negative if the clock was set back, which must not delay an alert.
        return waited is None or abs(waited) >= self._repeat_seconds

    def _notice(self, rule: AlertRule, about: str, state: _State, now: datetime) -> AlertProgress:
        suppressed = max(0, state.suppressed - 1)
        state.is_notified = state.is_firing
        state.suppressed = 0
        if state.is_firing:
            state.notified_at = now
        return AlertProgress(
            alert=rule.name,
            kind=rule.kind.value,
            state="firing" if state.is_firing else "resolved",
            about=about,
            value=state.value,
            threshold=rule.threshold,
            message=state.message,
            pipeline=self._pipeline,
            update_id=self._update_id,
            timestamp=time_text(now),
            suppressed=suppressed,
        )


def _names(wanted: str, dataset: str) -> bool:
    return not wanted or f".{dataset}".lower().endswith(f".{wanted}".lower())
