"""Protocols that `_runtime` requires: engine, running flows, time, processes."""

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from penstock._plan.steps import PrepareTable, RefreshView, ResetTable, RunOnceFlow, StartFlow
from penstock.errors import PenstockError

OnEnd = Callable[[PenstockError | None], None]
"""Called when a flow, or the set-up of a table, has ended, with the error if it failed."""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Result of a batch step; `reason` is one short sentence."""

    changed: bool
    reason: str


class RunningFlow(Protocol):
    """A started streaming flow."""

    def request_stop(self) -> None:
        """Request a stop after the micro-batch in flight. Returns immediately; any thread."""

    def interrupt(self) -> None:
        """Stop now; the next start repeats the micro-batch in flight. May block for 10 s."""


class Engine(Protocol):
    """Executes single steps. Makes no decisions.

    All methods are called on threads of `_runtime`, never on the main thread, which stays free for
    signals: `reset` and `prepare` one after the other, the others concurrently, one thread per
    step. They raise only `PenstockError`; `retryable` of a `FlowError` is whether a retry can help.
    """

    def reset(self, step: ResetTable) -> None:
        """Remove the table's rows and quarantine; its flows get new checkpoints. Idempotent."""

    def prepare(self, step: PrepareTable) -> None:
        """Create or alter the table. Idempotent."""

    def start_flow(self, step: StartFlow, on_end: OnEnd) -> RunningFlow:
        """Start a streaming flow and return.

        `on_end` is called exactly once, on a thread of the engine, when the flow has ended and all
        its events are emitted; it is not called if `start_flow` itself raises.
        """

    def run_once(self, step: RunOnceFlow) -> RunOutcome:
        """Run a batch flow to its end, unless it already ran."""

    def refresh(self, step: RefreshView) -> RunOutcome:
        """Refresh a materialized view, unless nothing changed."""

    def cancel(self) -> None:
        """Cancel the running batch steps, which then raise. Any thread."""

    def finish(self, *, is_stopped: bool) -> None:
        """Report the remaining events: all flows have ended; the update's last event follows.

        Tables are not compacted after a request to stop. Called once, on the update's thread; never
        raises because of a flow.
        """


class Scheduler(Protocol):
    """Time, waiting and threads, so that a test can replace all three by virtual time."""

    def monotonic(self) -> float:
        """Seconds of a monotonic clock."""

    def receive(
        self, inbox: "SimpleQueue[Callable[[], None]]", deadline: float | None
    ) -> Callable[[], None] | None:
        """Take the next message; `None` if `deadline` (of `monotonic`) passes first."""

    def start_thread(self, target: Callable[[], None], name: str) -> None:
        """Run `target`, which never raises, on a daemon thread."""


@dataclass(frozen=True, kw_only=True)
class ProcessInfo:
    """A living process.

    `started` is constant per process, in any unit, and distinguishes it from a later process with
    the same id; `None` means unknown.
    """

    started: int | None = None


class ProcessTable(Protocol):
    """The processes of this machine."""

    def look_up(self, pid: int) -> ProcessInfo | None:
        """The process with this id; `None` if there is none or it is a zombie."""
