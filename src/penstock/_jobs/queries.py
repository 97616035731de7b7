"""The streaming queries of a job: each is a flow, observed from its start to its end."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock._execution.admission import BatchAdmission
from penstock._execution.listener import ProgressListener
from penstock._jobs.naming import QueryTarget, flow_name, target_of
from penstock._jobs.program import Program
from penstock._jobs.query import JobQuery
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation, capture_origin
from penstock._observe.events import (
    Event,
    EventOrigin,
    FlowProgress,
    FlowStatus,
    PlanWarning,
    SinkDefinition,
)
from penstock._project.loader import replaced
from penstock._runtime.reporter import error_info
from penstock._spark.failures import flow_error
from penstock._spark.session import jvm_died, jvm_log
from penstock.errors import PenstockError
from penstock.sinks.registry import sink_of
from penstock.sinks.spark import ConsoleSink

_DETACH_SECONDS = 5.0
_REPORT_SECONDS = 10.0


class JobQueries:
    """Observes the queries of programs. `emit` is called with their events, on any thread."""

    def __init__(
        self, programs: Sequence[Program], origin: EventOrigin, emit: Callable[[Event], None]
    ) -> None:
        self._programs = programs
        self._origin = origin
        self._emit = emit
        self._listener = ProgressListener()
        self._hold = BatchAdmission(programs[0].spark, permits=0)
        self._changed = threading.Condition()
        self._queries: dict[str, JobQuery] = {}
        self._ends: dict[str, FlowStatus] = {}
        self._errors: dict[str, PenstockError] = {}
        self._is_stopping = False
        self._sessions: list[SparkSession] = []

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observe the queries that are started while this is open."""
        for program in self._programs:
            self._listen(program.spark)
        start = self._observing(DataStreamWriter.start, "path")
        to_table = self._observing(DataStreamWriter.toTable, "tableName")
        try:
            with (
                replaced(DataStreamWriter, "start", start),
                replaced(DataStreamWriter, "toTable", to_table),
            ):
                yield
        finally:
            # Not on this thread: an interrupt may have left its connection to the JVM unusable.
            thread = threading.Thread(target=self._detach, name="detach", daemon=True)
            thread.start()
            thread.join(_DETACH_SECONDS)

    def _listen(self, spark: SparkSession) -> None:
        """Listen to a session, which a program may have created.

        Spark's listeners receive the events of one session only.
        """
        with self._changed:
            if not any(_are_same(spark, known) for known in self._sessions):
                self._sessions.append(spark)
                spark.streams.addListener(self._listener)

    def _detach(self) -> None:
        with suppress(Exception):  # the JVM may be gone
            for session in self._sessions:
                session.streams.removeListener(self._listener)

    def _observing(self, start: Callable[..., StreamingQuery], name: str) -> Callable[..., Any]:
        @wraps(start)
        def observed_start(writer: Any, *arguments: Any, **options: Any) -> StreamingQuery:
            location = capture_origin()
            spark = writer._spark
            self._listen(spark)
            query = start(writer, *arguments, **options)
            target = arguments[0] if arguments else options.get(name)
            self._add(query, self._program_of(spark), target_of(writer, target), location)
            return query

        return observed_start

    def program_here(self) -> Program | None:
        """The program that this thread executes."""
        here = threading.get_ident()
        return next((each for each in self._programs if each.thread == here), None)

    def _program_of(self, spark: SparkSession) -> Program:
        owners = (each for each in self._programs if _are_same(each.spark, spark))
        return next(owners, None) or self.program_here() or self._programs[0]

    def _add(
        self, query: StreamingQuery, program: Program, target: QueryTarget, location: SourceLocation
    ) -> None:
        own = program.source.stem if len(self._programs) > 1 else ""
        with self._changed:
            name = flow_name(query.name, target, location, program=own)
            name = self._unused(name, location)
            origin = replace(self._origin, flow_name=name, sink_name=name)
            flow = Flow(name=name, target=name, function=lambda: None, origin=location)
            job_query = JobQuery(
                query, flow, target.mode, origin, self._emit, partial(self._ended, name), self._hold
            )
            self._queries[name] = job_query
            self._ends.pop(name, None)
            self._errors.pop(name, None)
            program.flows.add(name)
            is_stopping = self._is_stopping or program.failure is not None
        place = f"{target.format} {target.name}" if target.name else target.format
        sink = replace(self._origin, sink_name=name)
        self._emit(Event(sink, SinkDefinition(format=target.format), f"{name} writes to {place}"))
        self._emit(job_query.definition())
        text = f"{name} was started at {location}"
        self._emit(Event(origin, FlowProgress(FlowStatus.RUNNING), text))
        self._listener.watch(str(query.runId), job_query)
        if (
            isinstance(sink_of(target.format), ConsoleSink)
            and (log := jvm_log(program.spark)) is not None
        ):
            text = f"{name} prints its rows to the console of Spark's JVM, which is the file "
            text += str(log.path)
            self._emit(Event(origin, PlanWarning(text), text))
        if is_stopping:
            job_query.request_stop()

    def _unused(self, name: str, location: SourceLocation) -> str:
        """The name, with a number if another query has it. The lock must be held.

        A query that is started again at the same line is the same flow.
        """
        unused, number = name, 2
        while (known := self._queries.get(unused)) is not None:
            if known.declared.origin == location and self._has_ended(known):
                break
            unused, number = f"{name}_{number}", number + 1
        return unused

    def _has_ended(self, query: JobQuery) -> bool:
        # Spark reports the end on another thread; a program may start the query again before that.
        return not query.is_active and self._changed.wait_for(
            lambda: query.flow in self._ends, _REPORT_SECONDS
        )

    def _ended(self, name: str, error: PenstockError | None) -> None:
        if error is not None:
            status, text = FlowStatus.FAILED, error.message
        elif self._is_stopping or any(
            program.failure and name in program.flows for program in self._programs
        ):
            status, text = FlowStatus.STOPPED, f"{name} was stopped"
        else:
            status, text = FlowStatus.COMPLETED, f"{name} has ended"
        origin = replace(self._origin, flow_name=name, sink_name=name)
        info = None if error is None else error_info(error)
        self._emit(Event(origin, FlowProgress(status), text, error=info))
        with self._changed:
            self._ends[name] = status
            if error is not None:
                self._errors[name] = error
            self._changed.notify_all()

    # -- end -----------------------------------------------------------------------------------

    def running_of(self, program: Program) -> tuple[JobQuery, ...]:
        return tuple(query for query in self.running if query.flow in program.flows)

    @property
    def running(self) -> tuple[JobQuery, ...]:
        with self._changed:
            return tuple(q for name, q in self._queries.items() if name not in self._ends)

    @property
    def failures(self) -> tuple[PenstockError, ...]:
        """Errors of queries that failed and were not started again."""
        with self._changed:
            return tuple(self._errors.values())

    def named(self, status: FlowStatus) -> tuple[str, ...]:
        with self._changed:
            return tuple(name for name, end in self._ends.items() if end is status)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all queries have ended and their events are emitted; `False` on a timeout."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(name in self._ends for name in self._queries), seconds
            )

    def request_stop(self) -> None:
        """End all queries after the micro-batch in flight, also those that start later."""
        self._is_stopping = True
        for query in self.running:
            query.request_stop()

    def interrupt(self) -> None:
        """End all queries now."""
        self._is_stopping = True
        for query in self.running:
            query.interrupt()

    def jvm_died(self, exit_code: int) -> None:
        """End all queries after Spark's JVM has died."""
        for query in self.running:
            query.abandoned(jvm_died(exit_code, flow=query.flow))

    def abandon(self, failure: str) -> None:
        """End all queries with the same failure."""
        for query in self.running:
            query.abandoned(flow_error(failure, query.declared))


def _are_same(first: SparkSession, second: SparkSession) -> bool:
    """Whether two Python objects are the same Spark session."""
    return first is second or bool(first._jsparkSession == second._jsparkSession)
