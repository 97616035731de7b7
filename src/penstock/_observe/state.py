"""The state of an update, folded from its events.

Terminal, status file, dashboard, metrics and graph read `ObservedUpdate` and do not count events
themselves. Its size is bounded.
"""

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock._model.lineage import FlowLineage
from penstock._observe.events import (
    FINAL_STATUSES,
    TERMINAL_STATES,
    AlertProgress,
    ColumnLineage,
    CreateUpdate,
    DatasetDefinition,
    DeliveryProgress,
    ErrorInfo,
    Event,
    FlowDefinition,
    FlowMetrics,
    FlowProgress,
    FlowStatus,
    LagProgress,
    Level,
    PlanningInformation,
    RolledUp,
    SinkDefinition,
    SourceRowsLost,
    StreamProgress,
    UpdateProgress,
    UpdateState,
)
from penstock._observe.lag import ages_of, waiting_rows
from penstock._observe.spark_progress import Progress, dropped_by_watermark, durations_of

ENDED = FINAL_STATUSES | {FlowStatus.IDLE}
"""Statuses of flows that are not running any more."""

RECENT = 20
"""How many progress reports are kept per flow."""

BATCH_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histogram of batch times, in seconds."""

ROW_COUNTS = {
    **{f"num_{what}_rows": what for what in ("input", "output", "upserted", "deleted")},
    **{f"{what}_records": what for what in ("dropped", "quarantined", "late", "duplicate")},
}
"""The fields of `FlowMetrics` that count rows, with the kind of these rows."""

MATERIALIZED_VIEW = "materialized view"
_RATE_BATCHES = 5
_MAX_WARNINGS = 20
_MAX_CHANGES = 240
_VIEWS = frozenset({"view", "temporary view"})
# Not added up over refreshes of a materialized view: each one replaces the rows of the previous.
_REPLACED = (
    *("num_output_rows", "num_upserted_rows"),
    *("quarantined_records", "dropped_records", "late_records"),
)
_GAUGE = "backlog_records"
_REPORTED = (
    *("batchId", "numInputRows", "durationMs"),
    *("inputRowsPerSecond", "processedRowsPerSecond"),
)


@dataclass
class Histogram:
    """Counts per bucket (the last bucket has no upper bound), and the sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BATCH_BUCKETS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bucket_of(value)] += 1
        self.total += value

    def add(self, counts: Mapping[str, int], total: float) -> None:
        """Add the counts of many values by upper bound, and their sum."""
        for bound, count in counts.items():
            self.counts[bucket_of(float(bound))] += count
        self.total += total


def bucket_of(seconds: float) -> int:
    """Index of the bucket of a batch time; the last one is above all bounds."""
    return bisect_left(BATCH_BUCKETS, seconds)


