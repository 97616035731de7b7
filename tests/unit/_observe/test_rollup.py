"""Roll-ups of the event log remove details of single batches and keep all sums."""

import io
import json
import os
import re
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_update import (
    FLOWS,
    GOLD,
    NEVER,
    SMALL,
    START,
    UPDATE,
    VIEW,
    committed,
    facts,
    filled,
    lines_of,
    measured,
    rolled_up,
    rolled_up_events,
    rounded,
    segment_ranges,
    sequence_numbers,
    total,
    update_of,
)
from made_events import (
    definition,
    details,
    flow_progress,
    planning_information,
    update_progress,
)

from penstock._cli.main import main
from penstock._model.pipeline import EventLogSettings
from penstock._observe.codec import encode, event_json, event_of_json
from penstock._observe.compaction import Pace, survey, write
from penstock._observe.events import Event, FlowMetrics, FlowStatus, UpdateState
from penstock._observe.log import SEGMENTS, EventLog, last_batch
from penstock._observe.metrics import metric_series
from penstock._observe.retention import SegmentSize, due
from penstock._observe.snapshot import update_view
from penstock._observe.state import ObservedUpdate


def test_readers_have_equal_results_after_a_roll_up_of_a_running_update(tmp_path: Path):
    log = filled(tmp_path, 250)
    before, whole, count = facts(tmp_path), lines_of(tmp_path), len(update_of(tmp_path).files)
    assert count > 20
    newest = update_of(tmp_path).files[-1].path.read_bytes()
    assert rolled_up(log)
    assert segment_ranges(tmp_path) == [(1, count - 1), (count, count)]
    assert update_of(tmp_path).files[-1].path.read_bytes() == newest
    assert facts(tmp_path) == before
    left = lines_of(tmp_path)
    assert len(left) < len(whole) / 3
    # Events that are not about a single batch keep their position.
    known = {event["id"]: event for event in whole}
    new = {
        event["id"]
        for event in (*rolled_up_events(left), *rolled_up_events(left, "stream_progress"))
    }
    assert {event["id"] for event in left} - set(known) == new
    assert all(event == known[event["id"]] for event in left if event["id"] in known)
    assert sequence_numbers(left) == sorted(sequence_numbers(left))
    for event in whole:
        body = event["details"].get(event["event_type"], {})
        if not {"metrics", "progress_json", "loss"} & set(body) or event["message"]:
            assert event in left
    # A flow has one event per hour, with the sums of the hour.
    (first, *_) = [
        event for event in rolled_up_events(left) if event["origin"]["flow_name"] == "out"
    ]
    assert first["timestamp"] == "2026-03-01T00:59:00.000Z"
    body, more = first["details"]["flow_progress"], first["details"]["flow_progress"]["rolled_up"]
    assert (more["first_batch_id"], more["batches"], first["origin"]["batch_id"]) == (1, 59, 59)
    assert body["metrics"]["num_input_rows"] == sum(range(1, 60))
    assert more["since"] == "2026-03-01T00:01:00.000Z"
    assert sum(more["batch_durations"].values()) == 59
    # A later roll-up also combines the hours that were incomplete.
    for number in range(400, 550):
        for event in (committed(GOLD, number), *measured(GOLD, number)):
            log(replace(event, timestamp=START + timedelta(minutes=number)))
    assert sequence_numbers(lines_of(tmp_path))[-1] == len(whole) + 150 * 4 - 1
    later = facts(tmp_path)
    assert rolled_up(log)
    assert len(segment_ranges(tmp_path)) == 2
    assert facts(tmp_path) == later
    left = lines_of(tmp_path)
    hours = [
        (event["origin"]["flow_name"], event["timestamp"][:13]) for event in rolled_up_events(left)
    ]
    broken = [event for event in whole if event["message"] == "failed"]
    # A failure and the newest commit keep their position between two roll-ups.
    assert len(hours) <= len(set(hours)) + len(broken) + 1
    sums = rolled_up_events(left, "stream_progress")
    hours = [(event["origin"]["flow_name"], event["timestamp"][:13]) for event in sums]
    assert len(hours) == len(set(hours))


