"""The file of an update that runs gets smaller, and nobody's sums change."""

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_update import (
    ALL,
    FLOWS,
    GOLD,
    NOW,
    START,
    UPDATE,
    VIEW,
    committed,
    compacted,
    facts,
    filled,
    lines_of,
    measured,
)

from penstock._cli.main import main
from penstock._model.pipeline import EventLogSettings
from penstock._observe.compaction import Pace, Stopped, survey, write
from penstock._observe.decoding import event_of_json
from penstock._observe.events import (
    Event,
    FlowStatus,
    UpdateState,
    definition,
    flow_progress,
    update_progress,
)
from penstock._observe.held import held_files, release_held
from penstock._observe.log import EventLog, follow, last_batch, read_events, updates
from penstock._observe.metrics import MetricsFold
from penstock._observe.retention import Growth, Retention, clean, compact, compact_running
from penstock._observe.snapshot import Snapshot
from penstock._ui.recording import Recorded

HALF = EventLogSettings(keep_progress_days=None, max_progress_mb=0.3)
DEADLINE = 20


def size(log: EventLog) -> int:
    assert log.path is not None
    return log.path.stat().st_size


def places(found: list[dict[str, Any]]) -> list[int]:
    return [event["sequence"]["data_plane_id"]["seq_no"] for event in found]


def rolled(found: list[dict[str, Any]], kind: str = "flow_progress") -> list[dict[str, Any]]:
    return [event for event in found if "rolled_up" in event["details"].get(kind, {})]


def test_all_readers_find_the_same_when_the_log_of_a_running_update_is_made_smaller(tmp_path: Path):
    log = filled(tmp_path)
    before, whole = facts(tmp_path), lines_of(tmp_path)
    assert compacted(log)
    assert facts(tmp_path) == before
    found = lines_of(tmp_path)
    assert len(found) < len(whole) / 3
    # Whatever is not of a single batch is still there, in its place.
    left = {event["id"]: event for event in found}
    known = {event["id"]: event for event in whole}
    new = [event["id"] for event in (*rolled(found), *rolled(found, "stream_progress"))]
    assert set(left) - set(known) == set(new)
    assert all(left[one] == known[one] for one in set(left) & set(known))
    assert places(found) == sorted(places(found))
    for event in whole:
        body = event["details"].get(event["event_type"], {})
        if not {"metrics", "progress_json", "loss"} & set(body) or event["message"]:
            assert event["id"] in left
    # One event per flow and hour, and its sums.
    (first, *_) = [event for event in rolled(found) if event["origin"]["flow_name"] == "out"]
    assert first["timestamp"] == "2026-03-01T00:59:00.000Z"
    body, more = first["details"]["flow_progress"], first["details"]["flow_progress"]["rolled_up"]
    assert (more["first_batch_id"], more["batches"], first["origin"]["batch_id"]) == (1, 59, 59)
    assert body["metrics"]["num_input_rows"] == sum(range(1, 60))
    assert more["since"] == "2026-03-01T00:01:00.000Z"
    assert sum(more["batch_durations"].values()) == 59
    # And the log goes on in the new file.
    log(update_progress(UPDATE, UpdateState.STOPPING, "stops"))
    assert places(lines_of(tmp_path))[-1] == len(whole)
    # Again, later: hours that were begun become one event as well.
    for number in range(400, 600):
        for one in (committed(GOLD, number), *measured(GOLD, number)):
            log(replace(one, timestamp=START + timedelta(minutes=number)))
    later = facts(tmp_path)
    assert compacted(log, now=NOW + 86400)
    assert facts(tmp_path) == later
    hours = [(e["origin"]["flow_name"], e["timestamp"][:13]) for e in rolled(lines_of(tmp_path))]
    broken = [event for event in whole if event["message"] == "failed"]
    # A failure and the newest commit stay where they are, between two.
    assert len(hours) <= len(set(hours)) + len(broken) + 1
    sums = rolled(lines_of(tmp_path), "stream_progress")
    hours = [(event["origin"]["flow_name"], event["timestamp"][:13]) for event in sums]
    assert len(hours) == len(set(hours))


