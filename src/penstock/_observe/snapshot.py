"""The state of an update, folded from its events: what a terminal or a dashboard shows."""

import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock._observe.events import ErrorInfo, Event, FlowStatus, Level, UpdateState

_RATE_BATCHES = 5
_RATE_AGE_SECONDS = 30.0
_VIEW_TYPES = frozenset({"VIEW", "TEMPORARY_VIEW"})
_MAX_WARNINGS = 20
_REPLACED = "materialized view"

_STATE_ORDER = (
    FlowStatus.FAILED,
    FlowStatus.RUNNING,
    FlowStatus.STARTING,
    FlowStatus.QUEUED,
    FlowStatus.IDLE,
    FlowStatus.SKIPPED,
    FlowStatus.STOPPED,
    FlowStatus.COMPLETED,
    FlowStatus.EXCLUDED,
)
"""A dataset shows the first of these that one of its flows has."""

_ENDED = frozenset(
    {
        FlowStatus.COMPLETED,
        FlowStatus.FAILED,
        FlowStatus.SKIPPED,
        FlowStatus.STOPPED,
        FlowStatus.IDLE,
    }
)


@dataclass(frozen=True, kw_only=True)
class RuleView:
    """Counts of one rule over the update."""

    name: str
    dataset: str
    passed: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class FlowView:
    """One flow.

    Attributes:
        name: Of the flow.
        target: Name of the dataset or sink, as the events have it.
        state: Its last status.
        batches: Finished micro-batches and refreshes.
        batch_id: The newest one, if it had an id.
        rows: Written so far, inserted and merged; of a materialized view, by the last refresh.
        rows_per_second: Over the last batches; `None` before the first and when they are old.
        batch_seconds: Wall time of the last one.
        quarantined: Rows so far.
        dropped: Rows so far that broke a drop rule, the quarantined ones included.
        late: Rows so far that came after the watermark had passed them.
        duplicates: Rows so far whose key the table had already.
        deleted: Rows so far that auto CDC deleted.
        lag: Rows that wait at the sources, as the last batch saw it.
        last_error: Why it failed or was restarted last.
        duration_seconds: From its start to its end, or to now.
    """

    name: str
    target: str
    state: FlowStatus
    batches: int
    batch_id: int | None
    rows: int
    rows_per_second: float | None
    batch_seconds: float | None
    quarantined: int
    dropped: int
    lag: int | None
    last_error: ErrorInfo | None
    duration_seconds: float | None
    late: int = 0
    duplicates: int = 0
    deleted: int = 0


@dataclass(frozen=True, kw_only=True)
class DatasetView:
    """One table, view or sink with the sums of its flows; fields as in `FlowView`.

    Attributes:
        name: As the events have it.
        display: The shortest ending of the name that no other dataset shares.
        kind: `streaming table`, `materialized view`, `sink`, or empty when not known.
        rules: Its expectations that were evaluated.
        flows: Its flows, in the order of their events.
    """

    name: str
    display: str
    kind: str
    state: FlowStatus
    rows: int
    rows_per_second: float | None
    batch_seconds: float | None
    quarantined: int
    dropped: int
    lag: int | None
    last_error: ErrorInfo | None
    duration_seconds: float | None
    rules: tuple[RuleView, ...]
    flows: tuple[FlowView, ...]
    late: int = 0
    duplicates: int = 0
    deleted: int = 0


@dataclass(frozen=True, kw_only=True)
class UpdateView:
    """One update at one moment.

    Attributes:
        pipeline_name: Label of the pipeline.
        update_id: Of the update.
        state: `None` before the first event that says it.
        message: Of the last change of state.
        started: Time of the first event.
        duration_seconds: From there to the end, or to now.
        error: Why the update failed, if it did.
        datasets: In the order in which the events named them.
        warnings: The newest messages of level WARN.
        properties: The body of `create_update`.
    """

    pipeline_name: str
    update_id: str
    state: UpdateState | None
    message: str
    started: datetime | None
    duration_seconds: float
    error: ErrorInfo | None
    datasets: tuple[DatasetView, ...]
    warnings: tuple[str, ...]
    properties: Mapping[str, Any]

    @property
    def has_ended(self) -> bool:
        """Whether the update is in a final state."""
        return self.state in {UpdateState.COMPLETED, UpdateState.FAILED, UpdateState.CANCELED}


