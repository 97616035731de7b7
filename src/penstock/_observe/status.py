"""What an update does right now, folded from its events into plain JSON values.

More than a terminal shows (`_observe.snapshot`): the figures that Spark reports with each
micro-batch, of every source, state store and watermark. The size does not grow with time.
"""

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock._observe.events import ErrorInfo, Event, FlowStatus
from penstock._observe.lag import lag_sources, lag_summary, problem_of
from penstock._observe.snapshot import FlowView, Snapshot

VERSION = 1
"""Of the JSON form; it changes when a key changes its meaning or goes away."""

RECENT = 20
"""So many micro-batches are kept per flow."""

_NEVER = "1970-01-01T00:00:00"


@dataclass
class _Stream:
    """What is known of one flow beyond its counts."""

    since: datetime | None = None
    status: FlowStatus | None = None
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT))
    progress: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)
    late_rows: int = 0


class StatusFold:
    """Folds the events of one update. Subscribe it to the bus; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._snapshot = Snapshot()
        self._streams: dict[str, _Stream] = {}
        self._since: datetime | None = None
        self._last: datetime | None = None

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        self._snapshot(event)
        with self._lock:
            self._last = event.timestamp
            body = event.details.get(event.event_type, {})
            flow = event.origin.flow_name
            match event.event_type:
                case "update_progress":
                    self._since = event.timestamp
                case "flow_progress" if flow and "metrics" not in body:
                    stream = self._streams.setdefault(flow, _Stream())
                    status = FlowStatus(body["status"])
                    if status is not stream.status:
                        stream.status, stream.since = status, event.timestamp
                case "stream_progress" if flow and "rolled_up" in body:
                    late = body["rolled_up"].get("dropped_by_watermark", {})
                    self._streams.setdefault(flow, _Stream()).late_rows += sum(late.values())
                case "stream_progress" if flow:
                    stream = self._streams.setdefault(flow, _Stream())
                    stream.progress = body.get("progress_json", {})
                    stream.late_rows += _late_rows(stream.progress)
                    stream.recent.append(_batch(stream.progress, event.timestamp))
                case "lag_progress" if flow:
                    self._streams.setdefault(flow, _Stream()).measured = body

    def as_json(self, now: datetime | None = None) -> dict[str, Any]:
        """The state as JSON values; keys as in `docs/monitoring.md`.

        Args:
            now: The moment that durations of what still runs extend to.
        """
        view = self._snapshot.view(now)
        with self._lock:
            flows = []
            for dataset in view.datasets:
                for flow in dataset.flows:
                    stream = self._streams.get(flow.name, _Stream())
                    shown = _flow(flow, stream)
                    shown["rules"] = [
                        {
                            "name": rule.name,
                            "dataset": rule.dataset,
                            "passed": rule.passed,
                            "failed": rule.failed,
                        }
                        for rule in dataset.rules
                    ]
                    flows.append(shown)
            return {
                "version": VERSION,
                "pipeline": view.pipeline_name,
                "update_id": view.update_id,
                "state": None if view.state is None else view.state.value,
                "since": time_text(self._since),
                "started": time_text(view.started),
                "seconds": round(view.duration_seconds, 3),
                "has_ended": view.has_ended,
                "message": view.message,
                "continuous": bool(view.properties.get("continuous", False)),
                "error": _error(view.error),
                "warnings": list(view.warnings),
                "last_event": time_text(self._last),
                "flows": flows,
            }


def time_text(moment: datetime | None) -> str | None:
    """A moment as ISO text in UTC with milliseconds."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _flow(view: FlowView, stream: _Stream) -> dict[str, Any]:
    batches = list(stream.recent)
    return {
        "flow": view.name,
        "target": view.target,
        "state": view.state.value,
        "since": time_text(stream.since),
        "batches": view.batches,
        "batch_id": view.batch_id,
        "rows": view.rows,
        "quarantined": view.quarantined,
        "dropped": view.dropped,
        "late_rows": stream.late_rows,
        "last_progress": batches[-1] if batches else None,
        "recent_progress": batches,
        "lag": _lag(view, stream, batches),
        "state_store": _state_store(stream.progress),
        "watermark": _watermark(stream.progress),
        "exception": _error(view.last_error),
    }


