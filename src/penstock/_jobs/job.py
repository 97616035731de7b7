"""Runs a job: executes its programs, observes their queries, and stops both."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock._jobs.builder import ignored_settings
from penstock._jobs.program import Program, programs_of
from penstock._jobs.queries import JobQueries
from penstock._jobs.query import job_hint
from penstock._jobs.tables import register_tables
from penstock._launch import project_session, read_context
from penstock._model.pipeline import PipelineSettings
from penstock._observe.bus import EventBus
from penstock._observe.events import (
    Event,
    EventOrigin,
    FlowStatus,
    PlanWarning,
    UpdateProgress,
    UpdateState,
)
from penstock._project.databricks.notebook_globals import notebook_globals
from penstock._project.job_files import refuse_modules_of_one_name
from penstock._project.loader import job_programs, run_job_file
from penstock._runtime.reporter import error_info
from penstock._runtime.update import UpdateResult
from penstock._spark.call_sites import user_columns
from penstock._spark.executors import executor_watch, starting_executors
from penstock._spark.session import jvm_died, jvm_exit_code, jvm_log, jvm_watch, spark_defaults
from penstock._update import UpdateOptions, observed_update
from penstock.errors import PenstockError, PlanError, UpdateFailedError

_INTERRUPT_SECONDS = 15.0
# Defaults of Penstock that change what a program writes.
_OWN_DEFAULTS = ("spark.sql.session.timeZone", "spark.sql.sources.default")


def run_job(
    settings: PipelineSettings,
    options: UpdateOptions,
    sources: tuple[Path, ...],
    *,
    bus: EventBus,
    on_running: "Callable[[Job], None]",
    on_interrupt: Callable[[], None],
) -> UpdateResult:
    """Run the files of a job; return when they, their queries and the JVM have ended.

    Like `run_update`, called on the main thread, which runs the program if there is only one file.
    `on_interrupt` is called on another thread before SIGINT is sent to this process; SIGINT must
    then raise `KeyboardInterrupt`.
    """
    if options.selection.names or options.full_refresh_all or options.replace_where:
        raise PlanError(
            "SOURCE_IS_JOB",
            f"{sources[0].name} is a job: it has no tables to select or to refresh",
            hint="run it without a selection; to read a source from its start again, give the "
            "query a new checkpointLocation",
        )
    refuse_modules_of_one_name(settings, sources)
    with (
        observed_update(settings, options, bus) as observed,
        project_session(settings, observed.leases, update_id=observed.origin.update_id) as spark,
        starting_executors(spark) as executors_ready,
        _defaults_of_spark(spark, settings),
    ):
        observed.retention.start()
        observed.hooks.start(())  # a job declares none
        register_tables(spark)
        programs = programs_of(sources, spark)
        queries = JobQueries(programs, observed.origin, bus.emit)
        job = Job(spark, settings, programs, queries, bus, observed.origin, options, on_interrupt)
        if observed.leases.remote is not None:
            observed.leases.remote.on_lost(job.lease_lost)
        on_running(job)
        executors_ready()
        with (
            jvm_watch(spark, queries.jvm_died),
            executor_watch(spark, observed.origin, bus.emit),
            queries.observed(),
        ):
            return job.run()


@contextmanager
def _defaults_of_spark(spark: SparkSession, settings: PipelineSettings) -> Iterator[None]:
    """Unset Penstock's defaults that change what a program writes.

    They are set again at the end, because the session may be borrowed.
    """
    kept = {**spark_defaults(), **settings.configuration}
    before = {key: str(spark.conf.get(key)) for key in _OWN_DEFAULTS if key not in kept}
    for key in before:
        spark.conf.unset(key)
    try:
        yield
    finally:
        with suppress(Py4JError, ConnectionError):  # the JVM is gone
            for key, value in before.items():
                spark.conf.set(key, value)


class _Message(Enum):
    STOP = auto()
    END = auto()


@dataclass(eq=False)
class Job:
    """A running job.

    A single program runs on the main thread, several programs on one thread each. Stop requests
    are processed on a separate thread.
    """

    spark: SparkSession
    settings: PipelineSettings
    programs: tuple[Program, ...]
    queries: JobQueries
    bus: EventBus
    origin: EventOrigin
    options: UpdateOptions
    on_interrupt: Callable[[], None]

    def __post_init__(self) -> None:
        # Used by signal handlers: SimpleQueue.put is reentrant.
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._main = threading.get_ident()
        self._main_runs_program = False
        self._was_stopped = False
        self._was_interrupted = threading.Event()

    def request_stop(self) -> None:
        """First call: end after the batches in flight. Second call: interrupt. Signal-safe."""
        self._inbox.put(_Message.STOP)

    def lease_lost(self, failure: str) -> None:
        """End now: another driver has the lease."""
        self.queries.abandon(failure)
        self.queries.interrupt()
        for _ in range(2):
            self.request_stop()

    def run(self) -> UpdateResult:
        """Run the programs, wait for their queries, and report how both have ended."""
        stopper = threading.Thread(target=self._stop_on_request, name="stop job", daemon=True)
        stopper.start()
        files = ", ".join(program.source.name for program in self.programs)
        self._report(UpdateState.RUNNING, f"running {files}")
        try:
            with (
                user_columns(),
                job_programs(
                    self.settings,
                    [program.source for program in self.programs],
                    self.spark,
                    arguments=self.options.arguments,
                    on_configure=self._configured,
                    on_stop=self._spark_stopped,
                ),
            ):
                if len(self.programs) > 1:
                    self._run_on_threads()
                else:
                    self._main_runs_program = True
                    try:
                        self._run_program(self.programs[0])
                    finally:
                        self._main_runs_program = False
                self._wait()
        except KeyboardInterrupt:
            if not self._was_stopped:
                raise
            self.queries.wait(_INTERRUPT_SECONDS)
        finally:
            self._inbox.put(_Message.END)
            stopper.join(_INTERRUPT_SECONDS)
        return self._conclude()

    def _run_on_threads(self) -> None:
        threads = [
            threading.Thread(
                target=self._run_program, args=[program], name=program.source.name, daemon=True
            )
            for program in self.programs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not self._was_interrupted.is_set():
                thread.join(1.0)
        deadline = time.monotonic() + _INTERRUPT_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run_program(self, program: Program) -> None:
        program.thread = threading.get_ident()
        context = read_context(self.settings, program.spark)
        names = notebook_globals(program.spark, self.settings, map_path=context.map_path)
        try:
            run_job_file(self.settings, program.source, namespace=names)
        except PenstockError as error:
            program.failure = error
            error.hint = error.hint or job_hint(error.message)
            code = jvm_exit_code(self.spark, error)
            if code is not None:
                self.queries.jvm_died(code)
                program.failure = jvm_died(code, log=jvm_log(self.spark))
        finally:
            program.thread = 0  # another thread may get this identifier
        waiting = self.queries.running_of(program)
        if program.failure is not None and len(self.programs) > 1:
            text = f"{program.source.name} has failed: {program.failure.message}"
            self._report(UpdateState.RUNNING, text)
        if not waiting or self._was_stopped:
            return
        flows = ", ".join(query.flow for query in waiting)
        if program.failure is None:
            text = f"{program.source.name} has ended; waiting for {flows}"
        elif len(self.programs) == 1:
            self.request_stop()
            return
        else:
            text = f"{flows} will end after the micro-batch"
            for query in waiting:
                query.request_stop()
        self._report(UpdateState.RUNNING, text)

    def _configured(self, options: Mapping[str, Any]) -> SparkSession | None:
        """Warn about settings of `SparkSession.builder` that the running session cannot apply."""
        ignored = ignored_settings(self.spark, options)
        if ignored:
            text = (
                f"{', '.join(ignored)}: set by the program after Spark has started, and ignored; "
                "set them below `configuration` in penstock.yaml"
            )
            self.bus.emit(Event(self.origin, PlanWarning(text), text))
        program = self.queries.program_here()
        if program is None or len(self.programs) == 1:
            return None
        return program.activate(options)

    def _spark_stopped(self) -> None:
        """End the queries of a program that stops Spark; the session ends with the run."""
        program = self.queries.program_here()
        running = self.queries.running
        for query in running if program is None else self.queries.running_of(program):
            query.interrupt()

    def _wait(self) -> None:
        while not self.queries.wait(1.0):
            if self._was_interrupted.is_set():
                self.queries.wait(_INTERRUPT_SECONDS)
                return

    # -- stop, on a separate thread ------------------------------------------------------------

    def _stop_on_request(self) -> None:
        if self._inbox.get() is _Message.END:
            return
        self._was_stopped = True
        self._report(UpdateState.STOPPING, "stopping: running queries finish their micro-batch")
        self.queries.request_stop()
        reason = "stop was requested a second time"
        try:
            timeout = min(self.options.stop_timeout_seconds, threading.TIMEOUT_MAX)
            if self._inbox.get(timeout=timeout) is _Message.END:
                return
        except Empty:
            reason = f"not stopped within {self.options.stop_timeout_seconds:g} s"
        self._report(UpdateState.STOPPING, f"interrupting: {reason}")
        self._was_interrupted.set()
        self.queries.interrupt()
        if self._main_runs_program and self._main == threading.main_thread().ident:
            self.on_interrupt()
            is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.pthread_kill(self._main, signal.SIGTERM if is_ignored else signal.SIGINT)

    # -- end -----------------------------------------------------------------------------------

    def _conclude(self) -> UpdateResult:
        failures = self.queries.failures
        for program in self.programs:
            error = program.failure
            # The query's own error has more details.
            is_reported = failures and isinstance(
                getattr(error, "__cause__", None), StreamingQueryException
            )
            if error is not None and not is_reported:
                failures += (error,)
        error, state, message = None, UpdateState.COMPLETED, "job completed"
        if failures:
            state, message = UpdateState.FAILED, f"job failed: {failures[0].message}"
            error = UpdateFailedError(failures) if self.queries.failures else failures[0]
        elif self._was_stopped:
            state, message = UpdateState.CANCELED, "job stopped"
        self._report(state, message, error=error)
        return UpdateResult(
            update_id=self.origin.update_id,
            state=state,
            failures=failures,
            completed=self.queries.named(FlowStatus.COMPLETED),
            stopped=self.queries.named(FlowStatus.STOPPED),
            interrupted=self._was_interrupted.is_set(),
        )

    def _report(
        self, state: UpdateState, message: str, *, error: PenstockError | None = None
    ) -> None:
        info = None if error is None else error_info(error)
        self.bus.emit(Event(self.origin, UpdateProgress(state), message, error=info))
