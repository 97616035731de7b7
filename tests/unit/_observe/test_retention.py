"""Retention of finished updates in the event log. `test_segments` tests a running update."""

import os
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from made_events import flow_progress, lag_progress, stream_progress, update_progress

from penstock import _update
from penstock._model.pipeline import EventLogSettings, PipelineSettings
from penstock._observe.bus import EventBus
from penstock._observe.events import Event, EventOrigin, FlowMetrics, FlowStatus, UpdateState
from penstock._observe.log import LAST_BATCHES, EventLog, RecordedBatch, last_batch, read_events
from penstock._observe.retention import Retention, clean
from penstock._observe.segments import updates
from penstock._project.spec import load_settings
from penstock.errors import SetupError, SpecError

NOW = datetime(2026, 3, 31, tzinfo=UTC)


def commit(flow: str, batch: int) -> Event:
    origin = EventOrigin(flow_name=flow, batch_id=batch)
    metrics = FlowMetrics(num_output_rows=1)
    return flow_progress(origin, FlowStatus.RUNNING, "", metrics=metrics, table_version=batch + 10)


def progress(flow: str, batch: int) -> list[Event]:
    origin = EventOrigin(flow_name=flow, batch_id=batch)
    text = '"event_type":"stream_progress"}\n'
    return [
        commit(flow, batch),
        stream_progress(origin, {"batchId": batch, "name": text}),
        lag_progress(origin, {"loss": "none", "sources": []}),
    ]


def write(folder: Path, name: str, days_ago: float, *events: Event, torn: bytes = b"") -> Path:
    """Write an update that ended `days_ago`, and return the path of its log."""
    ended = NOW - timedelta(days=days_ago)
    log = EventLog(folder)
    for event in (*events, update_progress(EventOrigin(), UpdateState.COMPLETED, "")):
        log(replace(event, timestamp=ended, origin=replace(event.origin, update_id=name)))
    log.close()
    assert log.path is not None
    with log.path.open("ab") as file:
        file.write(torn)
    os.utime(log.path, (ended.timestamp(), ended.timestamp()))
    return log.path


def cleaned(folder: Path, **settings: float | None) -> list[str]:
    clean(folder, EventLogSettings(**settings), own="running", now=NOW.timestamp())
    return [file.update_id for file in updates(folder)]


def kinds(folder: Path, update: str) -> list[tuple[str, Any]]:
    events = read_events(folder, update=update)
    return [(event["event_type"], event["origin"].get("batch_id")) for event in events]


def test_measurements_of_old_updates_are_rolled_up_except_the_last(tmp_path: Path):
    several = [*progress("a", 0), *progress('b "quoted"', 7), *progress("a", 1), *progress("a", 2)]
    old = write(tmp_path, "old", 40, *several, torn=b'{"torn')
    fresh = write(tmp_path, "fresh", 2, *several)
    before, whole = old.stat(), fresh.read_bytes()
    rolled_up_paths = [update.path(1, 1) for update in updates(tmp_path)]
    assert cleaned(tmp_path) == ["old", "fresh"]
    assert kinds(tmp_path, "old") == [
        ("flow_progress", 0),
        ("flow_progress", 7),
        ("stream_progress", 7),
        ("lag_progress", 7),
        ("flow_progress", 1),
        # Roll-ups with the sums of the removed events.
        ("stream_progress", 1),
        ("flow_progress", 2),
        ("stream_progress", 2),
        ("lag_progress", 2),
        ("update_progress", None),
    ]
    assert not old.exists() and fresh.exists()
    old, small = rolled_up_paths
    assert old.read_bytes().endswith(b'\n{"torn\n')
    assert fresh.read_bytes() == whole
    after = old.stat()
    assert (after.st_mtime_ns, after.st_mode) == (before.st_mtime_ns, before.st_mode)
    # A log that is rolled up is not read again.
    cleaned(tmp_path)
    assert old.stat().st_ino == after.st_ino
    assert cleaned(tmp_path, keep_progress_days=1) == ["old", "fresh"]
    assert not fresh.exists() and small.stat().st_size < len(whole)
    assert old.stat().st_ino == after.st_ino


