"""An update: executes a plan through the engine, step by step.

All decisions are made on one thread, the caller's. Everything that happens elsewhere (the thread of
a step, an end that the engine reports, a signal) arrives as a message in the inbox; delayed actions
are timers. The loop waits for whichever comes first, so it neither polls nor needs locks.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from penstock._observe.bus import EventBus
from penstock._observe.events import FlowStatus, UpdateState
from penstock._plan.steps import Plan
from penstock._runtime.calls import EngineCalls
from penstock._runtime.ports import Engine, Scheduler
from penstock._runtime.reporter import UpdateReporter
from penstock._runtime.restart import CONTINUOUS, TRIGGERED, RestartPolicy
from penstock._runtime.services import Services
from penstock._runtime.setup import TableSetup
from penstock._runtime.supervisor import Supervisor
from penstock._runtime.system import SystemScheduler
from penstock._runtime.tasks import SETTLED, TaskBoard
from penstock._runtime.timers import Timers
from penstock.errors import PenstockError, UpdateFailedError


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """Result of an update.

    Attributes:
        state: COMPLETED, FAILED (also if it was stopped after a failure) or CANCELED.
        failures: One per failed flow; a table that could not be prepared counts once.
        skipped: Flows that never ran because an upstream flow failed.
        completed: Flows that completed.
        stopped: Flows that were stopped or not started.
        interrupted: Whether the stop was forced; a micro-batch may be repeated.
        setup_was_cut: Whether resets or preparations of tables are left undone.
    """

    update_id: str
    state: UpdateState
    failures: tuple[PenstockError, ...] = ()
    skipped: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    interrupted: bool = False
    setup_was_cut: bool = False


class Update:
    """One execution of a plan. Can be run only once.

    Args:
        plan: The steps.
        engine: Executes the steps.
        bus: Receives `update_progress` and `flow_progress` events.
        pipeline_name: For the origin of events.
        update_id: For the origin of events and the result.
        policy: When a failed flow is restarted; `None` selects the policy of the plan's mode.
        scheduler: Time, waiting and threads.
        jitter: Returns numbers from 0 to 1 for the restart policy.
        stop_timeout_seconds: Time from the first `request_stop` to the interrupt.
        interrupt_timeout_seconds: Time from the interrupt to the end of the update, even if a step
            hangs.
        max_streaming_flows: Concurrent streaming flows of a triggered update; a continuous one runs
            all of them.
        max_batch_steps: Concurrent batch steps; `None` means one per core, at least two.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        bus: EventBus,
        *,
        pipeline_name: str,
        update_id: str,
        policy: RestartPolicy | None = None,
        scheduler: Scheduler | None = None,
        jitter: Callable[[], float] = random.random,
        stop_timeout_seconds: float = 60.0,
        interrupt_timeout_seconds: float = 15.0,
        max_streaming_flows: int = 16,
        max_batch_steps: int | None = None,
    ) -> None:
        self._plan = plan
        self.update_id = update_id
        self._engine = engine
        self._scheduler: Scheduler = scheduler or SystemScheduler()
        self._stop_timeout_seconds = stop_timeout_seconds
        self._interrupt_timeout_seconds = interrupt_timeout_seconds
        self._report = UpdateReporter(
            bus, pipeline_name=pipeline_name, update_id=update_id, plan=plan
        )
        # Filled by any thread and by signal handlers: SimpleQueue.put is reentrant.
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._timers = Timers()
        services = Services(
            calls=EngineCalls(engine, self._scheduler, self._inbox),
            timers=self._timers,
            clock=self._scheduler,
            policy=policy or (CONTINUOUS if plan.continuous else TRIGGERED),
            jitter=jitter,
            report=self._report,
        )
        self._board = TaskBoard(plan)
        streams = len(plan.runs) if plan.continuous else max_streaming_flows
        self._supervisor = Supervisor(
            self._board,
            services,
            max_streaming_flows=max(1, streams),
            max_batch_steps=max(1, max_batch_steps or max(2, os.cpu_count() or 1)),
        )
        self._setup = TableSetup(plan, self._board, self._supervisor, services)

    def request_stop(self) -> None:
        """Stop the update.

        The first call ends gracefully: nothing new starts, streaming flows finish their
        micro-batch, batch steps finish. The second call, or the stop timeout, interrupts. Returns
        immediately. May be called on any thread, in a signal handler, and before `run`.
        """
        self._inbox.put(self._on_stop_request)

    def engine_died(self) -> None:
        """End all pauses, so that steps that wait for a timer fail now. Any thread."""
        self._inbox.put(self._setup.end_pauses)
        self._inbox.put(self._supervisor.end_pauses)

    def run(self) -> UpdateResult:
        """Execute the plan; return when every flow has its final status.

        Never raises because of a flow. Any other exception (a bug, or an interrupt of the calling
        thread) is raised after the interrupt of all steps.
        """
        try:
            self._report.excluded(self._plan)
            for task in self._board:
                self._report.flow(task, FlowStatus.QUEUED, f"{task.name} is queued")
            self._supervisor.fail_refused(self._plan.refused)
            self._loop()
        except BaseException:
            self._supervisor.interrupt()
            raise
        return self._conclude()

    # The loop

    def _loop(self) -> None:
        # A stop that was requested before the start must be handled first.
        while (early := self._scheduler.receive(self._inbox, self._now())) is not None:
            early()
        while True:
            self._advance()
            if self._board.all_ended and self._setup.has_ended:
                return
            message = self._scheduler.receive(self._inbox, self._timers.next_at)
            if message is not None:
                message()
            for callback in self._timers.pop_due(self._now()):
                callback()

    def _now(self) -> float:
        return self._scheduler.monotonic()

    def _advance(self) -> None:
        if self._supervisor.is_stopping or not self._setup.advance() or self._board.all_ended:
            return
        self._report.enter(UpdateState.RUNNING, "running flows")
        self._supervisor.start_ready()

    # Stopping

    def _on_stop_request(self) -> None:
        if self._supervisor.is_stopping:
            self._interrupt("interrupting: stop was requested a second time")
            return
        self._report.enter(UpdateState.STOPPING, "stopping: running flows finish their micro-batch")
        self._setup.stop()
        self._supervisor.request_stop()
        timeout = self._stop_timeout_seconds
        late = partial(self._interrupt, f"interrupting: not stopped within {timeout:g} s")
        self._timers.add(self._now() + timeout, late)

    def _interrupt(self, message: str) -> None:
        if self._supervisor.is_interrupted:
            return
        self._report.update(UpdateState.STOPPING, message)
        self._supervisor.interrupt()
        self._timers.add(self._now() + self._interrupt_timeout_seconds, self._abandon)

    def _abandon(self) -> None:
        self._setup.abandon()
        self._supervisor.abandon()

    # The end

    def _conclude(self) -> UpdateResult:
        def named(*statuses: FlowStatus) -> tuple[str, ...]:
            return tuple(task.name for task in self._board if task.status in statuses)

        self._engine.finish(is_stopped=self._supervisor.is_stopping)
        skipped, stopped = named(FlowStatus.SKIPPED), named(FlowStatus.STOPPED)
        failures = tuple(dict.fromkeys(self._supervisor.failures))
        if failures:
            state = UpdateState.FAILED
            message = f"update failed: {len(failures)} failed, {len(skipped)} skipped"
            self._report.update(state, message, error=UpdateFailedError(failures))
        elif stopped or self._setup.was_cut:
            state = UpdateState.CANCELED
            self._report.update(state, "update stopped")
        else:
            state = UpdateState.COMPLETED
            self._report.update(state, "update completed")
        return UpdateResult(
            update_id=self.update_id,
            state=state,
            failures=failures,
            skipped=skipped,
            completed=named(*SETTLED),
            stopped=stopped,
            interrupted=self._supervisor.is_interrupted,
            setup_was_cut=self._setup.was_cut,
        )
