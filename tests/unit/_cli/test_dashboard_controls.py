"""Actions of the dashboard on real processes."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from penstock._cli.controls import ProcessControl
from penstock._cli.main import main
from penstock._model.pipeline import PipelineSettings
from penstock._runtime.lease import Lease
from penstock._runtime.lease_paths import pipeline_lease_path
from penstock._runtime.leases import NOT_STOPPABLE
from penstock.errors import SetupError

# Holds the lease of the pipeline until the second request to stop.
HOLDER = """
import json, os, sys, threading
from pathlib import Path
from penstock._display.signals import StopSignals
from penstock._runtime.lease import Lease

class Update:
    requests = 0

    def request_stop(self):
        self.requests += 1
        os.write(1, b"heard\\n")

holder = json.loads(sys.argv[2])
with Lease.acquire(Path(sys.argv[1]), holder=holder), StopSignals() as signals:
    update = Update()
    signals.bind(update)
    print("holds", flush=True)
    while update.requests < 2:
        threading.Event().wait(0.05)
"""
# Prints its arguments and a secret.
ECHO = "import os, sys; print(sys.argv[1:], 'PENSTOCK_UI_TOKEN' in os.environ); "
ECHO += "print('password=hunter2-xyz'); sys.exit(3)"


@pytest.fixture
def settings(tmp_path):
    return PipelineSettings(name="shop", root=tmp_path, storage=str(tmp_path / "storage"))


@pytest.fixture
def holder(settings, request):
    """A process that holds the lease; the parameter of the fixture is added to its record."""
    path, record = pipeline_lease_path(settings.storage), json.dumps(getattr(request, "param", {}))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), record], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "holds\n"
    yield process
    process.kill()
    process.wait()


def _ended(control):
    for _ in range(200):
        job = control.state()["jobs"][0]
        if job["ended"] is not None:
            return job
        threading.Event().wait(0.05)
    raise AssertionError("the job did not end")


def test_running_pipeline_is_stopped_gracefully_and_then_immediately(settings, holder):
    control = ProcessControl(settings)
    state = control.state()
    assert state["runs"]["is_here"] and not state["is_stopping"]
    with pytest.raises(SetupError, match="request a graceful stop first"):
        control.stop(now=True)
    control.stop()
    assert holder.stdout.readline() == "heard\n"
    assert control.state()["is_stopping"] and holder.poll() is None
    with pytest.raises(SetupError, match="already"):
        control.stop()
    for act in (control.start, lambda: control.replay("a.b.c")):
        with pytest.raises(SetupError, match="is held by") as caught:
            act()
        assert caught.value.condition == "CONTROL_REFUSED"
    control.stop(now=True)
    assert holder.wait(10) == 0
    assert control.state()["runs"] is None
    with pytest.raises(SetupError, match="is not running"):
        control.stop()


def test_no_signal_is_sent_when_the_process_id_is_reused_or_remote(settings):
    path = pipeline_lease_path(settings.storage)
    with Lease.acquire(path, holder={}) as lease:
        text = os.pread(lease.fd, 4096, 0).decode()
        path.write_text(text.replace('"process_started": ', '"process_started": 1'))
        signals = []
        before = signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
        try:
            with pytest.raises(SetupError, match="is not running"):
                ProcessControl(settings).stop()
            path.write_text(text.replace('"host": "', '"host": "not-'))
            with pytest.raises(SetupError, match="not on this host"):
                ProcessControl(settings).stop()
        finally:
            signal.signal(signal.SIGTERM, before)
        assert signals == []


def test_dashboard_starts_commands_of_the_command_line(settings, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_UI_TOKEN", "the-token-of-the-page")
    control = ProcessControl(
        settings,
        project=["shop dir"],
        choice=["--target=dev"],
        command=[sys.executable, "-c", ECHO],
    )
    control.start(refresh=["a.b.c"], full_refresh=["a.b.d"], continuous=True)
    job = _ended(control)
    expected = ["run", "--quiet", "--refresh=a.b.c", "--full-refresh=a.b.d", "--continuous"]
    expected += ["--target=dev", "--", "shop dir"]
    assert job["output"].startswith(f"{expected} False")
    assert "hunter2-xyz" not in job["output"]
    assert (job["what"], job["exit_code"]) == ("update", 3)
    control.replay("a.b.c;rm")
    job = _ended(control)
    expected = ["quarantine", "replay", "--project=shop dir", "--target=dev", "--", "a.b.c;rm"]
    assert job["output"].startswith(str(expected))
    assert [entry["what"] for entry in control.state()["jobs"]] == ["replay of a.b.c;rm", "update"]
    ids = [f"{'0a' * 8}-{n}" for n in range(2)]
    control.replay("a.b.c", rules=["one, two", "--x"], rows=ids)
    job = _ended(control)
    expected = ["quarantine", "replay", "--rule=one, two", "--rule=--x", f"--row={','.join(ids)}"]
    expected += ["--project=shop dir", "--target=dev", "--", "a.b.c"]
    assert job["output"].startswith(str(expected))
    assert job["what"] == "replay of a.b.c, 2 marked rows, rows that violated one, two or --x"
    with pytest.raises(SetupError, match="is not a valid name"):
        control.replay("a.b.c", rows=["--x"])
    for name in ("", "--conf=x", "a,b", "a\nb", "a\0b"):
        with pytest.raises(SetupError, match="is not a valid name"):
            control.replay(name)
        with pytest.raises(SetupError, match="is not a valid name"):
            control.start(full_refresh=[name])
    assert "shop: update, from the dashboard" in capsys.readouterr().err


def test_second_start_is_refused_while_a_job_runs(settings, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    waits = [sys.executable, "-c", f"open({str(gate)!r}).read()"]
    control = ProcessControl(settings, command=waits)
    control.start()
    with pytest.raises(SetupError, match="has not ended yet"):
        control.start()
    gate.write_text("go")
    assert _ended(control)["exit_code"] == 0
    broken = ProcessControl(settings, command=[str(tmp_path / "nothing")])
    with pytest.raises(SetupError, match="could not be started"):
        broken.start()


def test_stop_ends_the_running_update_and_waits_for_it(settings, holder, capsys):
    arguments = ["stop", str(settings.root), "--storage", settings.storage]
    assert main([*arguments, "--now"]) == 0
    assert [holder.stdout.readline() for _ in range(2)] == ["heard\n", "heard\n"]
    assert holder.wait(10) == 0
    assert "stopped" in capsys.readouterr().out
    assert main([*arguments, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"was_running": False, "is_running": False}


def test_stop_succeeds_when_the_update_ends_before_the_signal(settings, monkeypatch, capsys):
    holders = iter([{"pid": 1, "host": "here"}, None, None, None])
    monkeypatch.setattr(ProcessControl, "_holder", lambda _: next(holders))
    assert main(["stop", str(settings.root), "--storage", settings.storage]) == 0
    assert capsys.readouterr().out == "stopped\n"


@pytest.mark.parametrize(
    "holder", [{"command": "penstock migrate", **NOT_STOPPABLE}], indirect=True
)
def test_stop_does_not_kill_a_maintenance_command(settings, holder, capsys):
    assert main(["stop", str(settings.root), "--storage", settings.storage, "--now"]) == 3
    refused = capsys.readouterr().err
    assert "CONTROL_REFUSED" in refused and "is held by penstock migrate, process" in refused
    with pytest.raises(SetupError, match="not an update"):
        ProcessControl(settings).stop()
    assert holder.poll() is None


def test_stop_reports_that_the_update_still_runs_after_the_timeout(settings, holder, capsys):
    arguments = ["stop", str(settings.root), "--storage", settings.storage, "--timeout", "0.3"]
    assert main(arguments) == 1
    assert holder.stdout.readline() == "heard\n"
    assert "still running after 0.3 s" in capsys.readouterr().out