def test_the_oldest_details_go_when_there_are_too_many(tmp_path: Path):
    log = filled(tmp_path)
    before, whole, text = facts(tmp_path), lines_of(tmp_path), size(log)
    assert compacted(log, HALF)
    assert facts(tmp_path) == before
    assert size(log) < text / 2
    # The newer part is untouched, byte for byte.
    newest = [event for event in whole if event["event_type"] == "stream_progress"][-15:]
    assert newest == [e for e in lines_of(tmp_path) if e["event_type"] == "stream_progress"][-15:]
    # There is nothing to gain now, nor below the limit.
    assert not compacted(log, HALF)
    assert not compacted(log, EventLogSettings())
    assert not compacted(log, EventLogSettings(keep_progress_days=None, max_progress_mb=None))
    assert not compacted(EventLog(tmp_path / "empty"))


def test_only_what_is_old_enough_goes(tmp_path: Path):
    log = filled(tmp_path)
    before, whole = facts(tmp_path), lines_of(tmp_path)
    assert compacted(log, EventLogSettings(keep_progress_days=0.25), now=START.timestamp() + 33_000)
    young = [event for event in whole if event["timestamp"] >= "2026-03-01T03:10"]
    assert lines_of(tmp_path)[-len(young) :] == young
    assert facts(tmp_path) == before
    assert len(lines_of(tmp_path)) < len(whole)


def test_no_event_is_lost_or_comes_twice_when_many_emit_and_one_follows(tmp_path: Path):
    log, seen, stop = filled(tmp_path), list[int](), threading.Event()
    passed = threading.Condition()

    def emit(flow: Any) -> None:
        number = 1000
        while not stop.is_set():
            for event in (committed(flow, number), *measured(flow, number)):
                log(event)
            number += 1
            stop.wait(0.02)

    def read() -> None:
        for event in follow(tmp_path, update="running"):
            with passed:
                seen.append(event["sequence"]["data_plane_id"]["seq_no"])
                passed.notify_all()

    def is_followed() -> None:
        newest = max(places(lines_of(tmp_path)))
        with passed:
            assert passed.wait_for(lambda: seen and seen[-1] >= newest, DEADLINE)

    threads = [threading.Thread(target=emit, args=(flow,), daemon=True) for flow in FLOWS]
    reader = threading.Thread(target=read, daemon=True)
    for thread in (*threads, reader):
        thread.start()
    done = 0
    while done < 3:
        is_followed()
        done += compacted(log, HALF)
    is_followed()
    stop.set()
    for thread in threads:
        thread.join()
    log(update_progress(UPDATE, UpdateState.COMPLETED, "done"))
    reader.join(DEADLINE)
    assert not reader.is_alive()
    assert seen == list(range(len(seen)))
    # Each event is in the file, or in one that stands for it.
    found = [event_of_json(event) for event in lines_of(tmp_path)]
    fold = MetricsFold()
    for event in found:
        fold(event)
    (total,) = [one for one in fold.series() if one.metric.name == "penstock_events_total"]
    assert sum(total.values.values()) == len(seen)


def test_events_that_come_while_the_draft_is_made_are_in_the_new_file(tmp_path: Path):
    log = filled(tmp_path, 2)
    assert log.path is not None
    text, draft = log.path.read_bytes(), tmp_path / ".draft"
    copied = text.index(b"\n") + 1
    draft.write_bytes(b"{}\n")
    log(update_progress(UPDATE, UpdateState.STOPPING, "meanwhile"))
    rest = log.path.read_bytes()[copied:]
    assert log.replace(draft, copied)
    assert log.path.read_bytes() == b"{}\n" + rest
    log(update_progress(UPDATE, UpdateState.COMPLETED, "later"))
    assert [event["message"] for event in lines_of(tmp_path)[-2:]] == ["meanwhile", "later"]
    with pytest.raises(FileNotFoundError):
        log.replace(tmp_path / "gone" / "draft", 0)
    log.close()
    draft.touch()
    assert not log.replace(draft, 0)
    assert lines_of(tmp_path)[-1]["message"] == "later"