@dataclass
class _Flow:
    name: str
    target: str
    state: FlowStatus = FlowStatus.QUEUED
    batches: int = 0
    batch_id: int | None = None
    rows: int = 0
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_RATE_BATCHES))
    last_batch_at: datetime | None = None
    quarantined: int = 0
    dropped: int = 0
    late: int = 0
    duplicates: int = 0
    deleted: int = 0
    lag: int | None = None
    last_error: ErrorInfo | None = None
    started: datetime | None = None
    ended: datetime | None = None

    def view(self, now: datetime) -> FlowView:
        last = self.last_batch_at
        fresh = last is not None and (now - last).total_seconds() <= _RATE_AGE_SECONDS
        spent_ms = sum(milliseconds for _, milliseconds in self.recent)
        rate = None
        if spent_ms and (fresh or self.state in _ENDED):
            rate = sum(rows for rows, _ in self.recent) * 1000 / spent_ms
        duration = None
        if self.started is not None:
            duration = max(0.0, ((self.ended or now) - self.started).total_seconds())
        return FlowView(
            name=self.name,
            target=self.target,
            state=self.state,
            batches=self.batches,
            batch_id=self.batch_id,
            rows=self.rows,
            rows_per_second=rate,
            batch_seconds=self.recent[-1][1] / 1000 if self.recent else None,
            quarantined=self.quarantined,
            dropped=self.dropped,
            late=self.late,
            duplicates=self.duplicates,
            deleted=self.deleted,
            lag=self.lag,
            last_error=self.last_error,
            duration_seconds=duration,
        )


@dataclass
class _Dataset:
    name: str
    kind: str = ""
    is_excluded: bool = False
    flows: dict[str, _Flow] = field(default_factory=dict)
    rules: dict[tuple[str, str], list[int]] = field(default_factory=dict)