def test_oldest_details_are_rolled_up_above_the_size_limit(tmp_path: Path):
    log = filled(tmp_path)
    before, whole = facts(tmp_path), lines_of(tmp_path)
    assert rolled_up(log, SMALL)
    assert facts(tmp_path) == before
    first, *others = update_of(tmp_path).segments()
    assert first.is_roll_up and not any(segment.is_roll_up for segment in others)
    assert 0.09 * 2**20 < sum(segment.path.stat().st_size for segment in others) < 0.125 * 2**20
    newest = [event for event in whole if event["event_type"] == "stream_progress"][-6:]
    assert newest == [e for e in lines_of(tmp_path) if e["event_type"] == "stream_progress"][-6:]
    # No further roll-up is due.
    assert not rolled_up(log, SMALL)
    assert not rolled_up(log, EventLogSettings())
    assert not rolled_up(log, EventLogSettings(keep_progress_days=None, max_progress_mb=None))
    assert not rolled_up(EventLog(tmp_path / "empty"))


def test_only_old_segments_are_rolled_up(tmp_path: Path):
    log = filled(tmp_path)
    before, whole, now = facts(tmp_path), lines_of(tmp_path), time.time()
    files = update_of(tmp_path).files
    for segment in files[:10]:
        os.utime(segment.path, (now - 86400, now - 86400))
    assert rolled_up(log, EventLogSettings(keep_progress_days=0.5))
    assert segment_ranges(tmp_path)[:2] == [(1, 10), (11, 11)]
    assert update_of(tmp_path).files[0].path.stat().st_mtime == pytest.approx(now - 86400, abs=1)
    young = sum(segment.path.read_bytes().count(b"\n") for segment in files[10:])
    assert lines_of(tmp_path)[-young:] == whole[-young:]
    assert facts(tmp_path) == before
    assert len(lines_of(tmp_path)) < len(whole)


def text_of(events: list[Event]) -> bytes:
    return b"".join(
        encode(event_json(event, instance="i", seq_no=number)) + b"\n"
        for number, event in enumerate(events)
    )


def test_counts_of_view_refreshes_are_not_added_up():
    about = replace(UPDATE, dataset_name=VIEW.dataset_name)
    events = [definition("dataset_definition", about, "", {"dataset_type": "MATERIALIZED_VIEW"})]
    events += [committed(VIEW, batch) for batch in range(10)]
    text = text_of(events)
    assert smaller(text, 11, 0) == text
    table = text.replace(b"MATERIALIZED_VIEW", b"STREAMING_TABLE")
    assert len(smaller(table, 11, 0)) < len(table) / 2


def test_only_the_newest_refreshes_of_a_view_are_kept():
    about = replace(UPDATE, dataset_name=VIEW.dataset_name)
    events = [
        definition("dataset_definition", about, "", {"dataset_type": "MATERIALIZED_VIEW"}),
        flow_progress(VIEW, FlowStatus.RUNNING, "running"),
    ]
    for _ in range(10):
        events += [
            planning_information(VIEW, "COMPLETE_RECOMPUTE", "a source changed"),
            flow_progress(
                VIEW, FlowStatus.RUNNING, "changed", metrics=FlowMetrics(num_output_rows=5)
            ),
            flow_progress(VIEW, FlowStatus.COMPLETED, "completed"),
        ]
    events.insert(12, flow_progress(VIEW, FlowStatus.QUEUED, "failed, retry"))
    lines = text_of(events).splitlines(keepends=True)
    assert smaller(b"".join(lines), 26, 3).splitlines(True) == [*lines[:2], lines[12], *lines[-9:]]
    # Events of a table with `replace_where` are kept: readers add up their counts.
    table = b"".join(lines).replace(b"MATERIALIZED_VIEW", b"STREAMING_TABLE")
    assert smaller(table, 26, 3) == table


