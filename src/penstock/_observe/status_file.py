"""The status of an update as JSON values, and the file from which other processes read it.

More detailed than the terminal (`_observe.snapshot`): Spark's metrics per micro-batch, source,
state store and watermark. A background thread writes the file at most twice a second and once at
the end, so no event waits for the disk. The file is replaced atomically; its size is bounded.
"""

import json
import math
import os
import socket
import threading
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock._model.pipeline import PipelineSettings
from penstock._observe import codec
from penstock._observe.codec import encode
from penstock._observe.events import ErrorInfo, Event
from penstock._observe.lag import lag_sources, lag_summary, problem_of
from penstock._observe.log import event_directory, recorded_events
from penstock._observe.segments import LATEST, select_updates
from penstock._observe.snapshot import update_view
from penstock._observe.spark_progress import (
    Progress,
    began_at,
    durations_of,
    event_times,
    timestamp_of,
    watermark_of,
)
from penstock._observe.state import ObservedFlow, ObservedUpdate

VERSION = 1
"""Version of the JSON form; increased if a key is removed or changes its meaning."""


def status_json(update: ObservedUpdate, now: datetime | None = None) -> dict[str, Any]:
    """The status as JSON values; keys as in `docs/monitoring.md`. Thread-safe."""
    with update.lock:
        view = update_view(update, now)
        flows = []
        for dataset in view.datasets:
            for name in dataset.flows:
                rules = [asdict(rule) for rule in dataset.rules]
                flows.append({**_flow(update.flows[name]), "rules": rules})
        return {
            "version": VERSION,
            "pipeline": view.pipeline_name,
            "update_id": view.update_id,
            "state": None if view.state is None else view.state.value,
            "since": _time_text(update.since),
            "started": _time_text(view.started),
            "seconds": round(view.duration_seconds, 3),
            "has_ended": view.has_ended,
            "message": view.message,
            "continuous": bool(view.properties.get("continuous", False)),
            "error": _error(view.error),
            "warnings": list(view.warnings),
            "last_event": _time_text(update.last_event),
            "flows": flows,
        }


def _time_text(timestamp: datetime | None) -> str | None:
    return None if timestamp is None else codec.time_text(timestamp)


def _flow(flow: ObservedFlow) -> dict[str, Any]:
    batches = [_batch(progress, at) for at, progress in flow.reports]
    return {
        "flow": flow.name,
        "target": flow.target,
        "state": flow.state.value,
        "since": _time_text(flow.since),
        "batches": flow.batches or 0,
        "batch_id": flow.batch_id,
        "rows": flow.rows,
        "quarantined": flow.count("quarantined_records"),
        "dropped": flow.count("dropped_records"),
        "late_rows": sum(flow.dropped_by_watermark.values()),
        "last_progress": batches[-1] if batches else None,
        "recent_progress": batches,
        "lag": _lag(flow, batches),
        "state_store": _state_store(flow.progress),
        "watermark": _watermark(flow.progress),
        "exception": _error(flow.last_error),
    }


def _error(error: ErrorInfo | None) -> dict[str, Any] | None:
    return None if error is None else asdict(error)


def _batch(progress: Progress, at: datetime) -> dict[str, Any]:
    durations = durations_of(progress)
    return {
        "batch_id": progress.get("batchId"),
        "ended": codec.time_text(at),
        "input_rows": progress.get("numInputRows", 0),
        "seconds": round(durations.get("triggerExecution", 0) / 1000, 3),
        "input_rows_per_second": _number(progress.get("inputRowsPerSecond")),
        "processed_rows_per_second": _number(progress.get("processedRowsPerSecond")),
        "durations_ms": dict(durations),
    }


def _lag(flow: ObservedFlow, batches: list[dict[str, Any]]) -> dict[str, Any] | None:
    progress, measured = flow.progress, flow.lag
    if not progress:
        return None
    sources = lag_sources(progress, measured)
    seconds = sum(batch["seconds"] for batch in batches)
    rows = sum(batch["input_rows"] for batch in batches)
    rate = rows / seconds if rows and seconds else None
    newest = timestamp_of(event_times(progress).get("max"))
    # The backlog of the last batch is outdated if a source has stopped responding since.
    records = None if problem_of(sources) else flow.backlog
    return {
        "records": records,
        "catch_up_seconds": None if records is None else _catch_up(records, rate),
        "event_time_seconds": _between(newest, began_at(progress)),
        "falls_behind": _falls_behind(batches),
        "measured_at": None if measured is None else measured.measured_at,
        **lag_summary(sources),
        "sources": sources,
    }


