"""An event log in segments: whatever happens to its files, readers find each event once."""

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
    numbers,
    places,
    rolled,
    rolled_up,
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
    assert places(lines_of(tmp_path)) == list(range(5))
    write(EventLogSettings(keep_progress_days=None, max_progress_mb=None), *range(1, 9999, 99))
    assert count() == [101]
    log = write(EventLogSettings(keep_progress_days=None, max_progress_mb=0.01), *range(2, 8))
    assert count() == [2, 2, 2]
    # The newest segment is continued as long as the next one cannot be created.
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
        # Published, and killed before anything, or all, was deleted.
        (["1", "1-2", "2", "3"], 0, ["1-2", "3"]),
        (["1-2", "2", "3"], 0, ["1-2", "3"]),
        (["1", "1-1", "2"], 0, ["1-1", "2"]),
        (["1-2", "1-4", "3", "4", "5"], 0, ["1-4", "5"]),
        (["1-4", "5", "9", "10"], 0, ["1-4", "5", "9", "10"]),
        # A reader that has read the second segment reads the next ones as long as they are there.
        (["1-4", "3", "4", "5"], 2, ["3", "4", "5"]),
        (["1-4", "4", "5"], 2, ["1-4", "5"]),
        (["1-4", "5"], 4, ["5"]),
        (["1-4"], 4, []),
    ],
)
def test_each_event_is_read_once_whatever_files_there_are(
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


def test_no_event_is_lost_or_duplicated_when_many_emit_and_one_follows(tmp_path: Path):
    log, seen, stop = filled(tmp_path, 80), list[int](), threading.Event()
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
                seen.append(event["sequence"]["data_plane_id"]["seq_no"])
                passed.notify_all()

    def is_followed() -> None:
        newest = last_place(update_of(tmp_path))
        with passed:
            assert newest is None or passed.wait_for(
                lambda: seen and seen[-1] >= newest[1], DEADLINE
            )

    threads = [threading.Thread(target=emit, args=(flow,), daemon=True) for flow in FLOWS]
    reader = threading.Thread(target=read, daemon=True)
    for thread in (*threads, reader):
        thread.start()
    done = 0
    while done < 3:
        is_followed()
        done += rolled_up(log, SMALL, stop=stop)
    is_followed()
    stop.set()
    for thread in threads:
        thread.join()
    log(update_progress(UPDATE, UpdateState.COMPLETED, "done"))
    reader.join(DEADLINE)
    assert not reader.is_alive()
    assert seen == list(range(len(seen)))
    # Each event is in a segment, or in an event of a roll-up.
    assert total(tmp_path) == len(seen)


def test_readers_that_have_begun_are_not_disturbed(tmp_path: Path):
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


def test_a_follower_that_slept_too_long_reads_on_in_the_roll_up(tmp_path: Path):
    log = filled(tmp_path, 80)
    update, whole = update_of(tmp_path), lines_of(tmp_path)
    waits: list[bool] = []

    def wait() -> bool:
        # At the end of what was there; then much is written and rolled up at once.
        if not waits:
            for number in range(1000, 1100):
                for event in (committed(GOLD, number), *measured(GOLD, number)):
                    log(replace(event, timestamp=START + timedelta(minutes=number)))
            assert rolled_up(log)
        waits.append(True)
        return len(waits) < 3

    read = [json.loads(line) for line in update.lines(wait)]
    assert read[: len(whole)] == whole
    assert places(read) == sorted(set(places(read)))
    assert places(read)[-1] == places(whole)[-1] + 400
    assert rolled(read)


def test_the_dashboard_continues_where_it_was_when_segments_are_rolled_up(tmp_path: Path):
    log = filled(tmp_path)
    watched, idle = Recorded(update_of(tmp_path)), Recorded(update_of(tmp_path))
    assert watched.refresh() and idle.refresh()
    structure, folded = watched.model.structure, watched.model.folded
    assert rolled_up(log)
    log(flow_progress(GOLD, FlowStatus.STOPPED, "stopped"))
    assert watched.refresh()
    assert (watched.model.structure, watched.model.folded) == (structure, folded + 1)
    assert not watched.refresh()
    # One that has not looked for long begins again: events may stand for some that it knows.
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
    # As long as its segment is there, it reads on in the next ones.
    version, behind = watched.version, watched.model.folded
    plan_query(tmp_path)
    for number in range(1200, 1500):
        for event in (committed(GOLD, number), *measured(GOLD, number)):
            log(replace(event, timestamp=START + timedelta(minutes=number)))
    assert rolled_up(log)
    assert watched.refresh() and watched.version == version + 1
    assert watched.model.folded == behind + 1200


def test_the_pipeline_continues_with_a_warning_when_the_disk_does_not_take_it(
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
    texts = [record.getMessage() for record in caplog.records]
    assert ["could not be cleaned up" in text for text in texts] == [True, False]
    assert ["stays large" in text for text in texts] == [False, True]
    for path, text in before.items():
        assert path.read_bytes().startswith(text)
    assert len(lines_of(tmp_path)) == sum(text.count(b"\n") for text in before.values()) + 300


def wait_for(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(DEADLINE * 50):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come")


def test_retention_rolls_up_beside_a_running_update(tmp_path: Path):
    log = filled(tmp_path)
    before = facts(tmp_path)
    retention = Retention(log, SMALL, "running", look_seconds=0.01)
    # What tables of events may lack stays: everything, then the segments from the second on.
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
    # It ends promptly, in the middle of the work as well.
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


def test_the_log_is_whole_when_the_process_is_killed_at_any_step(tmp_path: Path):
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
        # What the kill left is seen to by the next update.
        clean(folder, ALL, own="next", now=time.time() + 60, stop=NEVER)
        assert update_of(folder).segments() == list(update_of(folder).files)
        assert {path.suffix for path in folder.iterdir()} == {".jsonl"}
        assert total(folder) == events
    # As it was; and with the roll-up, while what it stands for is deleted one after the other.
    count = len(update_of(whole).files)
    assert count > 3 and len(states) == count + 1
    assert len(list(tmp_path.iterdir())) > 3 * count


def test_what_a_query_reads_stays_for_an_hour(tmp_path: Path):
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
    # Without queries nothing is kept; where the folder cannot be written to, they are not known.
    for number in range(1000, 1300):
        log(committed(GOLD, number))
    os.utime(tmp_path / QUERIED, (1, 1))
    assert rolled_up(log)
    assert len(update_of(tmp_path).files) == 2
    (tmp_path / QUERIED).unlink()
    (tmp_path / QUERIED).symlink_to(tmp_path / "no" / "such")
    assert plan_query(tmp_path) == set()
    assert plan_query(tmp_path / "nowhere") == set()


def test_updates_that_are_over_are_rolled_up_once(tmp_path: Path):
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
    # When it is old, all of it; the only file says that it is done.
    clean(tmp_path, ALL, own="", now=time.time() + 60, stop=NEVER)
    (file,) = update_of(tmp_path).files
    inode = file.path.stat().st_ino
    clean(tmp_path, ALL, own="", now=time.time() + 60, stop=NEVER)
    assert (file.is_roll_up, file.path.stat().st_ino) == (True, inode)
    assert facts(tmp_path) == before


def test_a_log_of_an_earlier_version_is_a_log_with_one_segment(tmp_path: Path):
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
    # What this version adds is a segment of its own.
    end_unfinished(tmp_path)
    assert path.read_bytes().endswith(b'{"torn')
    assert recorded.refresh() and recorded.model.folded == folded + 1
    assert [event["error"]["exceptions"][0]["condition"] for event in following] == ["PROCESS_GONE"]
    clean(tmp_path, ALL, own="", now=time.time() + 60, stop=NEVER)
    assert (numbers(tmp_path), path.exists()) == ([(1, 2)], False)
    assert list(tmp_path.iterdir()) == [update_of(tmp_path).path(1, 2)]
    assert total(tmp_path) == before + 1
    assert [last_batch(tmp_path, flow) for flow in flows] == batches
    assert recorded.model.head()["state"] == "FAILED"