@dataclass
class ObservedFlow:
    """The state of one flow.

    `status` is the latest status reported without row counts, with `since` and `message`, and
    `changes` has its changes; `state` includes statuses reported with row counts. `started` and
    `ended` span all restarts; `working_since` is the start of the run, or of the latest refresh.
    `errors` are counted by condition and whether they were fatal. `batches` are finished
    micro-batches and refreshes; `totals` sums fields of `FlowMetrics`; `recent` has input rows and
    milliseconds of the last batches. `progress` is Spark's latest report, `reports` are short forms
    of the last ones. `lag` is the latest measurement, `aged` the latest with ages. `lost` counts,
    by topic, the rows that the source deleted before they were read.
    """

    name: str
    target: str = ""
    definition: FlowDefinition | None = None
    state: FlowStatus = FlowStatus.QUEUED
    status: FlowStatus | None = None
    since: datetime | None = None
    message: str = ""
    changes: deque[tuple[datetime, FlowStatus]] = field(
        default_factory=lambda: deque(maxlen=_MAX_CHANGES)
    )
    working_since: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    last_error: ErrorInfo | None = None
    errors: Counter[tuple[str, bool]] = field(default_factory=Counter)
    batches: int | None = None
    batch_id: int | None = None
    last_batch_at: datetime | None = None
    totals: dict[str, int] = field(default_factory=dict)
    backlog: int | None = None
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_RATE_BATCHES))
    batch_times: Histogram | None = None
    table_version: int | None = None
    progress: Progress = field(default_factory=dict)
    reports: deque[tuple[datetime, Progress]] = field(default_factory=lambda: deque(maxlen=RECENT))
    phases: dict[str, float] = field(default_factory=dict)
    dropped_by_watermark: dict[str, int] = field(default_factory=dict)
    lag: LagProgress | None = None
    aged: LagProgress | None = None
    lag_is_newer: bool = False
    lineage: FlowLineage | None = None
    technique: str = ""
    lost: Counter[str] = field(default_factory=Counter)
    _replaced: dict[str, int] = field(default_factory=dict)

    def count(self, *names: str) -> int:
        """Sum of some totals; for a materialized view, those of its latest refresh."""
        return sum(self.totals.get(name, 0) - self._replaced.get(name, 0) for name in names)

    @property
    def rows(self) -> int | None:
        """Written rows; `None` if they are not counted, for example by a function sink."""
        names = ("num_output_rows", "num_upserted_rows")
        is_known = self.batches is None or any(name in self.totals for name in names)
        return self.count(*names) if is_known else None

    def change(self, at: datetime, status: FlowStatus) -> None:
        if not self.changes or self.changes[-1][1] is not status:
            self.changes.append((at, status))

    def enter(self, event: Event, status: FlowStatus) -> None:
        """Apply an event that reports a status without row counts."""
        if status is not self.status:
            self.status, self.since = status, event.timestamp
        self.message = event.message
        if status is FlowStatus.RUNNING:
            self.working_since = event.timestamp
        self.change(event.timestamp, status)

    def add(self, event: Event, metrics: FlowMetrics, rolled: RolledUp | None) -> None:
        for name, count in vars(metrics).items():
            if count is not None and name != _GAUGE:
                self.totals[name] = self.totals.get(name, 0) + count
        # The writer and Spark's progress report a micro-batch in separate events, possibly with
        # those of the next batch in between.
        batch_id, newest = event.origin.batch_id, self.batch_id
        self.batches = self.batches or 0
        if rolled is not None:
            self.batches += rolled.batches
        elif batch_id is None or newest is None or batch_id > newest:
            self.batches += 1
        if batch_id is not None:
            self.batch_id = batch_id if newest is None else max(batch_id, newest)
        self.last_batch_at = event.timestamp
        if metrics.backlog_records is not None:
            self.backlog = metrics.backlog_records
        took = metrics.batch_duration_ms
        if took is None:
            return
        self.batch_times = self.batch_times or Histogram()
        if rolled is not None and rolled.batch_durations is not None:
            self.batch_times.add(rolled.batch_durations, took / 1000)
        else:
            self.batch_times.observe(took / 1000)
        if rolled is None:
            rows = metrics.num_input_rows
            if rows is None:
                rows = (metrics.num_output_rows or 0) + (metrics.num_upserted_rows or 0)
            self.recent.append((rows, took))

    def replace_rows(self) -> None:
        """Reset the row counts at the start of a refresh."""
        self._replaced = {name: self.totals.get(name, 0) for name in _REPLACED}

    def report(self, event: Event, body: StreamProgress) -> None:
        rolled = body.rolled_up
        if rolled is not None:
            self._spend(rolled.durations_ms or {}, rolled.dropped_by_watermark or {})
            return
        self.progress, self.lag_is_newer = body.progress_json or {}, False
        report = {key: self.progress[key] for key in _REPORTED if key in self.progress}
        self.reports.append((event.timestamp, report))
        self._spend(durations_of(self.progress), dropped_by_watermark(self.progress))

    def _spend(self, durations_ms: Mapping[str, Any], dropped: Mapping[str, int]) -> None:
        for phase, milliseconds in durations_ms.items():
            if phase != "triggerExecution":
                self.phases[phase] = self.phases.get(phase, 0.0) + milliseconds / 1000
        for name, count in dropped.items():
            self.dropped_by_watermark[name] = self.dropped_by_watermark.get(name, 0) + count

    def measure(self, body: LagProgress) -> None:
        self.lag, self.lag_is_newer = body, True
        rows = waiting_rows(body.sources)
        # Batches report no backlog for Delta tables, and none at all if they hang or fail.
        if rows is not None or any("versions" in source for source in body.sources):
            self.backlog = rows
        if any(ages_of(source) for source in body.sources):
            self.aged = body


