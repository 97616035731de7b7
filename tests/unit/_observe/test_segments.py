"""Segments of an event log: readers get each event once, in any state of the files."""

import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from long_update import (
    ALL,
    FLOWS,
    GOLD,
    NEVER,
    SMALL,
    START,
    UPDATE,
    committed,
    facts,
    filled,
    lines_of,
    measured,
    rolled_up,
    rolled_up_events,
    segment_ranges,
    sequence_numbers,
    total,
    update_of,
)
from made_events import flow_progress, update_progress

from penstock._model.pipeline import EventLogSettings
from penstock._observe.events import FlowStatus, UpdateState
from penstock._observe.log import EventLog, follow, last_batch, last_place, read_events
from penstock._observe.retention import Retention, clean, roll_up
from penstock._observe.segments import QUERIED, UpdateLog, plan_query, updates
from penstock._observe.unfinished import end_unfinished
from penstock._ui.recording import Recorded

EARLIER = Path(__file__).parent / "logs" / "version-2.jsonl"
DEADLINE = 20


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock._observe.log._POLL_SECONDS", 0.02)


def test_a_segment_ends_when_it_is_large_or_old(tmp_path: Path):
    event, name = update_progress(UPDATE, UpdateState.RUNNING, "x" * 600), "20260301T000000000000Z"

    def write(keep: EventLogSettings, *hours: int) -> EventLog:
        log = EventLog(tmp_path, keep)
        for hour in hours:
            log(replace(event, timestamp=START + timedelta(hours=hour)))
        return log

    def count() -> list[int]:
        files = updates(tmp_path)[-1].files
        return [segment.path.read_bytes().count(b"\n") for segment in files]

    log = write(EventLogSettings(keep_progress_days=8, max_progress_mb=None), 0, 23, 24, 25, 48)
    assert log.path == tmp_path / f"{name}-running.0003.jsonl"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{name}-running{number}.jsonl" for number in (".0002", ".0003", "")
    ]
    assert count() == [2, 2, 1]
    assert sequence_numbers(lines_of(tmp_path)) == list(range(5))
    write(EventLogSettings(keep_progress_days=None, max_progress_mb=None), *range(1, 9999, 99))
    assert count() == [101]
    log = write(EventLogSettings(keep_progress_days=None, max_progress_mb=0.01), *range(2, 8))
    assert count() == [2, 2, 2]
    # While the next segment cannot be created, events are appended to the newest one.
    assert log.update is not None
    log.update.path(4).mkdir()
    log(event)
    log.update.path(4).rmdir()
    assert count() == [2, 2, 3]
    log(event)
    assert count() == [2, 2, 3, 1]


@pytest.mark.parametrize(
    ("files", "after", "read"),
    [
        (["1", "2", "3"], 0, ["1", "2", "3"]),
        (["1", "2", "3"], 2, ["3"]),
        # The process was killed after it published a roll-up, before all old segments were deleted.
        (["1", "1-2", "2", "3"], 0, ["1-2", "3"]),
        (["1-2", "2", "3"], 0, ["1-2", "3"]),
        (["1", "1-1", "2"], 0, ["1-1", "2"]),
        (["1-2", "1-4", "3", "4", "5"], 0, ["1-4", "5"]),
        (["1-4", "5", "9", "10"], 0, ["1-4", "5", "9", "10"]),
        # A reader after the second segment reads the next segments while they exist.
        (["1-4", "3", "4", "5"], 2, ["3", "4", "5"]),
        (["1-4", "4", "5"], 2, ["1-4", "5"]),
        (["1-4", "5"], 4, ["5"]),
        (["1-4"], 4, []),
    ],
)
def test_each_event_is_read_once_with_any_set_of_files(
    tmp_path: Path, files: list[str], after: int, read: list[str]
):
    for name in files:
        ends = [int(number) for number in name.split("-")]
        path = UpdateLog(
            update_id="u", started=START, directory=tmp_path, name=f"{START:%Y%m%dT%H%M%S%f}Z-u"
        )
        path.path(*ends).touch()
    update = update_of(tmp_path)
    assert len(update.files) == len(files)
    names = [
        f"{s.first}-{s.last}" if s.is_roll_up else str(s.first) for s in update.segments(after)
    ]
    assert names == read


