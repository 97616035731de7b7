"""Events of an update with many micro-batches, and the results of the readers of its log."""

import functools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from made_events import (
    definition,
    flow_progress,
    lag_progress,
    plan_warning,
    planning_information,
    stream_progress,
    update_progress,
)

from penstock._model.pipeline import EventLogSettings
from penstock._observe.codec import event_of, event_of_json
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowStatus,
    UpdateState,
)
from penstock._observe.log import EventLog, last_batch, read_events
from penstock._observe.metrics import Series, metric_series
from penstock._observe.retention import roll_up
from penstock._observe.segments import UpdateLog, updates
from penstock._observe.state import Histogram, ObservedUpdate
from penstock._observe.status_file import status_json
from penstock._ui.model import UpdateModel

START = datetime(2026, 3, 1, tzinfo=UTC)
UPDATE = EventOrigin(pipeline_name="shop", update_id="running")
SILVER = replace(UPDATE, dataset_name="c.s.silver", flow_name='sil"ver')
GOLD = replace(UPDATE, dataset_name="c.s.silver", flow_name="gold")
OUT = replace(UPDATE, sink_name="out", flow_name="out")
VIEW = replace(UPDATE, dataset_name="c.s.view", flow_name="view")
SMALL = EventLogSettings(keep_progress_days=None, max_progress_mb=0.25)
ALL = EventLogSettings(keep_progress_days=1e-6, max_progress_mb=None)
FLOWS = (SILVER, GOLD, OUT)


class _Never(threading.Event):
    """An event that is never set and does not wait, so background work does not pause."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


NEVER = _Never()


def committed(flow: EventOrigin, batch: int, message: str = "") -> Event:
    """The event of a commit; every third batch of a table has no rows and no version."""
    has_version = flow is not OUT and batch % 3 != 2
    return flow_progress(
        replace(flow, batch_id=batch),
        FlowStatus.RUNNING,
        message,
        metrics=FlowMetrics(
            num_output_rows=batch % 7 if flow is not GOLD else None,
            num_upserted_rows=batch % 5 if flow is GOLD else None,
            num_deleted_rows=batch % 2 if flow is GOLD else None,
            dropped_records=batch % 4 if flow is SILVER else None,
            quarantined_records=batch % 3 if flow is SILVER else None,
            late_records=batch % 2 or None,
            duplicate_records=batch % 11 or None,
        ),
        expectations=[
            ExpectationCounts(
                name=name, dataset=flow.dataset_name, passed_records=batch, failed_records=failed
            )
            for failed, name in enumerate(("positive", "known"))
            if flow is SILVER and batch % 5
        ],
        table_version=batch + 10 if has_version else None,
    )


def measured(flow: EventOrigin, batch: int) -> list[Event]:
    """The events of Spark's progress and of the lag measurement for a batch."""
    origin = replace(flow, batch_id=batch)
    operators = [{"operatorName": "dedupe", "numRowsDroppedByWatermark": batch % 3}]
    progress = {
        "batchId": batch,
        "numInputRows": batch,
        "name": '"event_type":"stream_progress"}\n',
        "durationMs": {"addBatch": batch % 50, "triggerExecution": batch % 60},
        "stateOperators": operators if flow is SILVER else [],
    }
    metrics = FlowMetrics(
        num_input_rows=batch, batch_duration_ms=batch * 97 % 3000, backlog_records=batch % 13
    )
    return [
        stream_progress(origin, progress),
        flow_progress(origin, FlowStatus.RUNNING, "", metrics=metrics),
        lag_progress(origin, {"loss": "none", "sources": []}),
    ]


@functools.cache
def events(batches: int) -> tuple[Event, ...]:
    """All kinds of events of a long update that has not ended, with a batch per minute."""
    return tuple(
        replace(event, timestamp=START + timedelta(minutes=minute))
        for minute, event in _events(batches)
    )


