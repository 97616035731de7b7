"""Control of a pipeline from another process: start, stop, replay.

Commands run in separate processes, which continue to run when the dashboard ends.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._display.signals import SAME_REQUEST_SECONDS
from penstock._runtime.leases import NOT_STOPPABLE
from penstock.errors import SetupError

if TYPE_CHECKING:
    from penstock._model.pipeline import PipelineSettings

_BETWEEN_SIGNALS = SAME_REQUEST_SECONDS + 0.5
_KEPT_JOBS = 5
_SHOWN_OUTPUT = 6000


@dataclass
class _Job:
    what: str
    process: "subprocess.Popen[bytes]"
    log: Path
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended: datetime | None = None

    def view(self) -> dict[str, Any]:
        from penstock._observe.codec import millis
        from penstock._observe.masking import shown

        code = self.process.poll()
        if code is not None and self.ended is None:
            self.ended = datetime.now(UTC)
        return {
            "what": self.what,
            "started": millis(self.started),
            "ended": millis(self.ended) if self.ended is not None else None,
            "exit_code": code,
            "output": shown(_tail(self.log)),
        }


class ProcessControl:
    """Controls one pipeline by processes and signals. Thread-safe.

    `project` and `choice` are the command-line arguments and options that select the pipeline.
    """

    def __init__(
        self,
        settings: "PipelineSettings",
        *,
        project: Sequence[str] = (),
        choice: Sequence[str] = (),
        command: Sequence[str] = (sys.executable, "-m", "penstock"),
        requester: str = "from the dashboard",
    ) -> None:
        from penstock._observe.log import event_directory

        self._name = settings.name
        self._settings = settings
        self._logs = event_directory(settings).parent / "logs"
        self._project = tuple(project)
        self._choice = tuple(choice)
        self._command = tuple(command)
        self._requester = requester
        self._cwd = Path.cwd()
        self._lock = threading.Lock()
        self._jobs: deque[_Job] = deque(maxlen=_KEPT_JOBS)
        self._stop_requested: tuple[object, ...] | None = None
        self._stop_requested_at = -math.inf

    def state(self) -> dict[str, Any]:
        """`runs`: the holder of the pipeline, or null; `is_stopping`; `jobs`: newest first."""
        with self._lock:
            holder = self._holder()
            return {
                "runs": None
                if holder is None
                else {
                    "command": holder.get("command") or "",
                    "since": str(holder.get("since") or ""),
                    "is_here": holder.get("host") == socket.gethostname(),
                },
                "is_stopping": holder is not None and self._stop_requested == _identity(holder),
                "jobs": [job.view() for job in reversed(self._jobs)],
            }

    def start(
        self,
        *,
        refresh: Sequence[str] = (),
        full_refresh: Sequence[str] = (),
        continuous: bool | None = None,
    ) -> None:
        """Start an update of all datasets or of `refresh` and `full_refresh`."""
        arguments = ["run", "--quiet"]
        arguments += [f"--refresh={_name(name)}" for name in refresh]
        arguments += [f"--full-refresh={_name(name)}" for name in full_refresh]
        if continuous is not None:
            arguments.append("--continuous" if continuous else "--triggered")
        self._run("update", [*arguments, *self._choice, "--", *self._project])

    def replay(self, dataset: str, *, rules: Sequence[str] = (), rows: Sequence[str] = ()) -> None:
        """Replay quarantined rows of a dataset, selected by violated rules or row ids."""
        project = [f"--project={path}" for path in self._project]
        chosen = [f"--rule={rule}" for rule in rules]
        what = f"replay of {dataset}"
        if rows:
            chosen.append(f"--row={','.join(map(_name, rows))}")
            what += f", {len(rows):,} marked row{'' if len(rows) == 1 else 's'}"
        if rules:
            what += f", rows that violated {' or '.join(rules)}"
        words = ["quarantine", "replay", *chosen, *project, *self._choice, "--", _name(dataset)]
        self._run(what, words)

    def stop(self, *, now: bool = False) -> None:
        """Stop after the batches in flight; with `now`, after a first stop, interrupt them.

        The second signal is delayed, so that it counts as a separate request.
        """
        if now:
            seconds = self._stop_requested_at + _BETWEEN_SIGNALS - time.monotonic()
            threading.Event().wait(max(0.0, seconds))
        with self._lock:
            holder = self._holder()
            if holder is None:
                raise _refused(f"pipeline {self._name!r} is not running")
            if holder.get("host") != socket.gethostname():
                raise _refused(
                    f"pipeline {self._name!r} is running on {holder.get('host')}, not on this host"
                )
            if holder.items() >= NOT_STOPPABLE.items():
                raise _refused(
                    f"pipeline {self._name!r} is held by {holder.get('command')}, process "
                    f"{holder['pid']}, which is not an update: it ends by itself, with Ctrl-C in "
                    f"its terminal, or with `kill -INT {holder['pid']}`"
                )
            is_requested = self._stop_requested == _identity(holder)
            if is_requested is not now:
                raise _refused(
                    "a stop was already requested; it ends after the batches in flight"
                    if is_requested
                    else "request a graceful stop first"
                )
            self._note("stop now" if now else "stop")
            try:
                os.kill(int(holder["pid"]), signal.SIGTERM)
            except ProcessLookupError:
                pass  # it has ended; its JVM may still hold the lease for a short time
            except OSError as error:
                raise _refused(f"the signal was refused: {error.strerror}") from error
            self._stop_requested = _identity(holder)
            self._stop_requested_at = time.monotonic()

    def _holder(self) -> Mapping[str, Any] | None:
        from penstock._project.event_store import holder_of

        return holder_of(self._settings)

    def _run(self, what: str, arguments: Sequence[str]) -> None:
        with self._lock:
            holder = self._holder()
            if holder is not None:
                raise _refused(
                    f"pipeline {self._name!r} is held by {holder.get('command') or 'a process'}"
                )
            if any(job.process.poll() is None for job in self._jobs):
                raise _refused("the previous command has not ended yet")
            self._note(what)
            # The environment of this process, without the dashboard's token.
            environment = {k: v for k, v in os.environ.items() if k != "PENSTOCK_UI_TOKEN"}
            try:
                self._logs.mkdir(parents=True, exist_ok=True)
                log = self._logs / f"dashboard-{uuid.uuid4().hex}.log"
                with log.open("wb") as output:
                    process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                        [*self._command, *arguments],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        cwd=self._cwd,
                        env=environment,
                        start_new_session=True,
                    )
            except OSError as error:
                raise _refused(f"the command could not be started: {error.strerror}") from error
            self._jobs.append(_Job(what=what, process=process, log=log))

    def _note(self, what: str) -> None:
        print(f"{self._name}: {what}, {self._requester}", file=sys.stderr, flush=True)


def _identity(holder: Mapping[str, Any]) -> tuple[object, ...]:
    return holder.get("pid"), holder.get("process_started"), holder.get("since")


def _name(text: str) -> str:
    if not text or text.startswith("-") or any(c in text for c in ",\n\r\0"):
        raise _refused(f"{text!r} is not a valid name or id")
    return text


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(0, size - _SHOWN_OUTPUT))
            text = lines.read().decode(errors="replace")
    except OSError:
        return ""
    # A truncated line could lose the key that identifies its secret.
    return text if size <= _SHOWN_OUTPUT else text.partition("\n")[2]


def _refused(reason: str) -> SetupError:
    return SetupError("CONTROL_REFUSED", reason)