def test_no_event_is_lost_or_duplicated_when_threads_emit_during_roll_ups(tmp_path: Path):
    log, received, stop = filled(tmp_path, 80), list[int](), threading.Event()
    passed = threading.Condition()

    def emit(flow: Any) -> None:
        number = 1000
        while not stop.is_set():
            for event in (committed(flow, number), *measured(flow, number)):
                log(event)
            number += 1
            stop.wait(0.01)

    def read() -> None:
        for event in follow(tmp_path, update="running"):
            with passed:
                received.append(event["sequence"]["data_plane_id"]["seq_no"])
                passed.notify_all()

    def wait_for_follower() -> None:
        newest = last_place(update_of(tmp_path))
        with passed:
            assert newest is None or passed.wait_for(
                lambda: received and received[-1] >= newest[1], DEADLINE
            )

    threads = [threading.Thread(target=emit, args=(flow,), daemon=True) for flow in FLOWS]
    reader = threading.Thread(target=read, daemon=True)
    for thread in (*threads, reader):
        thread.start()
    done = 0
    while done < 3:
        wait_for_follower()
        done += rolled_up(log, SMALL, stop=stop)
    wait_for_follower()
    stop.set()
    for thread in threads:
        thread.join()
    log(update_progress(UPDATE, UpdateState.COMPLETED, "done"))
    reader.join(DEADLINE)
    assert not reader.is_alive()
    assert received == list(range(len(received)))
    # Each event is in a segment, or in an event of a roll-up.
    assert total(tmp_path) == len(received)


def test_open_readers_are_not_affected_by_a_roll_up(tmp_path: Path):
    log = filled(tmp_path, 80)
    whole = lines_of(tmp_path)
    reading, following = read_events(tmp_path), follow(tmp_path, update="running")
    second = next(at for at, line in enumerate(whole) if line["timestamp"] > "2026-03-01T00:05")
    begun = [[next(reader) for _ in range(second)] for reader in (reading, following)]
    assert begun == [whole[:second]] * 2
    assert rolled_up(log)
    assert len(update_of(tmp_path).files) == 2
    assert list(reading) == whole[second:]
    log(update_progress(UPDATE, UpdateState.COMPLETED, "done"))
    rest = list(following)
    assert rest[:-1] == whole[second:] and rest[-1]["message"] == "done"


def test_slow_follower_continues_in_the_roll_up(tmp_path: Path):
    log = filled(tmp_path, 80)
    update, whole = update_of(tmp_path), lines_of(tmp_path)
    waits: list[bool] = []

    def wait() -> bool:
        # At the end of the log, many events are written and rolled up.
        if not waits:
            for number in range(1000, 1100):
                for event in (committed(GOLD, number), *measured(GOLD, number)):
                    log(replace(event, timestamp=START + timedelta(minutes=number)))
            assert rolled_up(log)
        waits.append(True)
        return len(waits) < 3

    read = [json.loads(line) for line in update.lines(wait)]
    assert read[: len(whole)] == whole
    assert sequence_numbers(read) == sorted(set(sequence_numbers(read)))
    assert sequence_numbers(read)[-1] == sequence_numbers(whole)[-1] + 400
    assert rolled_up_events(read)


def test_dashboard_continues_at_its_position_when_segments_are_rolled_up(tmp_path: Path):
    log = filled(tmp_path)
    watched, idle = Recorded(update_of(tmp_path)), Recorded(update_of(tmp_path))
    assert watched.refresh() and idle.refresh()
    structure, folded = watched.model.structure, watched.model.folded
    assert rolled_up(log)
    log(flow_progress(GOLD, FlowStatus.STOPPED, "stopped"))
    assert watched.refresh()
    assert (watched.model.structure, watched.model.folded) == (structure, folded + 1)
    assert not watched.refresh()
    # A reader that lags behind starts again, as the roll-up may contain events that it has read.
    for number in range(1000, 1200):
        for event in (committed(GOLD, number), *measured(GOLD, number)):
            log(replace(event, timestamp=START + timedelta(minutes=number)))
    assert watched.refresh()
    assert watched.model.folded == folded + 801
    assert rolled_up(log)
    assert idle.refresh()
    assert idle.model.structure > structure
    assert idle.model.folded < folded
    for card in ("rows", "quarantined", "failed_checks", "table_version"):
        assert idle.model.cards()[0][card] == watched.model.cards()[0][card]
    # While its segment exists, the reader continues with the next segments.
    version, behind = watched.version, watched.model.folded
    plan_query(tmp_path)
    for number in range(1200, 1500):
        for event in (committed(GOLD, number), *measured(GOLD, number)):
            log(replace(event, timestamp=START + timedelta(minutes=number)))
    assert rolled_up(log)
    assert watched.refresh() and watched.version == version + 1
    assert watched.model.folded == behind + 1200


