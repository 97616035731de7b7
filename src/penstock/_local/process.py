"""Other processes: starts them under a lock, identifies recorded ones, and ends them."""

import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import SetupError

_POLL_SECONDS = 0.02


@contextmanager
def start_lock(
    directory: Path, deadline: float, timeout: Callable[[], SetupError]
) -> Iterator[None]:
    """Exclude other callers for this folder while the block starts processes and records them.

    Raises what `timeout` returns if another caller is still busy at the deadline.
    """
    pause = threading.Event()
    with (directory / "start.lock").open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise timeout() from None
                pause.wait(_POLL_SECONDS)
        yield


def start_time(pid: int) -> str | None:
    """A string that distinguishes the process from a later one with its pid; `None` if it ended.

    A zombie has ended if none of its threads is left: until then they hold its ports.
    """
    if pid <= 0:
        return None
    proc = Path("/proc")
    if (proc / "self" / "stat").exists():
        try:
            # The command in parentheses may itself contain spaces and parentheses.
            fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        state, ticks = fields[0], fields[19]
        return None if state in "ZX" and not _has_threads(pid) else f"{boot}/{ticks}"
    result = subprocess.run(  # noqa: S603
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],  # noqa: S607 - `ps` of the system
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, started = result.stdout.strip().partition(" ")
    return started.strip() if started and not state.startswith("Z") else None


def _has_threads(pid: int) -> bool:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir()) > 1
    except OSError:
        return False


def is_same(pid: int, started: str) -> bool:
    return start_time(pid) == started


def wait_gone(pid: int, started: str, timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    pause = threading.Event()
    while is_same(pid, started):
        if time.monotonic() >= deadline:
            return False
        pause.wait(_POLL_SECONDS)
    return True


def end(pid: int, started: str, *, grace_seconds: float = 10.0) -> None:
    """Terminate the recorded process, and kill it after `grace_seconds`."""
    if _signal(pid, started, signal.SIGTERM) and not wait_gone(pid, started, grace_seconds):
        _signal(pid, started, signal.SIGKILL)
        wait_gone(pid, started, grace_seconds)


def _signal(pid: int, started: str, number: signal.Signals) -> bool:
    if not is_same(pid, started):
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def tail(text: str, count: int) -> str:
    """The last lines of the output of a process, indented, for the end of a message."""
    return "".join(f"\n    {line}" for line in text.splitlines()[-count:])


def find_by_argument(*arguments: str) -> int | None:
    """The pid of a process whose command line has all these arguments; requires `/proc`."""
    wanted = {argument.encode() for argument in arguments}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_line = set(entry.read_bytes().split(b"\0"))
        except OSError:
            continue
        if wanted <= command_line:
            return int(entry.parent.name)
    return None