def test_commands_print_the_same_sums_after_a_roll_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_STORAGE", raising=False)
    log = filled(tmp_path / ".penstock" / "events", 160)

    def printed() -> tuple[Counter[str], Any]:
        sums: Counter[str] = Counter()
        assert main(["quality", "--output", "json"]) == 0
        for line in capsys.readouterr().out.splitlines():
            counts = json.loads(line)
            for key in ("passed", "failed", "batches"):
                sums[f"{counts['rule']} {key}"] += counts[key]
        assert main(["metrics", "--output", "json"]) == 0
        metrics = json.loads(capsys.readouterr().out)
        rounded = [
            (metric["name"], sample["labels"], round(sample.get("value", 0), 6))
            for metric in metrics
            for sample in metric["samples"]
        ]
        return sums, sorted(rounded, key=str)

    before = printed()
    assert rolled_up(log)
    assert printed() == before
    assert main(["events", "--type", "flow_progress", "--dataset", "out"]) == 0
    text = capsys.readouterr().out
    assert "out: batches 1 to 59 in one event, 1,770 rows in, 174 rows written" in text


def test_incomplete_and_foreign_lines_are_unchanged(tmp_path: Path):
    log = filled(tmp_path, 80)
    files = update_of(tmp_path).files
    lines = files[1].path.read_bytes().splitlines(keepends=True)
    count = next(line for line in lines if b'"num_input_rows"' in line)
    progress = next(line for line in lines if b'"progress_json"' in line)
    unknown_lines = [
        b'{"half":"event_type":"stream_progress"}\n',
        b'{"x":1,"event_type":"flow_progress"}\n',
        b"\xff\x00\n",
        count.replace(b'"num_input_rows":', b'"num_new_rows":1,"num_input_rows":'),
        count.replace(b'"num_input_rows":', b'"num_input_rows":1.5,"x":'),
        count.replace(b'"status":"RUNNING"', b'"status":"RUNNING","new":1'),
        count.replace(b'"message":""', b'"message":"reported"'),
        count.replace(b'"message":""', b'"new":1,"message":""'),
        count.replace(b'"status":"RUNNING"', b'"status":"RUNNING","rolled_up":{"events":"x"}'),
        count.replace(
            b'"status":"RUNNING"', b'"status":"RUNNING","rolled_up":{"batches":{"a":0.5}}'
        ),
        b'{"details":{"stream_progress":{"rolled_up":[]}},"event_type":"stream_progress"}\n',
        lines[6][:-40] + b"\n",
        *(re.sub(rb'"sequence":\{.*?\}\},', b"", line) for line in (count, progress)),
    ]
    files[1].path.write_bytes(b"".join([*lines[:10], *unknown_lines, *lines[10:]]) + b'{"torn')
    before, whole = total(tmp_path), lines_of(tmp_path)
    with files[-1].path.open("ab") as file:
        file.write(b'{"also torn')
    assert rolled_up(log)
    text = update_of(tmp_path).files[0].path.read_bytes()
    assert all(line in text for line in unknown_lines)
    # The next segment begins on a new line.
    assert b'\n{"torn\n' in text
    assert files[-1].path.read_bytes().endswith(b'{"also torn')
    assert total(tmp_path) == before
    assert len(lines_of(tmp_path)) < len(whole)


@pytest.mark.parametrize(
    ("most", "days"), [(256.0, 30.0), (1.0, 30.0), (None, 4.0), (None, 0.5), (64.0, None)]
)
def test_roll_up_work_stays_proportional_to_the_size_of_the_log(
    most: float | None, days: float | None
):
    keep = EventLogSettings(keep_progress_days=days, max_progress_mb=most)
    full = most * 2**20 / SEGMENTS if most is not None else float("inf")
    longest = days * 86400 / SEGMENTS if days is not None else float("inf")
    segments, began, written, read, roll_ups = [SegmentSize(0, 0, False)], 0, 0, 0, 0
    for second in range(0, 40 * 86400, 200):
        if segments[-1].size >= full or second - began >= longest:
            began = second
            segments.append(SegmentSize(0, second, False))
        segments[-1] = SegmentSize(segments[-1].size + 700_000, second, False)
        written += 700_000
        if count := due(segments, keep, now=second, is_over=False):
            roll_ups, read = roll_ups + 1, read + sum(segment.size for segment in segments)
            sums = sum(
                segment_before.size if segment_before.is_roll_up else segment_before.size // 50
                for segment_before in segments[:count]
            )
            segments[:count] = [SegmentSize(sums, segments[count - 1].modified, True)]
        detail_bytes = sum(segment.size for segment in segments if not segment.is_roll_up)
        # A large roll-up is read again only when the details have a quarter of its size.
        more = segments[0].size / 4 if segments[0].is_roll_up else 0
        assert most is None or detail_bytes - more < (most + 1) * 2**20
        assert len(segments) < 3 * SEGMENTS + more / full
    assert roll_ups > 5
    assert read < 12 * written
    nothing = EventLogSettings(keep_progress_days=None, max_progress_mb=None)
    assert due(segments, nothing, now=1e12, is_over=True) == 0
    assert due([], keep, now=0, is_over=True) == 0


