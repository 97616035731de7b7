"""Supervises the tasks of an update from their start to their final status."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from penstock._observe.events import FlowStatus
from penstock._plan.steps import RefreshView, StartFlow
from penstock._runtime.boundary import as_penstock_error
from penstock._runtime.ports import RunningFlow, RunOutcome
from penstock._runtime.restart import AT_ONCE, RestartAfter, RunHistory, is_transient
from penstock._runtime.services import Services
from penstock._runtime.tasks import SETTLED, Phase, Task, TaskBoard
from penstock.errors import InternalError, PenstockError

_logger = logging.getLogger(__name__)


class Supervisor:
    """Starts tasks, handles their results, retries, gives up and stops them.

    All methods are called on the thread of the update. `failures` has the errors of failed tasks.
    """

    def __init__(
        self,
        board: TaskBoard,
        services: Services,
        *,
        max_streaming_flows: int,
        max_batch_steps: int,
    ) -> None:
        self._board = board
        self._services = services
        self._max_streams = max_streaming_flows
        self._max_batches = max_batch_steps
        self.is_stopping = False
        self.is_interrupted = False
        self.failures: list[PenstockError] = []

    def _now(self) -> float:
        return self._services.clock.monotonic()

    # Requests of the update

    def start_ready(self) -> None:
        """Start the waiting tasks that are ready, as far as slots are free."""
        for task in self._board.ready():
            limit = self._max_streams if task.is_stream else self._max_batches
            if self._board.busy(streams=task.is_stream) < limit:
                self._start(task)
        self._fail_if_stalled()

    def fail_refused(self, refused: Mapping[str, PenstockError]) -> None:
        """Fail flows that cannot be started, and skip downstream ones; before any set-up."""
        for task in self._board:
            if task.name in refused and not task.has_ended:
                self._give_up(task, "it cannot be started", refused[task.name])

    def fail_table(self, dataset: str, error: PenstockError) -> None:
        """Fail the flows into a table that could not be set up, and skip downstream ones."""
        self.failures.append(error)
        message = f"{dataset} could not be set up: {error.message}"
        for task in self._board.into(dataset):
            if not task.has_ended:
                self._end(task, FlowStatus.FAILED, f"{task.name} failed: {message}", error=error)
        self._give_up_downstream(dataset, cause=dataset)

    def request_stop(self) -> None:
        """Start no further tasks, request streaming flows to stop, and let batch steps finish."""
        self.is_stopping = True
        for task in self._board:
            if task.is_busy:
                if task.halted_by is None:
                    self._ask_to_stop(task)
            elif not task.has_ended:
                self._end_stopped(task)

    def end_pauses(self) -> None:
        """End the pauses of tasks that wait for a timer."""
        for task in self._board:
            if task.phase is Phase.PAUSED:
                task.phase = Phase.WAITING

    def interrupt(self) -> None:
        self.is_stopping = self.is_interrupted = True
        for task in self._board:
            if task.running is not None:
                self._services.calls.interrupt(task.name, task.running)
        self._services.calls.cancel()

    def abandon(self) -> None:
        """Stop waiting for tasks that ignore the interrupt; they end with the JVM."""
        for task in self._board:
            if not task.has_ended:
                message = f"{task.name} did not stop in time"
                self._end(task, FlowStatus.STOPPED, message, error=task.last_error)

    # Starting

    def _start(self, task: Task) -> None:
        task.attempt += 1
        task.ended_early = None
        task.last_error = None
        task.history = replace(task.history, started_at=self._now())
        looks_again = task.status in SETTLED
        if not looks_again:
            self._services.report.flow(task, FlowStatus.STARTING, f"{task.name} is starting")
        attempt = task.attempt
        if isinstance(task.step, StartFlow):
            task.phase = Phase.STARTING
            self._services.calls.start_flow(
                task.step,
                on_started=partial(self._on_started, task, attempt),
                on_not_started=partial(self._on_not_started, task, attempt),
                on_end=partial(self._on_ended, task, attempt),
            )
            return
        task.phase = Phase.RUNNING
        # A view that is only checked again for changes reports nothing without a change.
        if not looks_again:
            self._services.report.flow(task, FlowStatus.RUNNING, f"{task.name} is running")
        self._services.calls.run_batch(
            task.step,
            on_outcome=partial(self._on_outcome, task, attempt),
            on_error=partial(self._on_ended, task, attempt),
        )

    def _fail_if_stalled(self) -> None:
        """Fail tasks that wait for each other. The planner never creates such a plan."""
        if any(task.is_busy or task.phase is Phase.PAUSED for task in self._board):
            return
        waiting = [task for task in self._board if not task.has_ended]
        if not waiting:
            return
        names = ", ".join(task.name for task in waiting)
        error = InternalError(
            "PLAN_STALLED",
            f"flows wait for each other and cannot start: {names}",
            hint="this is a bug in Penstock: please report it with the output of dry-run",
        )
        self.failures.append(error)
        for task in waiting:
            self._end(task, FlowStatus.FAILED, f"{task.name} cannot start", error=error)

    # Results of tasks

    def _on_started(self, task: Task, attempt: int, running: RunningFlow) -> None:
        if task.attempt != attempt or task.phase is not Phase.STARTING:
            return
        task.phase = Phase.RUNNING
        task.running = running
        self._services.report.flow(task, FlowStatus.RUNNING, f"{task.name} is running")
        if task.ended_early is not None:
            self._on_ended(task, attempt, task.ended_early[0])
        elif self.is_interrupted:
            self._services.calls.interrupt(task.name, running)
        elif self.is_stopping or task.halted_by is not None:
            self._services.calls.request_stop(task.name, running)

    def _on_not_started(self, task: Task, attempt: int, error: PenstockError) -> None:
        if task.attempt == attempt and task.phase is Phase.STARTING:
            self._fail(task, error)

    def _on_ended(self, task: Task, attempt: int, error: PenstockError | None) -> None:
        if task.attempt != attempt or not task.is_busy:
            return
        if task.phase is Phase.STARTING:
            # The end is reported before the start; it is handled when the start has succeeded.
            task.ended_early = (error,)
        elif error is not None:
            self._fail(task, as_penstock_error(error, f"running {task.name}"))
        elif self.is_stopping or task.halted_by is not None:
            self._end_stopped(task)
        else:
            self._end(task, FlowStatus.COMPLETED, f"{task.name} completed")

    def _on_outcome(self, task: Task, attempt: int, outcome: RunOutcome) -> None:
        if task.attempt != attempt or task.phase is not Phase.RUNNING:
            return
        started_at = task.history.started_at
        task.passed = True
        task.history = RunHistory(started_at=started_at)
        is_view = isinstance(task.step, RefreshView)
        status = FlowStatus.IDLE if is_view and not outcome.changed else FlowStatus.COMPLETED
        # No colon: after a name such as `signature` and a colon, the text is masked as a secret.
        message = f"{task.name} ({outcome.reason})"
        interval = task.step.interval_seconds if isinstance(task.step, RefreshView) else None
        if interval is None:
            self._end(task, status, message)
            return
        if status is not FlowStatus.IDLE or task.status is not FlowStatus.IDLE:
            self._services.report.flow(task, status, message)
        if self.is_stopping or task.halted_by is not None:
            self._end_stopped(task)
        else:
            self._pause(task, max(self._now(), started_at + interval))

    def _pause(self, task: Task, until: float) -> None:
        task.phase = Phase.PAUSED
        task.running = None
        self._services.timers.add(until, partial(self._wake, task, task.attempt))

    def _wake(self, task: Task, attempt: int) -> None:
        # The task returns to the queue instead of starting: there may be no free slot.
        if task.attempt == attempt and task.phase is Phase.PAUSED:
            task.phase = Phase.WAITING

    def _fail(self, task: Task, error: PenstockError) -> None:
        """Handle a failed run: retry, give up, or end as part of the current stop."""
        if self.is_interrupted:
            # Most likely caused by the interrupt.
            _logger.info("%s ended during the interrupt: %s", task.name, error)
            self._end_stopped(task)
            return
        task.last_error = error
        if self.is_stopping or task.halted_by is not None:
            if is_transient(error):
                self._end_stopped(task)
                return
            reason = "not retryable"
        else:
            policy = self._services.policy.allowing(task.step.max_retries)
            decision = policy.decide(error, task.history, self._now(), self._services.jitter)
            if isinstance(decision, RestartAfter):
                task.history = replace(task.history, retries=decision.retry)
                self._pause(task, self._now() + decision.seconds)
                message = f"{task.name} starts again: {error.message}"
                if error.condition not in AT_ONCE:
                    message = (
                        f"{task.name} failed, retry {decision.retry} in {decision.seconds:.1f} s: "
                        f"{error.message}"
                    )
                self._services.report.flow(task, FlowStatus.QUEUED, message, error=error)
                return
            reason = decision.reason
        self._give_up(task, reason, error)

    def _give_up(self, task: Task, reason: str, error: PenstockError) -> None:
        self.failures.append(error)
        message = f"{task.name} failed ({reason}): {error.message}"
        self._end(task, FlowStatus.FAILED, message, error=error)
        if not self.is_stopping:
            self._give_up_downstream(task.target, cause=task.name)

    def _give_up_downstream(self, dataset: str, *, cause: str) -> None:
        """Skip tasks that wait for a dataset that will not be done; stop tasks that read it."""
        for task in self._board.downstream(dataset):
            if task.has_ended or task.halted_by is not None:
                continue
            if task.attempt == 0:
                self._end(task, FlowStatus.SKIPPED, f"{task.name} skipped because {cause} failed")
                continue
            task.halted_by = cause
            if task.is_busy:
                self._ask_to_stop(task)
            else:
                self._end_stopped(task)

    def _end(
        self, task: Task, status: FlowStatus, message: str, *, error: PenstockError | None = None
    ) -> None:
        task.phase = Phase.ENDED
        task.running = None
        self._services.report.flow(task, status, message, error=error)

    def _end_stopped(self, task: Task) -> None:
        why = ""
        if task.halted_by is not None:
            why = f" because {task.halted_by} failed"
        elif task.attempt == 0:
            why = " before it started"
        message = f"{task.name} stopped{why}"
        self._end(task, FlowStatus.STOPPED, message, error=task.last_error)

    def _ask_to_stop(self, task: Task) -> None:
        # A flow that is starting gets the request after its start; a batch step finishes.
        if task.running is not None:
            self._services.calls.request_stop(task.name, task.running)