def test_refreshes_that_replace_each_other_are_not_added_up(tmp_path: Path):
    about = replace(UPDATE, dataset_name=VIEW.dataset_name)
    found = [definition("dataset_definition", about, "", {"dataset_type": "MATERIALIZED_VIEW"})]
    found += [committed(VIEW, batch) for batch in range(10)]
    log = EventLog(tmp_path)
    for event in found:
        log(replace(event, timestamp=START))
    assert log.path is not None
    text = log.path.read_bytes()
    assert smaller(text, len(text), 0) == text
    table = text.replace(b"MATERIALIZED_VIEW", b"STREAMING_TABLE")
    assert len(smaller(table, len(table), 0)) < len(table) / 2


def test_the_dashboard_goes_on_where_it_was_when_the_log_is_replaced(tmp_path: Path):
    log = filled(tmp_path)
    (file,) = updates(tmp_path)
    watched, idle = Recorded(file), Recorded(file)
    assert watched.refresh() and idle.refresh()
    structure, folded = watched.model.structure, watched.model.folded
    assert compacted(log)
    log(flow_progress(GOLD, FlowStatus.STOPPED, "stopped"))
    assert watched.refresh()
    assert (watched.model.structure, watched.model.folded) == (structure, folded + 1)
    assert not watched.refresh()
    # One that has not looked for long begins again: events may stand for some that it knows.
    for number in range(1000, 1200):
        for event in (committed(GOLD, number), *measured(GOLD, number)):
            log(replace(event, timestamp=START + timedelta(minutes=number)))
    assert watched.refresh()
    assert compacted(log, now=NOW + 86400)
    assert idle.refresh()
    assert idle.model.structure > structure
    assert idle.model.folded < folded
    for card in ("rows", "quarantined", "failed_checks", "table_version"):
        assert idle.model.cards()[0][card] == watched.model.cards()[0][card]


def test_commands_print_the_same_sums_of_a_log_that_was_rolled_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_STORAGE", raising=False)
    log = filled(tmp_path / ".penstock" / "events")

    def told() -> tuple[Counter[str], Any]:
        sums: Counter[str] = Counter()
        assert main(["quality", "--output", "json"]) == 0
        for line in capsys.readouterr().out.splitlines():
            one = json.loads(line)
            for key in ("passed", "failed", "batches"):
                sums[f"{one['rule']} {key}"] += one[key]
        assert main(["metrics", "--output", "json"]) == 0
        metrics = json.loads(capsys.readouterr().out)
        rounded = [
            (metric["name"], sample["labels"], round(sample.get("value", 0), 6))
            for metric in metrics
            for sample in metric["samples"]
        ]
        return sums, sorted(rounded, key=str)

    before = told()
    assert compacted(log)
    assert told() == before
    assert main(["events", "--type", "flow_progress", "--dataset", "out"]) == 0
    text = capsys.readouterr().out
    assert "out: batches 1 to 59 in one event, 1,770 rows in, 174 rows written" in text


def test_the_pipeline_goes_on_with_one_warning_when_the_disk_does_not_take_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    log = filled(tmp_path)
    assert log.path is not None
    before = log.path.read_bytes()
    draft = log.path.with_name(f".{log.path.name}.draft")
    draft.mkdir()
    with pytest.raises(IsADirectoryError):
        compacted(log)
    small = EventLogSettings(keep_progress_days=None, max_progress_mb=0.01)
    with caplog.at_level(logging.WARNING):
        retention = Retention(log, small, "running", look_seconds=0.01)
        wait_for(lambda: caplog.records)
        for number in range(1000, 1300):
            log(committed(GOLD, number))
        (draft / "in the way").touch()
        retention.close()
    assert len(caplog.records) == 1
    assert log.path.read_bytes().startswith(before)
    assert len(lines_of(tmp_path)) == before.count(b"\n") + 300


