import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from made_events import definition, flow_progress, update_progress

from penstock._model.pipeline import PipelineSettings
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    FlowMetrics,
    FlowStatus,
    UpdateState,
)
from penstock._observe.log import (
    EventLog,
    event_directory,
    follow,
    last_batch,
    read_events,
    recorded_events,
)
from penstock._observe.segments import select_updates, updates

START = datetime(2026, 3, 4, 14, 47, 39, 123_456, tzinfo=UTC)


def origin(update: str = "u1", flow: str = "", batch: int | None = None) -> EventOrigin:
    dataset = f"spark_catalog.default.{flow}" if flow else ""
    return EventOrigin(
        pipeline_name="shop", update_id=update, flow_name=flow, dataset_name=dataset, batch_id=batch
    )


def batch_event(flow: str, batch: int, version: int | None, update: str = "u1") -> Event:
    return flow_progress(
        origin(update, flow, batch),
        FlowStatus.RUNNING,
        "",
        metrics=FlowMetrics(num_output_rows=10),
        table_version=version,
    )


def write(directory: Path, *events: Event) -> EventLog:
    log = EventLog(directory)
    for event in events:
        log(event)
    log.close()
    return log


def at(event: Event, seconds: float) -> Event:
    from dataclasses import replace

    return replace(event, timestamp=START + timedelta(seconds=seconds))


def test_line_has_the_format_of_the_lakeflow_event_log(tmp_path: Path) -> None:
    error = ErrorInfo(condition="BOOM", class_name="FlowError", message="a\nb")
    event = at(flow_progress(origin(flow="silver"), FlowStatus.FAILED, "no", error=error), 0)
    log = write(tmp_path, event)

    assert log.path == tmp_path / "20260304T144739123456Z-u1.jsonl"
    (line,) = log.path.read_text().splitlines()
    body = json.loads(line)
    assert body.pop("id") == event.id
    assert body.pop("sequence")["data_plane_id"]["seq_no"] == 0
    assert body == {
        "origin": {
            "pipeline_name": "shop",
            "update_id": "u1",
            "dataset_name": "spark_catalog.default.silver",
            "flow_name": "silver",
        },
        "timestamp": "2026-03-04T14:47:39.123Z",
        "message": "no",
        "level": "ERROR",
        "maturity_level": "STABLE",
        "error": {
            "fatal": True,
            "exceptions": [{"class_name": "FlowError", "message": "a\nb", "condition": "BOOM"}],
        },
        "details": {"flow_progress": {"status": "FAILED"}},
        "schema_version": 2,
        "event_type": "flow_progress",
    }


def test_events_are_readable_when_the_log_is_still_open(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "new" / "events")
    for state in (UpdateState.CREATED, UpdateState.RUNNING):
        log(update_progress(origin(), state, state.value))
    read = list(read_events(log.directory))
    assert [event["message"] for event in read] == ["CREATED", "RUNNING"]
    assert [event["sequence"]["data_plane_id"]["seq_no"] for event in read] == [0, 1]
    assert len({event["sequence"]["data_plane_id"]["instance"] for event in read}) == 1
    log.close()
    log(update_progress(origin(), UpdateState.COMPLETED, "after the end"))
    assert len(list(read_events(log.directory))) == 2


def test_event_is_written_when_its_details_are_not_json(tmp_path: Path) -> None:
    details = {"when": START, "price": Decimal("1.50"), "rate": float("nan"), "text": "\udc80é\n"}
    write(tmp_path, definition("create_update", origin(), "m", details))
    (event,) = read_events(tmp_path)
    body = event["details"]["create_update"]
    assert body["price"] == "1.50"
    assert body["rate"] is None
    assert body["text"] == "\udc80é\n"
    assert body["when"].startswith("2026-03-04")


def test_incomplete_line_is_skipped(tmp_path: Path) -> None:
    first = write(tmp_path, *(at(batch_event("silver", n, n + 1), n) for n in range(3)))
    assert first.path is not None
    with first.path.open("r+b") as file:
        file.truncate(first.path.stat().st_size - 25)
    write(tmp_path, at(batch_event("silver", 3, 4, update="u2"), 60))

    batches = [event["origin"]["batch_id"] for event in read_events(tmp_path)]
    assert batches == [0, 1, 3]
    assert last_batch(tmp_path, "silver") == (3, 4)
    for update in updates(tmp_path)[1:]:
        for segment in update.files:
            segment.path.unlink()
    assert last_batch(tmp_path, "silver") == (1, 2)