def _events(batches: int) -> Iterator[tuple[int, Event]]:
    yield 0, definition("create_update", UPDATE, "", {"continuous": True})
    yield 0, update_progress(UPDATE, UpdateState.RUNNING, "runs")
    kinds = {"c.s.silver": "STREAMING_TABLE", "c.s.view": "MATERIALIZED_VIEW"}
    for name, kind in kinds.items():
        about = replace(UPDATE, dataset_name=name)
        yield 0, definition("dataset_definition", about, "", {"dataset_type": kind})
    yield 0, definition("sink_definition", replace(UPDATE, sink_name="out"), "", {"format": "x"})
    for flow in FLOWS:
        yield 0, flow_progress(flow, FlowStatus.QUEUED, "waits")
    # A batch of the previous update, which is reported before the flow starts in this update.
    yield 1, committed(SILVER, 0, "recorded by the table, reported after a restart")
    for flow in FLOWS:
        yield 1, flow_progress(flow, FlowStatus.RUNNING, "runs")
    for batch in range(1, batches):
        for flow in FLOWS:
            # The next commit may precede the metrics of the previous batch.
            if batch % 10 != 3:
                yield batch, committed(flow, batch)
            if batch % 10 == 2:
                yield batch, committed(flow, batch + 1)
            for event in measured(flow, batch):
                yield batch, event
        if batch % 50 == 0:
            yield batch, planning_information(VIEW, "COMPLETE_RECOMPUTE", "new rows")
            refreshed = FlowMetrics(num_output_rows=batch)
            yield batch, flow_progress(VIEW, FlowStatus.RUNNING, "", metrics=refreshed)
            yield batch, plan_warning(UPDATE, f"warning {batch}")
        if batch % 90 == 0:
            error = ErrorInfo(condition="GONE", class_name="FlowError", message="m", fatal=False)
            yield batch, flow_progress(GOLD, FlowStatus.FAILED, "failed", error=error)
            yield batch, flow_progress(GOLD, FlowStatus.STARTING, "again")
            yield batch, flow_progress(GOLD, FlowStatus.RUNNING, "runs")
    # Batches without rows create no version: the newest version is of an earlier batch.
    for batch in range(batches, batches + 140):
        yield (
            batch,
            flow_progress(
                replace(SILVER, batch_id=batch),
                FlowStatus.RUNNING,
                "",
                metrics=FlowMetrics(num_output_rows=0),
            ),
        )
    # No more rows arrive, and lag is still measured.
    for minute in range(batches + 140, batches + 300, 3):
        yield minute, lag_progress(SILVER, {"loss": "none", "sources": []})


def filled(folder: Path, batches: int = 150, keep: EventLogSettings = SMALL) -> EventLog:
    """An open log with all events, in many segments."""
    log = EventLog(folder, keep)
    for event in events(batches):
        log(event)
    return log


def rolled_up(
    log: EventLog, settings: EventLogSettings = ALL, *, stop: threading.Event = NEVER
) -> bool:
    """Roll up the finished segments. Returns whether a roll-up was due."""
    if log.update is None:
        return False
    update, now = log.update.listed(), time.time() + 60
    return roll_up(update, settings, now=now, is_over=False, stop=stop)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The events of the log, parsed."""
    return list(read_events(folder))


def update_of(folder: Path) -> UpdateLog:
    """The only update of a log."""
    (update,) = updates(folder)
    return update


def segment_ranges(folder: Path) -> list[tuple[int, int]]:
    """The ranges of the segments that are read."""
    return [(segment.first, segment.last) for segment in update_of(folder).segments()]


def sequence_numbers(events: list[dict[str, Any]]) -> list[int]:
    """The sequence numbers of events."""
    return [event["sequence"]["data_plane_id"]["seq_no"] for event in events]


def rolled_up_events(
    events: list[dict[str, Any]], kind: str = "flow_progress"
) -> list[dict[str, Any]]:
    """The events that are roll-ups of several events."""
    return [event for event in events if "rolled_up" in event["details"].get(kind, {})]


def total(folder: Path) -> float:
    """The number of events of a log, with those in roll-ups."""
    state = ObservedUpdate()
    for body in lines_of(folder):
        if (event := event_of(body)) is not None:
            state(event)
    (events,) = [
        series for series in metric_series(state) if series.metric.name == "penstock_events_total"
    ]
    return sum(events.values.values())


def rounded(metrics: list[Series]) -> dict[Any, Any]:
    """The values of metrics by name and labels, as exact as sums of floats are."""
    return {
        (series.metric.name, labels): (value.counts, round(value.total, 6))
        if isinstance(value, Histogram)
        else round(value, 6)
        for series in metrics
        for labels, value in series.values.items()
    }


def facts(folder: Path) -> dict[str, Any]:
    """The values that metrics, status, dashboard and the next update read from a log."""
    state, model = ObservedUpdate(), UpdateModel()
    now = START + timedelta(days=1)
    for body in lines_of(folder):
        event = event_of_json(body)
        state(event)
        model.fold(event)
    status, metrics = status_json(state, now), metric_series(state)
    for flow in status["flows"]:
        # A roll-up changes the number of recent batches.
        flow["recent_progress"] = flow["recent_progress"][-1:]
        if flow["lag"] is not None:
            flow["lag"].pop("catch_up_seconds")
    result: dict[str, Any] = {"status": status, "head": {**model.head(), "events": None}}
    result["metrics"] = rounded(metrics)
    for name in ("c.s.silver", "c.s.view", "out"):
        dataset = model.dataset(name)
        assert dataset is not None
        series = dataset.pop("series") or {}
        rules = series.get("rules", {})
        result[name] = {
            **dataset,
            "rows_out": sum(series.get("rows_out", ())),
            "quarantined": sum(series.get("quarantined", ())),
            "slowest": max(
                (entry for entry in series.get("batch_seconds", ()) if entry), default=None
            ),
            "rule_counts": {key: [sum(c) for c in rule.values()] for key, rule in rules.items()},
        }
    result["busy"] = [entry.get("busy_seconds") for entry in model.outline()["datasets"]]
    result["last"] = {flow.flow_name: last_batch(folder, flow.flow_name) for flow in FLOWS}
    return result