def test_pipeline_continues_with_a_warning_when_a_roll_up_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    log = filled(tmp_path, 80)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for last in range(1, 99):
        (tmp_path / f".{update_of(tmp_path).path(1, last).name}.draft").mkdir()
    with pytest.raises(IsADirectoryError):
        rolled_up(log)
    with caplog.at_level(logging.WARNING):
        retention = Retention(log, SMALL, "running", look_seconds=0.01)
        retention.start()
        wait_for(lambda: len(caplog.records) > 1)
        for number in range(1000, 1300):
            log(committed(GOLD, number))
        retention.close()
    messages = [record.getMessage() for record in caplog.records]
    assert ["could not be cleaned up" in text for text in messages] == [True, False]
    assert ["stays large" in text for text in messages] == [False, True]
    for path, text in before.items():
        assert path.read_bytes().startswith(text)
    assert len(lines_of(tmp_path)) == sum(text.count(b"\n") for text in before.values()) + 300


def wait_for(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(DEADLINE * 50):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("the condition was not met in time")


def test_retention_rolls_up_during_a_running_update(tmp_path: Path):
    log = filled(tmp_path)
    before = facts(tmp_path)
    retention = Retention(log, SMALL, "running", look_seconds=0.01)
    # Segments that are not yet in the event tables are kept: first all, then those after the first.
    retention.published = 0
    retention.start()
    threading.Event().wait(0.3)
    retention.published = 2
    threading.Event().wait(0.3)
    assert not any(segment.is_roll_up for segment in update_of(tmp_path).files)
    retention.published = math.inf
    wait_for(lambda: update_of(tmp_path).segments()[0].is_roll_up)
    retention.close()
    assert facts(tmp_path) == before
    # A roll-up ends without changes when `stop` is set.
    files, stop = update_of(tmp_path).files, threading.Event()
    stop.set()
    assert not roll_up(update_of(tmp_path), ALL, now=time.time() + 60, is_over=False, stop=stop)
    assert update_of(tmp_path).files == files
    assert not list(tmp_path.glob(".*"))


KILLED = """
import os, shutil, signal, sys, threading, time
from pathlib import Path
from penstock._model.pipeline import EventLogSettings
from penstock._observe.retention import roll_up
from penstock._observe.segments import updates

folder, old = Path(sys.argv[1]), EventLogSettings(keep_progress_days=1e-6)
STEPS = ("open", "os.rename", "os.chmod", "os.utime", "os.remove")
for step in range(1, 99):
    copy = Path(shutil.copytree(folder / "whole", folder / str(step)))
    if (child := os.fork()) == 0:
        calls = 0
        def watch(event, arguments):
            global calls
            if event in STEPS and str(copy) in str(arguments):
                calls += 1
                if calls == step:
                    os.kill(os.getpid(), signal.SIGKILL)
        (update,) = updates(copy)
        sys.addaudithook(watch)
        stop = threading.Event()
        stop.wait = lambda timeout: False  # no pauses
        os._exit(0 if roll_up(update, old, now=time.time() + 60, is_over=False, stop=stop) else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != -signal.SIGKILL:
        sys.exit(code)
"""


def test_log_is_complete_when_the_process_is_killed_at_any_step(tmp_path: Path):
    whole = tmp_path / "whole"
    filled(whole, 10, EventLogSettings(keep_progress_days=None, max_progress_mb=0.3)).close()
    before, events, states = facts(whole), total(whole), set[Any]()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, tmp_path]
    assert subprocess.run(command, env=environment, check=False, timeout=60).returncode == 0
    for folder in set(tmp_path.iterdir()) - {whole}:
        state = tuple(sorted((path.name, path.stat().st_size) for path in folder.glob("*.jsonl")))
        if state not in states:
            assert facts(folder) == before
        states.add(state)
        # The next update deletes the files that the killed process left.
        clean(folder, ALL, own="next", now=time.time() + 60, stop=NEVER)
        assert update_of(folder).segments() == list(update_of(folder).files)
        assert {path.suffix for path in folder.iterdir()} == {".jsonl"}
        assert total(folder) == events
    # States: without the roll-up, and with it after the deletion of each segment.
    count = len(update_of(whole).files)
    assert count > 3 and len(states) == count + 1
    assert len(list(tmp_path.iterdir())) > 3 * count


