"""Emits the events of an update."""

from dataclasses import replace

from penstock._observe.bus import EventBus
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    FlowProgress,
    FlowStatus,
    UpdateProgress,
    UpdateState,
)
from penstock._plan.steps import Plan, RefreshView
from penstock._runtime.tasks import Task
from penstock.errors import PenstockError


def error_info(error: PenstockError, *, fatal: bool = True) -> ErrorInfo:
    """An error for an event: its text with origin and hint, without the condition in front.

    The bus masks secrets in it.
    """
    return ErrorInfo(
        condition=error.condition,
        class_name=type(error).__name__,
        message=str(error).removeprefix(f"[{error.condition}] "),
        fatal=fatal,
    )


class UpdateReporter:
    """Emits the `update_progress` and `flow_progress` events of one update."""

    def __init__(
        self,
        bus: EventBus,
        *,
        pipeline_name: str,
        update_id: str,
        plan: Plan,
    ) -> None:
        self._bus = bus
        self._state = UpdateState.CREATED
        self._origin = EventOrigin(pipeline_name=pipeline_name, update_id=update_id)
        self._datasets = {step.dataset for step in plan.tables}
        self._datasets.update(step.dataset for step in plan.resets)
        for run in plan.runs:
            self._datasets.update(run.upstream)

    def enter(self, state: UpdateState, message: str) -> None:
        """Report a state of the update, unless it was reported last."""
        if self._state is not state:
            self.update(state, message)

    def update(
        self, state: UpdateState, message: str, *, error: PenstockError | None = None
    ) -> None:
        self._state = state
        info = None if error is None else error_info(error)
        self._bus.emit(Event(self._origin, UpdateProgress(state), message, error=info))

    def excluded(self, plan: Plan) -> None:
        """Report the datasets and sinks that the selection leaves out."""
        for name in (*plan.excluded, *plan.excluded_sinks):
            is_sink = name in plan.excluded_sinks
            origin = (
                replace(self._origin, sink_name=name)
                if is_sink
                else replace(self._origin, dataset_name=name)
            )
            body = FlowProgress(FlowStatus.EXCLUDED)
            self._bus.emit(Event(origin, body, f"{name} is excluded by the selection"))

    def flow(
        self, task: Task, status: FlowStatus, message: str, *, error: PenstockError | None = None
    ) -> None:
        """Report the status of a flow; an error with a status other than FAILED is a warning."""
        task.status = status
        fatal = status is FlowStatus.FAILED
        info = None if error is None else error_info(error, fatal=fatal)
        self._bus.emit(Event(self._origin_of(task), FlowProgress(status), message, error=info))

    def _origin_of(self, task: Task) -> EventOrigin:
        is_view = isinstance(task.step, RefreshView)
        if not is_view and task.target not in self._datasets:
            return replace(self._origin, flow_name=task.name, sink_name=task.target)
        return replace(self._origin, flow_name=task.name, dataset_name=task.target)
