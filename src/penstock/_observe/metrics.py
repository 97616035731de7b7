"""Metrics of an update in the form of Prometheus, made from its state.

A scrape copies the state under its lock and renders it outside of the lock.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from penstock._observe.events import FlowStatus, LagProgress, LineageProgress, UpdateState
from penstock._observe.lag import source_view
from penstock._observe.spark_progress import operators_of, watermark_delay, watermark_of
from penstock._observe.state import ROW_COUNTS, Histogram, ObservedFlow, ObservedUpdate

MAX_SERIES = 2000
"""Maximum number of label sets per metric; further ones are dropped and counted."""

_MAX_LABEL = 200
_LEFT_OUT = "penstock_metrics_left_out_total"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def _of_update(name: str, text: str, *labels: str) -> Metric:
    kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
    return Metric(name, kind, ("pipeline", *labels), text)


def _of_flow(name: str, text: str, *labels: str) -> Metric:
    return _of_update(name, text, "flow", "dataset", *labels)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        _of_update(
            "penstock_update_info",
            "Always 1; id and mode of the update, triggered or continuous.",
            "update_id",
            "mode",
        ),
        _of_update(
            "penstock_update_state",
            "1 for the current state of the update, 0 for the others.",
            "state",
        ),
        _of_update("penstock_update_start_timestamp_seconds", "Start of the update, as Unix time."),
        _of_update("penstock_events_total", "Events of the update.", "level"),
        _of_update(
            "penstock_alert_firing", "Number of flows or rules for which the alert fires.", "alert"
        ),
        _of_flow(
            "penstock_flow_state", "1 for the current state of the flow, 0 for the others.", "state"
        ),
        _of_flow("penstock_flow_batches_total", "Finished micro-batches and refreshes."),
        _of_flow("penstock_flow_input_rows_total", "Rows read from the sources."),
        _of_flow("penstock_flow_output_rows_total", "Rows inserted."),
        _of_flow("penstock_flow_upserted_rows_total", "Rows merged by key."),
        _of_flow("penstock_flow_deleted_rows_total", "Rows deleted by key."),
        _of_flow(
            "penstock_flow_dropped_rows_total",
            "Rows that failed a drop rule, including quarantined rows.",
        ),
        _of_flow("penstock_flow_quarantined_rows_total", "Rows written to quarantine."),
        _of_flow("penstock_flow_late_rows_total", "Rows that arrived after the watermark."),
        _of_flow(
            "penstock_flow_duplicate_rows_total",
            "Duplicate rows: their key was already in the table.",
        ),
        replace(
            _of_flow(
                "penstock_flow_batch_duration_seconds",
                "Wall time of micro-batches and refreshes, in seconds.",
            ),
            kind=Kind.HISTOGRAM,
        ),
        _of_flow(
            "penstock_flow_phase_seconds_total",
            "Wall time of the phases of micro-batches, by Spark's names, in seconds.",
            "phase",
        ),
        _of_flow(
            "penstock_flow_last_batch_timestamp_seconds", "End of the newest batch, as Unix time."
        ),
        _of_flow("penstock_flow_backlog_rows", "Unread rows (Kafka: offsets) at the sources."),
        _of_flow("penstock_flow_backlog_files", "Unread files at the sources."),
        _of_flow("penstock_flow_backlog_bytes", "Unread bytes at the sources."),
        _of_flow(
            "penstock_flow_lag_seconds",
            "Age of the oldest unread record, file or commit, in seconds.",
        ),
        _of_flow(
            "penstock_flow_time_to_loss_seconds",
            "Time until Kafka may delete an unread record, in seconds; 0 if it already has.",
        ),
        _of_flow(
            "penstock_flow_errors_total",
            "Errors of the flow; non-fatal errors were followed by a restart.",
            "condition",
            "fatal",
        ),
        _of_flow("penstock_flow_table_version", "Delta version that the flow wrote last."),
        _of_update(
            "penstock_expectation_passed_rows_total",
            "Rows that passed the expectation.",
            "dataset",
            "rule",
        ),
        _of_update(
            "penstock_expectation_failed_rows_total",
            "Rows that failed the expectation.",
            "dataset",
            "rule",
        ),
        _of_flow(
            "penstock_kafka_lag_rows",
            "Unread offsets of the partition, as of the newest batch.",
            "topic",
            "partition",
        ),
        _of_flow(
            "penstock_source_lost_rows_total",
            "Offsets that the source had deleted before they were read.",
            "topic",
        ),
        _of_flow("penstock_state_rows", "Rows in the state store.", "operator"),
        _of_flow("penstock_state_memory_bytes", "Memory of the state, in bytes.", "operator"),
        _of_flow(
            "penstock_state_dropped_rows_total",
            "Late rows dropped by stateful operators.",
            "operator",
        ),
        _of_flow("penstock_watermark_timestamp_seconds", "The watermark, as Unix time."),
        _of_flow(
            "penstock_watermark_delay_seconds",
            "How far the watermark is behind the newest batch, in seconds.",
        ),
        _of_update(
            "penstock_view_refreshes_total",
            "Refreshes of materialized views: NO_OP, APPEND_ONLY, COMPLETE_RECOMPUTE, ...",
            "dataset",
            "technique",
        ),
        _of_update(
            "penstock_lineage_events_total",
            "OpenLineage events sent, failed, or dropped because the queue was full.",
            "outcome",
        ),
        _of_update(
            "penstock_telemetry_exports_total",
            "Spans and metric reports over OTLP sent, failed, or dropped.",
            "signal",
            "outcome",
        ),
        _of_update(
            _LEFT_OUT, "Values dropped because the metric had too many label sets.", "metric"
        ),
    )
}
"""All metrics by name. Names, types and labels are public; docs/metrics.md lists them."""

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Series:
    """One metric and its values by label set, in the order of `Metric.labels`.

    The values are numbers, or instances of `Histogram` if the kind is `HISTOGRAM`.
    """

    metric: Metric
    values: Mapping[Labels, Any]


def metric_series(update: ObservedUpdate) -> list[Series]:
    """All metrics of an update that have values, in the order of `METRICS`. Thread-safe.

    Bounded: labels come from declarations, Kafka partitions and Spark's own names, with at most
    `MAX_SERIES` label sets per metric.
    """
    figures = _Figures()
    with update.lock:
        figures.take_update(update)
        for flow in update.flows.values():
            figures.take_flow(flow)
    return figures.series()


class _Figures:
    """Values by metric and label set, read from the state of an update."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, Any]] = {name: {} for name in METRICS}
        self._pipeline = ""

    def series(self) -> list[Series]:
        return [Series(METRICS[name], values) for name, values in self._values.items() if values]

    def take_update(self, update: ObservedUpdate) -> None:
        self._pipeline = _label(update.pipeline_name)
        if update.begun is not None:
            mode = "continuous" if update.properties.get("continuous") else "triggered"
            self._set("penstock_update_info", (update.begun.origin.update_id, mode), 1)
            started = update.begun.timestamp.timestamp()
            self._set("penstock_update_start_timestamp_seconds", (), started)
        for state in UpdateState if update.state is not None else ():
            self._set("penstock_update_state", (state.value,), update.state is state)
        for level, count in update.events.items():
            self._add("penstock_events_total", (level,), count)
        for alert, firing in update.firing.items():
            self._set("penstock_alert_firing", (alert,), len(firing))
        for labels, (passed, failed) in update.rules.items():
            self._add("penstock_expectation_passed_rows_total", labels, passed)
            self._add("penstock_expectation_failed_rows_total", labels, failed)
        for labels, count in update.refreshes.items():
            self._add("penstock_view_refreshes_total", labels, count)
        for (event_type, signal), body in update.deliveries.items():
            for outcome in ("sent", "failed", "dropped"):
                count = getattr(body, outcome)
                if event_type == LineageProgress.event_type:
                    self._set("penstock_lineage_events_total", (outcome,), count)
                else:
                    self._set("penstock_telemetry_exports_total", (signal, outcome), count)

    def take_flow(self, flow: ObservedFlow) -> None:
        labels = (flow.name, flow.target)
        totals = dict(flow.totals)
        # Counters start at 0, so that rates include the first batch.
        if flow.definition is not None and flow.definition.flow_type != "VIEW":
            if flow.rows is not None:
                totals.setdefault("num_output_rows", 0)
            for name in ("num_input_rows", "quarantined_records"):
                totals.setdefault(name, 0)
            self._add("penstock_flow_batches_total", labels, flow.batches or 0)
        elif flow.batches is not None:
            self._add("penstock_flow_batches_total", labels, flow.batches)
        for name, what in ROW_COUNTS.items():
            if name in totals:
                self._add(f"penstock_flow_{what}_rows_total", labels, totals[name])
        for status in FlowStatus if flow.status is not None else ():
            self._set("penstock_flow_state", (*labels, status.value), flow.status is status)
        for (condition, fatal), count in flow.errors.items():
            self._add("penstock_flow_errors_total", (*labels, condition, str(fatal).lower()), count)
        for phase, seconds in flow.phases.items():
            self._add("penstock_flow_phase_seconds_total", (*labels, phase), seconds)
        for topic, count in flow.lost.items():
            self._add("penstock_source_lost_rows_total", (*labels, topic), count)
        for operator, count in flow.dropped_by_watermark.items():
            self._add("penstock_state_dropped_rows_total", (*labels, operator), count)
        if flow.last_batch_at is not None:
            ended = flow.last_batch_at.timestamp()
            self._set("penstock_flow_last_batch_timestamp_seconds", labels, ended)
        if flow.table_version is not None:
            self._set("penstock_flow_table_version", labels, flow.table_version)
        if flow.batch_times is not None:
            batch_times = deepcopy(flow.batch_times)
            self._set("penstock_flow_batch_duration_seconds", labels, batch_times)
        self._take_waiting(flow, labels)
        for name, state in operators_of(flow.progress).items():
            known = (*labels, name)
            self._set("penstock_state_rows", known, state.get("numRowsTotal", 0))
            self._set("penstock_state_memory_bytes", known, state.get("memoryUsedBytes", 0))
        watermark, delay = watermark_of(flow.progress), watermark_delay(flow.progress)
        if watermark is not None:
            self._set("penstock_watermark_timestamp_seconds", labels, watermark.timestamp())
        if delay is not None:
            self._set("penstock_watermark_delay_seconds", labels, delay)

    def _take_waiting(self, flow: ObservedFlow, labels: Labels) -> None:
        """Backlog of the sources: the newer of Spark's report and the measurement."""
        partitions: dict[tuple[str, str], int] = {}
        waiting: dict[str, float] = {}
        behind: list[float] = []
        for source in flow.progress.get("sources") or ():
            view = source_view(source)
            behind += [shard["behind_seconds"] for shard in view["shards"]]
            for part in view["partitions"]:
                partition = (str(part["topic"]), str(part["partition"]))
                if part["records"] is not None:
                    partitions[partition] = max(part["records"], partitions.get(partition, 0))
            for what in ("files", "bytes"):
                count = _number(view["metrics"].get(f"num{what.title()}Outstanding"))
                if count is not None:
                    waiting[what] = waiting.get(what, 0.0) + count
        measured = _waiting(flow.lag)
        waiting = waiting | measured if flow.lag_is_newer else measured | waiting
        backlog = flow.backlog
        # The backlog of the last batch is outdated while brokers do not respond.
        newer = flow.lag.sources if flow.lag is not None and flow.lag_is_newer else ()
        for source in newer:
            for part in source.get("partitions") or () if source.get("problem") else ():
                partitions.pop((str(part["topic"]), str(part["partition"])), None)
                backlog = None
        for partition, records in partitions.items():
            self._set("penstock_kafka_lag_rows", (*labels, *partition), records)
        for what, value in waiting.items():
            self._set(f"penstock_flow_backlog_{what}", labels, value)
        if backlog is not None:
            self._set("penstock_flow_backlog_rows", labels, backlog)
        aged = flow.aged
        seconds = aged.seconds_behind if aged is not None else None
        if behind and (aged is None or not flow.lag_is_newer):
            seconds = max(behind)
        if seconds is not None:
            self._set("penstock_flow_lag_seconds", labels, seconds)
        if aged is not None and aged.seconds_to_loss is not None:
            self._set("penstock_flow_time_to_loss_seconds", labels, aged.seconds_to_loss)

    def _add(self, name: str, labels: Labels, count: float) -> None:
        """Add to a value: label values that are equal after truncation share a series."""
        self._set(name, labels, self._values[name].get(self._key(labels), 0.0) + count)

    def _set(self, name: str, labels: Labels, value: float | Histogram) -> None:
        values, key = self._values[name], self._key(labels)
        if key in values or len(values) < MAX_SERIES or name == _LEFT_OUT:
            values[key] = value if isinstance(value, Histogram) else float(value)
        else:
            self._add(_LEFT_OUT, (name,), 1)

    def _key(self, labels: Labels) -> Labels:
        return (self._pipeline, *(_label(each) for each in labels))


def _waiting(lag: LagProgress | None) -> dict[str, float]:
    waiting: dict[str, float] = {}
    sources = lag.sources if lag is not None else ()
    for what in ("files", "bytes"):
        counts = [source[what] for source in sources if what in source]
        if counts and None not in counts:
            waiting[what] = sum(counts)
    return waiting


def _label(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _MAX_LABEL else text[: _MAX_LABEL - 3] + "..."


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