def test_old_updates_are_deleted_and_the_last_batches_of_flows_are_kept(tmp_path: Path):
    write(tmp_path, "first", 90, *progress("rare", 3), *progress("often", 0))
    write(tmp_path, "second", 80, *progress("often", 1))
    write(tmp_path, "third", 5, commit("often", 2))
    flows = {flow: last_batch(tmp_path, flow) for flow in ("rare", "often", "unknown")}
    assert cleaned(tmp_path, keep_progress_days=None) == ["first", "second", "third"]
    assert cleaned(tmp_path, keep_days=85) == ["second", "third"]
    assert cleaned(tmp_path, keep_days=30) == ["third"]
    assert {flow: last_batch(tmp_path, flow) for flow in flows} == flows
    assert flows["rare"] == RecordedBatch(3, 13)
    write(tmp_path, "fourth", 4, commit("rare", 4))
    assert last_batch(tmp_path, "rare") == RecordedBatch(4, 14)
    assert cleaned(tmp_path, keep_days=1) == []
    assert last_batch(tmp_path, "rare") == RecordedBatch(4, 14)
    assert last_batch(tmp_path, "often") == RecordedBatch(2, 12)
    (tmp_path / LAST_BATCHES).write_text("")  # as after a power loss
    assert last_batch(tmp_path, "often") is None


def test_old_logs_of_spark_are_deleted(tmp_path: Path):
    logs = tmp_path / "logs"
    logs.mkdir()
    for name, days in (("old", 90), ("new", 5), ("running", 90)):
        (logs / f"spark-{name}.log").touch()
        os.utime(logs / f"spark-{name}.log", (NOW.timestamp() - days * 86400,) * 2)
    cleaned(tmp_path / "events")
    assert len(list(logs.iterdir())) == 3
    cleaned(tmp_path / "events", keep_days=30)
    assert {log.name for log in logs.iterdir()} == {"spark-new.log", "spark-running.log"}


def test_running_update_is_kept_and_leftover_drafts_are_deleted(tmp_path: Path):
    running = write(tmp_path, "running", 99, *progress("a", 0), *progress("a", 1))
    whole = running.read_bytes()
    draft = tmp_path / ".20260101T000000000000Z-x.jsonl.draft"
    draft.write_text("half")
    assert cleaned(tmp_path, keep_days=1) == ["running"]
    assert running.read_bytes() == whole
    assert not draft.exists()
    assert cleaned(tmp_path / "nowhere") == []


def test_retention_runs_in_the_background(tmp_path: Path):
    write(tmp_path, "old", 400, *progress("a", 0))
    write(tmp_path, "new", -400, *progress("a", 1))
    retention = Retention(EventLog(tmp_path), EventLogSettings(keep_days=30), "running")
    retention.start()
    deadline = threading.Event()
    for _ in range(200):
        if len(updates(tmp_path)) == 1:
            break
        deadline.wait(0.05)
    retention.close()
    assert [file.update_id for file in updates(tmp_path)] == ["new"]


def test_no_update_is_deleted_when_the_lease_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "storage"
    old = write(home / "events", "old", 400, *progress("a", 0))
    (tmp_path / "shop.py").write_text("import dlt\n", encoding="utf-8")
    settings = PipelineSettings(
        name="shop", storage=str(home), root=str(tmp_path), events=EventLogSettings(keep_days=30)
    )

    def refuse(*_: object, **__: object) -> None:
        # Wait, so that a cleanup that ignores the lease can delete the update.
        for _second in range(40):
            if not old.exists():
                break
            threading.Event().wait(0.025)
        raise SetupError("LEASE_HELD", "another update writes here", hint="wait")

    monkeypatch.setattr(_update, "open_pipeline", refuse)
    with pytest.raises(SetupError, match="another update"):
        _update.run_update(settings, _update.UpdateOptions(), bus=EventBus())
    assert old.exists()


def test_event_log_settings_are_read(tmp_path: Path):
    def read(text: str) -> EventLogSettings:
        (tmp_path / "pipeline.yaml").write_text(f"name: shop\n{text}", encoding="utf-8")
        return load_settings(tmp_path, environ={}).events

    assert read("") == EventLogSettings(keep_days=None, keep_progress_days=30)
    assert read("events: {keep_days: 365}\n") == EventLogSettings(keep_days=365)
    settings = read("events: {keep_progress_days: null, max_progress_mb: 0.5}\n")
    assert settings == EventLogSettings(keep_progress_days=None, max_progress_mb=0.5)
    assert read("events: {max_progress_mb: null}\n") == EventLogSettings(max_progress_mb=None)
    settings = read("events: {table: ops.event_log, quality_table: ops.quality}\n")
    assert settings == EventLogSettings(table="ops.event_log", quality_table="ops.quality")
    assert settings.tables == ("ops.event_log", "ops.quality")
    with pytest.raises(SpecError, match="is not the name of a table"):
        read("events: {table: a.b.c.d}\n")
    with pytest.raises(SpecError, match="greater than 0"):
        read("events: {keep_days: 0}\n")
    with pytest.raises(SpecError, match="did you mean `keep_days`"):
        read("events: {keep_day: 1}\n")