def wait_for(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(DEADLINE * 50):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come")


def test_a_running_update_is_seen_to_beside_it(tmp_path: Path):
    log = filled(tmp_path)
    before, text = facts(tmp_path), size(log)
    retention = Retention(log, HALF, "running", look_seconds=0.01)
    wait_for(lambda: size(log) < text)
    retention.close()
    assert facts(tmp_path) == before
    # It ends promptly, in the middle of the work as well.
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        compact_running(log, ALL, now=NOW, stop=stop)
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]
    log.close()
    assert not compacted(log)


KILLED = """
import os, signal, sys, threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from penstock._model.pipeline import EventLogSettings
from penstock._observe.events import EventOrigin, plan_warning
from penstock._observe.log import EventLog
from penstock._observe.retention import compact_running
folder, step, now = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
log, began = EventLog(folder), datetime.fromisoformat(sys.argv[4])
log(replace(plan_warning(EventOrigin(update_id="running"), "goes on"), timestamp=began))
calls = 0
def watch(event, arguments):
    global calls
    if event in ("open", "os.rename", "os.chmod", "os.remove") and ".jsonl" in str(arguments):
        calls += 1
        if calls == step:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
old = EventLogSettings(keep_progress_days=1e-6)
sys.exit(0 if compact_running(log, old, now=now, stop=threading.Event()) else 1)
"""


def test_the_log_is_whole_when_the_process_is_killed_at_any_step(tmp_path: Path):
    log = filled(tmp_path / "whole", 120)
    log.close()
    assert log.path is not None
    text = log.path.read_bytes()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    endings, results = [], []
    for step in range(1, 20):
        folder = tmp_path / str(step)
        folder.mkdir()
        file = folder / log.path.name
        file.write_bytes(text)
        command = [sys.executable, "-c", KILLED, folder, str(step), str(NOW), START.isoformat()]
        done = subprocess.run(command, env=environment, check=False, timeout=60)
        found = file.read_bytes()
        assert b"goes on" in found.splitlines()[-1]
        endings.append(done.returncode)
        results.append("as it was" if found.startswith(text) else "smaller")
        if results[-1] == "smaller":
            log.path.write_bytes(text + found.splitlines(keepends=True)[-1])
            assert facts(folder) == facts(tmp_path / "whole")
        if done.returncode != -signal.SIGKILL:
            break
        # What the kill left is seen to by the next update.
        clean(folder, EventLogSettings(), own="next", now=NOW)
        assert [path for path in folder.iterdir() if path.suffix == ".draft"] == []
    assert endings[-1] == 0
    assert results == sorted(results)
    assert results.count("as it was") > 5
    assert results.count("smaller") > 1


def test_a_torn_or_foreign_line_stays_as_it_is(tmp_path: Path):
    log = filled(tmp_path)
    assert log.path is not None
    lines = log.path.read_bytes().splitlines(keepends=True)
    count = next(line for line in lines[100:] if b'"num_input_rows"' in line)
    odd = [
        b'{"half":"event_type":"stream_progress"}\n',
        b'{"x":1,"event_type":"flow_progress"}\n',
        b"\xff\x00\n",
        count.replace(b'"num_input_rows":', b'"num_new_rows":1,"num_input_rows":'),
        count.replace(b'"num_input_rows":', b'"num_input_rows":1.5,"x":'),
        count.replace(b'"status":"RUNNING"', b'"status":"RUNNING","new":1'),
        count.replace(b'"message":""', b'"message":"told"'),
        count.replace(b'"status":"RUNNING"', b'"status":"RUNNING","rolled_up":{"events":"x"}'),
        count.replace(
            b'"status":"RUNNING"', b'"status":"RUNNING","rolled_up":{"batches":{"a":0.5}}'
        ),
        b'{"details":{"stream_progress":{"rolled_up":[]}},"event_type":"stream_progress"}\n',
        lines[60][:-40] + b"\n",
    ]
    log.path.write_bytes(b"".join([*lines[:100], *odd, *lines[100:]]) + b'{"torn')
    compact(log.path)
    text = log.path.read_bytes()
    assert all(line in text for line in odd)
    assert text.endswith(b'{"torn')
    assert len(text) < sum(map(len, lines)) / 2


