"""Metrics of an update, folded from its events: what a scraper of Prometheus gets.

The fold only writes numbers into dictionaries, so an event costs microseconds; a scrape copies
them under the lock and makes its text outside of it. Neither needs a package.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from penstock._observe.events import Event, FlowStatus, UpdateState
from penstock._observe.lag import ages_of, source_view
from penstock._observe.status import moment

BATCH_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histogram of batch times, in seconds."""

MAX_SERIES = 2000
"""So many label sets are kept of one metric; what comes later is left out and counted."""

_MAX_LABEL = 200
_FLOW = ("pipeline", "flow", "dataset")
_NEVER = "1970-01-01T00:00:00"


class Kind(StrEnum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One metric: its name as it is scraped, its type, its labels, and a sentence with the unit."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def _counter(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, Kind.COUNTER, labels, text)


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, Kind.GAUGE, labels, text)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        _gauge(
            "penstock_update_info",
            ("pipeline", "update_id", "mode"),
            "1; which update runs, triggered or continuous.",
        ),
        _gauge(
            "penstock_update_state",
            ("pipeline", "state"),
            "1 for the state that the update is in, 0 for the others.",
        ),
        _gauge(
            "penstock_update_start_timestamp_seconds",
            ("pipeline",),
            "When the update began, as Unix time.",
        ),
        _counter("penstock_events_total", ("pipeline", "level"), "Events of the update."),
        _gauge(
            "penstock_alert_firing", ("pipeline", "alert"), "For how many things the alert fires."
        ),
        _gauge(
            "penstock_flow_state",
            (*_FLOW, "state"),
            "1 for the state that the flow is in, 0 for the others.",
        ),
        _counter("penstock_flow_batches_total", _FLOW, "Finished micro-batches and refreshes."),
        _counter("penstock_flow_input_rows_total", _FLOW, "Rows that came in."),
        _counter("penstock_flow_output_rows_total", _FLOW, "Rows that were inserted."),
        _counter("penstock_flow_upserted_rows_total", _FLOW, "Rows that were merged by key."),
        _counter("penstock_flow_deleted_rows_total", _FLOW, "Rows that were deleted by key."),
        _counter(
            "penstock_flow_dropped_rows_total",
            _FLOW,
            "Rows that broke a drop rule, the quarantined ones included.",
        ),
        _counter("penstock_flow_quarantined_rows_total", _FLOW, "Rows that went to quarantine."),
        _counter("penstock_flow_late_rows_total", _FLOW, "Rows that came after the watermark."),
        _counter(
            "penstock_flow_duplicate_rows_total", _FLOW, "Rows whose key the table had already."
        ),
        Metric(
            "penstock_flow_batch_duration_seconds",
            Kind.HISTOGRAM,
            _FLOW,
            "Wall time of micro-batches and refreshes, in seconds.",
        ),
        _counter(
            "penstock_flow_phase_seconds_total",
            (*_FLOW, "phase"),
            "Wall time of the phases of micro-batches, in Spark's words, in seconds.",
        ),
        _gauge(
            "penstock_flow_last_batch_timestamp_seconds",
            _FLOW,
            "When the newest batch ended, as Unix time.",
        ),
        _gauge(
            "penstock_flow_backlog_rows", _FLOW, "Rows (Kafka: offsets) that wait at the sources."
        ),
        _gauge("penstock_flow_backlog_files", _FLOW, "Files that wait at the sources."),
        _gauge("penstock_flow_backlog_bytes", _FLOW, "Bytes that wait at the sources."),
        _gauge(
            "penstock_flow_lag_seconds",
            _FLOW,
            "Age of the oldest record, file or commit that was not read yet, in seconds.",
        ),
        _gauge(
            "penstock_flow_time_to_loss_seconds",
            _FLOW,
            "Time until Kafka may remove a record that was not read, in seconds; 0 if it has.",
        ),
        _counter(
            "penstock_flow_errors_total",
            (*_FLOW, "condition", "fatal"),
            "Errors of the flow; one that is not fatal was followed by a restart.",
        ),
        _gauge("penstock_flow_table_version", _FLOW, "Delta version that the flow wrote last."),
        _counter(
            "penstock_expectation_passed_rows_total",
            ("pipeline", "dataset", "rule"),
            "Rows that passed the expectation.",
        ),
        _counter(
            "penstock_expectation_failed_rows_total",
            ("pipeline", "dataset", "rule"),
            "Rows that broke the expectation.",
        ),
        _gauge(
            "penstock_kafka_lag_rows",
            (*_FLOW, "topic", "partition"),
            "Offsets of the partition that are not read yet, as of the newest batch.",
        ),
        _counter(
            "penstock_source_lost_rows_total",
            (*_FLOW, "topic"),
            "Offsets that the source had no longer when they were to be read.",
        ),
        _gauge("penstock_state_rows", (*_FLOW, "operator"), "Rows in the state store."),
        _gauge(
            "penstock_state_memory_bytes", (*_FLOW, "operator"), "Memory of the state, in bytes."
        ),
        _counter(
            "penstock_state_dropped_rows_total",
            (*_FLOW, "operator"),
            "Rows that stateful operators dropped because of the watermark.",
        ),
        _gauge("penstock_watermark_timestamp_seconds", _FLOW, "The watermark, as Unix time."),
        _gauge(
            "penstock_watermark_delay_seconds",
            _FLOW,
            "How far the watermark is behind the newest batch, in seconds.",
        ),
        _counter(
            "penstock_view_refreshes_total",
            ("pipeline", "dataset", "technique"),
            "Refreshes of materialized views: NO_OP, COMPLETE_RECOMPUTE, ...",
        ),
        _counter(
            "penstock_lineage_events_total",
            ("pipeline", "outcome"),
            "OpenLineage events that were sent, failed, or dropped because the queue was full.",
        ),
        _counter(
            "penstock_telemetry_exports_total",
            ("pipeline", "signal", "outcome"),
            "Spans and reports of metrics over OTLP that were sent, failed, or dropped.",
        ),
        _counter(
            "penstock_metrics_left_out_total",
            ("pipeline", "metric"),
            "Figures left out because the metric had too many label sets.",
        ),
    )
}
"""All metrics by name. Names, types and labels are a contract; docs/metrics.md lists them."""

