"""Updates whose process has ended, and event logs on a full disk."""

import errno
import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from made_events import update_progress

from penstock._cli.failure import report
from penstock._cli.main import main
from penstock._observe.bus import EventBus
from penstock._observe.events import EventOrigin, UpdateState
from penstock._observe.log import EventLog, read_events
from penstock._observe.segments import updates
from penstock._observe.unfinished import end_unfinished
from penstock._runtime.lease import Lease
from penstock._runtime.lease_paths import pipeline_lease_path


def record(directory: Path, update: str, *states: UpdateState) -> Path:
    log = EventLog(directory)
    for state in states:
        log(update_progress(EventOrigin(pipeline_name="shop", update_id=update), state, ""))
    log.close()
    assert log.path is not None
    return log.path


def states(directory: Path, update: str) -> list[str]:
    events = read_events(directory, update=update, event_type="update_progress")
    return [event["details"]["update_progress"]["state"] for event in events]


def test_updates_after_the_last_finished_one_are_marked_as_failed(tmp_path: Path):
    record(tmp_path, "u0", UpdateState.RUNNING)  # older than the newest finished update
    record(tmp_path, "u1", UpdateState.RUNNING, UpdateState.COMPLETED)
    torn = record(tmp_path, "u2", UpdateState.RUNNING)
    with torn.open("ab") as file:
        file.write(b'{"id":"cut')
    record(tmp_path, "u3", UpdateState.CREATED)
    os.utime(torn, (1_000_000, 1_000_000))
    for _ in range(2):
        end_unfinished(tmp_path)
        assert states(tmp_path, "u3") == ["CREATED", "FAILED"]
        assert states(tmp_path, "u2") == ["RUNNING", "FAILED"]
        assert states(tmp_path, "u0") == ["RUNNING"]
    last = list(read_events(tmp_path, update="u2"))[-1]
    assert last["error"]["exceptions"][0]["condition"] == "PROCESS_GONE"
    assert last["origin"] == {"pipeline_name": "shop", "update_id": "u2"}
    # The timestamp is that of the last write, not of the check.
    assert datetime.fromisoformat(last["timestamp"]) == datetime.fromtimestamp(1_000_000, UTC)
    end_unfinished(tmp_path / "nothing")


def test_history_shows_unfinished_updates_as_failed_without_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.yaml").write_text("name: shop\nstorage: .\n", encoding="utf-8")
    record(tmp_path / "events", "u1", UpdateState.RUNNING)
    record(tmp_path / "events", "u2", UpdateState.RUNNING)

    def shown() -> dict[str, tuple[str, str | None]]:
        assert main(["history", "--output", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        return {row["update_id"]: (row["state"], row["error"]) for row in rows}

    gone = ("FAILED", "PROCESS_GONE")
    assert shown() == {"u1": gone, "u2": gone}
    with Lease.acquire(pipeline_lease_path(str(tmp_path)), holder={"update": "u2"}):
        assert shown() == {"u1": gone, "u2": ("RUNNING", None)}
    assert shown()["u2"] == gone


def test_full_disk_is_logged_once_until_it_is_repaired(caplog: pytest.LogCaptureFixture):
    bus, full, taken = EventBus(), [True], []

    def subscriber(event: object) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/events/a.jsonl")
        taken.append(event)

    bus.subscribe(subscriber)
    event = update_progress(EventOrigin(), UpdateState.RUNNING, "")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            bus.emit(event)
        full[0] = False
        bus.emit(event)
        full[0] = True
        bus.emit(event)
    text = "events are not recorded until this is repaired: No space left on device"
    assert [record.getMessage() for record in caplog.records] == [
        f"{text} (/data/events/a.jsonl)"
    ] * 2
    assert all(record.exc_info is None for record in caplog.records)
    assert len(taken) == 1


def test_full_disk_is_not_an_internal_error(capsys: pytest.CaptureFixture[str]):
    assert report(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x"), debug=False) == 3
    text = capsys.readouterr().err
    assert "[DISK_FULL] No space left on device while running the command: /data/x" in text
    assert "free some space" in text


def test_missing_permission_is_not_an_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    assert updates(tmp_path / "missing") == []
    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(PermissionError) as error:  # an empty list would hide the error
        updates(tmp_path)
    assert report(error.value, debug=False) == 3
    text = capsys.readouterr().err
    assert f"[PERMISSION_DENIED] Permission denied while running the command: {tmp_path}" in text


def test_removed_working_directory_is_not_an_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert main(["status"]) == 3
    assert "[WORKING_DIRECTORY_GONE]" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux: a device that is full")
def test_error_names_the_log_file_when_the_disk_is_full(tmp_path: Path):
    event = update_progress(EventOrigin(update_id="u1"), UpdateState.RUNNING, "")
    file = tmp_path / f"{event.timestamp.astimezone(UTC):%Y%m%dT%H%M%S%fZ}-u1.jsonl"
    file.symlink_to("/dev/full")
    log = EventLog(tmp_path)
    with pytest.raises(OSError, match="No space left on device") as error:
        log(event)
    log.close()
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(file))
