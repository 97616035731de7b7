"""`run` and `dry-run`."""

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock._cli import exit_codes, options, reports
from penstock._cli.dashboard import WithDashboard, dashboard_beside
from penstock._cli.options import LogFormat, OutputFormat
from penstock._cli.terminal import Output
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock._cli.signals import Stoppable
    from penstock._model.pipeline import PipelineSettings
    from penstock._runtime.restart import RestartAfter
    from penstock._runtime.update import RunningUpdate, UpdateResult
    from penstock._update import UpdateOptions

StopTimeout = Annotated[
    float,
    typer.Option(
        "--stop-timeout", min=0, metavar="SECONDS", help="How long a graceful stop may take."
    ),
]
Format = Annotated[
    LogFormat, typer.Option("--log-format", help="Progress for people or as JSON lines.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        metavar="PORT",
        help="Serve metrics for Prometheus on this port; 0 for any free one.",
    ),
]
Summary = Annotated[
    Path | None,
    typer.Option(
        "--summary", metavar="FILE", help="Also write what became of it as Markdown, for CI."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Errors and the final line only.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        "run",
        epilog="Examples: penstock run | penstock run --full-refresh silver,revenue | "
        "penstock run --continuous --ui --metrics-port 9464 | "
        "penstock run --log-format json --summary summary.md",
    )(run)
    app.command(
        "dry-run",
        epilog="Examples: penstock dry-run | penstock dry-run --output json | "
        "penstock dry-run --output github --junit dry-run.xml",
    )(dry_run)


def run(
    path: options.ProjectPath = None,
    spec: options.Spec = None,
    refresh: options.Refresh = None,
    full_refresh: options.FullRefresh = None,
    full_refresh_all: options.FullRefreshAll = False,
    replace_where: options.ReplaceWhere = None,
    continuous: options.Continuous = None,
    trigger: options.TriggerText = None,
    storage: options.Storage = None,
    conf: options.Conf = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    maps: options.Maps = None,
    param: options.Parameters = None,
    log_format: Format = LogFormat.TEXT,
    quiet: Quiet = False,
    stop_timeout: StopTimeout = 60.0,
    ui: WithDashboard = False,
    metrics_port: MetricsPort = None,
    summary: Summary = None,
    output: options.Output = OutputFormat.TEXT,
) -> int:
    """Run the pipeline: everything that is available, or --continuous until stopped."""
    from penstock._update import UpdateOptions

    settings = options.settings_of(
        path,
        spec,
        storage,
        conf,
        pipeline=pipeline,
        target=target,
        maps=maps,
        parameters=param,
        continuous=continuous,
        trigger=trigger,
    )
    if metrics_port is not None:
        settings = replace(settings, metrics=replace(settings.metrics, port=metrics_port))
    update_options = UpdateOptions(
        refresh=options.names(refresh),
        full_refresh=options.names(full_refresh),
        full_refresh_all=full_refresh_all,
        replace_where=options.assignments(replace_where, "--replace-where"),
        continuous=settings.continuous,
        stop_timeout_seconds=stop_timeout,
    )
    as_json = output is OutputFormat.JSON
    aside = redirect_stdout(sys.stderr) if as_json else nullcontext()
    with dashboard_beside(settings, wanted=ui), aside:
        watched = watch_update(
            settings, update_options, log_format=log_format, quiet=quiet, summary=summary
        )
    if as_json:
        from penstock.monitoring import status_of

        options.print_json(status_of(settings))
    if log_format is LogFormat.JSON or not quiet:  # else they went to stderr as they happened
        show_failures(watched.result)
    return watched.exit_code


def dry_run(
    path: options.ProjectPath = None,
    spec: options.Spec = None,
    refresh: options.Refresh = None,
    full_refresh: options.FullRefresh = None,
    full_refresh_all: options.FullRefreshAll = False,
    replace_where: options.ReplaceWhere = None,
    continuous: options.Continuous = None,
    trigger: options.TriggerText = None,
    storage: options.Storage = None,
    conf: options.Conf = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    maps: options.Maps = None,
    param: options.Parameters = None,
    output: reports.Report = reports.ReportFormat.TEXT,
    junit: reports.JUnit = None,
) -> None:
    """Check the pipeline and print what `run` with the same options would do; change nothing."""
    from penstock._plan.explain import explain_json, explain_text
    from penstock._update import UpdateOptions, plan_update

    settings = options.settings_of(
        path,
        spec,
        storage,
        conf,
        pipeline=pipeline,
        target=target,
        maps=maps,
        parameters=param,
        continuous=continuous,
        trigger=trigger,
    )
    update_options = UpdateOptions(
        refresh=options.names(refresh),
        full_refresh=options.names(full_refresh),
        full_refresh_all=full_refresh_all,
        replace_where=options.assignments(replace_where, "--replace-where"),
        continuous=settings.continuous,
    )
    try:
        with redirect_stdout(sys.stderr):  # whatever the pipeline's own code prints
            graph, plan = plan_update(settings, update_options)
    except PenstockError as error:
        cases = reports.cases_of(error)
        if junit is not None:
            reports.write_junit(junit, "penstock dry-run", cases)
        if output is reports.ReportFormat.GITHUB:
            print("\n".join(reports.annotations(cases)), flush=True)
        raise
    cases = [
        reports.Case(
            name=name, group="flow", file=node.flow.origin.file, line=node.flow.origin.line
        )
        for name, node in graph.flows.items()
    ]
    warned = [
        reports.Case(
            name=f"warning {number}",
            group="plan",
            verdict=reports.Verdict.SKIPPED,
            title=text.partition("\n")[0],
            text=text,
            level="warning",
        )
        for number, text in enumerate(plan.warnings, start=1)
    ]
    if junit is not None:
        reports.write_junit(junit, "penstock dry-run", [*cases, *warned])
    match output:
        case reports.ReportFormat.JSON:
            options.print_json(explain_json(graph, plan))
            return
        case reports.ReportFormat.GITHUB:
            print("\n".join([*reports.annotations(warned), f"{len(cases)} flows are planned"]))
            return
    for line in explain_text(graph, plan):
        print(line)


class WatchedUpdate(NamedTuple):
    """An update that has ended, and whether a signal asked it to."""

    result: "UpdateResult"
    was_interrupted: bool

    @property
    def exit_code(self) -> int:
        """A failure counts more than the signal; a stop that was asked for is no success."""
        from penstock._observe.events import UpdateState

        match self.result.state:
            case UpdateState.FAILED:
                return exit_codes.UPDATE_FAILED
            case UpdateState.CANCELED:
                return exit_codes.INTERRUPTED
            case _:
                return exit_codes.OK


def watch_update(
    settings: "PipelineSettings",
    update_options: "UpdateOptions",
    *,
    log_format: LogFormat = LogFormat.TEXT,
    quiet: bool = False,
    on_running: "Callable[[Stoppable], Stoppable] | None" = None,
    summary: Path | None = None,
) -> WatchedUpdate:
    """Run an update, show it, and let signals stop it.

    A continuous one whose JVM died is followed by another update, as the restart policy says.

    Args:
        settings: Of the pipeline.
        update_options: Of this update.
        log_format: Form of the progress.
        quiet: Errors and the final line only.
        on_running: Told about the update once it can be stopped; what it returns gets the signals.
        summary: Gets what became of it as Markdown, also if it could not start.
    """
    from penstock._cli.display import choose_display
    from penstock._cli.signals import StopSignals
    from penstock._observe.bus import EventBus
    from penstock._observe.snapshot import update_view
    from penstock._observe.state import ObservedUpdate
    from penstock._plan.planner import update_retries
    from penstock._runtime.relaunch import run_with_relaunches
    from penstock._runtime.restart import CONTINUOUS
    from penstock._update import run_update

    bus, state, signals = EventBus(), ObservedUpdate(), StopSignals()
    bus.subscribe(state)

    def running(update: "RunningUpdate") -> None:
        signals.bind(update if on_running is None else on_running(update))

    def run_once(retry: int, is_set_up: bool) -> "UpdateResult":
        wanted = update_options.without_resets() if is_set_up else update_options
        return run_update(settings, replace(wanted, retry=retry), bus=bus, on_running=running)

    def wait(error: PenstockError, decision: "RestartAfter") -> bool:
        signals.bind(None)  # from here on, a signal raises KeyboardInterrupt
        if signals.received:
            return False
        Output(sys.stderr).line(
            f"[{error.condition}] {error.message.partition(chr(10))[0]}: a new update starts in "
            f"{decision.seconds:.1f} s (retry {decision.retry})"
        )
        threading.Event().wait(decision.seconds)
        return True

    display = choose_display(bus, state, log_format=log_format, quiet=quiet)
    retries = update_retries(settings.configuration) if update_options.continuous else 0
    policy = CONTINUOUS.allowing(retries)
    try:
        with signals, display:
            result = run_with_relaunches(run_once, policy, on_relaunch=wait)
    finally:
        if summary is not None:
            reports.write_summary(summary, update_view(state))
    return WatchedUpdate(result, signals.received > 0)


def show_failures(result: "UpdateResult") -> None:
    """Each failed flow's error in full, on stderr."""
    lines = Output(sys.stderr)
    for error in result.failures:
        flow = getattr(error, "flow", "")
        lines.line(f"Error in flow {flow}: {error}" if flow else f"Error: {error}")