Labels = tuple[str, ...]


@dataclass
class Histogram:
    """Counts per bucket (the last one is for what is above all bounds), and the sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BATCH_BUCKETS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        at = next((i for i, bound in enumerate(BATCH_BUCKETS) if value <= bound), -1)
        self.counts[at] += 1
        self.total += value

    def add(self, counts: Mapping[str, int], total: float) -> None:
        """Count many values at once: how many there are up to each bound, and their sum."""
        for bound, count in counts.items():
            at = next((i for i, known in enumerate(BATCH_BUCKETS) if float(bound) <= known), -1)
            self.counts[at] += count
        self.total += total

    def copy(self) -> "Histogram":
        """The same, apart."""
        return Histogram(list(self.counts), self.total)


@dataclass(frozen=True)
class Series:
    """One metric with its label sets, in the order of `Metric.labels`, and their values."""

    metric: Metric
    values: Mapping[Labels, float]
    histograms: Mapping[Labels, Histogram]


class MetricsFold:
    """Folds the events of an update into figures. Subscribe it to the bus; any thread may call.

    Its size is bounded: labels come from declarations, Kafka partitions and Spark's own words, and
    at most `MAX_SERIES` label sets are kept of one metric.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in METRICS}
        self._histograms: dict[Labels, Histogram] = {}
        self._firing: dict[str, set[str]] = {}
        self._newest: dict[Labels, int] = {}
        self._pipeline = ""

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        with self._lock:
            self._pipeline = _label(event.origin.pipeline_name) or self._pipeline
            self._fold(event)

    def series(self) -> list[Series]:
        """A copy of all figures, in the order of `METRICS`; metrics without any are left out."""
        with self._lock:
            values = {name: dict(found) for name, found in self._values.items() if found}
            histograms = {labels: one.copy() for labels, one in self._histograms.items()}
        found = []
        for name, metric in METRICS.items():
            is_histogram = metric.kind is Kind.HISTOGRAM
            if values.get(name) or (is_histogram and histograms):
                one = Series(metric, values.get(name, {}), histograms if is_histogram else {})
                found.append(one)
        return found

    # -- events --------------------------------------------------------------------------------

    def _fold(self, event: Event) -> None:
        body = event.details.get(event.event_type, {})
        rolled = body.get("rolled_up") or {}
        self._add("penstock_events_total", (event.level.value,), rolled.get("events", 1))
        match event.event_type:
            case "create_update":
                mode = "continuous" if body.get("continuous") else "triggered"
                self._set("penstock_update_info", (event.origin.update_id, mode), 1)
                started = event.timestamp.timestamp()
                self._set("penstock_update_start_timestamp_seconds", (), started)
            case "update_progress":
                for state in UpdateState:
                    is_it = float(body.get("state") == state)
                    self._set("penstock_update_state", (state.value,), is_it)
            case "flow_definition":
                self._expect_flow(event, body)
            case "flow_progress":
                self._flow_progress(event, body)
            case "stream_progress" if rolled:
                self._rolled_up(event, rolled)
            case "stream_progress" if event.origin.flow_name:
                self._stream_progress(event, body.get("progress_json") or {})
            case "lag_progress" if event.origin.flow_name:
                self._lag_progress(event, body)
            case "alert_progress":
                self._alert(body)
            case "source_rows_lost":
                self._lost(event, body)
            case "planning_information":
                for found in body.get("technique_information", ()):
                    technique = str(found.get("maintenance_type", ""))
                    technique = technique.removeprefix("MAINTENANCE_TYPE_")
                    labels = (event.origin.dataset_name, technique)
                    self._add("penstock_view_refreshes_total", labels)
            case "telemetry_progress":
                for outcome in ("sent", "failed", "dropped"):
                    labels = (str(body.get("signal", "")), outcome)
                    count = float(body.get(outcome, 0))
                    self._set("penstock_telemetry_exports_total", labels, count)
            case "lineage_progress":
                for outcome in ("sent", "failed", "dropped"):
                    # The event has sums, not what was added.
                    count = float(body.get(outcome, 0))
                    self._set("penstock_lineage_events_total", (outcome,), count)

    def _expect_flow(self, event: Event, body: Mapping[str, Any]) -> None:
        # Counters begin at 0, so that the first batch shows in a rate.
        if body.get("flow_type") == "VIEW":
            return
        target = body.get("output_dataset") or body.get("output_sink") or ""
        labels = (event.origin.flow_name, str(target))
        for name in (
            "penstock_flow_batches_total",
            "penstock_flow_input_rows_total",
            "penstock_flow_output_rows_total",
            "penstock_flow_quarantined_rows_total",
        ):
            self._add(name, labels, 0)

    def _flow_progress(self, event: Event, body: Mapping[str, Any]) -> None:
        if not event.origin.flow_name:
            return
        flow = _flow_of(event)
        metrics = body.get("metrics")
        # Figures of a batch say nothing about the state: they may come when the flow has ended.
        if metrics is None:
            for state in FlowStatus:
                is_it = float(body.get("status") == state)
                self._set("penstock_flow_state", (*flow, state.value), is_it)
        else:
            self._batch(event, flow, metrics, body.get("rolled_up"))
        if "table_version" in body:
            self._set("penstock_flow_table_version", flow, body["table_version"])
        if event.error is not None:
            fatal = str(event.error.fatal).lower()
            labels = (*flow, event.error.condition, fatal)
            self._add("penstock_flow_errors_total", labels)
        quality = body.get("data_quality") or {}
        for key in ("dropped", "quarantined", "late", "duplicate"):
            if f"{key}_records" in quality:
                count = quality[f"{key}_records"]
                self._add(f"penstock_flow_{key}_rows_total", flow, count)
        for counts in quality.get("expectations", ()):
            labels = (counts["dataset"], counts["name"])
            for key in ("passed", "failed"):
                name = f"penstock_expectation_{key}_rows_total"
                self._add(name, labels, counts[f"{key}_records"])

    def _batch(
        self,
        event: Event,
        flow: Labels,
        metrics: Mapping[str, Any],
        rolled: Mapping[str, Any] | None,
    ) -> None:
        for key in ("output", "upserted", "deleted", "input"):
            if f"num_{key}_rows" in metrics:
                count = metrics[f"num_{key}_rows"]
                self._add(f"penstock_flow_{key}_rows_total", flow, count)
        if "backlog_records" in metrics:
            self._set("penstock_flow_backlog_rows", flow, metrics["backlog_records"])
        if "batch_duration_ms" in metrics:
            counts = rolled.get("batch_durations") if rolled is not None else None
            self._observe(flow, metrics["batch_duration_ms"] / 1000, counts)
        ended = event.timestamp.timestamp()
        self._set("penstock_flow_last_batch_timestamp_seconds", flow, ended)
        # Its writer and Spark's progress tell about one micro-batch in separate events.
        batch_id, newest = event.origin.batch_id, self._newest.get(flow)
        if rolled is not None:
            self._add("penstock_flow_batches_total", flow, rolled["batches"])
        elif batch_id is None or newest is None or batch_id > newest:
            self._add("penstock_flow_batches_total", flow)
        if batch_id is not None and len(self._newest) < MAX_SERIES:
            self._newest[flow] = max(batch_id, newest if newest is not None else batch_id)

    def _stream_progress(self, event: Event, progress: Mapping[str, Any]) -> None:
        flow = _flow_of(event)
        for phase, milliseconds in (progress.get("durationMs") or {}).items():
            self._phase(flow, phase, milliseconds)
        partitions: dict[tuple[str, str], int] = {}
        waiting: dict[str, float] = {}
        behind: list[float] = []
        for source in progress.get("sources") or ():
            view = source_view(source)
            behind += [shard["behind_seconds"] for shard in view["shards"]]
            for part in view["partitions"]:
                key = (str(part["topic"]), str(part["partition"]))
                if part["records"] is None:
                    continue
                partitions[key] = max(part["records"], partitions.get(key, 0))
            for what in ("files", "bytes"):
                count = _number(view["metrics"].get(f"num{what.title()}Outstanding"))
                if count is not None:
                    waiting[what] = waiting.get(what, 0.0) + count
        for place, records in partitions.items():
            self._set("penstock_kafka_lag_rows", (*flow, *place), records)
        for what, value in waiting.items():
            self._set(f"penstock_flow_backlog_{what}", flow, value)
        if behind:
            self._set("penstock_flow_lag_seconds", flow, max(behind))
        for at, operator in enumerate(progress.get("stateOperators") or ()):
            labels = (*flow, f"{at} {operator.get('operatorName', '')}".strip())
            self._set("penstock_state_rows", labels, operator.get("numRowsTotal", 0))
            self._set("penstock_state_memory_bytes", labels, operator.get("memoryUsedBytes", 0))
            dropped = operator.get("numRowsDroppedByWatermark", 0)
            self._add("penstock_state_dropped_rows_total", labels, dropped)
        self._watermark(flow, progress)

    def _rolled_up(self, event: Event, rolled: Mapping[str, Any]) -> None:
        """The sums of measurements that went away."""
        flow = _flow_of(event)
        for phase, milliseconds in rolled.get("durations_ms", {}).items():
            self._phase(flow, phase, milliseconds)
        for operator, count in rolled.get("dropped_by_watermark", {}).items():
            self._add("penstock_state_dropped_rows_total", (*flow, operator), count)

    def _phase(self, flow: Labels, phase: str, milliseconds: float) -> None:
        if phase != "triggerExecution":
            self._add("penstock_flow_phase_seconds_total", (*flow, phase), milliseconds / 1000)

    def _lag_progress(self, event: Event, body: Mapping[str, Any]) -> None:
        """What waits at the sources; nothing is said of what is not known."""
        flow, sources = _flow_of(event), body.get("sources") or ()
        for what in ("files", "bytes"):
            counts = [source.get(what) for source in sources if what in source]
            if counts and None not in counts:
                self._set(f"penstock_flow_backlog_{what}", flow, sum(counts))
        for source in sources:
            # What the last batch saw is not true any more.
            for part in source.get("partitions") or () if source.get("problem") else ():
                place = (str(part["topic"]), str(part["partition"]))
                self._tell("penstock_kafka_lag_rows", (*flow, *place), None)
                self._tell("penstock_flow_backlog_rows", flow, None)
        if any(ages_of(source) for source in sources):
            # One that is no longer known, or no longer at risk, goes away.
            self._tell("penstock_flow_lag_seconds", flow, body.get("seconds_behind"))
            self._tell("penstock_flow_time_to_loss_seconds", flow, body.get("seconds_to_loss"))

    def _watermark(self, flow: Labels, progress: Mapping[str, Any]) -> None:
        text = (progress.get("eventTime") or {}).get("watermark")
        watermark, at = moment(text), moment(progress.get("timestamp"))
        if watermark is None or str(text).startswith(_NEVER):
            return
        self._set("penstock_watermark_timestamp_seconds", flow, watermark.timestamp())
        if isinstance(at, datetime):
            delay = (at - watermark).total_seconds()
            self._set("penstock_watermark_delay_seconds", flow, delay)

    def _alert(self, body: Mapping[str, Any]) -> None:
        alert, about = _label(body.get("alert")), str(body.get("about"))
        firing = self._firing.setdefault(alert, set())
        if body.get("state") != "firing":
            firing.discard(about)
        elif len(firing) < MAX_SERIES:
            firing.add(about)
        self._set("penstock_alert_firing", (alert,), len(firing))

    def _lost(self, event: Event, body: Mapping[str, Any]) -> None:
        for lost in body.get("ranges", ()):
            first, end = lost.get("first"), lost.get("end")
            if isinstance(first, int) and isinstance(end, int):
                labels = (*_flow_of(event), str(lost.get("topic", "")))
                self._add("penstock_source_lost_rows_total", labels, end - first)

    # -- figures -------------------------------------------------------------------------------

    def _add(self, name: str, labels: Labels, count: float = 1) -> None:
        found, key = self._values[name], self._key(labels)
        if key in found:
            found[key] += count
        elif self._has_room(name, len(found)):
            found[key] = float(count)

    def _set(self, name: str, labels: Labels, value: float) -> None:
        found, key = self._values[name], self._key(labels)
        if key in found or self._has_room(name, len(found)):
            found[key] = float(value)

    def _tell(self, name: str, labels: Labels, value: float | None) -> None:
        """The value, or that there is none."""
        if value is None:
            self._values[name].pop(self._key(labels), None)
        else:
            self._set(name, labels, value)

    def _observe(self, flow: Labels, value: float, counts: Mapping[str, int] | None = None) -> None:
        key = self._key(flow)
        if key not in self._histograms:
            if not self._has_room("penstock_flow_batch_duration_seconds", len(self._histograms)):
                return
            self._histograms[key] = Histogram()
        if counts is None:
            self._histograms[key].observe(value)
        else:
            self._histograms[key].add(counts, value)

    def _key(self, labels: Labels) -> Labels:
        return (self._pipeline, *(_label(one) for one in labels))

    def _has_room(self, name: str, count: int) -> bool:
        if count < MAX_SERIES or name == "penstock_metrics_left_out_total":
            return True
        self._add("penstock_metrics_left_out_total", (name,))
        return False


def sample_names(metric: Metric) -> Iterator[str]:
    """The names of the series that a query can ask for."""
    if metric.kind is Kind.HISTOGRAM:
        yield from (f"{metric.name}_{ending}" for ending in ("bucket", "count", "sum"))
    else:
        yield metric.name


def _flow_of(event: Event) -> Labels:
    return (event.origin.flow_name, event.origin.dataset_name or event.origin.sink_name)


def _label(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _MAX_LABEL else text[: _MAX_LABEL - 3] + "..."


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
