"""What other processes see of an update: folded from events, and through the file."""

import json
import os
import threading
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
    found = [
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
        found += [
            flow_progress(origin, FlowStatus.RUNNING, "", metrics=metrics, expectations=[rule]),
            stream_progress(origin, progress(number)),
            flow_progress(
                origin,
                FlowStatus.RUNNING,
                "",
                metrics=FlowMetrics(num_input_rows=100, batch_duration_ms=4000, backlog_records=35),
            ),
        ]
    return found


def fold(found: list[Event]) -> dict[str, Any]:
    status = ObservedUpdate()
    for event in found:
        status(event)
    return status_json(status)


def settings(tmp_path: Path) -> PipelineSettings:
    return PipelineSettings(name="shop", storage=tmp_path.as_uri(), root=str(tmp_path))


def test_a_flow_shows_what_its_batches_did():
    found = fold(events())
    assert (found["state"], found["continuous"], found["has_ended"]) == ("RUNNING", True, False)
    (flow,) = found["flows"]
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


def test_lag_is_told_per_partition_and_as_work():
    lag = fold(events())["flows"][0]["lag"]
    assert lag["records"] == 35
    # 300 rows took 12 seconds.
    assert lag["catch_up_seconds"] == 1.4
    assert lag["event_time_seconds"] == 5.0
    assert lag["falls_behind"] is True
    (source,) = lag["sources"]
    behind = {part["partition"]: part["records"] for part in source["partitions"]}
    assert behind == {"0": 30, "1": 0, "2": 5}


def test_what_is_not_known_is_null():
    found = fold(events(0))
    (flow,) = found["flows"]
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


def test_the_status_does_not_grow():
    found = fold(events(RECENT + 5))
    assert len(found["flows"][0]["recent_progress"]) == RECENT


def test_an_error_is_shown_with_its_way_out():
    info = ErrorInfo(condition="PATH_NOT_FOUND", class_name="X", message="gone\n  hint: mount it")
    failed = [
        flow_progress(FLOW, FlowStatus.FAILED, "failed", error=info),
        update_progress(UPDATE, UpdateState.FAILED, "failed", error=info),
    ]
    found = fold([*events(1), *failed])
    assert found["has_ended"] is True
    assert found["error"]["condition"] == "PATH_NOT_FOUND"
    assert "hint: mount it" in found["flows"][0]["exception"]["message"]


def _wait(condition: Any) -> None:
    deadline = datetime.now(UTC) + timedelta(seconds=20)
    pause = threading.Event()
    while not condition():
        assert datetime.now(UTC) < deadline
        pause.wait(0.01)


def test_the_file_is_whole_and_current_while_events_come(tmp_path: Path):
    place = settings(tmp_path)
    log, state = EventLog(event_directory(place)), ObservedUpdate()
    file = StatusFile(status_path(place), state, pause_seconds=0.01)
    seen: list[int] = []
    try:
        for event in events(30):
            log(event)
            state(event)
            file(event)
            with_file = read_status(place)
            assert with_file is not None
            seen.append(len(with_file["flows"]))
        # The file may still be that of an event before the first flow.
        _wait(lambda: [f["batch_id"] for f in (read_status(place) or {})["flows"]] == [29])
        # Written by a thread, and no draft is left behind.
        written = json.loads(status_path(place).read_bytes())
        assert written["process_id"] == os.getpid()
    finally:
        file.close()
        log.close()
    assert os.listdir(status_path(place).parent) == ["status.json"]  # noqa: PTH208


def test_the_event_log_tells_when_there_is_no_file(tmp_path: Path):
    place = settings(tmp_path)
    assert read_status(place) is None
    log = EventLog(event_directory(place))
    for event in events(2):
        log(event)
    log.close()
    from_log = read_status(place)
    assert from_log is not None
    assert from_log["flows"][0]["rows"] == 194
    status_path(place).parent.mkdir()
    status_path(place).write_text('{"update_id": "another"', encoding="utf-8")
    again = read_status(place)
    assert again is not None
    assert again["flows"] == from_log["flows"]


def test_a_command_is_shown_only_by_its_id(tmp_path: Path):
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


def test_a_disk_that_is_gone_harms_nothing(tmp_path: Path):
    (tmp_path / "state").write_text("in the way", encoding="utf-8")
    file = StatusFile(status_path(settings(tmp_path)), ObservedUpdate(), pause_seconds=0.01)
    for event in events():
        file(event)
    file.close()


def test_an_update_is_alive_while_its_lease_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.yaml").write_text("name: shop\nstorage: .\n", encoding="utf-8")
    assert monitoring.status() is None
    log = EventLog(event_directory(settings(tmp_path)))
    for event in events(1):
        log(event)
    log.close()
    place = pipeline_lease_path(tmp_path.as_uri())
    with Lease.acquire(place, holder={"update": "8c1f"}):
        found = monitoring.status()
        assert found is not None
        assert (found["is_alive"], found["process_id"]) == (True, os.getpid())
    found = monitoring.status(tmp_path)
    assert found is not None
    assert (found["is_alive"], found["process_id"], found["state"]) == (False, None, "RUNNING")
    with Lease.acquire(place, holder={"update": "a later one"}):
        later = monitoring.status()
        assert later is not None
        assert later["is_alive"] is False
