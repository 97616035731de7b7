import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from penstock._runtime.lease import Lease, LeaseEnvironment, own_record
from penstock._runtime.ports import ProcessInfo
from penstock._runtime.system import SystemProcesses
from penstock.errors import SetupError

PROGRAM = Path(__file__).with_name("lease_holder.py")
HOLDER = {"pipeline": "shop"}


@pytest.fixture
def hold(tmp_path):
    """Start a process that holds `tmp_path/lock`; optionally with a child that inherits it."""
    processes, children = [], []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, PROGRAM, tmp_path / "lock", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        words = process.stdout.readline().split()
        assert words[0] == "holds"
        children.extend(int(word) for word in words[1:])
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


class Machine:
    """A simulated clock, and the processes that a test specifies."""

    def __init__(self, processes=None, while_waiting=lambda: None):
        self.now = 0.0
        self._processes = processes
        self._while_waiting = while_waiting

    def monotonic(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds
        self._while_waiting()

    def look_up(self, pid):
        return self._processes.get(pid)

    def environment(self):
        processes = SystemProcesses() if self._processes is None else self
        return LeaseEnvironment(monotonic=self.monotonic, processes=processes, wait=self.wait)


def test_second_holder_is_refused_with_the_pid_in_under_a_second(tmp_path, hold):
    first = hold()
    started = time.monotonic()
    with pytest.raises(SetupError) as caught:
        Lease.acquire(tmp_path / "lock", holder=HOLDER)
    assert time.monotonic() - started < 1.0
    assert caught.value.condition == "LEASE_HELD"
    assert caught.value.exit_code == 3
    assert f"process {first.pid} (lease_holder.py " in caught.value.message
    assert "since 20" in caught.value.message
    assert f"kill {first.pid}" in caught.value.hint


def test_module_is_shown_as_its_package(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/env/penstock/__main__.py", "run", "--conf=a=b"])
    record = own_record(HOLDER, SystemProcesses())
    assert record["command"] == "penstock run"


def test_second_process_is_refused_when_this_one_holds_the_lease(tmp_path):
    with Lease.acquire(tmp_path / "lock", holder=HOLDER):
        done = subprocess.run(
            [sys.executable, PROGRAM, tmp_path / "lock"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert done.returncode == 3
    assert done.stdout.startswith("LEASE_HELD")
    assert f"process {os.getpid()}" in done.stdout


def test_lease_is_free_when_the_holder_was_killed(tmp_path, hold):
    first = hold()
    first.kill()
    first.wait()
    with Lease.acquire(tmp_path / "lock", holder=HOLDER):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_lease_is_taken_after_the_child_ended_when_the_holder_was_killed(tmp_path, hold):
    first = hold("2")
    started = time.monotonic()
    os.kill(first.pid, signal.SIGKILL)
    with Lease.acquire(tmp_path / "lock", holder=HOLDER | {"update": "of the new holder"}):
        waited = time.monotonic() - started
        record = json.loads((tmp_path / "lock").read_text())
    assert (record["pid"], record["update"]) == (os.getpid(), "of the new holder")
    # The child ends after 2 s, which began before `started`.
    assert 1.0 < waited < 5.0


def test_zombie_counts_as_dead_before_it_is_reaped(tmp_path, hold):
    first = hold("60")
    first.kill()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # now a zombie
    with pytest.raises(SetupError) as caught:
        Lease.acquire(tmp_path / "lock", holder=HOLDER, environment=Machine().environment())
    assert caught.value.condition == "LEASE_LEFTOVER"


def test_remaining_process_is_named_after_the_wait(tmp_path, hold):
    first = hold("60")
    first.kill()
    first.wait()
    machine = Machine()
    with pytest.raises(SetupError) as caught:
        Lease.acquire(tmp_path / "lock", holder=HOLDER, environment=machine.environment())
    assert caught.value.condition == "LEASE_LEFTOVER"
    assert f"process {first.pid}" in caught.value.message
    assert "JVM" in caught.value.message
    assert 15.0 <= machine.now < 15.2


def test_reused_pid_does_not_count_as_the_holder(tmp_path, hold):
    first = hold("60")
    first.kill()
    first.wait()
    record = json.loads((tmp_path / "lock").read_text())
    assert isinstance(record["process_started"], int)
    environment = {
        "reused": {first.pid: ProcessInfo(started=record["process_started"] + 1)},
        "the same": {first.pid: ProcessInfo(started=record["process_started"])},
        "unknown": {first.pid: ProcessInfo()},
    }
    conditions = {}
    for name, processes in environment.items():
        with pytest.raises(SetupError) as caught:
            Lease.acquire(
                tmp_path / "lock", holder=HOLDER, environment=Machine(processes).environment()
            )
        conditions[name] = caught.value.condition
    assert conditions == {
        "reused": "LEASE_LEFTOVER",
        "the same": "LEASE_HELD",
        "unknown": "LEASE_HELD",
    }


def test_error_names_a_holder_that_acquired_the_lease_during_the_wait(tmp_path, hold):
    first = hold("60")
    first.kill()
    first.wait()
    path = tmp_path / "lock"
    record = json.loads(path.read_text())

    def take_over():
        path.write_text(json.dumps({**record, "pid": 4711, "process_started": 1}))

    machine = Machine({4711: ProcessInfo(started=1)}, while_waiting=take_over)
    with pytest.raises(SetupError) as caught:
        Lease.acquire(path, holder=HOLDER, environment=machine.environment())
    assert caught.value.condition == "LEASE_HELD"
    assert "4711" in caught.value.message
    assert machine.now < 0.5


def test_holder_on_another_host_counts_as_running(tmp_path, hold):
    first = hold("60")
    first.kill()
    first.wait()
    path = tmp_path / "lock"
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "elsewhere"}))
    with pytest.raises(SetupError) as caught:
        Lease.acquire(path, holder=HOLDER)
    assert caught.value.condition == "LEASE_HELD"
    assert f"process {first.pid} on elsewhere" in caught.value.message


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', "\xff\xfe"])
def test_lease_is_refused_when_the_record_stays_unreadable(tmp_path, hold, content):
    hold()
    (tmp_path / "lock").write_text(content)
    with pytest.raises(SetupError) as caught:
        Lease.acquire(tmp_path / "lock", holder=HOLDER, environment=Machine().environment())
    assert caught.value.condition == "LEASE_LEFTOVER"


def test_release_leaves_the_lock_to_the_child_that_inherited_it(tmp_path):
    lease = Lease.acquire(tmp_path / "lock", holder=HOLDER)
    child = subprocess.Popen(["sleep", "60"], pass_fds=(lease.fd,))
    try:
        lease.release()
        lease.release()
        with pytest.raises(ValueError, match="released"):
            _ = lease.fd
        # This process runs, but has released the lease. Only the child still has the lock.
        with pytest.raises(SetupError) as caught:
            Lease.acquire(tmp_path / "lock", holder=HOLDER, environment=Machine().environment())
        assert caught.value.condition == "LEASE_LEFTOVER"
    finally:
        child.kill()
        child.wait()
    Lease.acquire(tmp_path / "lock", holder=HOLDER).release()


def test_lock_file_has_no_command_line_option(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/x/penstock", "run", "--conf", "password=s3cret"])
    with Lease.acquire(tmp_path / "lock", holder=HOLDER):
        text = (tmp_path / "lock").read_text()
    assert json.loads(text)["command"] == "penstock run"
    assert json.loads(text)["pipeline"] == "shop"
    assert "s3cret" not in text


def test_shorter_record_replaces_a_longer_one_completely(tmp_path):
    Lease.acquire(tmp_path / "lock", holder={"pipeline": "x" * 5000}).release()
    with Lease.acquire(tmp_path / "lock", holder=HOLDER):
        assert json.loads((tmp_path / "lock").read_text())["pipeline"] == "shop"


def test_lease_is_taken_on_the_new_file_when_the_old_one_was_removed(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    real_open = os.open
    removed = []

    def open_and_lose(*arguments, **options):
        fd = real_open(*arguments, **options)
        if not removed:
            removed.append(fd)
            path.unlink()
        return fd

    monkeypatch.setattr(os, "open", open_and_lose)
    with Lease.acquire(path, holder=HOLDER) as lease:
        assert os.path.samestat(os.fstat(lease.fd), path.stat())
    assert removed


def test_error_is_clear_when_the_folder_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError) as caught:
        Lease.acquire(tmp_path / "file" / "state" / "lock", holder=HOLDER)
    assert caught.value.condition == "LEASE_UNAVAILABLE"
    assert "Not a directory" in caught.value.message


def test_error_is_clear_when_the_folder_is_read_only():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        is_root = os.geteuid() == 0
        if is_root:  # root may write to any folder; use the id of `nobody`
            os.seteuid(65534)
        try:
            with pytest.raises(SetupError) as caught:
                Lease.acquire(Path(folder) / "state" / "lock", holder=HOLDER)
        finally:
            if is_root:
                os.seteuid(0)
            Path(folder).chmod(0o755)
    assert caught.value.condition == "LEASE_UNAVAILABLE"
    assert "Permission denied" in caught.value.message
    assert folder in caught.value.message
    assert "writable" in caught.value.hint


def test_no_descriptor_leaks_when_leases_are_refused_or_released(tmp_path):
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
    before = len(list(folder.iterdir()))
    with Lease.acquire(tmp_path / "a", holder=HOLDER):
        for _ in range(3):
            with pytest.raises(SetupError):
                Lease.acquire(tmp_path / "a", holder=HOLDER)
    assert len(list(folder.iterdir())) == before


def test_process_table_contains_only_this_process(tmp_path):
    table = SystemProcesses()
    me = table.look_up(os.getpid())
    assert me is not None
    assert me == table.look_up(os.getpid())
    process = subprocess.Popen(["true"])
    process.wait()
    assert table.look_up(process.pid) is None
    assert table.look_up(0) is None
    assert table.look_up(-1) is None