def test_what_a_reader_holds_stays_whole(tmp_path: Path):
    log = filled(tmp_path)
    assert held_files(tmp_path) is None
    held = held_files(tmp_path, part_bytes=1 << 10)
    assert held is not None and held_files(tmp_path, part_bytes=1 << 10) == held
    whole = lines_of(tmp_path)
    log(update_progress(UPDATE, UpdateState.STOPPING, "stops"))
    assert len(lines_of(held)) == len(whole) + 1
    assert compacted(log)
    log(update_progress(UPDATE, UpdateState.COMPLETED, "done"))
    assert len(lines_of(held)) == len(whole) + 1
    later = held_files(tmp_path, part_bytes=1 << 10)
    assert later not in (None, held)
    assert later is not None
    assert lines_of(later) == lines_of(tmp_path)
    now = held.stat().st_mtime
    release_held(tmp_path, now=now)
    assert held.is_dir()
    release_held(tmp_path, now=now + 7200)
    assert not held.exists() and not later.exists()
    assert len(updates(tmp_path)) == 1
    (tmp_path / ".held").rmdir()
    (tmp_path / ".held").touch()
    assert held_files(tmp_path, part_bytes=1 << 10) is None


def test_large_files_of_updates_that_are_over_are_made_smaller_once(tmp_path: Path):
    log = filled(tmp_path)
    log.close()
    assert log.path is not None
    before, text = facts(tmp_path), size(log)
    # A command that runs beside the pipeline may still be writing.
    small = EventLogSettings(keep_progress_days=None, max_progress_mb=0.3)
    now = log.path.stat().st_mtime
    clean(tmp_path, small, own="", now=now)
    assert size(log) == text
    clean(tmp_path, small, own="", now=now + 7200)
    assert size(log) < text
    assert facts(tmp_path) == before
    lower = EventLogSettings(keep_progress_days=None, max_progress_mb=0.01)
    clean(tmp_path, lower, own="", now=now + 7200)
    inode, smallest = log.path.stat().st_ino, size(log)
    assert smallest > 0.01 * 2**20
    clean(tmp_path, lower, own="", now=now + 7200)
    assert log.path.stat().st_ino == inode
    assert json.loads((tmp_path / ".sizes").read_text())[log.path.name][0] == smallest
    (tmp_path / ".sizes").write_text("no json")
    clean(tmp_path, lower, own="", now=now + 7200)
    assert (facts(tmp_path), size(log)) == (before, smallest)


@pytest.mark.parametrize(
    ("most", "days", "seconds"),
    [(256.0, 30.0, 1), (1.0, 30.0, 60), (None, 30.0, 60), (None, 0.5, 1), (64.0, None, 5)],
)
def test_the_work_stays_in_proportion_when_a_log_grows_for_weeks(
    most: float | None, days: float | None, seconds: int
):
    growth = Growth(EventLogSettings(keep_progress_days=days, max_progress_mb=most), now=0)
    size = written = read = looks = largest = 0
    for second in range(0, 40 * 86400, seconds * 100):
        size, written = size + 350_000, written + 350_000
        largest = max(largest, size)
        if growth.is_due(size, second):
            looks, read = looks + 1, read + size
            if most is not None and size > most * 2**20 * 3 / 4:
                size = int(most * 2**20 / 2)
            growth.looked(size, second)
    assert looks > 5
    assert read < 6 * written
    assert most is None or largest < (most + 1) * 2**20
    nothing = Growth(EventLogSettings(keep_progress_days=None, max_progress_mb=None), now=0)
    assert not nothing.is_due(1 << 40, 1e9)


