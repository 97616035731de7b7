"""One running streaming query: its micro-batches, its progress, its end."""

import logging
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock._analysis.late_rows import dropped_by_watermark
from penstock._execution.lag_probe import FlowLag, described
from penstock._execution.listener import backlog_records, written_records
from penstock._model.exception_text import first_line
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
from penstock._runtime.ports import OnEnd
from penstock._spark.failures import flow_error, full_text, with_causes
from penstock.errors import FlowError, PenstockError
from penstock.sources.base import OpenedSource, explained
from penstock.sources.flow import distinct

if TYPE_CHECKING:
    from penstock._execution.writers import Commit
    from penstock.sinks.base import SinkCommit

_logger = logging.getLogger(__name__)

_STOP_CHECK_SECONDS = 1.0
_ATTACH_SECONDS = 60.0
_SHOWN_LOSSES = 5


class RunningQuery:
    """See `penstock._runtime.ports.RunningFlow`.

    `on_batch` runs on py4j's callback thread while Spark's stream thread waits for it; `progressed`
    and `terminated` on the listener's callback thread; the rest on any thread.
    """

    def __init__(
        self,
        flow: Flow,
        origin: EventOrigin,
        emit: Callable[[Any], None],
        on_end: OnEnd,
        sources: Sequence[OpenedSource] = (),
        checkpoint: str = "",
        on_success: Callable[[], None] = lambda: None,  # once, after a batch or a regular end
        remember: Callable[[Mapping[str, str]], None] = lambda _: None,  # identities of sources
    ) -> None:
        self._flow = flow
        self._sources = sources
        self._checkpoint = checkpoint
        self._origin = origin
        self._emit = emit
        self._on_end = on_end
        self._on_success: Callable[[], None] | None = on_success
        self._remember = remember
        self._write: Callable[[DataFrame, int], Commit | SinkCommit] | None = None
        self._close: Callable[[], None] | None = None
        self._cancel: Callable[[], None] | None = None
        self._explain: Callable[[str, int | None], PenstockError | None] = lambda *_: None
        self._lag: FlowLag | None = None
        self.has_batches = True
        """Whether the query can be stopped between micro-batches."""
        self._query: StreamingQuery | None = None
        self._query_id: str | None = None
        self._failure: BaseException | None = None
        self._batch: int | None = None
        self._reported: int = -1
        self._stopping = False
        self._ended = False
        self._changed = threading.Condition()

    def writes_batches(
        self,
        write: "Callable[[DataFrame, int], Commit | SinkCommit]",
        close: Callable[[], None] | None = None,  # when the query has ended
        cancel: Callable[[], None] | None = None,  # before a stop waits for its batch
    ) -> None:
        self._write = write
        self._close = close
        self._cancel = cancel

    def explains_failures(self, explain: Callable[[str, int | None], PenstockError | None]) -> None:
        """Set the function that explains failures, by their text and the current batch."""
        self._explain = explain

    def measures_lag(self, lag: FlowLag) -> None:
        self._lag = lag

    def attach(self, query: StreamingQuery) -> None:
        with self._changed:
            self._query = query
            self._changed.notify_all()
            if not self._ended:
                for source in self._sources:
                    source.started(self._checkpoint, self._sources)

    def execution(self) -> Any:
        """Spark's `IncrementalExecution` of the micro-batch of `on_batch`.

        The first batch may start before the query is attached: this waits until it is.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._query or self._ended, _ATTACH_SECONDS)
            java_query: Any = self._query
        if java_query is None:
            raise RuntimeError("the running query was not attached, or has ended")
        return java_query._jsq.streamingQuery().lastExecution()

    def on_batch(self, df: DataFrame, batch_id: int) -> None:
        if self._write is None:
            raise RuntimeError("the query has no batch writer")
        with self._changed:
            self._batch = batch_id
        try:
            for source in self._sources:
                source.check_batch(self._checkpoint, batch_id)
            report = self._write(df, batch_id)
        except BaseException as error:
            self._failure = error
            raise
        if not report.replayed:
            self._emit(report.event(replace(self._origin, batch_id=batch_id), ""))

    # -- listener ------------------------------------------------------------------------------

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Handle a report: a micro-batch is in the commit log, or the query is idle."""
        batch_id = int(progress.get("batchId", -1))
        rows = int(progress.get("numInputRows", 0))
        origin = replace(self._origin, batch_id=batch_id)
        if "addBatch" in progress.get("durationMs", {}):
            self._succeeded()
            self._emit(Event(origin, StreamProgress(self._described(progress))))
            metrics = FlowMetrics(
                num_input_rows=rows,
                num_output_rows=written_records(progress),
                batch_duration_ms=int(progress["durationMs"].get("triggerExecution", 0)),
                backlog_records=backlog_records(progress),
                # A batch writer counts them exactly.
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
        for source in distinct(self._sources):  # as in the check of identities
            for entry in progress.get("sources", ()):
                if identities := source.new_identities(entry):
                    self._remember(identities)

    def _described(self, progress: Mapping[str, Any]) -> dict[str, Any]:
        entries = []
        for entry in progress.get("sources") or ():
            text = described(self._sources, str(entry.get("description", "")))
            entries.append({**entry, "description": text})
        return {**progress, "sources": entries}

    def _report_losses(self, origin: EventOrigin, progress: Mapping[str, Any]) -> None:
        for entry in progress.get("sources", ()):
            for source in self._sources:
                if losses := source.lost(entry):
                    shown = ", ".join(loss.text for loss in losses[:_SHOWN_LOSSES])
                    more = len(losses) - _SHOWN_LOSSES
                    text = f"rows were lost: {shown}{f' and {more} more' if more > 0 else ''} had "
                    text += f"been removed from {source.name} before they were read"
                    body = SourceRowsLost(tuple(loss.body for loss in losses))
                    self._emit(Event(origin, body, text))
                    break

    def _succeeded(self) -> PenstockError | None:
        """Call `on_success`; if it fails, call it again after the next batch and at the end."""
        try:
            if self._on_success is not None:
                self._on_success()
        except Exception as error:
            return flow_error(error, self._flow, batch_id=self._batch)
        self._on_success = None
        return None

    def terminated(self, error: str | None, query_id: str | None = None) -> None:
        """Handle the end of the query; the last callback."""
        if not self._end():
            return
        self._query_id = query_id
        if self._close is None and (error is None or not self._sources):
            self._end_recovered(error)
            return
        # A recovery reads files, and a sink may send rows: other queries' progress must not wait.
        name = f"recover {self._flow.name}"
        threading.Thread(target=self._end_recovered, args=(error,), name=name, daemon=True).start()

    def _end_recovered(self, error: str | None) -> None:
        try:
            self._close_sink(error)
            known = self._succeeded() if error is None else self._error_of(error)
        except Exception as failed:  # any exception: without a report, the update would not end
            known = flow_error(failed, self._flow, batch_id=self._batch)
        if self._lag is not None:
            # A flow that is not restarted does not wait for its sources.
            is_retryable = isinstance(known, FlowError) and known.retryable
            self._lag.ended(waits=is_retryable and not self._stopping)
        self._let_go()
        self._on_end(known)

    def _let_go(self) -> None:
        """Drop all references to Java objects.

        PySpark keeps `on_batch` and its exception as long as Java has the query: a query that
        Python still references would never be freed.
        """
        for failure in with_causes(self._failure):
            traceback.clear_frames(failure.__traceback__)
        self._query = self._failure = self._write = None

    def _close_sink(self, error: str | None) -> None:
        try:
            if self._close is not None:
                self._close()
        except Exception as failed:
            if error is None:
                raise
            # The failure of the query is the one to report.
            text = first_line(failed)
            _logger.warning("the sink of flow %s was not closed: %s", self._flow.name, text)

    def _error_of(self, error: str) -> PenstockError | None:
        """The error to report for Spark's text; `None` for an interrupt by a stop."""
        if self._stopping and "Interrupted" in error and self._failure is None:
            return None
        failure = self._failure
        is_known = isinstance(failure, PenstockError)
        # The function of a sink reads the rows, so its failure may be that of a source.
        if failure is None or not is_known or failure.__cause__ is not None:
            text = error if failure is None else f"{full_text(failure)}\n{error}"
            known = None if self._stopping else explained(text, self._sources, self._flow)
            if not is_known:
                known = known or self._explain(text, self._batch)
            if known is not None:
                return known
        return flow_error(
            failure or error, self._flow, batch_id=self._batch, query_id=self._query_id
        )

    @property
    def flow(self) -> str:
        return self._flow.name

    def abandoned(self, error: PenstockError) -> None:
        """Report the end of the query if the JVM has ended, or the lease is lost.

        Ignored after `terminated`.
        """
        if self._end():
            if self._lag is not None:
                self._lag.ended()
            self._on_end(error)

    def _end(self) -> bool:
        """Mark the query as ended. Returns whether this is the first report of the end."""
        with self._changed:
            if self._ended:
                return False
            self._ended = True
            for source in self._sources:
                source.ended()
            self._changed.notify_all()
        return True

    # -- stopping ------------------------------------------------------------------------------

    def request_stop(self) -> None:
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
        threading.Thread(
            target=self._stop_when_idle, name=f"stop {self._flow.name}", daemon=True
        ).start()

    def interrupt(self) -> None:
        self._stopping = True
        if self._cancel is not None:
            self._cancel()
        if self._query is not None:
            try:
                self._query.stop()
            except Exception:
                # When the query has ended, the session may stop before this call returns.
                if not self._ended:
                    raise

    def _stop_when_idle(self) -> None:
        if self._cancel is not None:
            self._cancel()
        with self._changed:
            while not self._ended and not self._is_idle():
                self._changed.wait(_STOP_CHECK_SECONDS)
            if self._ended:
                return
        self.interrupt()

    def _is_idle(self) -> bool:
        # A micro-batch ends with its progress report: only then is it in the commit log.
        if not self.has_batches:
            return True
        if self._write is not None:
            return self._batch is None or self._reported >= self._batch
        return self._query is None or not self._query.status["isTriggerActive"]