@dataclass
class ObservedDataset:
    """The state of one table, view or sink.

    `status` is the latest status reported without row counts, for a flow or for the dataset.
    `rules` are passed and failed rows by dataset and rule; for a materialized view, those of its
    latest refresh.
    """

    name: str
    kind: str = ""
    definition: DatasetDefinition | SinkDefinition | None = None
    is_excluded: bool = False
    status: FlowStatus | None = None
    flows: dict[str, ObservedFlow] = field(default_factory=dict)
    rules: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    table_version: int | None = None
    error: tuple[datetime, ErrorInfo] | None = None

    @property
    def is_hidden(self) -> bool:
        """Whether it is a view, which stores no rows."""
        return self.kind in _VIEWS


class ObservedUpdate:
    """Folds the events of one update. Subscribe it to the bus; thread-safe.

    The events of a later update are added to the same sums. Readers on other threads hold `lock`.
    `begun` is the `create_update` event; `message` and `since` are of the latest change of state.
    `events` are counted by level, `rules` have passed and failed rows of the whole update,
    `refreshes` of materialized views are by dataset and technique, `deliveries` by type and signal.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pipeline_name = ""
        self.update_id = ""
        self.begun: Event | None = None
        self.properties: Mapping[str, Any] = {}
        self.state: UpdateState | None = None
        self.message = ""
        self.since: datetime | None = None
        self.changes: list[tuple[datetime, UpdateState]] = []
        self.started: datetime | None = None
        self.ended: datetime | None = None
        self.error: ErrorInfo | None = None
        self.last_event: datetime | None = None
        self.events: Counter[str] = Counter()
        self.warnings: deque[str] = deque(maxlen=_MAX_WARNINGS)
        self.datasets: dict[str, ObservedDataset] = {}
        self.flows: dict[str, ObservedFlow] = {}
        self.rules: dict[tuple[str, str], list[int]] = {}
        self.refreshes: Counter[tuple[str, str]] = Counter()
        self.deliveries: dict[tuple[str, str], DeliveryProgress] = {}
        self.firing: dict[str, set[str]] = {}

    def __call__(self, event: Event) -> None:
        with self.lock:
            self._fold(event)

    def flow(self, name: str) -> ObservedFlow:
        known = self.flows.get(name)
        if known is None:
            known = self.flows[name] = ObservedFlow(name)
        return known

    def _fold(self, event: Event) -> None:
        origin, body = event.origin, event.body
        self.pipeline_name = origin.pipeline_name or self.pipeline_name
        self.update_id = origin.update_id or self.update_id
        self.started = self.started or event.timestamp
        self.last_event = event.timestamp
        rolled = getattr(body, "rolled_up", None)
        self.events[event.level.value] += 1 if rolled is None else rolled.events
        if event.level is Level.WARN:
            self.warnings.append(event.message)
        match body:
            case FlowProgress():
                self._flow_progress(event, body)
            case StreamProgress() if origin.flow_name:
                self._at(event).report(event, body)
            case LagProgress() if origin.flow_name:
                self._at(event).measure(body)
            case UpdateProgress():
                self._update_progress(event, body)
            case CreateUpdate():
                self.begun, self.properties = event, body.properties
            case DatasetDefinition() | SinkDefinition():
                dataset = self._dataset(origin.dataset_name or origin.sink_name)
                dataset.definition, dataset.kind = body, body.kind
            case FlowDefinition():
                flow = self.flow(origin.flow_name)
                flow.definition, flow.target = body, flow.target or body.target
            case ColumnLineage() if origin.flow_name:
                self._at(event).lineage = body.lineage
            case PlanningInformation():
                self._refresh(event, body)
            case AlertProgress():
                firing = self.firing.setdefault(body.alert, set())
                (firing.add if body.state == "firing" else firing.discard)(body.about)
            case SourceRowsLost():
                self._lose(event, body)
            case DeliveryProgress():
                self.deliveries[body.event_type, body.signal or ""] = body

    def _update_progress(self, event: Event, body: UpdateProgress) -> None:
        self.state, self.message, self.since = body.state, event.message, event.timestamp
        self.error = event.error or self.error
        self.ended = event.timestamp if body.state in TERMINAL_STATES else None
        self.changes.append((event.timestamp, body.state))

    def _refresh(self, event: Event, body: PlanningInformation) -> None:
        self.refreshes[event.origin.dataset_name, body.technique] += 1
        if event.origin.flow_name:
            flow = self._at(event)
            flow.technique = body.technique
            # Each refresh begins with this event; the status of the flow is reported only once.
            flow.working_since = event.timestamp
            if body.technique != "NO_OP":
                flow.change(event.timestamp, FlowStatus.RUNNING)

    def _flow_progress(self, event: Event, body: FlowProgress) -> None:
        origin = event.origin
        target = origin.dataset_name or origin.sink_name
        if not target:
            return
        dataset = self._dataset(target)
        if origin.sink_name and not dataset.kind:
            dataset.kind = SinkDefinition.kind
        if event.error is not None:
            dataset.error = event.timestamp, event.error
        if body.table_version is not None:
            dataset.table_version = body.table_version
        if body.metrics is None:
            dataset.status = body.status
        if not origin.flow_name:
            dataset.is_excluded = body.status is FlowStatus.EXCLUDED
            return
        flow, metrics = self._at(event), body.metrics
        # Row counts do not imply a status: they may arrive after the end of the flow, or for a
        # micro-batch of an earlier update.
        is_new = origin.flow_name not in dataset.flows
        dataset.flows[origin.flow_name] = flow
        if is_new or body.status is not FlowStatus.RUNNING or metrics is None:
            flow.state = body.status
        if body.status in (FlowStatus.STARTING, FlowStatus.RUNNING):
            flow.started = flow.started or event.timestamp
        flow.ended = event.timestamp if flow.state in ENDED else None
        if event.error is not None:
            flow.last_error = event.error
            flow.errors[event.error.condition, event.error.fatal] += 1
        if body.table_version is not None:
            flow.table_version = body.table_version
        if metrics is None:
            flow.enter(event, body.status)
        else:
            if dataset.kind == MATERIALIZED_VIEW:
                flow.replace_rows()
                dataset.rules.clear()
            flow.add(event, metrics, body.rolled_up)
        for counts in body.expectations:
            for rules in (dataset.rules, self.rules):
                counts.add_to(rules, (counts.dataset, counts.name))

    def _lose(self, event: Event, body: SourceRowsLost) -> None:
        for lost in body.ranges:
            first, end = lost.get("first"), lost.get("end")
            if isinstance(first, int) and isinstance(end, int):
                self._at(event).lost[str(lost.get("topic", ""))] += end - first

    def _at(self, event: Event) -> ObservedFlow:
        flow = self.flow(event.origin.flow_name)
        flow.target = flow.target or event.origin.dataset_name or event.origin.sink_name
        return flow

    def _dataset(self, name: str) -> ObservedDataset:
        known = self.datasets.get(name)
        if known is None:
            known = self.datasets[name] = ObservedDataset(name)
        return known
