import json
from datetime import UTC, datetime

import pytest
from made_events import flow_progress

from penstock._observe.codec import encode, event_json, event_of_line
from penstock._observe.events import ErrorInfo, EventOrigin, FlowMetrics, FlowStatus


def test_an_event_is_the_same_when_written_and_read_again():
    origin = EventOrigin(pipeline_name="p", update_id="u", dataset_name="c.s.t", flow_name="t")
    event = flow_progress(
        EventOrigin(**{**vars(origin), "batch_id": 4}),
        FlowStatus.FAILED,
        "it failed",
        metrics=FlowMetrics(num_input_rows=3),
        error=ErrorInfo(condition="C", class_name="E", message="why", fatal=False),
    )
    read = event_of_line(encode(event_json(event, instance="i", seq_no=0)))
    assert read is not None
    moment = event.timestamp.astimezone(UTC)
    assert read.timestamp == moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    assert vars(read) | {"timestamp": 0} == vars(event) | {"timestamp": 0}


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
def test_there_is_no_event_when_a_line_is_not_one(line):
    assert event_of_line(line) is None


def test_an_event_of_a_later_version_is_read_when_it_knows_more():
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