def test_segments_of_a_planned_query_are_kept_for_an_hour(tmp_path: Path):
    log = filled(tmp_path, 80)
    whole, planned = update_of(tmp_path).files, update_of(tmp_path)
    before = lines_of(tmp_path)
    assert plan_query(tmp_path) == set()
    assert rolled_up(log)
    assert set(whole) < set(update_of(tmp_path).files)
    assert [json.loads(line) for line in planned.lines()] == before
    assert plan_query(tmp_path) == {segment.path.name for segment in whole[:-1]}
    update = update_of(tmp_path)
    for later, deleted in ((3000, False), (4000, True)):
        roll_up(update, SMALL, now=time.time() + later, is_over=False, stop=NEVER)
        assert all(segment.path.exists() != deleted for segment in whole[:-1])
    # Without queries, segments are not kept. Queries of a read-only folder cannot be recorded.
    for number in range(1000, 1300):
        log(committed(GOLD, number))
    os.utime(tmp_path / QUERIED, (1, 1))
    assert rolled_up(log)
    assert len(update_of(tmp_path).files) == 2
    (tmp_path / QUERIED).unlink()
    (tmp_path / QUERIED).symlink_to(tmp_path / "no" / "such")
    assert plan_query(tmp_path) == set()
    assert plan_query(tmp_path / "nowhere") == set()


def test_finished_updates_are_rolled_up_once(tmp_path: Path):
    log = filled(tmp_path)
    log.close()
    before = facts(tmp_path)
    clean(tmp_path, SMALL, own="running", now=time.time(), stop=NEVER)
    assert len(update_of(tmp_path).files) > 10
    clean(tmp_path, SMALL, own="", now=time.time(), stop=NEVER)
    files = update_of(tmp_path).files
    assert 1 < len(files) < 10
    assert facts(tmp_path) == before
    clean(tmp_path, SMALL, own="", now=time.time(), stop=NEVER)
    assert update_of(tmp_path).files == files
    # An old log is rolled up completely, and only once.
    clean(tmp_path, ALL, own="", now=time.time() + 60, stop=NEVER)
    (file,) = update_of(tmp_path).files
    inode = file.path.stat().st_ino
    clean(tmp_path, ALL, own="", now=time.time() + 60, stop=NEVER)
    assert (file.is_roll_up, file.path.stat().st_ino) == (True, inode)
    assert facts(tmp_path) == before


def test_log_of_an_older_version_is_read_as_one_segment(tmp_path: Path):
    """`version-2.jsonl` was rolled up in place while its update ran."""
    path = tmp_path / "20260301T000000000000Z-running.jsonl"
    lines = EARLIER.read_bytes().splitlines(keepends=True)
    killed = [line for line in lines if b'"event_type":"update_progress"' not in line]
    path.write_bytes(b"".join(killed) + b'{"torn')
    (tmp_path / ".held" / "0123").mkdir(parents=True)
    (tmp_path / ".held" / "0123" / path.name).hardlink_to(path)
    flows = ['sil"ver', "gold", "out"]
    before, events = total(tmp_path), lines_of(tmp_path)
    batches = [last_batch(tmp_path, flow) for flow in flows]
    assert len(events) == len(killed) and before > len(killed)
    following, recorded = follow(tmp_path, update="running"), Recorded(update_of(tmp_path))
    assert [next(following) for _ in killed] == events
    assert recorded.refresh()
    folded = recorded.model.folded
    # The current version appends to a new segment.
    end_unfinished(tmp_path)
    assert path.read_bytes().endswith(b'{"torn')
    assert recorded.refresh() and recorded.model.folded == folded + 1
    assert [event["error"]["exceptions"][0]["condition"] for event in following] == ["PROCESS_GONE"]
    clean(tmp_path, ALL, own="", now=time.time() + 60, stop=NEVER)
    assert (segment_ranges(tmp_path), path.exists()) == ([(1, 2)], False)
    assert list(tmp_path.iterdir()) == [update_of(tmp_path).path(1, 2)]
    assert total(tmp_path) == before + 1
    assert [last_batch(tmp_path, flow) for flow in flows] == batches
    assert recorded.model.head()["state"] == "FAILED"
