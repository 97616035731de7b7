"""The status of an update in other processes: from events, and from the status file."""

import json
import os
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_events import definition, flow_progress, stream_progress, update_progress

from penstock import monitoring
from penstock._model.pipeline import PipelineSettings
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowStatus,
    UpdateState,
)
from penstock._observe.log import EventLog, event_directory
from penstock._observe.state import RECENT, ObservedUpdate
from penstock._observe.status_file import StatusFile, read_status, status_json, status_path
from penstock._repair.journal import recording
from penstock._runtime.lease import Lease
from penstock._runtime.lease_paths import pipeline_lease_path

UPDATE = EventOrigin(pipeline_name="shop", update_id="8c1f")
FLOW = EventOrigin(
    pipeline_name="shop", update_id="8c1f", dataset_name="c.s.silver", flow_name="silver"
)


def progress(number: int, **more: Any) -> dict[str, Any]:
    return {
        "batchId": number,
        "timestamp": "2026-03-04T10:00:10.000Z",
        "numInputRows": 100,
        "inputRowsPerSecond": 50.0,
        "processedRowsPerSecond": 25.0,
        "durationMs": {"addBatch": 3900, "triggerExecution": 4000},
        "eventTime": {
            "max": "2026-03-04T10:00:05.000Z",
            "watermark": "2026-03-04T09:50:05.000Z",
        },
        "stateOperators": [
            {
                "operatorName": "stateStoreSave",
                "numRowsTotal": 7,
                "numRowsUpdated": 2,
                "numRowsRemoved": 1,
                "numRowsDroppedByWatermark": 3,
                "memoryUsedBytes": 4096,
            }
        ],
        "sources": [
            {
                "description": "KafkaV2[Subscribe[orders]]",
                "numInputRows": 100,
                "endOffset": {"orders": {"0": 60, "1": 40}},
                "latestOffset": {"orders": {"0": 90, "1": 40, "2": 5}},
                "metrics": {"maxOffsetsBehindLatest": "30"},
            }
        ],
        **more,
    }


def events(batches: int = 3) -> list[Event]:
    history = [
        definition("create_update", UPDATE, "", {"continuous": True}),
        update_progress(UPDATE, UpdateState.RUNNING, "running"),
        flow_progress(FLOW, FlowStatus.RUNNING, "started"),
    ]
    for number in range(batches):
        origin = EventOrigin(
            pipeline_name="shop",
            update_id="8c1f",
            dataset_name="c.s.silver",
            flow_name="silver",
            batch_id=number,
        )
        metrics = FlowMetrics(num_output_rows=97, dropped_records=3, quarantined_records=3)
        rule = ExpectationCounts(
            name="positive", dataset="c.s.silver", passed_records=97, failed_records=3
        )
        history += [
            flow_progress(origin, FlowStatus.RUNNING, "", metrics=metrics, expectations=[rule]),
            stream_progress(origin, progress(number)),
            flow_progress(
                origin,
                FlowStatus.RUNNING,
                "",
                metrics=FlowMetrics(num_input_rows=100, batch_duration_ms=4000, backlog_records=35),
            ),
        ]
    return history


def fold(history: list[Event]) -> dict[str, Any]:
    status = ObservedUpdate()
    for event in history:
        status(event)
    return status_json(status)


def settings(tmp_path: Path) -> PipelineSettings:
    return PipelineSettings(name="shop", storage=tmp_path.as_uri(), root=str(tmp_path))


def test_flow_status_has_the_sums_of_its_batches():
    status = fold(events())
    assert (status["state"], status["continuous"], status["has_ended"]) == ("RUNNING", True, False)
    (flow,) = status["flows"]
    counts = {key: flow[key] for key in ("state", "batches", "batch_id", "rows", "quarantined")}
    assert counts == {
        "state": "RUNNING",
        "batches": 3,
        "batch_id": 2,
        "rows": 291,
        "quarantined": 9,
    }
    assert flow["late_rows"] == 9
    assert flow["rules"] == [
        {"name": "positive", "dataset": "c.s.silver", "passed": 291, "failed": 9}
    ]
    assert flow["last_progress"]["input_rows_per_second"] == 50.0
    assert [batch["batch_id"] for batch in flow["recent_progress"]] == [0, 1, 2]
    assert (flow["state_store"]["rows"], flow["state_store"]["bytes"]) == (7, 4096)
    assert flow["watermark"] == {
        "value": "2026-03-04T09:50:05.000Z",
        "delay_seconds": 605.0,
        "event_time_max": "2026-03-04T10:00:05.000Z",
    }


def test_lag_is_shown_per_partition_and_as_catch_up_time():
    lag = fold(events())["flows"][0]["lag"]
    assert lag["records"] == 35
    # 300 rows took 12 seconds.
    assert lag["catch_up_seconds"] == 1.4
    assert lag["event_time_seconds"] == 5.0
    assert lag["falls_behind"] is True
    (source,) = lag["sources"]
    behind = {part["partition"]: part["records"] for part in source["partitions"]}
    assert behind == {"0": 30, "1": 0, "2": 5}


def test_unknown_values_are_null():
    status = fold(events(0))
    (flow,) = status["flows"]
    assert (flow["lag"], flow["watermark"], flow["state_store"]) == (None, None, None)
    strange = progress(
        0,
        inputRowsPerSecond=float("nan"),
        eventTime={"watermark": "1970-01-01T00:00:00.000Z"},
        sources=[{"endOffset": 5, "latestOffset": None}, {"endOffset": {"a": 1}}],
        stateOperators=None,
    )
    origin = EventOrigin(**{**FLOW.__dict__, "batch_id": 0})
    (flow,) = fold([*events(0), stream_progress(origin, strange)])["flows"]
    assert flow["last_progress"]["input_rows_per_second"] is None
    assert flow["watermark"] == {"value": None, "delay_seconds": None, "event_time_max": None}
    assert [source["partitions"] for source in flow["lag"]["sources"]] == [[], []]
    json.dumps(flow, allow_nan=False)


