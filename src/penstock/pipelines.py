"""Pipelines from Python: what `penstock run`, `dry-run` and `check` do, with typed results.

    import penstock

    result = penstock.run("shop", refresh=["silver"])
    assert not result.failures

Each function takes a project folder, a source file or a settings file, and raises the errors that
the command reports. Java starts and ends with each call. Where a classic session with Delta is
active, as in a notebook, this session is used and left running. Call these functions on the main
thread: Spark and the working directory belong to the process.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock._api.registry import is_collecting
from penstock._display.display import LogFormat, choose_display
from penstock._display.signals import Stoppable, StopSignals
from penstock._display.terminal import Output
from penstock._model.missing import missing_values_assumed, plausible_value
from penstock._model.origin import capture_origin
from penstock._model.pipeline import PipelineSettings
from penstock._observe.bus import EventBus
from penstock._observe.events import UpdateState
from penstock._observe.state import ObservedUpdate
from penstock._plan.explain import explain_json, explain_text
from penstock._plan.settings import update_retries
from penstock._plan.steps import Plan
from penstock._project.job_files import job_files
from penstock._project.spec import load_settings
from penstock._runtime.relaunch import has_no_jvm, run_with_relaunches
from penstock._runtime.restart import RELAUNCH, RestartAfter, is_transient
from penstock._runtime.update import UpdateResult
from penstock.errors import DefinitionError, PenstockError

if TYPE_CHECKING:
    from penstock._check import ProjectCheck
    from penstock._graph.dataflow import DataflowGraph
    from penstock._launch import OpenPipeline
    from penstock._update import UpdateOptions

__all__ = [
    "PipelinePlan",
    "UpdateResult",
    "UpdateState",
    "check",
    "dry_run",
    "open_pipeline",
    "run",
]

Project = str | Path | PipelineSettings


@dataclass(frozen=True)
class PipelinePlan:
    """What `run` with the same arguments would do. `str()` is the text of `penstock dry-run`.

    Attributes:
        graph: Datasets, sinks and flows, with schemas and output modes.
        plan: The steps of the update, in order.
    """

    graph: "DataflowGraph"
    plan: Plan

    def __str__(self) -> str:
        return "\n".join(explain_text(self.graph, self.plan))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same text as the result of a notebook's cell."""
        printer.text(str(self))

    def to_dict(self) -> dict[str, Any]:
        """What `penstock dry-run --output json` prints."""
        return explain_json(self.graph, self.plan)


def run(
    project: Project = ".",
    *,
    refresh: Sequence[str] = (),
    full_refresh: Sequence[str] = (),
    full_refresh_all: bool = False,
    replace_where: Mapping[str, str] | None = None,
    continuous: bool | None = None,
    stop_timeout_seconds: float = 60.0,
    arguments: Sequence[str] = (),
    quiet: bool = False,
    **settings: Any,
) -> UpdateResult:
    """Run an update, show its progress, and return when it has ended.

    Ctrl-C, or the interrupt of a notebook's kernel, stops the update after the micro-batches in
    flight; a second one interrupts them.

    Args:
        project: Project folder, source file, settings file, or loaded settings.
        refresh: Tables to update; all if empty.
        full_refresh: Tables to empty and rebuild.
        full_refresh_all: Empty and rebuild everything that allows it.
        replace_where: Flow to the condition of the rows that it replaces in this update.
        continuous: Run until stopped; by default, as set in the settings.
        stop_timeout_seconds: How long a graceful stop may take before it is forced.
        arguments: Arguments of the program of a job.
        quiet: Print errors and the final line only.
        settings: `spec`, `storage`, `configuration`, `pipeline`, `target`, `defer_to`, `paths`,
            `parameters`, `master`, `catalog`, `schema`: override the settings file.

    Returns:
        The result of the update. Failures of flows are in `failures`; they are not raised.

    Raises:
        PenstockError: The update could not start.
    """
    from penstock._update import UpdateOptions

    loaded = _settings(project, continuous=continuous, **settings)
    options = UpdateOptions(
        refresh=tuple(refresh),
        full_refresh=tuple(full_refresh),
        full_refresh_all=full_refresh_all,
        replace_where=replace_where or {},
        continuous=loaded.continuous,
        stop_timeout_seconds=stop_timeout_seconds,
        arguments=tuple(arguments),
    )
    with contextlib.chdir(Path.cwd()):
        return watch_update(loaded, options, quiet=quiet).result


def dry_run(
    project: Project = ".",
    *,
    refresh: Sequence[str] = (),
    full_refresh: Sequence[str] = (),
    full_refresh_all: bool = False,
    replace_where: Mapping[str, str] | None = None,
    continuous: bool | None = None,
    **settings: Any,
) -> PipelinePlan:
    """Analyse a pipeline and plan an update, without changing its storage.

    Args:
        project: See `run`.
        refresh: Tables to update; all if empty.
        full_refresh: Tables to empty and rebuild.
        full_refresh_all: Empty and rebuild everything that allows it.
        replace_where: Flow to the condition of the rows that it replaces.
        continuous: Run until stopped; by default, as set in the settings.
        settings: See `run`.

    Raises:
        DefinitionErrors: All definition errors of the pipeline.
        PlanError: The selection or the refresh is not possible.
        PenstockError: Any other error that prevents an update from starting.
    """
    from penstock._update import UpdateOptions, plan_update

    loaded = _settings(project, continuous=continuous, **settings)
    options = UpdateOptions(
        refresh=tuple(refresh),
        full_refresh=tuple(full_refresh),
        full_refresh_all=full_refresh_all,
        replace_where=replace_where or {},
        continuous=loaded.continuous,
    )
    with contextlib.chdir(Path.cwd()):
        return PipelinePlan(*plan_update(loaded, options))


