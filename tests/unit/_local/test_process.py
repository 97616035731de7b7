import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._local import process

_WAITS = "import sys, threading; print('up', flush=True); threading.Event().wait(60)"
_STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_WAITS}"


def _start(program: str, *arguments: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    return child


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    running = _start(_WAITS, "--penstock-test-marker")
    yield running
    running.kill()
    running.communicate()


def test_process_is_the_same_with_its_own_start_time(child: subprocess.Popen[str]) -> None:
    started = process.start_time(child.pid)
    assert started is not None
    assert process.is_same(child.pid, started)


def test_process_differs_when_its_pid_is_reused(child: subprocess.Popen[str]) -> None:
    other = process.start_time(os.getppid())
    assert other is not None
    assert not process.is_same(child.pid, other)


def test_zombie_process_counts_as_ended(child: subprocess.Popen[str]) -> None:
    started = process.start_time(child.pid) or ""
    child.kill()
    assert process.wait_gone(child.pid, started, 10)
    assert child.returncode is None  # not reaped: still a zombie


def test_process_is_ended_by_a_signal(child: subprocess.Popen[str]) -> None:
    process.end(child.pid, process.start_time(child.pid) or "", grace_seconds=10)
    assert child.wait(10) == -15


def test_process_is_killed_when_it_ignores_the_signal() -> None:
    child = _start(_STUBBORN)
    try:
        process.end(child.pid, process.start_time(child.pid) or "", grace_seconds=0.2)
        assert child.wait(10) == -9
    finally:
        child.kill()
        child.communicate()


def test_process_is_not_ended_when_the_record_is_stale(child: subprocess.Popen[str]) -> None:
    process.end(child.pid, "an earlier start", grace_seconds=1)
    assert child.poll() is None


def test_running_process_is_found_by_its_arguments(child: subprocess.Popen[str]) -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("no /proc on this system")
    assert process.find_by_argument("--penstock-test-marker", "-c") == child.pid
    assert process.find_by_argument("--penstock-test-marker", "--not-there") is None


def test_start_time_is_none_when_the_pid_is_invalid() -> None:
    assert process.start_time(0) is None
    assert process.start_time(-5) is None