class Snapshot:
    """Folds events into the current state. Subscribe it to the bus; any thread may call.

    It knows one update: the events of a later one are added to the same sums.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._datasets: dict[str, _Dataset] = {}
        self._hidden: set[str] = set()
        self._pipeline_name = ""
        self._update_id = ""
        self._state: UpdateState | None = None
        self._message = ""
        self._error: ErrorInfo | None = None
        self._started: datetime | None = None
        self._ended: datetime | None = None
        self._warnings: deque[str] = deque(maxlen=_MAX_WARNINGS)
        self._properties: Mapping[str, Any] = {}

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        with self._lock:
            self._fold(event)

    def view(self, now: datetime | None = None) -> UpdateView:
        """A frozen copy for rendering.

        Args:
            now: The moment that durations of what still runs extend to.
        """
        now = now or datetime.now(UTC)
        with self._lock:
            names = [name for name in self._datasets if name not in self._hidden]
            shown = short_names(names)
            end = self._ended or now
            return UpdateView(
                pipeline_name=self._pipeline_name,
                update_id=self._update_id,
                state=self._state,
                message=self._message,
                started=self._started,
                duration_seconds=(
                    max(0.0, (end - self._started).total_seconds()) if self._started else 0.0
                ),
                error=self._error,
                datasets=tuple(
                    _dataset_view(self._datasets[name], shown[name], end) for name in names
                ),
                warnings=tuple(self._warnings),
                properties=dict(self._properties),
            )

    def _fold(self, event: Event) -> None:
        origin = event.origin
        self._pipeline_name = origin.pipeline_name or self._pipeline_name
        self._update_id = origin.update_id or self._update_id
        self._started = self._started or event.timestamp
        if event.level is Level.WARN:
            self._warnings.append(event.message)
        body = event.details.get(event.event_type, {})
        match event.event_type:
            case "create_update":
                self._properties = dict(body)
            case "update_progress":
                self._state = UpdateState(body["state"])
                self._message = event.message
                self._error = event.error or self._error
                is_final = self._state.value in ("COMPLETED", "FAILED", "CANCELED")
                self._ended = event.timestamp if is_final else None
            case "dataset_definition":
                kind = str(body.get("dataset_type", ""))
                if kind.upper().replace(" ", "_") in _VIEW_TYPES:
                    self._hidden.add(origin.dataset_name)
                else:
                    kind = kind.lower().replace("_", " ")
                    self._dataset(origin.dataset_name).kind = kind
            case "sink_definition":
                self._dataset(origin.sink_name or origin.dataset_name).kind = "sink"
            case "flow_progress":
                self._fold_flow(event, body)

    def _fold_flow(self, event: Event, body: Mapping[str, Any]) -> None:
        origin = event.origin
        target = origin.dataset_name or origin.sink_name
        if not target:
            return
        dataset = self._dataset(target)
        if origin.sink_name and not dataset.kind:
            dataset.kind = "sink"
        state = FlowStatus(body["status"])
        if not origin.flow_name:
            dataset.is_excluded = state is FlowStatus.EXCLUDED
            return
        is_new = origin.flow_name not in dataset.flows
        flow = dataset.flows.setdefault(origin.flow_name, _Flow(origin.flow_name, target))
        # Figures of a micro-batch say nothing about the state: they may come when the flow has
        # ended already, or for a micro-batch of an earlier update.
        if is_new or state is not FlowStatus.RUNNING or "metrics" not in body:
            flow.state = state
        flow.last_error = event.error or flow.last_error
        if state in (FlowStatus.STARTING, FlowStatus.RUNNING):
            flow.started = flow.started or event.timestamp
        flow.ended = event.timestamp if flow.state in _ENDED else None
        metrics = body.get("metrics")
        if metrics is not None:
            if dataset.kind == _REPLACED:
                # A refresh replaces the rows of the one before it, so it does their counts.
                flow.rows = flow.quarantined = flow.dropped = flow.late = 0
                dataset.rules.clear()
            _fold_metrics(flow, event, metrics)
        quality = body.get("data_quality", {})
        flow.dropped += quality.get("dropped_records", 0)
        flow.quarantined += quality.get("quarantined_records", 0)
        flow.late += quality.get("late_records", 0)
        flow.duplicates += quality.get("duplicate_records", 0)
        for counts in quality.get("expectations", ()):
            sums = dataset.rules.setdefault((counts["dataset"], counts["name"]), [0, 0])
            sums[0] += counts["passed_records"]
            sums[1] += counts["failed_records"]

    def _dataset(self, name: str) -> _Dataset:
        return self._datasets.setdefault(name, _Dataset(name))


def _fold_metrics(flow: _Flow, event: Event, metrics: Mapping[str, Any]) -> None:
    written = metrics.get("num_output_rows", 0) + metrics.get("num_upserted_rows", 0)
    flow.rows += written
    flow.deleted += metrics.get("num_deleted_rows", 0)
    # Its writer and Spark's progress tell about a micro-batch in separate events.
    # Those of the next one may come in between.
    batch_id, newest = event.origin.batch_id, flow.batch_id
    rolled = event.details["flow_progress"].get("rolled_up")
    if rolled is not None:
        flow.batches += rolled["batches"]
    elif batch_id is None or newest is None or batch_id > newest:
        flow.batches += 1
    flow.last_batch_at = event.timestamp
    flow.lag = metrics.get("backlog_records", flow.lag)
    if batch_id is not None:
        flow.batch_id = batch_id if newest is None else max(batch_id, newest)
    if "batch_duration_ms" in metrics and rolled is None:
        rows_in = metrics.get("num_input_rows", written)
        flow.recent.append((rows_in, metrics["batch_duration_ms"]))


def _dataset_view(dataset: _Dataset, display: str, now: datetime) -> DatasetView:
    flows = tuple(flow.view(now) for flow in dataset.flows.values())
    states = {flow.state for flow in flows}
    if dataset.is_excluded or not states:
        states.add(FlowStatus.EXCLUDED if dataset.is_excluded else FlowStatus.QUEUED)
    rates = [flow.rows_per_second for flow in flows if flow.rows_per_second is not None]
    lags = [flow.lag for flow in flows if flow.lag is not None]
    batches = [flow.batch_seconds for flow in flows if flow.batch_seconds is not None]
    durations = [flow.duration_seconds for flow in flows if flow.duration_seconds is not None]
    errors = [flow.last_error for flow in flows if flow.last_error is not None]
    return DatasetView(
        name=dataset.name,
        display=display,
        kind=dataset.kind,
        state=next(state for state in _STATE_ORDER if state in states),
        rows=sum(flow.rows for flow in flows),
        rows_per_second=sum(rates) if rates else None,
        batch_seconds=max(batches) if batches else None,
        quarantined=sum(flow.quarantined for flow in flows),
        dropped=sum(flow.dropped for flow in flows),
        late=sum(flow.late for flow in flows),
        duplicates=sum(flow.duplicates for flow in flows),
        deleted=sum(flow.deleted for flow in flows),
        lag=sum(lags) if lags else None,
        last_error=errors[-1] if errors else None,
        duration_seconds=max(durations) if durations else None,
        rules=tuple(
            RuleView(name=name, dataset=owner, passed=passed, failed=failed)
            for (owner, name), (passed, failed) in dataset.rules.items()
        ),
        flows=flows,
    )


def short_names(names: list[str]) -> dict[str, str]:
    """For each dotted name its shortest ending that no other name shares, whatever its case."""
    shared = Counter(ending for name in names for ending in _endings(name.lower()))
    return {
        name: next((ending for ending in _endings(name) if shared[ending.lower()] == 1), name)
        for name in names
    }


def _endings(name: str) -> list[str]:
    """The last part of a dotted name, its last two parts, and so on."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
