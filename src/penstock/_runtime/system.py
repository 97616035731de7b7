"""The real clock, threads and process table."""

import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock._runtime.ports import ProcessInfo

_PROC = Path("/proc")


class SystemScheduler:
    """The machine's monotonic clock and daemon threads."""

    def monotonic(self) -> float:
        return time.monotonic()

    def receive(
        self, inbox: "queue.SimpleQueue[Callable[[], None]]", deadline: float | None
    ) -> Callable[[], None] | None:
        try:
            if deadline is None:
                return inbox.get()
            # A long wait is split: the caller computes the deadline again.
            wait = min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
            return inbox.get(timeout=wait) if wait > 0 else inbox.get_nowait()
        except queue.Empty:
            return None

    def start_thread(self, target: Callable[[], None], name: str) -> None:
        """Run `target` on a daemon thread: a step that hangs must not keep the process alive."""
        threading.Thread(target=target, name=name, daemon=True).start()


class SystemProcesses:
    """The processes of this machine: from `/proc` if it exists, otherwise by signal 0."""

    def look_up(self, pid: int) -> ProcessInfo | None:
        if pid <= 0:
            return None
        try:
            text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            # There is no /proc, or it hides the processes of other users.
            return ProcessInfo() if _answers_signals(pid) else None
        # The command in parentheses may contain spaces and parentheses.
        fields = text.rpartition(")")[2].split()
        if fields[0] in {"Z", "X"}:
            return None
        return ProcessInfo(started=int(fields[19]))


def _answers_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
