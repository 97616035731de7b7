"""Calls to the engine, each on a separate thread; the result is returned as a message."""

import logging
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from penstock._plan.steps import PrepareTable, RefreshView, ResetTable, RunOnceFlow, StartFlow
from penstock._runtime.boundary import as_penstock_error
from penstock._runtime.ports import Engine, OnEnd, RunningFlow, RunOutcome, Scheduler
from penstock.errors import PenstockError

_logger = logging.getLogger(__name__)

T = TypeVar("T")
OnError = Callable[[PenstockError], None]


class EngineCalls:
    """Non-blocking calls to the engine for the loop of the update. Never raises.

    `inbox` receives every result as a call of the callback for it.
    """

    def __init__(
        self, engine: Engine, scheduler: Scheduler, inbox: "SimpleQueue[Callable[[], None]]"
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._inbox = inbox

    def set_up(self, step: ResetTable | PrepareTable, on_end: OnEnd) -> None:
        if isinstance(step, ResetTable):
            call = partial(self._engine.reset, step)
        else:
            call = partial(self._engine.prepare, step)
        self._call(call, f"setting up {step.dataset}", lambda _: on_end(None), on_end)

    def start_flow(
        self,
        step: StartFlow,
        *,
        on_started: Callable[[RunningFlow], None],
        on_not_started: OnError,
        on_end: OnEnd,
    ) -> None:
        """Start a streaming flow. Its end may be reported before its start."""
        call = partial(
            self._engine.start_flow, step, lambda error: self._inbox.put(partial(on_end, error))
        )
        self._call(call, f"starting {step.flow}", on_started, on_not_started)

    def run_batch(
        self,
        step: RunOnceFlow | RefreshView,
        *,
        on_outcome: Callable[[RunOutcome], None],
        on_error: OnError,
    ) -> None:
        if isinstance(step, RefreshView):
            call = partial(self._engine.refresh, step)
        else:
            call = partial(self._engine.run_once, step)
        self._call(call, f"running {step.flow}", on_outcome, on_error)

    def request_stop(self, flow: str, running: RunningFlow) -> None:
        """Request a flow to stop. A failed request is only logged: the stop timeout covers it."""
        try:
            running.request_stop()
        except Exception:
            _logger.exception("the stop request for %s failed", flow)

    def interrupt(self, flow: str, running: RunningFlow) -> None:
        self._aside(running.interrupt, f"interrupt {flow}")

    def cancel(self) -> None:
        self._aside(self._engine.cancel, "cancel batch steps")

    def _call(
        self, call: Callable[[], T], doing: str, on_result: Callable[[T], None], on_error: OnError
    ) -> None:
        def work() -> None:
            try:
                result = call()
            except BaseException as raised:
                self._inbox.put(partial(on_error, as_penstock_error(raised, doing)))
            else:
                self._inbox.put(partial(on_result, result))

        self._scheduler.start_thread(work, doing)

    def _aside(self, call: Callable[[], None], name: str) -> None:
        def work() -> None:
            try:
                call()
            except BaseException:
                _logger.exception("could not %s", name)

        self._scheduler.start_thread(work, name)
