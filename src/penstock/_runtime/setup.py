"""Resets and prepares tables: sequentially, each retried according to the policy."""

import logging
from collections import deque
from functools import partial
from typing import Protocol

from penstock._plan.steps import Plan, PrepareTable, ResetTable
from penstock._runtime.restart import JVM_DIED, RestartAfter, RunHistory
from penstock._runtime.services import Services
from penstock.errors import PenstockError

_logger = logging.getLogger(__name__)

SetupStep = ResetTable | PrepareTable


class SetupOwner(Protocol):
    """Receives the progress of the setup: the update."""

    def needs_table(self, dataset: str) -> bool:
        """Whether setting this table up is still of use."""

    def setup_started(self, step: SetupStep) -> None:
        """A step is about to be carried out."""

    def setup_failed(self, step: SetupStep, error: PenstockError) -> None:
        """A step failed for good."""

    def setup_retries(self, step: SetupStep, error: PenstockError, seconds: float) -> None:
        """A step failed and is tried again after some seconds."""


class TableSetup:
    """Executes the resets, then the preparations of a plan.

    `was_cut`: a stop, or the end of Spark's JVM, left steps undone.
    """

    def __init__(self, plan: Plan, owner: SetupOwner, services: Services) -> None:
        self._left: deque[SetupStep] = deque((*plan.resets, *plan.tables))
        self._max_retries = plan.setup_retries
        self._owner = owner
        self._services = services
        self._broken: set[str] = set()
        self._history = RunHistory(started_at=0.0)
        self._busy = False
        self._paused = False
        self._stopped = False
        self.was_cut = False

    @property
    def has_ended(self) -> bool:
        """Whether nothing is running or left."""
        return not self._busy and not self._left

    def advance(self) -> bool:
        """Start the next step that is of use unless one is on its way; whether all is over."""
        while self._left and not self._busy and not self._paused:
            step = self._left.popleft()
            if step.dataset in self._broken or not self._owner.needs_table(step.dataset):
                continue
            self._busy = True
            self._history = RunHistory(
                started_at=self._services.clock.monotonic(), retries=self._history.retries
            )
            self._owner.setup_started(step)
            self._services.calls.set_up(step, partial(self._on_end, step))
        return self.has_ended

    def stop(self) -> None:
        """Start nothing more; a step on its way continues."""
        self._stopped = True
        self.was_cut = bool(self._left)
        self._left.clear()

    def abandon(self) -> None:
        """Wait no longer for a step on its way."""
        self.was_cut = self.was_cut or self._busy
        self._busy = False

    def _on_end(self, step: SetupStep, error: PenstockError | None) -> None:
        self._busy = False
        if error is None:
            self._history = RunHistory(started_at=0.0)
            return
        if self._stopped:
            self.was_cut = True
            _logger.warning("setting up %s failed during the stop: %s", step.dataset, error)
            return
        services = self._services
        now = services.clock.monotonic()
        policy = services.policy.allowing(self._max_retries)
        decision = policy.decide(error, self._history, now, services.jitter)
        if isinstance(decision, RestartAfter):
            self._left.appendleft(step)
            self._paused = True
            self._history = RunHistory(started_at=now, retries=decision.retry)
            services.timers.add(now + decision.seconds, self.end_pause)
            self._owner.setup_retries(step, error, decision.seconds)
        else:
            self._history = RunHistory(started_at=0.0)
            self.was_cut = self.was_cut or error.condition == JVM_DIED
            self._broken.add(step.dataset)
            self._owner.setup_failed(step, error)

    def end_pause(self) -> None:
        """Try the failed step again now."""
        self._paused = False
