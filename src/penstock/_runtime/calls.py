"""Calls to the engine, each on its own thread; the result comes back as a message."""

import logging
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from penstock._plan.steps import PrepareTable, RefreshView, ResetTable, RunOnceFlow, StartFlow
from penstock._runtime.boundary import as_penstock_error
from penstock._runtime.ports import Engine, FlowEnded, RunningFlow, RunOutcome, Scheduler
from penstock.errors import PenstockError

_logger = logging.getLogger(__name__)

OnError = Callable[[PenstockError], None]
OnEnd = Callable[[PenstockError | None], None]


class EngineCalls:
    """Non-blocking calls to the engine for the loop of the update. Never raises.

    `inbox` receives every result as a call of the callback that was passed.
    """

    def __init__(
        self, engine: Engine, scheduler: Scheduler, inbox: "SimpleQueue[Callable[[], None]]"
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._inbox = inbox

    def set_up(self, step: ResetTable | PrepareTable, on_end: OnEnd) -> None:
        def work() -> None:
            try:
                if isinstance(step, ResetTable):
                    self._engine.reset(step)
                else:
                    self._engine.prepare(step)
            except BaseException as raised:
                error = as_penstock_error(raised, f"setting up {step.dataset}")
                self._inbox.put(partial(on_end, error))
            else:
                self._inbox.put(partial(on_end, None))

        self._scheduler.start_thread(work, f"set up {step.dataset}")

    def start_flow(
        self,
        step: StartFlow,
        *,
        on_started: Callable[[RunningFlow], None],
        on_not_started: OnError,
        on_end: OnEnd,
    ) -> None:
        """Start a streaming flow. Its end may be reported before its start."""

        def ended(end: FlowEnded) -> None:
            self._inbox.put(partial(on_end, end.error))

        def work() -> None:
            try:
                running = self._engine.start_flow(step, ended)
            except BaseException as raised:
                error = as_penstock_error(raised, f"starting {step.flow}")
                self._inbox.put(partial(on_not_started, error))
            else:
                self._inbox.put(partial(on_started, running))

        self._scheduler.start_thread(work, f"start {step.flow}")

    def run_batch(
        self,
        step: RunOnceFlow | RefreshView,
        *,
        on_outcome: Callable[[RunOutcome], None],
        on_error: OnError,
    ) -> None:
        def work() -> None:
            try:
                if isinstance(step, RefreshView):
                    outcome = self._engine.refresh(step)
                else:
                    outcome = self._engine.run_once(step)
            except BaseException as raised:
                error = as_penstock_error(raised, f"running {step.flow}")
                self._inbox.put(partial(on_error, error))
            else:
                self._inbox.put(partial(on_outcome, outcome))

        self._scheduler.start_thread(work, f"run {step.flow}")

    def request_stop(self, flow: str, running: RunningFlow) -> None:
        """Ask a flow to end. A failure to ask is logged: the stop timeout covers it."""
        try:
            running.request_stop()
        except Exception:
            _logger.exception("%s could not be asked to stop", flow)

    def interrupt(self, flow: str, running: RunningFlow) -> None:
        self._aside(running.interrupt, f"interrupt {flow}")

    def cancel(self) -> None:
        """Cancel the batch steps that are running."""
        self._aside(self._engine.cancel, "cancel batch steps")

    def _aside(self, call: Callable[[], None], name: str) -> None:
        def work() -> None:
            try:
                call()
            except BaseException:
                _logger.exception("could not %s", name)

        self._scheduler.start_thread(work, name)