def check(project: Project = ".", **settings: Any) -> "ProjectCheck":
    """Report which parts of a project would run here, errors with their reasons, and requirements.

    Nothing runs. Data, secrets, settings and packages may be missing: their columns and values are
    assumed according to their use in the code.

    Args:
        project: See `run`.
        settings: See `run`.

    Raises:
        SpecError: The source files or settings cannot be read.
        SetupError: Java, jars or Spark are missing.
    """
    with contextlib.chdir(Path.cwd()):
        return check_with(lambda: _settings(project, **settings))


def check_with(load: Callable[[], PipelineSettings]) -> "ProjectCheck":
    """Same as `check`; values that are missing while `load` runs are assumed as well."""
    from penstock._check import check_project

    assumed: dict[str, str] = {}
    with missing_values_assumed(lambda key: assumed.setdefault(key, plausible_value(key))):
        settings = load()
    return check_project(settings, assumed)


@contextlib.contextmanager
def open_pipeline(project: Project = ".", **settings: Any) -> "Iterator[OpenPipeline]":
    """Open a pipeline to inspect its session, its graph, and the queries of its flows.

        with penstock.open_pipeline("shop") as pipeline:
            df, _ = pipeline.query(pipeline.flow("silver"))
            df.printSchema()

    Nothing is written. The working directory is the project's root until the block ends.

    Args:
        project: See `run`.
        settings: See `run`.

    Raises:
        DefinitionErrors: All definition errors of the pipeline.
        PenstockError: Any other error that prevents an update from starting.
    """
    from penstock import _launch

    loaded = _settings(project, **settings)
    with contextlib.chdir(Path.cwd()), _launch.open_pipeline(loaded) as pipeline:
        yield pipeline


def _settings(project: Project, **settings: Any) -> PipelineSettings:
    if is_collecting():
        raise DefinitionError(
            "INSIDE_PIPELINE",
            "a source file of a pipeline calls `penstock.run`, `dry_run`, `check` or "
            "`open_pipeline`",
            origin=capture_origin(),
            hint="move the call to a file that is not a source file of the pipeline, or below "
            '`if __name__ == "__main__":`',
        )
    if isinstance(project, PipelineSettings):
        return project
    return load_settings(Path.cwd(), source=Path(project), **settings)


def _job_files(settings: PipelineSettings) -> tuple[Path, ...]:
    try:
        return job_files(settings)
    except PenstockError:
        return ()  # the update reports it


class WatchedUpdate(NamedTuple):
    """The result of an update, and whether a signal requested its stop."""

    result: UpdateResult
    was_interrupted: bool


def watch_update(
    settings: PipelineSettings,
    update_options: "UpdateOptions",
    *,
    log_format: LogFormat = LogFormat.TEXT,
    quiet: bool = False,
    on_running: Callable[[Stoppable], Stoppable] | None = None,
    on_end: Callable[[ObservedUpdate], None] | None = None,
) -> WatchedUpdate:
    """Run an update, show its progress, and let signals stop it.

    If the JVM of a continuous update dies, the restart policy decides whether another one is
    started. The same applies to a job with a failed query: only its program can restart the query.

    Args:
        settings: Settings of the pipeline.
        update_options: Options of this update.
        log_format: Format of the progress.
        quiet: Print errors and the final line only.
        on_running: Called with the update once it can be stopped; signals stop what it returns.
        on_end: Called with the state of the last update, also if it could not start.
    """
    from penstock._update import run_update

    bus, state, signals = EventBus(), ObservedUpdate(), StopSignals()
    bus.subscribe(state)
    jobs = _job_files(settings)

    def running(update: Stoppable) -> None:
        signals.bind(update if on_running is None else on_running(update))

    def run_once(retry: int, is_set_up: bool) -> UpdateResult:
        options = update_options.without_resets() if is_set_up else update_options
        options = replace(options, retry=retry)
        if not jobs:
            return run_update(settings, options, bus=bus, on_running=running)
        from penstock._jobs.job import run_job

        return run_job(
            settings,
            options,
            jobs,
            bus=bus,
            on_running=running,
            on_interrupt=lambda: signals.bind(None),
        )

    def wait(error: PenstockError, decision: RestartAfter) -> bool:
        signals.bind(None)  # from here on, a signal raises KeyboardInterrupt
        if signals.received:
            return False
        Output(sys.stderr).line(
            f"[{error.condition}] {error.message.partition(chr(10))[0]}: a new update starts in "
            f"{decision.seconds:.1f} s (retry {decision.retry})"
        )
        threading.Event().wait(decision.seconds)
        return True

    def needs_relaunch(error: PenstockError) -> bool:
        return has_no_jvm(error) or (bool(jobs) and is_transient(error))

    display = choose_display(bus, state, log_format=log_format, quiet=quiet)
    retries = update_retries(settings.configuration) if update_options.continuous else 0
    policy = RELAUNCH.allowing(retries)
    try:
        with signals, display:
            result = run_with_relaunches(
                run_once,
                policy,
                on_relaunch=wait,
                needs_relaunch=needs_relaunch,
            )
    finally:
        if on_end is not None:
            on_end(state)
    return WatchedUpdate(result, signals.received > 0)
