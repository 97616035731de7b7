"""One running streaming query: its micro-batches, its progress, its end."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock._engine.failures import flow_error, full_text
from penstock._engine.jdbc.stream import JdbcStream, SourceFailure
from penstock._engine.kafka_source import LostRange, describe_loss
from penstock._engine.kinesis_source import describe_lost_records, lost_records
from penstock._engine.lag.probe import FlowLag
from penstock._engine.late_rows import dropped_by_watermark
from penstock._engine.listener import QueryWatcher, backlog_records, written_records
from penstock._model.flow import Flow
from penstock._observe.events import (
    Event,
    EventOrigin,
    FlowMetrics,
    FlowProgress,
    FlowStatus,
    SourceRowsLost,
    StreamProgress,
)
from penstock._runtime.ports import FlowEnded
from penstock.errors import PenstockError

_STOP_CHECK_SECONDS = 1.0
_ATTACH_SECONDS = 60.0


class BatchReport(Protocol):
    """What a writer says about a micro-batch that it committed."""

    @property
    def replayed(self) -> bool:
        """Whether an earlier attempt had committed it already."""

    def event(self, origin: EventOrigin, message: str) -> Any:
        """The `flow_progress` event with its counts."""


class RunningQuery(QueryWatcher):
    """See `penstock._runtime.ports.RunningFlow`.

    `on_batch` runs on py4j's callback thread while Spark's stream thread waits for it; `progressed`
    and `terminated` on the listener's callback thread; the rest on any thread.
    """

    def __init__(
        self,
        flow: Flow,
        origin: EventOrigin,
        emit: Callable[[Any], None],
        on_end: Callable[[FlowEnded], None],
    ) -> None:
        self._flow = flow
        self._origin = origin
        self._emit = emit
        self._on_end = on_end
        self._check: Callable[[int], None] | None = None
        self._recover: Callable[[str], PenstockError | None] | None = None
        self._write: Callable[[DataFrame, int], BatchReport] | None = None
        self._target = ""
        self._lost: Callable[[Mapping[str, Any]], list[LostRange]] | None = None
        self._lag: FlowLag | None = None
        self.has_batches = True
        """Whether there is a pause between micro-batches in which the query can be stopped."""
        self._query: StreamingQuery | None = None
        self._failure: BaseException | None = None
        self._batch: int | None = None
        self._reported: int = -1
        self._stopping = False
        self._ended = False
        self._changed = threading.Condition()

    def writes_batches(self, write: Callable[[DataFrame, int], BatchReport], target: str) -> None:
        """Set the function that commits a micro-batch."""
        self._write, self._target = write, target

    def reads_files(
        self, check: Callable[[int], None], recover: Callable[[str], PenstockError | None]
    ) -> None:
        """Set what sources of files need.

        Args:
            check: Looks at the files of a micro-batch before it is written.
            recover: Acts on the text of a failure; gives the error to report if it was theirs.
        """
        self._check, self._recover = check, recover

    def reads_databases(self, streams: Sequence[JdbcStream]) -> None:
        """Let streams from databases say why they end."""
        for stream in streams:
            stream.on_failure = self._source_failed

    def _source_failed(self, failure: SourceFailure) -> None:
        error = failure.as_error(self._flow.name)
        error.origin = self._flow.origin
        self._failure = self._failure or error

    def watches_losses(self, lost: Callable[[Mapping[str, Any]], list[LostRange]]) -> None:
        """Set the function that finds out of a progress report what a source no longer had."""
        self._lost = lost

    def measures_lag(self, lag: FlowLag) -> None:
        """Set what measures how far the query is behind its sources."""
        self._lag = lag
        lag.attach(self._sources)

    def _sources(self) -> list[Any]:
        java_query: Any = self._query
        if java_query is None:
            return []
        found = java_query._jsq.streamingQuery().sources()
        return [found.apply(number) for number in range(int(found.size()))]

    def attach(self, query: StreamingQuery) -> None:
        """Set the Spark query, once it has started."""
        with self._changed:
            self._query = query
            self._changed.notify_all()

    def execution(self) -> Any:
        """Spark's `IncrementalExecution` of the micro-batch that `on_batch` has.

        The first batch may come before the query is attached: this waits for it.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._query is not None, _ATTACH_SECONDS):
                raise RuntimeError("the query that runs was never attached")
        java_query: Any = self._query
        return java_query._jsq.streamingQuery().lastExecution()

    def on_batch(self, df: DataFrame, batch_id: int) -> None:
        """Commit one micro-batch; given to `foreachBatch`."""
        if self._write is None:
            raise RuntimeError("the query writes by itself")
        with self._changed:
            self._batch = batch_id
        try:
            if self._check is not None:
                self._check(batch_id)
            report = self._write(df, batch_id)
        except BaseException as error:
            self._failure = error
            raise
        if not report.replayed:
            self._emit(report.event(replace(self._origin, batch_id=batch_id), ""))

    # -- listener ------------------------------------------------------------------------------

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """A micro-batch is in the commit log."""
        batch_id = int(progress.get("batchId", -1))
        rows = int(progress.get("numInputRows", 0))
        origin = replace(self._origin, batch_id=batch_id)
        if "addBatch" in progress.get("durationMs", {}):
            self._emit(Event(origin, StreamProgress(dict(progress))))
            metrics = FlowMetrics(
                num_input_rows=rows,
                num_output_rows=written_records(progress),
                batch_duration_ms=int(progress["durationMs"].get("triggerExecution", 0)),
                backlog_records=backlog_records(progress),
                # A writer counts them itself, and exactly.
                late_records=None
                if self._write is not None
                else dropped_by_watermark(progress) or None,
            )
            self._emit(Event(origin, FlowProgress(FlowStatus.RUNNING, metrics)))
        with self._changed:
            self._reported = max(self._reported, batch_id)
            self._changed.notify_all()
        if self._lag is not None:
            self._lag.progressed(progress)
        self._report_losses(origin, progress)

    def _report_losses(self, origin: EventOrigin, progress: Mapping[str, Any]) -> None:
        ranges = self._lost(progress) if self._lost is not None else []
        if ranges:
            body = tuple(asdict(lost) for lost in ranges)
            self._emit(Event(origin, SourceRowsLost(body), describe_loss(ranges)))
        if records := lost_records(progress):
            body = tuple(asdict(lost) for lost in records)
            self._emit(Event(origin, SourceRowsLost(body), describe_lost_records(records)))

    def terminated(self, error: str | None) -> None:
        """The query ended: tell the runtime, once."""
        with self._changed:
            if self._ended:
                return
            self._ended = True
            self._changed.notify_all()
        if self._lag is not None:
            self._lag.ended()
        if error is None or self._recover is None:
            self._on_end(FlowEnded(flow=self._flow.name, error=self._translate(error)))
            return
        # A recovery reads files; progress of other queries must not wait for it.
        threading.Thread(
            target=self._end_recovered,
            args=(error,),
            name=f"recover {self._flow.name}",
            daemon=True,
        ).start()

    def _end_recovered(self, error: str) -> None:
        try:
            known = self._recovered(error)
        except Exception as failed:
            known = flow_error(failed, self._flow, batch_id=self._batch)
        if known is None:
            known = self._translate(error)
        self._on_end(FlowEnded(flow=self._flow.name, error=known))

    def _recovered(self, error: str) -> PenstockError | None:
        if self._recover is None or self._stopping or isinstance(self._failure, PenstockError):
            return None
        failure = "" if self._failure is None else full_text(self._failure)
        return self._recover(f"{failure}\n{error}")

    @property
    def flow(self) -> str:
        """Name of the flow."""
        return self._flow.name

    def abandoned(self, error: PenstockError) -> None:
        """The JVM is gone: report the end that Spark cannot report. Ignored after an end."""
        with self._changed:
            if self._ended:
                return
            self._ended = True
            self._changed.notify_all()
        if self._lag is not None:
            self._lag.ended()
        self._on_end(FlowEnded(flow=self._flow.name, error=error))

    def _translate(self, error: str | None) -> Any:
        if error is None:
            return None
        # A stop that came too late for a clean end interrupts the batch; that is no failure.
        if self._stopping and "Interrupted" in error and self._failure is None:
            return None
        query_id = str(self._query.id) if self._query is not None else None
        return flow_error(
            self._failure or error, self._flow, batch_id=self._batch, query_id=query_id
        )

    # -- stopping ------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """See `RunningFlow.request_stop`."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
        threading.Thread(
            target=self._stop_when_idle, name=f"stop {self._flow.name}", daemon=True
        ).start()

    def interrupt(self) -> None:
        """See `RunningFlow.interrupt`."""
        self._stopping = True
        if self._query is not None:
            self._query.stop()

    def _stop_when_idle(self) -> None:
        with self._changed:
            while not self._ended and not self._is_idle():
                self._changed.wait(_STOP_CHECK_SECONDS)
            if self._ended:
                return
        self.interrupt()

    def _is_idle(self) -> bool:
        # A micro-batch is over when its progress is out: only then is it in the commit log.
        if not self.has_batches:
            return True
        if self._write is not None:
            return self._batch is None or self._reported >= self._batch
        return self._query is None or not self._query.status["isTriggerActive"]
