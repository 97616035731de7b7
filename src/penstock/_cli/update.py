"""`run`, `dry-run` and `stop`."""

import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock._cli import exit_codes, options, reports
from penstock._cli.dashboard import WithDashboard, dashboard_beside
from penstock._display.display import LogFormat
from penstock._display.terminal import Output
from penstock._model.quantity import plural
from penstock.errors import PenstockError, SetupError

if TYPE_CHECKING:
    from penstock._model.pipeline import PipelineSettings
    from penstock._observe.state import ObservedUpdate
    from penstock.pipelines import UpdateResult, UpdateState

_POLL_SECONDS = 0.1

Format = Annotated[
    LogFormat, typer.Option("--log-format", help="Format of the progress: text or JSON lines.")
]

app = typer.Typer()


@app.command(
    "run",
    epilog="Examples: penstock run | penstock run --full-refresh silver,revenue | "
    "penstock run --continuous --ui --metrics-port 9464 | "
    "penstock run --log-format json --summary summary.md | "
    "penstock run job.py -- --topic orders",
)
@options.grouped
def run(
    *,
    project: options.UpdateOptions,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Passed to the program of a job, after `--`.", metavar="ARGS"),
    ] = None,
    selection: options.Selection,
    log_format: Format = LogFormat.TEXT,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only errors and the final line.")
    ] = False,
    stop_timeout: Annotated[
        float,
        typer.Option(
            "--stop-timeout", min=0, metavar="SECONDS", help="Timeout of a graceful stop."
        ),
    ] = 60.0,
    ui: WithDashboard = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve Prometheus metrics on this port; 0 for any free port.",
        ),
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option("--summary", metavar="FILE", help="Also write a summary as Markdown, for CI."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run all pipelines of the bundle, one after another.")
    ] = False,
    output: options.Output = "text",
) -> int:
    """Run the pipeline: process all available input, or run until stopped with --continuous."""
    as_json = output == "json"

    def summarize(state: "ObservedUpdate") -> None:
        if summary is not None:
            from penstock._observe.snapshot import update_view

            reports.write_summary(summary, update_view(state))

    def run_one(settings: "PipelineSettings", *, shows: bool = True) -> int:
        """Run one update; `shows` its status as JSON at the end."""
        from penstock._update import UpdateOptions
        from penstock.pipelines import watch_update

        if metrics_port is not None:
            settings = replace(settings, metrics=replace(settings.metrics, port=metrics_port))
        update_options = UpdateOptions(
            **selection.arguments(),
            continuous=settings.continuous,
            stop_timeout_seconds=stop_timeout,
            arguments=tuple(arguments or ()),
        )
        aside = options.stdout_to_stderr() if as_json else nullcontext()
        with dashboard_beside(settings, enabled=ui), aside:
            watched = watch_update(
                settings, update_options, log_format=log_format, quiet=quiet, on_end=summarize
            )
        if as_json and shows:
            from penstock.monitoring import status_of

            options.print_json(status_of(settings))
        if log_format is LogFormat.JSON or not quiet:  # otherwise already on stderr
            show_failures(watched.result)
        return exit_code_of(watched.result.state)

    if not every:
        return run_one(project.settings())
    from penstock._cli.bundle_run import each_pipeline, print_rows, run_each

    code, rows = run_each(each_pipeline(project), partial(run_one, shows=False))
    if as_json:
        options.print_json(rows)
    else:
        print_rows(rows)
    return code


@app.command(
    "dry-run",
    epilog="Examples: penstock dry-run | penstock dry-run --output json | "
    "penstock dry-run --output github --junit dry-run.xml",
)
@options.grouped
def dry_run(
    *,
    project: options.UpdateOptions,
    selection: options.Selection,
    output: reports.Report = "text",
    junit: reports.JUnit = None,
) -> None:
    """Check the pipeline and print the plan of `run` with the same options; changes nothing."""
    from penstock import pipelines

    settings = project.settings()
    try:
        with options.stdout_to_stderr():
            planned = pipelines.dry_run(settings, **selection.arguments())
    except PenstockError as error:
        cases = reports.cases_of(error)
        if junit is not None:
            reports.write_junit(junit, "penstock dry-run", cases)
        if output == "github":
            print("\n".join(reports.annotations(cases)), flush=True)
        raise
    cases = [
        reports.Case(
            name=name, group="flow", file=node.flow.origin.file, line=node.flow.origin.line
        )
        for name, node in planned.graph.flows.items()
    ]
    warned = [
        reports.Case(
            name=f"warning {number}",
            group="plan",
            verdict="skipped",
            title=text.partition("\n")[0],
            text=text,
            level="warning",
        )
        for number, text in enumerate(planned.plan.warnings, start=1)
    ]
    if junit is not None:
        reports.write_junit(junit, "penstock dry-run", [*cases, *warned])
    match output:
        case "json":
            options.print_json(planned.to_dict())
        case "github":
            print(
                "\n".join([*reports.annotations(warned), f"{plural(len(cases), 'flow')} planned"])
            )
        case "text":
            print(planned)


@app.command("stop", epilog="Examples: penstock stop | penstock stop shop --timeout 300 --now")
@options.grouped
def stop(
    *,
    project: options.StatusOptions,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long to wait.")
    ] = 120.0,
    now: Annotated[
        bool, typer.Option("--now", help="Interrupt the micro-batches in flight.")
    ] = False,
    output: options.Output = "text",
) -> int:
    """Stop the running update after the micro-batches in flight, and wait until it has ended.

    Works for an update of this host; a second call waits only. Exit code 1 if the update is still
    running after the timeout.
    """
    from penstock._cli.controls import ProcessControl
    from penstock.monitoring import status_of

    settings = project.settings()
    control = ProcessControl(settings, requester="by penstock stop")
    pause, deadline = threading.Event(), time.monotonic() + timeout
    was_running = is_running = control.state()["runs"] is not None
    if is_running:
        status = status_of(settings)
        is_stopping = status is not None and status["state"] == "STOPPING"
        try:
            if now or not is_stopping:
                control.stop()
            if now and not is_stopping:
                control.stop(now=True)
        except SetupError:
            if control.state()["runs"] is not None:  # otherwise it has ended
                raise
    while is_running and time.monotonic() < deadline:
        pause.wait(_POLL_SECONDS)
        is_running = control.state()["runs"] is not None
    line = "stopped" if was_running else "no update is running"
    if is_running:
        line = f"still running after {timeout:g} s; --now interrupts its micro-batches"
    options.show(output, {"was_running": was_running, "is_running": is_running}, [line])
    return exit_codes.UPDATE_FAILED if is_running else exit_codes.OK


def exit_code_of(state: "UpdateState") -> int:
    """The exit code for the final state of an update; a stopped one is not a success."""
    from penstock.pipelines import UpdateState

    match state:
        case UpdateState.FAILED:
            return exit_codes.UPDATE_FAILED
        case UpdateState.CANCELED:
            return exit_codes.INTERRUPTED
        case _:
            return exit_codes.OK


def show_failures(result: "UpdateResult") -> None:
    lines = Output(sys.stderr)
    for error in result.failures:
        flow = getattr(error, "flow", "")
        lines.line(f"Error in flow {flow}: {error}" if flow else f"Error: {error}")