def _error(error: ErrorInfo | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {
        "condition": error.condition,
        "class_name": error.class_name,
        "message": error.message,
        "fatal": error.fatal,
    }


def _batch(progress: Mapping[str, Any], moment: datetime) -> dict[str, Any]:
    durations = progress.get("durationMs") or {}
    return {
        "batch_id": progress.get("batchId"),
        "ended": time_text(moment),
        "input_rows": progress.get("numInputRows", 0),
        "seconds": round(durations.get("triggerExecution", 0) / 1000, 3),
        "input_rows_per_second": _number(progress.get("inputRowsPerSecond")),
        "processed_rows_per_second": _number(progress.get("processedRowsPerSecond")),
        "durations_ms": dict(durations),
    }


def _lag(view: FlowView, stream: _Stream, batches: list[dict[str, Any]]) -> dict[str, Any] | None:
    progress = stream.progress
    if not progress:
        return None
    sources = lag_sources(progress, stream.measured)
    seconds = _seconds(batches)
    rows = sum(batch["input_rows"] for batch in batches)
    rate = rows / seconds if rows and seconds else None
    newest = moment((progress.get("eventTime") or {}).get("max"))
    at = moment(progress.get("timestamp"))
    # What the last batch saw is not true any more of a source that has gone silent since.
    records = None if problem_of(sources) else view.lag
    return {
        "records": records,
        "catch_up_seconds": None if records is None else _catch_up(records, rate),
        "event_time_seconds": _between(newest, at),
        "falls_behind": _falls_behind(batches),
        "measured_at": stream.measured.get("measured_at"),
        **lag_summary(sources),
        "sources": sources,
    }


def _catch_up(records: int, rate: float | None) -> float | None:
    if records == 0:
        return 0.0
    return None if rate is None else round(records / rate, 1)


def _seconds(batches: list[dict[str, Any]]) -> float:
    return float(sum(batch["seconds"] for batch in batches))


def _falls_behind(batches: list[dict[str, Any]]) -> bool | None:
    """Whether more rows come in than are processed, over the last batches that had some."""
    known = [
        (batch["input_rows_per_second"], batch["processed_rows_per_second"])
        for batch in batches[-5:]
        if batch["input_rows"] and batch["input_rows_per_second"] is not None
    ]
    if len(known) < 3:
        return None
    return all(done is not None and come > done for come, done in known)


def _state_store(progress: Mapping[str, Any]) -> dict[str, Any] | None:
    operators = [
        {
            "operator": operator.get("operatorName", ""),
            "rows": operator.get("numRowsTotal", 0),
            "rows_updated": operator.get("numRowsUpdated", 0),
            "rows_removed": operator.get("numRowsRemoved", 0),
            "rows_dropped_by_watermark": operator.get("numRowsDroppedByWatermark", 0),
            "bytes": operator.get("memoryUsedBytes", 0),
        }
        for operator in progress.get("stateOperators") or ()
    ]
    if not operators:
        return None
    return {
        "rows": sum(operator["rows"] for operator in operators),
        "bytes": sum(operator["bytes"] for operator in operators),
        "operators": operators,
    }


def _watermark(progress: Mapping[str, Any]) -> dict[str, Any] | None:
    times = progress.get("eventTime") or {}
    text = times.get("watermark")
    if text is None:
        return None
    known = None if text.startswith(_NEVER) else moment(text)
    return {
        "value": time_text(known),
        "delay_seconds": _between(known, moment(progress.get("timestamp"))),
        "event_time_max": time_text(moment(times.get("max"))),
    }


def _late_rows(progress: Mapping[str, Any]) -> int:
    return sum(
        operator.get("numRowsDroppedByWatermark", 0)
        for operator in progress.get("stateOperators") or ()
    )


def moment(text: Any) -> datetime | None:
    """A time of Spark's progress; `None` for anything else."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _between(earlier: datetime | None, later: datetime | None) -> float | None:
    if earlier is None or later is None:
        return None
    return round((later - earlier).total_seconds(), 3)


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(float(value), 3)
