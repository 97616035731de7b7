"""`run` and `dry-run`."""

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
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
    typer.Option("--stop-timeout", min=0, metavar="SECONDS", help="Timeout of a graceful stop."),
]
Format = Annotated[
    LogFormat, typer.Option("--log-format", help="Format of the progress: text or JSON lines.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        metavar="PORT",
        help="Serve Prometheus metrics on this port; 0 for any free port.",
    ),
]
Summary = Annotated[
    Path | None,
    typer.Option("--summary", metavar="FILE", help="Also write a summary as Markdown, for CI."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and the final line.")]


def register(app: typer.Typer) -> None:
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


@options.grouped
def run(
    *,
    project: options.UpdateOptions,
    selection: options.Selection,
    log_format: Format = LogFormat.TEXT,
    quiet: Quiet = False,
    stop_timeout: StopTimeout = 60.0,
    ui: WithDashboard = False,
    metrics_port: MetricsPort = None,
    summary: Summary = None,
    output: options.Output = OutputFormat.TEXT,
) -> int:
    """Run the pipeline: process all available input, or run until stopped with --continuous."""
    settings = project.settings()
    if metrics_port is not None:
        settings = replace(settings, metrics=replace(settings.metrics, port=metrics_port))
    update_options = replace(
        _update_options(settings, selection), stop_timeout_seconds=stop_timeout
    )
    as_json = output is OutputFormat.JSON
    aside = options.stdout_to_stderr() if as_json else nullcontext()
    with dashboard_beside(settings, enabled=ui), aside:
        watched = watch_update(
            settings, update_options, log_format=log_format, quiet=quiet, summary=summary
        )
    if as_json:
        from penstock.monitoring import status_of

        options.print_json(status_of(settings))
    if log_format is LogFormat.JSON or not quiet:  # otherwise stderr has them already
        show_failures(watched.result)
    return watched.exit_code


@options.grouped
def dry_run(
    *,
    project: options.UpdateOptions,
    selection: options.Selection,
    output: reports.Report = reports.ReportFormat.TEXT,
    junit: reports.JUnit = None,
) -> None:
    """Check the pipeline and print the plan of `run` with the same options; changes nothing."""
    from penstock._plan.explain import explain_json, explain_text
    from penstock._update import plan_update

    settings = project.settings()
    try:
        with options.stdout_to_stderr():
            graph, plan = plan_update(settings, _update_options(settings, selection))
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


def _update_options(settings: "PipelineSettings", selection: options.Selection) -> "UpdateOptions":
    from penstock._update import UpdateOptions

    return UpdateOptions(
        refresh=options.names(selection.refresh),
        full_refresh=options.names(selection.full_refresh),
        full_refresh_all=selection.full_refresh_all,
        replace_where=options.assignments(selection.replace_where, "--replace-where"),
        continuous=settings.continuous,
    )


class WatchedUpdate(NamedTuple):
    """The result of an update, and whether a signal stopped it."""

    result: "UpdateResult"
    was_interrupted: bool

    @property
    def exit_code(self) -> int:
        """A failure outranks an interruption; a stop on request is no success."""
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
    """Run an update, show its progress, and let signals stop it.

    If the JVM of a continuous update dies, another update follows, up to the retry limit.
    `on_running` is called once the update can be stopped; signals go to what it returns. The
    Markdown file `summary` is written even if the update cannot start.
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
        attempt = update_options.without_resets() if is_set_up else update_options
        return run_update(settings, replace(attempt, retry=retry), bus=bus, on_running=running)

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
    """Print the full error of each failed flow to stderr."""
    lines = Output(sys.stderr)
    for error in result.failures:
        flow = getattr(error, "flow", "")
        lines.line(f"Error in flow {flow}: {error}" if flow else f"Error: {error}")