def _catch_up(records: int, rate: float | None) -> float | None:
    if records == 0:
        return 0.0
    return None if rate is None else round(records / rate, 1)


def _falls_behind(batches: list[dict[str, Any]]) -> bool | None:
    """Whether the input rate exceeded the processing rate over the last batches with rows."""
    known = [
        (batch["input_rows_per_second"], batch["processed_rows_per_second"])
        for batch in batches[-5:]
        if batch["input_rows"] and batch["input_rows_per_second"] is not None
    ]
    if len(known) < 3:
        return None
    return all(done is not None and come > done for come, done in known)


def _state_store(progress: Progress) -> dict[str, Any] | None:
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


def _watermark(progress: Progress) -> dict[str, Any] | None:
    times, watermark = event_times(progress), watermark_of(progress)
    if times.get("watermark") is None:
        return None
    return {
        "value": _time_text(watermark),
        "delay_seconds": _between(watermark, began_at(progress)),
        "event_time_max": _time_text(timestamp_of(times.get("max"))),
    }


def _between(earlier: datetime | None, later: datetime | None) -> float | None:
    if earlier is None or later is None:
        return None
    return round((later - earlier).total_seconds(), 3)


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(float(value), 3)


_PAUSE_SECONDS = 0.5
_NAME = "status.json"


def status_path(settings: PipelineSettings) -> Path:
    """Path of the file: in `state`, next to the folder of the event log."""
    return event_directory(settings).parent / "state" / _NAME


class StatusFile:
    """Writes the status file of one update. Subscribe it to the bus; close it at the end.

    `update` must be subscribed to the bus before. A full or missing disk affects only the file.
    """

    def __init__(
        self, path: Path, update: ObservedUpdate, *, pause_seconds: float = _PAUSE_SECONDS
    ) -> None:
        self._path = path
        self._pause_seconds = pause_seconds
        self._update = update
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="status file", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Schedule a write; never blocks."""
        self._changed.set()

    def close(self) -> None:
        """Write the last status and stop. Idempotent."""
        self._closing.set()
        self._changed.set()
        self._thread.join(timeout=10.0)

    def _keep(self) -> None:
        while not self._closing.is_set():
            self._changed.wait()
            self._changed.clear()
            self._write()
            self._closing.wait(self._pause_seconds)
        self._write()

    def _write(self) -> None:
        mine = {"process_id": os.getpid(), "host": socket.gethostname()}
        body = {**status_json(self._update), **mine}
        # In the same folder, so that the replacement is atomic.
        draft = self._path.with_name(f".{_NAME}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(encode(body) + b"\n")
            draft.replace(self._path)
        except OSError:
            with suppress(OSError):
                draft.unlink()


def read_status(settings: PipelineSettings, *, update: str = LATEST) -> dict[str, Any] | None:
    """The status of an update (`latest`, an id or a unique prefix); `None` if it does not exist.

    Read from the file if it is about that update, else folded from the event log. Does not check
    whether the process is still alive.
    """
    directory = event_directory(settings)
    selected = select_updates(directory, update)
    if not selected:
        return None
    update_id = selected[-1].update_id
    with suppress(OSError, ValueError):
        body = json.loads(status_path(settings).read_bytes())
        if isinstance(body, dict) and body.get("update_id") == update_id:
            return body
    state = ObservedUpdate()
    for event in recorded_events(directory, update_id):
        state(event)
    return {**status_json(state), "process_id": None, "host": None}


def failed_flows(directory: Path, update_id: str) -> int:
    """How many flows of an update have failed; 0 if the status file is of another update."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        body = json.loads((directory.parent / "state" / _NAME).read_bytes())
        if body["update_id"] == update_id:
            return sum(flow["state"] == "FAILED" for flow in body["flows"])
    return 0


def writer_of(directory: Path) -> tuple[str, int] | None:
    """Update and process id that last wrote the status file of this event log.

    `None` without a status file (a copied or old log), or if another machine or container wrote it.
    """
    try:
        body = json.loads((directory.parent / "state" / _NAME).read_bytes())
        update_id, process_id = body["update_id"], body["process_id"]
        host = body.get("host")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if host is not None and host != socket.gethostname():
        return None
    if not isinstance(update_id, str) or not isinstance(process_id, int) or process_id <= 0:
        return None
    return update_id, process_id