KINDS = (*["commit"] * 3, *["measured"] * 2, "state", "message", "refresh", "other")


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events of some flows in valid and in invalid orders."""
    about = replace(UPDATE, dataset_name=VIEW.dataset_name)
    view = {"dataset_type": "MATERIALIZED_VIEW"}
    events = [replace(definition("dataset_definition", about, "", view), timestamp=START)]
    batch = dict.fromkeys(range(3), 0)
    minute = 0
    for _ in range(draw(st.integers(10, 40))):
        at = draw(st.integers(0, 2))
        flow = FLOWS[at]
        batch[at] = max(0, batch[at] + draw(st.integers(-1, 2)))
        kind = draw(st.sampled_from(KINDS))
        new = {
            "commit": [committed(flow, batch[at])],
            "measured": measured(flow, batch[at]),
            "state": [flow_progress(flow, draw(st.sampled_from(FlowStatus)), "now")],
            "message": [committed(flow, batch[at], "message")],
            "refresh": [committed(VIEW, batch[at])],
            "other": [update_progress(UPDATE, UpdateState.RUNNING, "")],
        }[kind]
        minute += draw(st.sampled_from([0, 0, 1, 50]))
        events += [replace(event, timestamp=START + timedelta(minutes=minute)) for event in new]
    return events


def counters(text: bytes) -> dict[Any, Any]:
    """The values of metrics and terminal: sums of counters, otherwise the newest value."""
    update = ObservedUpdate()
    states: dict[str, Any] = {}
    for line in text.splitlines():
        event = event_of_json(json.loads(line))
        update(event)
        body = details(event)
        if event.event_type == "flow_progress" and ("metrics" not in body or event.message):
            # Events before a change of the state of a flow stay before it.
            flow = update.flows[event.origin.flow_name]
            states[event.id] = (
                *(flow.batches, flow.rows, flow.count("dropped_records")),
                *(flow.backlog, flow.state),
            )
    flows = {
        name: (flow.batches, flow.batch_id, flow.totals, flow.errors, flow.started, flow.ended)
        for name, flow in update.flows.items()
    }
    views = {
        ("view", view.name): replace(view, rows_per_second=None, batch_seconds=None)
        for view in update_view(update, START + timedelta(days=9)).datasets
    }
    return {**rounded(metric_series(update)), **states, **flows, **views}


def smaller(text: bytes, cut: int, newest: int) -> bytes:
    """The log with the first lines rolled up."""
    lines, out, pace = text.splitlines(keepends=True), io.BytesIO(), Pace(NEVER)
    surveyed = survey(lines, pace=pace)
    surveyed.newest = newest
    write(lines[:cut], out, surveyed, pace=pace)
    return out.getvalue() + b"".join(lines[cut:])


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_sums_are_unchanged_by_any_number_of_roll_ups(
    tmp_path_factory: pytest.TempPathFactory, history: list[Event], data: st.DataObject
):
    text = text_of(history)
    before = counters(text)
    path = tmp_path_factory.mktemp("log", numbered=True) / "20260301T000000000000Z-u.jsonl"
    path.write_bytes(text)
    last = {flow.flow_name: last_batch(path.parent, flow.flow_name) for flow in FLOWS}
    for _ in range(data.draw(st.integers(1, 3))):
        cut = data.draw(st.integers(0, text.count(b"\n")))
        text = smaller(text, cut, data.draw(st.integers(0, 3)))
        assert counters(text) == before
    path.write_bytes(text)
    assert {flow.flow_name: last_batch(path.parent, flow.flow_name) for flow in FLOWS} == last
    assert sequence_numbers(lines_of(path.parent)) == sorted(
        sequence_numbers(lines_of(path.parent))
    )
