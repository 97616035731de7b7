"""Leases: an OS lock on a file ensures one driver per pipeline and per table.

The lock belongs to the open file, not to the process: a process that inherits the descriptor holds
it too. The Spark JVM must inherit it (`pass_fds` of `subprocess`), because a JVM can outlive its
Python driver for a second and still commit a micro-batch; the lock is released only when both have
ended. The content of the file (holder, start time) is only for messages.
"""

import fcntl
import json
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from penstock._observe.codec import time_text
from penstock._runtime.boundary import disk_full
from penstock._runtime.ports import ProcessTable
from penstock._runtime.system import SystemProcesses
from penstock.errors import SetupError

_LEFTOVER_SECONDS = 15.0
"""Time for child processes of a dead holder to end."""
_RETRY_SECONDS = 0.05
_DYING_SECONDS = 0.3
"""A killed process remains in the process table for a short time."""


@dataclass(frozen=True, kw_only=True)
class LeaseEnvironment:
    """Clock, processes and waiting of the machine; replaceable in tests.

    `wait` polls: the system does not report when a lock is released.
    """

    monotonic: Callable[[], float] = time.monotonic
    processes: ProcessTable = field(default_factory=SystemProcesses)
    wait: Callable[[float], object] = threading.Event().wait


class Lease:
    """A lock on a file, held by this process. Create it with `acquire`."""

    def __init__(self, fd: int, record: Mapping[str, Any]) -> None:
        self._fd: int | None = fd
        self._record = dict(record)

    @property
    def fd(self) -> int:
        """The open, inheritable descriptor; a child that inherits it holds the lease as well."""
        if self._fd is None:
            raise ValueError("the lease was released")
        return self._fd

    @classmethod
    def acquire(
        cls, path: Path, *, holder: Mapping[str, str], environment: LeaseEnvironment | None = None
    ) -> Self:
        """Take the lease, or fail within 0.5 s if a living process holds it.

        If the recorded holder is dead but the lock is still held, its JVM is about to end: this
        waits up to 15 seconds. The file and its folders are created if missing, and never removed.
        `holder` must not contain secrets; a `command` in it replaces the program and subcommand.

        Raises:
            SetupError: LEASE_HELD, LEASE_LEFTOVER or LEASE_UNAVAILABLE.
        """
        try:
            return cls._acquire(path, holder, environment or LeaseEnvironment())
        except OSError as raised:
            raise _unavailable(path, raised) from raised

    @classmethod
    def _acquire(cls, path: Path, holder: Mapping[str, str], machine: LeaseEnvironment) -> Self:
        began = machine.monotonic()
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if try_lock(fd):
                    if _is_still(fd, path):
                        record = own_record(holder, machine.processes)
                        _write_record(fd, record)
                        os.set_inheritable(fd, True)
                        return cls(fd, record)
                else:
                    current = _read_record(fd)
                    waited = machine.monotonic() - began
                    if holder_lives(current, machine.processes):
                        if waited >= _DYING_SECONDS:
                            raise _held(path, current)
                    elif waited >= _LEFTOVER_SECONDS:
                        raise _leftover(path, current)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            # Held by a process that is about to end, or the file was removed in the meantime.
            machine.wait(_RETRY_SECONDS)

    def release(self) -> None:
        """Release the lock of this process; a child that inherited the descriptor keeps the lock.

        Idempotent.
        """
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            # The next driver must wait for our JVM instead of taking this process for the holder.
            # On a full disk this is not recorded, which must not fail the end of an update.
            with suppress(OSError):
                _write_record(fd, {**self._record, "released": True})
        finally:
            # No LOCK_UN: that would release the lock of the child as well.
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def living_holder(path: Path) -> Mapping[str, Any] | None:
    """The record of the holder of a lease (`pid`, `host`, ...); `None` if no holder is alive.

    Takes no lock.
    """
    try:
        record = record_of(path.read_bytes())
    except OSError:
        return None
    return record if holder_lives(record, SystemProcesses()) else None


# The file


def try_lock(fd: int) -> bool:
    """Lock an open file for this process, unless another one holds the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(fd: int, path: Path) -> bool:
    """Whether the path still refers to the open file; otherwise the file was removed."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def _write_record(fd: int, record: Mapping[str, Any]) -> None:
    data = (json.dumps(record) + "\n").encode()
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))


def _read_record(fd: int) -> dict[str, Any]:
    with suppress(OSError):
        return record_of(os.pread(fd, 65536, 0))
    return {}


def record_of(text: bytes | str) -> dict[str, Any]:
    """The record of the holder; empty while it is not written yet."""
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


# The holder


def own_record(holder: Mapping[str, str], processes: ProcessTable) -> dict[str, Any]:
    pid = os.getpid()
    info = processes.look_up(pid)
    program = Path(sys.argv[0])
    if program.name == "__main__.py":  # python -m penstock
        program = program.parent
    return {
        # Only the program and the subcommand: options may hold secrets.
        "command": shlex.join([program.name, *(word for word in sys.argv[1:2] if word[:1] != "-")]),
        **holder,
        "pid": pid,
        "host": socket.gethostname(),
        "since": time_text(datetime.now(UTC)),
        "process_started": None if info is None else info.started,
    }


def holder_lives(record: Mapping[str, Any], processes: ProcessTable) -> bool:
    pid = record.get("pid")
    if not isinstance(pid, int) or record.get("released"):
        return False
    if record.get("host") != socket.gethostname():
        # The process runs on another machine and cannot be inspected.
        return True
    info = processes.look_up(pid)
    if info is None:
        return False
    started = record.get("process_started")
    # Another start time: the holder is dead and its pid was reused.
    return info.started is None or started is None or info.started == started


def describe_holder(record: Mapping[str, Any]) -> str:
    pid = record.get("pid")
    if pid is None:
        return "an unknown process"
    host = record.get("host")
    location = "" if host == socket.gethostname() else f" on {host}"
    command = f"{record['command']}, " if record.get("command") else ""
    return f"process {pid}{location} ({command}since {record.get('since', 'an unknown time')})"


def _held(path: Path, record: Mapping[str, Any]) -> SetupError:
    host = record.get("host")
    location = "" if host == socket.gethostname() else f" on {host}"
    return SetupError(
        "LEASE_HELD",
        f"another update writes here: {describe_holder(record)} holds {path}",
        hint="wait for it to end, or stop it with 'penstock stop' in its project or "
        f"'kill {record.get('pid')}'{location}",
    )


def _leftover(path: Path, record: Mapping[str, Any]) -> SetupError:
    return SetupError(
        "LEASE_LEFTOVER",
        f"the last update, by {describe_holder(record)}, is gone, but a process that it started, "
        f"most likely its Spark JVM, still holds {path} after {_LEFTOVER_SECONDS:g} s",
        hint=f"find it with 'lsof {shlex.quote(str(path))}' or 'jps -l', end it and try again",
    )


def _unavailable(path: Path, raised: OSError) -> SetupError:
    raised.filename = raised.filename or str(path)
    return disk_full(raised, "taking the lease") or SetupError(
        "LEASE_UNAVAILABLE",
        f"cannot take the lock file {path}: {raised.strerror or raised}",
        hint="the folder must be writable and its file system must support locks (flock)",
    )
