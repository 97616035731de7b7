"""The run steps of an update and their states: readiness, dependents, remaining work.

Bookkeeping on one thread; does not start, wait or report anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from penstock._observe.events import FlowStatus
from penstock._plan.steps import Plan, RefreshView, RunStep, StartFlow
from penstock._runtime.ports import RunningFlow
from penstock._runtime.restart import RunHistory
from penstock.errors import PenstockError

SETTLED = (FlowStatus.COMPLETED, FlowStatus.IDLE)
"""Statuses of tasks that did all their work."""

_NEVER_RAN = RunHistory(started_at=0.0)


class Phase(Enum):
    WAITING = auto()
    """Not started yet, or waiting for a free slot."""
    STARTING = auto()
    """A thread is starting the flow."""
    RUNNING = auto()
    """The flow, or the batch step, is running."""
    PAUSED = auto()
    """A timer will run it again: after a failure, or at the next interval of a view."""
    ENDED = auto()
    """Has its final status."""


@dataclass(eq=False)
class Task:
    """State of one run step.

    Attributes:
        status: The last status that was reported.
        attempt: Number of starts, to recognize late messages of an earlier start.
        history: History of the current run, for the restart policy.
        passed: Whether a batch step completed at least once.
        running: The started streaming flow.
        ended_early: The error of an end that was reported before the start; a tuple because there
            may be no error.
        halted_by: The failed upstream flow that stops it.
        last_error: Error of the last run, while a retry is pending.
    """

    step: RunStep
    phase: Phase = Phase.WAITING
    status: FlowStatus = FlowStatus.QUEUED
    attempt: int = 0
    history: RunHistory = _NEVER_RAN
    passed: bool = False
    running: RunningFlow | None = None
    ended_early: tuple[PenstockError | None] | None = None
    halted_by: str | None = None
    last_error: PenstockError | None = None

    @property
    def name(self) -> str:
        return self.step.flow

    @property
    def target(self) -> str:
        """Key of the dataset, or name of the sink, that the task writes to."""
        return self.step.target

    @property
    def is_stream(self) -> bool:
        """Whether the task is a streaming flow; otherwise it is a batch step."""
        return isinstance(self.step, StartFlow)

    @property
    def is_busy(self) -> bool:
        """Whether the task is starting or running."""
        return self.phase in {Phase.STARTING, Phase.RUNNING}

    @property
    def has_ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def is_done(self) -> bool:
        """Whether the task has ended after all its work."""
        return self.has_ended and self.status in SETTLED


class TaskBoard:
    """All tasks of one update, in the order of the plan."""

    def __init__(self, plan: Plan) -> None:
        self.tasks = [Task(step) for step in plan.runs]
        self._continuous = plan.continuous
        self._by_target: dict[str, list[Task]] = {}
        for task in self.tasks:
            self._by_target.setdefault(task.target, []).append(task)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def into(self, dataset: str) -> list[Task]:
        return self._by_target.get(dataset, [])

    def busy(self, *, streams: bool) -> int:
        """The number of busy streaming flows, or of busy batch steps."""
        return sum(task.is_busy and task.is_stream is streams for task in self.tasks)

    @property
    def all_ended(self) -> bool:
        return all(task.has_ended for task in self.tasks)

    def ready(self) -> list[Task]:
        """Waiting tasks whose upstream datasets are done, in the order to start them.

        In a triggered update, every task into every upstream dataset must be done. In a continuous
        update, a streaming flow waits only for the first refresh of the views that it reads (a join
        with a view that is still empty would lose rows permanently); a batch step also waits for
        run-once flows.
        """
        ready = [
            task for task in self.tasks if task.phase is Phase.WAITING and self._is_ready(task)
        ]
        if self._continuous:
            ready.sort(key=lambda task: task.is_stream or isinstance(task.step, RefreshView))
        return ready

    def _is_ready(self, task: Task) -> bool:
        return all(
            self._counts_as_done(upstream, for_stream=task.is_stream)
            for dataset in task.step.upstream
            if dataset != task.target
            for upstream in self.into(dataset)
        )

    def _counts_as_done(self, upstream: Task, *, for_stream: bool) -> bool:
        if not self._continuous:
            return upstream.is_done
        if for_stream:
            return upstream.passed or not isinstance(upstream.step, RefreshView)
        return upstream.passed or upstream.is_stream

    def downstream(self, dataset: str) -> list[Task]:
        """The tasks that read a dataset, directly or through others, except the tasks into it."""
        others = [task for task in self.tasks if task.target != dataset]
        readers: list[Task] = []
        datasets, known = {dataset}, 0
        while len(datasets) > known:
            known = len(datasets)
            readers = [t for t in others if not datasets.isdisjoint(t.step.upstream)]
            datasets.update(task.target for task in readers)
        return readers