KINDS = (*["commit"] * 3, *["measured"] * 2, "state", "told", "refresh", "other")


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events of some flows in any order that may be, and in orders that may not."""
    about = replace(UPDATE, dataset_name=VIEW.dataset_name)
    view = {"dataset_type": "MATERIALIZED_VIEW"}
    found = [replace(definition("dataset_definition", about, "", view), timestamp=START)]
    batch = dict.fromkeys(range(3), 0)
    minute = 0
    for _ in range(draw(st.integers(10, 40))):
        at = draw(st.integers(0, 2))
        flow = FLOWS[at]
        batch[at] = max(0, batch[at] + draw(st.integers(-1, 2)))
        one = draw(st.sampled_from(KINDS))
        new = {
            "commit": [committed(flow, batch[at])],
            "measured": measured(flow, batch[at]),
            "state": [flow_progress(flow, draw(st.sampled_from(FlowStatus)), "now")],
            "told": [committed(flow, batch[at], "told")],
            "refresh": [committed(VIEW, batch[at])],
            "other": [update_progress(UPDATE, UpdateState.RUNNING, "")],
        }[one]
        minute += draw(st.sampled_from([0, 0, 1, 50]))
        found += [replace(event, timestamp=START + timedelta(minutes=minute)) for event in new]
    return found


def counters(text: bytes) -> dict[Any, Any]:
    """What metrics and terminal say: what is a sum, and the newest value of what is not."""
    fold, snapshot = MetricsFold(), Snapshot()
    states: dict[str, Any] = {}
    for line in text.splitlines():
        event = event_of_json(json.loads(line))
        fold(event)
        snapshot(event)
        body = event.details[event.event_type]
        if event.event_type == "flow_progress" and ("metrics" not in body or event.message):
            # What came before a change of a flow's state stays before it.
            views = [flow for one in snapshot.view().datasets for flow in one.flows]
            states[event.id] = [
                (flow.batches, flow.rows, flow.dropped, flow.lag, flow.state)
                for flow in views
                if flow.name == event.origin.flow_name
            ]
    flows = {
        flow.name: replace(flow, rows_per_second=None, batch_seconds=None)
        for one in snapshot.view(START + timedelta(days=9)).datasets
        for flow in one.flows
    }
    values = {
        (series.metric.name, labels): round(value, 6)
        for series in fold.series()
        for labels, value in series.values.items()
    }
    counts = {
        labels: (one.counts, round(one.total, 6))
        for series in fold.series()
        for labels, one in series.histograms.items()
    }
    return {**values, **counts, **states, **flows}


def smaller(text: bytes, cut: int, newest: int) -> bytes:
    pace = Pace(threading.Event())
    file, out = io.BytesIO(text), io.BytesIO()
    found = survey(file, end=len(text), before=None, most=None, rest=0, pace=pace)
    found.cut, found.newest = cut, newest
    file.seek(0)
    write(file, out, found, pace=pace)
    return out.getvalue() + text[cut:]


@settings(max_examples=20, deadline=None)
@given(histories(), st.data())
def test_sums_are_the_same_however_often_a_log_is_rolled_up(
    tmp_path_factory: pytest.TempPathFactory, history: list[Event], data: st.DataObject
):
    folder = tmp_path_factory.mktemp("log", numbered=True)
    log = EventLog(folder)
    for event in history:
        log(event)
    log.close()
    assert log.path is not None
    text = log.path.read_bytes()
    before = counters(text)
    last = {flow.flow_name: last_batch(folder, flow.flow_name) for flow in FLOWS}
    for _ in range(data.draw(st.integers(1, 3))):
        lines = text.splitlines(keepends=True)
        cut = len(b"".join(lines[: -data.draw(st.integers(0, len(lines))) or None]))
        text = smaller(text, cut, data.draw(st.integers(0, 3)))
        assert counters(text) == before
    log.path.write_bytes(text)
    assert {flow.flow_name: last_batch(folder, flow.flow_name) for flow in FLOWS} == last
    assert places(list(read_events(folder))) == sorted(places(list(read_events(folder))))
