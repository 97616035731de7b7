"""A streaming query of a job, and hints for errors of jobs."""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from penstock._execution.admission import BatchAdmission
from penstock._execution.running import RunningQuery
from penstock._model.flow import Flow
from penstock._observe.events import Event, EventOrigin, FlowDefinition
from penstock._runtime.ports import OnEnd
from penstock._spark.failures import is_refused_by_ansi
from penstock.errors import PenstockError

# They replace the hints for pipelines.
_HINTS = {
    "CHECKPOINT_UNUSABLE": "a new checkpointLocation starts the query over from its sources",
    "SOURCE_ROWS_LOST": 'failOnDataLoss "false" continues without them',
    "FLOW_FAILED": None,
}
_EXISTS = "[LOCATION_ALREADY_EXISTS]"
_EXISTS_HINT = (
    "only Delta tables are registered again for the next run: move the folder and the checkpoint "
    'of the table away, then add `.format("delta")` to the writer, or set '
    "`spark.sql.sources.default: delta` below `configuration` in penstock.yaml"
)
_ANSI_HINT = (
    "Spark 4 has ANSI mode by default; if the program works with an older Spark, run it with "
    "`--conf spark.sql.ansi.enabled=false`"
)


class JobQuery(RunningQuery):
    """A running query that the job has started. Its checkpoint and sink are the job's."""

    def __init__(
        self,
        query: StreamingQuery,
        flow: Flow,
        mode: str,
        origin: EventOrigin,
        emit: Callable[[Any], None],
        on_end: OnEnd,
        hold: BatchAdmission,
    ) -> None:
        super().__init__(flow, origin, emit, on_end)
        self.declared = flow
        self._mode = mode
        self._hold = hold
        self._is_defined = False
        self._finished = -1
        java: Any = query
        kind = java._jsq.streamingQuery().getClass().getSimpleName()
        self.has_batches = kind != "ContinuousExecution"
        self.attach(query)

    @property
    def is_active(self) -> bool:
        query = self._query
        return query is not None and bool(query.isActive)

    def definition(self, inputs: tuple[str, ...] = ()) -> Event:
        """The event that describes the flow."""
        body = FlowDefinition(
            output_sink=self._flow.target,
            external_inputs=inputs,
            flow_type=self._mode,
            language=self._flow.language,
        )
        return Event(self._origin, body, f"flow {self.flow}")

    def progressed(self, progress: Mapping[str, Any]) -> None:
        if not self._is_defined:
            # A query opens its sources after it has started.
            self._is_defined = True
            sources = progress.get("sources") or ()
            self._emit(self.definition(tuple(str(each["description"]) for each in sources)))
        super().progressed(progress)

    def request_stop(self) -> None:
        if (query := self._query) is not None:  # it has not ended
            last = query.lastProgress
            self._finished = -1 if last is None else int(last["batchId"])
            # If rows are available, the next batch begins immediately.
            self._hold.attach(query, is_read=True)
        super().request_stop()

    def _is_idle(self) -> bool:
        # A query without a processing time trigger is not held.
        return super()._is_idle() or self._reported > self._finished

    def _error_of(self, error: str) -> PenstockError | None:
        known = super()._error_of(error)
        if known is not None and known.condition in _HINTS:
            known.hint = _HINTS[known.condition] or job_hint(known.message)
        return known


def job_hint(message: str) -> str | None:
    """The hint for a message: about a table of an earlier run, or about ANSI mode."""
    if _EXISTS in message:
        return _EXISTS_HINT
    return _ANSI_HINT if is_refused_by_ansi(message) else None