def test_recent_progress_is_limited():
    status = fold(events(RECENT + 5))
    assert len(status["flows"][0]["recent_progress"]) == RECENT


def test_error_is_shown_with_its_hint():
    info = ErrorInfo(condition="PATH_NOT_FOUND", class_name="X", message="gone\n  hint: mount it")
    failed = [
        flow_progress(FLOW, FlowStatus.FAILED, "failed", error=info),
        update_progress(UPDATE, UpdateState.FAILED, "failed", error=info),
    ]
    status = fold([*events(1), *failed])
    assert status["has_ended"] is True
    assert status["error"]["condition"] == "PATH_NOT_FOUND"
    assert "hint: mount it" in status["flows"][0]["exception"]["message"]


def _wait(condition: Any) -> None:
    deadline = datetime.now(UTC) + timedelta(seconds=20)
    pause = threading.Event()
    while not condition():
        assert datetime.now(UTC) < deadline
        pause.wait(0.01)


def test_status_file_is_current_while_events_arrive(tmp_path: Path):
    pipeline = settings(tmp_path)
    log, state = EventLog(event_directory(pipeline)), ObservedUpdate()
    file = StatusFile(status_path(pipeline), state, pause_seconds=0.01)
    try:
        for event in events(30):
            log(event)
            state(event)
            file(event)
            status = read_status(pipeline)
            assert status is not None
            assert "flows" in status
        # The file may have been written before the first flow started.
        _wait(lambda: [f["batch_id"] for f in (read_status(pipeline) or {})["flows"]] == [29])
        # The file is written by a thread of this process.
        written = json.loads(status_path(pipeline).read_bytes())
        assert written["process_id"] == os.getpid()
    finally:
        file.close()
        log.close()
    assert os.listdir(status_path(pipeline).parent) == ["status.json"]  # noqa: PTH208


def test_status_is_read_from_the_event_log_without_a_status_file(tmp_path: Path):
    pipeline = settings(tmp_path)
    assert read_status(pipeline) is None
    log = EventLog(event_directory(pipeline))
    for event in events(2):
        log(event)
    log.close()
    from_log = read_status(pipeline)
    assert from_log is not None
    assert from_log["flows"][0]["rows"] == 194
    status_path(pipeline).parent.mkdir()
    status_path(pipeline).write_text('{"update_id": "another"', encoding="utf-8")
    again = read_status(pipeline)
    assert again is not None
    assert again["flows"] == from_log["flows"]


def test_status_of_a_command_is_shown_only_by_its_id(tmp_path: Path):
    log = EventLog(event_directory(settings(tmp_path)))
    for event in [*events(), update_progress(UPDATE, UpdateState.FAILED, "over")]:
        log(event)
    log.close()
    own = settings(tmp_path)
    pipeline: Any = SimpleNamespace(settings=own, update_id="c0de")
    with recording(pipeline, None, command="maintain", properties={}, text=""):
        assert read_status(own)["update_id"] == "8c1f"
    assert read_status(own)["state"] == "FAILED"
    assert read_status(own, update="c0de")["state"] == "COMPLETED"


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_error_of_writing_the_status_file_is_ignored(tmp_path: Path):
    (tmp_path / "state").write_text("in the way", encoding="utf-8")
    file = StatusFile(status_path(settings(tmp_path)), ObservedUpdate(), pause_seconds=0.01)
    for event in events():
        file(event)
    file.close()
    assert (tmp_path / "state").read_text(encoding="utf-8") == "in the way"


def _refuse(log: EventLog) -> None:
    """Record an update that was refused because another machine has the lease."""
    info = ErrorInfo(condition="LEASE_HELD", class_name="X", message="another update writes here")
    event = update_progress(replace(UPDATE, update_id="0bad"), UpdateState.FAILED, "refused")
    log(replace(event, error=info))
    log.close()


def test_an_update_is_alive_while_its_lease_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.yaml").write_text("name: shop\nstorage: .\n", encoding="utf-8")
    assert monitoring.status() is None
    log = EventLog(event_directory(settings(tmp_path)))
    for event in events(1):
        log(replace(event, timestamp=datetime(2026, 1, 1, tzinfo=UTC)))
    log.close()
    lease_path = pipeline_lease_path(tmp_path.as_uri())
    with Lease.acquire(lease_path, holder={"update": "8c1f"}):
        status = monitoring.status()
        assert status is not None
        assert (status["is_alive"], status["process_id"]) == (True, os.getpid())
        as_written = json.dumps({**status, "seconds": 0.5})
        status_path(settings(tmp_path)).write_text(as_written, encoding="utf-8")
        status = monitoring.status()
        assert status is not None
        assert status["seconds"] > 3600  # counted until now, not until the file was written
        _refuse(EventLog(event_directory(settings(tmp_path))))
        running = monitoring.status()
        assert running is not None
        assert (running["update_id"], running["is_alive"]) == ("8c1f", True)
    status = monitoring.status(tmp_path, update="8c1f")
    assert status is not None
    assert (status["is_alive"], status["process_id"], status["state"]) == (False, None, "RUNNING")
    assert status["seconds"] == 0  # counted until the last event
    with Lease.acquire(lease_path, holder={"update": "a later one"}):
        later = monitoring.status()
        assert later is not None
        assert (later["update_id"], later["is_alive"]) == ("0bad", False)