def test_foreign_lines_are_skipped(tmp_path: Path) -> None:
    log = write(tmp_path, at(batch_event("silver", 0, 1), 0))
    assert log.path is not None
    with log.path.open("ab") as file:
        file.write(b'{}\n{"timestamp":3,"event_type":"flow_progress"}\n[]\n')
    (event,) = recorded_events(tmp_path, "latest", dataset="silver")
    assert (event.origin.batch_id, len(list(recorded_events(tmp_path, None)))) == (0, 1)


def test_the_log_survives_when_the_process_is_killed(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from penstock._observe.events import Event, EventOrigin, UpdateProgress, UpdateState
from penstock._observe.log import EventLog
log = EventLog(Path(sys.argv[1]))
for n in range(50):
    log(Event(EventOrigin(update_id="u"), UpdateProgress(UpdateState.RUNNING), str(n)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, timeout=60, check=False
    )
    assert done.returncode == -9
    assert [event["message"] for event in read_events(tmp_path)] == [str(n) for n in range(50)]


def test_next_line_is_complete_after_a_short_write(tmp_path: Path) -> None:
    class FullDisk:
        def __init__(self, file) -> None:
            self.file, self.is_full = file, False

        def write(self, data: bytes) -> int:
            return self.file.write(data[:20] if self.is_full else data)

        def close(self) -> None:
            self.file.close()

    log = EventLog(tmp_path)
    log(batch_event("silver", 0, 1))
    disk = FullDisk(log._file)
    log._file = disk
    disk.is_full = True
    with pytest.raises(OSError, match="took only 20 bytes"):
        log(batch_event("silver", 1, 2))
    disk.is_full = False
    log(batch_event("silver", 2, 3))
    log.close()
    assert [event["origin"]["batch_id"] for event in read_events(tmp_path)] == [0, 2]


def test_each_event_has_its_own_line_when_threads_write_concurrently(tmp_path: Path) -> None:
    log = EventLog(tmp_path)

    def emit(flow: str) -> None:
        for number in range(100):
            log(batch_event(flow, number, number))

    threads = [threading.Thread(target=emit, args=(f"f{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    sequence = [e["sequence"]["data_plane_id"]["seq_no"] for e in read_events(tmp_path)]
    assert sequence == list(range(400))


def filled(directory: Path) -> None:
    for number, update in enumerate(("aaa-1", "aab-2")):
        write(
            directory,
            at(update_progress(origin(update), UpdateState.RUNNING, "go"), 60 * number),
            at(batch_event("silver", number, number + 1, update), 60 * number + 1),
            at(
                flow_progress(origin(update, "gold"), FlowStatus.FAILED, "bad"),
                60 * number + 2,
            ),
        )


@pytest.mark.parametrize(
    ("filters", "messages"),
    [
        ({}, ["go", "", "bad", "go", "", "bad"]),
        ({"update": "latest"}, ["go", "", "bad"]),
        ({"update": "aaa"}, ["go", "", "bad"]),
        ({"update": "none"}, []),
        ({"update": "latest", "event_type": "update_progress"}, ["go"]),
        ({"dataset": "GOLD"}, ["bad", "bad"]),
        ({"dataset": "spark_catalog.default.gold", "update": "aab-2"}, ["bad"]),
        ({"dataset": "old"}, []),
        ({"level": "warn"}, ["bad", "bad"]),
        ({"level": "METRICS"}, []),
    ],
)
def test_events_are_filtered(tmp_path: Path, filters: dict[str, str], messages: list[str]) -> None:
    filled(tmp_path)
    assert [event["message"] for event in read_events(tmp_path, **filters)] == messages


def test_updates_are_listed_in_order_without_other_files(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "notes.jsonl").write_text("{}")
    logs = updates(tmp_path)
    assert [(file.update_id, file.started - START) for file in logs] == [
        ("aaa-1", timedelta(0)),
        ("aab-2", timedelta(minutes=1)),
    ]
    assert updates(tmp_path / "nowhere") == []
    assert list(read_events(tmp_path / "nowhere")) == []
    assert [file.update_id for file in select_updates(tmp_path, "aa")] == ["aaa-1", "aab-2"]


def test_last_batch_is_the_newest_commit_when_other_events_follow_it(tmp_path: Path) -> None:
    write(tmp_path, *(at(batch_event("silver", n, n + 5), n) for n in range(4)))
    write(
        tmp_path,
        at(batch_event("bronze", 9, 90, "u2"), 70),
        at(batch_event("silver", 4, None, "u2"), 71),  # Spark's progress: no table version
        at(flow_progress(origin("u2", "silver"), FlowStatus.STOPPED, '"table_version"'), 72),
        at(batch_event("silver_2", 8, 80, "u2"), 73),
    )
    assert last_batch(tmp_path, "silver") == (3, 8)
    assert last_batch(tmp_path, "bronze") == (9, 90)
    assert last_batch(tmp_path, "gold") is None
    assert last_batch(tmp_path / "nowhere", "silver") is None


def test_a_newer_update_is_the_latest_when_the_clock_was_set_back(tmp_path: Path) -> None:
    write(tmp_path, at(batch_event("silver", 3, 8), 3600))
    write(tmp_path, at(batch_event("silver", 4, 9, "u2"), 0))
    assert last_batch(tmp_path, "silver") == (4, 9)
    assert [log.update_id for log in select_updates(tmp_path, "latest")] == ["u2"]


def test_last_batch_is_found_when_lines_cross_the_blocks_of_a_big_log(tmp_path: Path) -> None:
    wide = {"text": "x" * 700_000}
    log = EventLog(tmp_path)
    log(batch_event("früh", 1, 2))
    for number in range(5):
        log(definition("create_update", origin(), "", wide))
        log(batch_event("late", number, number))
    log.close()
    assert last_batch(tmp_path, "früh") == (1, 2)
    assert last_batch(tmp_path, "late") == (4, 4)


def test_follow_ends_when_its_update_ends(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log(update_progress(origin(), UpdateState.RUNNING, "one"))
    messages: list[str] = []
    first = threading.Event()

    def read() -> None:
        for event in follow(tmp_path, update="u1"):
            messages.append(event["message"])
            first.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert first.wait(10)
    log(batch_event("silver", 0, 1))
    log(update_progress(origin(), UpdateState.COMPLETED, "end"))
    log(update_progress(origin(), UpdateState.COMPLETED, "as of an alert about the end"))
    reader.join(10)
    assert not reader.is_alive()
    assert messages == ["one", "", "end", "as of an alert about the end"]


def test_follow_continues_with_the_next_update_without_an_id(tmp_path: Path) -> None:
    write(tmp_path, at(update_progress(origin("old"), UpdateState.COMPLETED, "old"), -60))
    killed = write(tmp_path, at(update_progress(origin("u1"), UpdateState.RUNNING, "one"), 0))
    assert killed.path is not None
    with killed.path.open("ab") as file:
        file.write(b'{"torn')
    stop, messages, first = threading.Event(), [], threading.Event()

    def read() -> None:
        for event in follow(tmp_path, stop=stop):
            messages.append(event["message"])
            first.set()
            if event["message"] == "two":
                stop.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert first.wait(10)
    write(tmp_path, at(update_progress(origin("u2"), UpdateState.COMPLETED, "two"), 60))
    reader.join(10)
    assert not reader.is_alive()
    assert messages == ["one", "two"]


def test_follow_waits_for_the_folder_of_the_log(tmp_path: Path) -> None:
    directory, stop, messages = tmp_path / "events", threading.Event(), []

    def read() -> None:
        for event in follow(directory, stop=stop):
            messages.append(event["message"])
            stop.set()

    reader = threading.Thread(target=read)
    reader.start()
    write(directory, update_progress(origin(), UpdateState.RUNNING, "one"))
    reader.join(10)
    assert not reader.is_alive()
    assert messages == ["one"]


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        ("file:///data/shop", "/data/shop/events"),
        ("file:/data/a%20b#1?", "/data/a%20b#1?/events"),
        ("/data/shop", "/data/shop/events"),
        ("s3a://bucket/shop", "/project/.penstock/2dfa5b9b8154a492/events"),
    ],
)
def test_event_log_folder_is_local_for_any_storage(storage: str, expected: str) -> None:
    settings = PipelineSettings(name="shop", storage=storage, root="/project")
    assert event_directory(settings) == Path(expected)


def test_each_storage_has_its_own_log_folder_or_that_of_an_older_version(tmp_path: Path):
    def directory(storage: str, *, shared_storage: bool = False) -> Path:
        settings = PipelineSettings(name="shop", storage=storage, root=str(tmp_path))
        return event_directory(replace(settings, shared_storage=shared_storage))

    uris = ("s3a://bucket/shop", "s3a://bucket/dev", "hdfs://name/shop")
    folders = [directory(uri) for uri in uris]
    assert len({*folders, directory(uris[0], shared_storage=True)}) == 4
    assert directory("s3://bucket/shop/") == folders[0]
    earlier = tmp_path / ".penstock" / "events"
    for number, uri in enumerate(uris[:2]):
        created = definition("create_update", origin(f"u{number}"), "", {"storage": uri})
        write(earlier, at(created, number))
    write(earlier, at(update_progress(origin("u2"), UpdateState.FAILED, ""), 2))
    assert [directory(uri) for uri in uris] == [folders[0], earlier, folders[2]]
    assert directory(uris[1], shared_storage=True) not in (earlier, folders[1])
