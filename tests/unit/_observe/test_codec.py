import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock._observe.codec import _BODIES, encode, event_json, event_of_line
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    FlowMetrics,
    FlowProgress,
    FlowStatus,
    Level,
    PlanningInformation,
    StreamProgress,
    UnknownBody,
    UpdateState,
)
from penstock._observe.state import ObservedUpdate

RECORDED = Path(__file__).parent / "logs" / "version-2.jsonl"
LINES = RECORDED.read_bytes().splitlines()


def written(event: Event, line: bytes) -> bytes:
    """Encode an event with the sequence number of a recorded line."""
    return encode(event_json(event, **json.loads(line)["sequence"]["data_plane_id"]))


def test_recorded_lines_are_the_same_bytes_when_written_again():
    events = [event_of_line(line) for line in LINES]
    known = [event for event in events if event is not None]
    assert [written(event, line) for event, line in zip(known, LINES, strict=True)] == LINES
    # The recorded lines have events of all types, including roll-ups of many micro-batches.
    assert {type(event.body) for event in known} == set(_BODIES.values())
    rolled = [event.body for event in known if getattr(event.body, "rolled_up", None) is not None]
    assert {type(body) for body in rolled} == {FlowProgress, StreamProgress}


def test_values_of_a_line_have_their_types():
    bodies = {event.event_type: event.body for event in map(event_of_line, LINES) if event}
    alert, lag = bodies["alert_progress"], bodies["lag_progress"]
    assert (alert.value, alert.not_told, alert.suppressed) == (None, ("a: b",), 3)
    assert (lag.seconds_behind, lag.sources[0]["kind"]) == (7.5, "kafka")
    assert bodies["planning_information"] == PlanningInformation("NO_OP", "no source changed")
    assert bodies["migration_progress"].figures == {"rows": 7}
    assert bodies["flow_definition"].target == "c.s.silver"
    assert bodies["update_progress"].state is UpdateState.FAILED


@pytest.mark.parametrize(
    ("event_type", "body"),
    [
        ("news", {"a": 1}),
        ("update_progress", {"state": "DANCING"}),
        ("update_progress", {}),
        ("flow_progress", {"status": "RUNNING", "metrics": {"num_output_rows": "many"}}),
        ("flow_progress", {"status": "RUNNING", "metrics": {"num_output_rows": True}}),
        (
            "flow_progress",
            {"status": "RUNNING", "metrics": {}, "data_quality": {"late_records": 1.5}},
        ),
        ("flow_progress", {"status": "RUNNING", "data_quality": {"expectations": [{"name": "r"}]}}),
        (
            "flow_progress",
            {"status": "RUNNING", "metrics": {}, "rolled_up": {"batch_durations": 3}},
        ),
        ("dataset_definition", {"expectations": ["amount > 0"]}),
        ("stream_progress", {"progress_json": "text"}),
        ("lag_progress", {"sources": 3}),
        ("column_lineage", {"sources": [], "columns": {"a": [[3, "x", "IDENTITY"]]}}),
        ("planning_information", {"technique_information": 5}),
    ],
)
def test_invalid_and_unknown_bodies_are_unchanged(event_type, body):
    line = json.loads(LINES[0]) | {"event_type": event_type, "details": {event_type: body}}
    recorded = encode(line | {"level": "WARN", "maturity_level": "EVOLVING"})
    event = event_of_line(recorded)
    assert event is not None
    assert isinstance(event.body, UnknownBody)
    assert (event.event_type, event.level) == (event_type, Level.WARN)
    assert written(event, recorded) == recorded
    # Readers only count the event.
    update = ObservedUpdate()
    update(event)
    assert update.events == {"WARN": 1}
    assert update.flows == update.datasets == {}


def test_event_is_unchanged_after_writing_and_reading():
    origin = EventOrigin(
        pipeline_name="p", update_id="u", dataset_name="c.s.t", flow_name="t", batch_id=4
    )
    event = Event(
        origin,
        FlowProgress(FlowStatus.FAILED, FlowMetrics(num_input_rows=3)),
        "it failed",
        error=ErrorInfo(condition="C", class_name="E", message="why", fatal=False),
    )
    read = event_of_line(encode(event_json(event, instance="i", seq_no=0)))
    assert read is not None
    timestamp = event.timestamp.astimezone(UTC)
    assert read.timestamp == timestamp.replace(microsecond=timestamp.microsecond // 1000 * 1000)
    assert replace(read, timestamp=event.timestamp) == event


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"id": "torn',
        b"[]",
        b"{}",
        b'{"event_type": "x", "timestamp": "yesterday"}',
        b'{"event_type": "x", "timestamp": "2026-01-01T00:00:00Z", "level": "LOUD"}',
        b'{"event_type": "x", "timestamp": "2026-01-01T00:00:00Z", "details": {"x": []}}',
    ],
)
def test_invalid_line_has_no_event(line):
    assert event_of_line(line) is None


def test_event_of_a_newer_version_is_read():
    body = {
        "event_type": "news",
        "timestamp": "2026-01-01T00:00:00Z",
        "origin": {"flow_name": "f", "colour": "red"},
        "details": {"news": {"a": 1}},
        "weight": 3,
    }
    event = event_of_line(json.dumps(body).encode())
    assert event is not None
    assert (event.event_type, event.origin.flow_name) == ("news", "f")
    assert event.timestamp == datetime(2026, 1, 1, tzinfo=UTC)
