"""Resets and prepares tables: several at a time, each retried according to the policy."""

import logging
from collections import deque
from dataclasses import dataclass, replace
from functools import partial

from penstock._observe.events import FlowStatus, UpdateState
from penstock._plan.steps import Plan, PrepareTable, ResetTable
from penstock._runtime.restart import JVM_DIED, RestartAfter, RunHistory
from penstock._runtime.services import Services
from penstock._runtime.supervisor import Supervisor
from penstock._runtime.tasks import TaskBoard
from penstock.errors import PenstockError

_logger = logging.getLogger(__name__)

_AT_ONCE = 8
"""Number of concurrent steps: most of the time of a step is spent waiting for the storage."""


@dataclass(eq=False)
class _Task:
    step: ResetTable | PrepareTable
    history: RunHistory


class TableSetup:
    """Executes the resets, then the preparations of a plan. Fails the flows of a failed table.

    `was_cut` is true if a stop, or the end of Spark's JVM, left steps undone.
    """

    def __init__(
        self, plan: Plan, board: TaskBoard, supervisor: Supervisor, services: Services
    ) -> None:
        steps: list[ResetTable | PrepareTable] = [*plan.resets, *plan.tables]
        self._left = deque(_Task(step, RunHistory(started_at=0.0)) for step in steps)
        self._busy: list[_Task] = []
        self._paused: list[_Task] = []
        self._max_retries = plan.setup_retries
        self._board = board
        self._supervisor = supervisor
        self._services = services
        self._broken: set[str] = set()
        self.was_cut = False

    @property
    def has_ended(self) -> bool:
        return not (self._busy or self._paused or self._left)

    def advance(self) -> bool:
        """Start the next steps that are needed. Returns whether all steps have ended."""
        while self._left and len(self._busy) < _AT_ONCE:
            step = self._left[0].step
            if isinstance(step, PrepareTable) and self._is_resetting:
                break
            task = self._left.popleft()
            if step.dataset in self._broken or not self._is_needed(step.dataset):
                continue
            self._busy.append(task)
            task.history = replace(task.history, started_at=self._services.clock.monotonic())
            if isinstance(step, ResetTable):
                state, message = UpdateState.RESETTING, "resetting tables for a full refresh"
            else:
                state, message = UpdateState.SETTING_UP_TABLES, "setting up tables"
            self._services.report.enter(state, message)
            self._services.calls.set_up(step, partial(self._on_end, task))
        return self.has_ended

    def _is_needed(self, dataset: str) -> bool:
        """Whether any flow into the dataset has not ended, or it has no flows."""
        tasks = self._board.into(dataset)
        return not tasks or not all(task.has_ended for task in tasks)

    @property
    def _is_resetting(self) -> bool:
        return any(isinstance(task.step, ResetTable) for task in (*self._busy, *self._paused))

    def stop(self) -> None:
        """Start no further steps; running ones continue."""
        self.was_cut = bool(self._left or self._paused)
        self._left.clear()
        self._paused.clear()

    def abandon(self) -> None:
        """Stop waiting for running steps."""
        self.was_cut = self.was_cut or bool(self._busy)
        self._busy.clear()

    def _on_end(self, task: _Task, error: PenstockError | None) -> None:
        if task not in self._busy:
            return  # abandoned
        self._busy.remove(task)
        step = task.step
        if error is None:
            return
        if self._supervisor.is_stopping:
            self.was_cut = True
            _logger.warning("setting up %s failed during the stop: %s", step.dataset, error)
            return
        services = self._services
        now = services.clock.monotonic()
        policy = services.policy.allowing(self._max_retries)
        decision = policy.decide(error, task.history, now, services.jitter)
        if isinstance(decision, RestartAfter):
            task.history = replace(task.history, retries=decision.retry)
            self._paused.append(task)
            services.timers.add(now + decision.seconds, partial(self._end_pause, task))
            message = f"setting up {step.dataset} failed, retry in {decision.seconds:.1f} s: "
            message += error.message
            for flow in self._board.into(step.dataset):
                # A flow into the table may have been skipped before, which is final.
                if not flow.has_ended:
                    services.report.flow(flow, FlowStatus.QUEUED, message, error=error)
        else:
            self.was_cut = self.was_cut or error.condition == JVM_DIED
            self._broken.add(step.dataset)
            self._supervisor.fail_table(step.dataset, error)

    def end_pauses(self) -> None:
        """Retry the failed steps now."""
        for task in tuple(self._paused):
            self._end_pause(task)

    def _end_pause(self, task: _Task) -> None:
        if task in self._paused:
            self._paused.remove(task)
            self._left.appendleft(task)
