"""`penstock run` as a user starts it, in a separate session; it is killed with its JVM."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_POLL_SECONDS = 0.1


class PipelineProcess:
    """A pipeline in the background, with its output in a file of its folder.

    Args:
        root: The project.
        arguments: Of `penstock run`.
    """

    def __init__(self, root: Path, *arguments: str) -> None:
        self.log = root / f"run-{len(list(root.glob('run-*.log')))}.log"
        source = str(Path(sys.modules["penstock"].__file__ or "").parents[1])
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=root,
                env={**os.environ, "PYTHONPATH": source},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition became true before the process ended or the time was over."""
        deadline, pause = time.monotonic() + seconds, threading.Event()
        while time.monotonic() < deadline and self._process.poll() is None:
            if condition():
                return True
            pause.wait(_POLL_SECONDS)
        return False

    def wait(self, seconds: float) -> int:
        """Wait for the process to end; returns its exit code."""
        return self._process.wait(seconds)

    def kill_group(self) -> None:
        """Send SIGKILL to Python and Spark's JVM; return when all of them have ended."""
        deadline, pause = time.monotonic() + 30, threading.Event()
        while time.monotonic() < deadline:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.wait(30)
                return
            self._process.poll()
            pause.wait(_POLL_SECONDS)
        raise AssertionError("the process group does not end")


def children(parent: int) -> list[int]:
    """Child processes of all threads of a process."""
    files = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for file in files for pid in file.read_text().split()]
