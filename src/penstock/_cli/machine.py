"""`doctor`, `broker` and `demo`: the requirements of the machine, and a demo."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock._cli import exit_codes, options
from penstock._cli.dashboard import WithDashboard, dashboard_beside
from penstock._display.terminal import Output
from penstock._model.quantity import plural
from penstock.errors import SpecError

if TYPE_CHECKING:
    from penstock._display.signals import Stoppable
    from penstock._model.pipeline import PipelineSettings
    from penstock._runtime.update import UpdateResult

_broker = typer.Typer(help="Manage the embedded Kafka broker for development.")

Directory = Annotated[
    Path, typer.Option("--dir", help="Folder of the broker's data.", metavar="DIR")
]
_BROKER_DIRECTORY = Path(".penstock/broker")

app = typer.Typer()
app.add_typer(_broker, name="broker", no_args_is_help=True)


@app.command("doctor", epilog="Examples: penstock doctor | penstock doctor --output json")
def doctor(
    storage: Annotated[
        str | None,
        typer.Option("--storage", help="Storage to check; default: that of the project."),
    ] = None,
    output: options.Output = "text",
) -> int:
    """Check whether this machine can run pipelines; exit code 3 and fixes if it cannot."""
    from penstock._local.doctor import CheckState, check_metastore, run_checks

    settings = _project_settings()
    if storage is None:
        storage = str(Path.cwd()) if settings is None else settings.storage
    checks = run_checks(storage)
    if settings is not None and settings.metastore is not None:
        from penstock._spark.hive import metastore_address

        address = metastore_address(settings.metastore.options, settings.storage)
        checks.append(check_metastore(address))
    if output == "json":
        options.print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            print(f"{check.state.value.upper():<5} {check.name}: {check.detail}")
            if check.fix:
                print(f"      fix: {check.fix}")
    has_failed = any(check.state is CheckState.FAIL for check in checks)
    return exit_codes.ENVIRONMENT if has_failed else exit_codes.OK


def _project_settings() -> "PipelineSettings | None":
    from penstock._project.spec import load_settings

    try:
        return load_settings(Path.cwd())
    except SpecError:  # reported by commands that require the settings
        return None


@_broker.command("start", epilog="Example: penstock broker start --output json")
def start(directory: Directory = _BROKER_DIRECTORY, output: options.Output = "text") -> None:
    """Start the broker unless it is running, and print its address."""
    from penstock._local.broker import start_broker

    handle = start_broker(directory)
    body = options.attributes(handle, "bootstrap_servers", "pid")
    body |= {"directory": str(handle.directory)}
    line = f"broker ready at {handle.bootstrap_servers} (pid {handle.pid}, {handle.directory})"
    options.show(output, body, [line])


@_broker.command("stop", epilog="Example: penstock broker stop")
def stop(directory: Directory = _BROKER_DIRECTORY, output: options.Output = "text") -> None:
    """Stop the broker; its data is kept."""
    from penstock._local.broker import stop_broker

    stopped = stop_broker(directory)
    line = "broker stopped" if stopped else "no broker is running"
    options.show(output, {"stopped": stopped}, [line])


@_broker.command("status", epilog="Example: penstock broker status --output json")
def status(directory: Directory = _BROKER_DIRECTORY, output: options.Output = "text") -> int:
    """Print the state of the broker; exit code 3 if it is not running."""
    from penstock._local.broker import broker_status
    from penstock._local.broker_files import LOG_FILE

    broker = broker_status(directory)
    log_file = directory.absolute() / LOG_FILE
    line = f"not running ({log_file.parent})"
    if broker is not None:
        line = f"running at {broker.bootstrap_servers} (pid {broker.pid}, log {log_file})"
    body = {
        "running": broker is not None,
        "bootstrap_servers": broker and broker.bootstrap_servers,
        "pid": broker and broker.pid,
        "directory": str(log_file.parent),
        "log_file": str(log_file),
    }
    options.show(output, body, [line])
    return exit_codes.OK if broker is not None else exit_codes.ENVIRONMENT


@_broker.command("topic", epilog="Example: penstock broker topic orders --partitions 4")
def topic(
    name: Annotated[str, typer.Argument(help="Name of the topic.", metavar="TOPIC")],
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Number of partitions.")
    ] = 1,
    directory: Directory = _BROKER_DIRECTORY,
    output: options.Output = "text",
) -> int:
    """Create a topic unless it exists; exit code 3 if the broker is not running."""
    from penstock._local.broker import broker_status, ensure_topic

    broker = broker_status(directory)
    if broker is None:
        print(f"not running ({directory}): penstock broker start", file=sys.stderr)
        return exit_codes.ENVIRONMENT
    count = ensure_topic(broker.bootstrap_servers, name, partitions)
    line = f"topic {name} has {plural(count, 'partition')}"
    options.show(output, {"topic": name, "partitions": count}, [line])
    return exit_codes.OK


@app.command(
    "demo",
    epilog="Examples: penstock demo --ui | penstock demo --events 20000 | "
    "penstock demo --once --output json",
)
def demo(
    events: Annotated[
        int | None, typer.Option("--events", min=1, help="Number of events; default: until Ctrl-C.")
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=1, help="Events per second.")] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Send all events first, then run one triggered update.")
    ] = False,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Run on a standalone Spark cluster of two workers."),
    ] = False,
    storage: Annotated[
        Path, typer.Option("--storage", help="Folder for all files of the demo.", metavar="DIR")
    ] = Path("demo"),
    ui: WithDashboard = False,
    output: options.Output = "text",
) -> int:
    """Run a demo pipeline: generated orders from a real Kafka through bronze, silver and gold.

    Without --events or --once it runs until Ctrl-C, with exit code 0.
    """
    from penstock._cli.update import show_failures
    from penstock._local.demo.run import run_demo
    from penstock._update import UpdateOptions
    from penstock.pipelines import watch_update

    was_interrupted = False
    as_json = output == "json"

    def run_pipeline(
        settings: "PipelineSettings",
        *,
        continuous: bool,
        on_running: "Callable[[Stoppable], Stoppable] | None" = None,
    ) -> "UpdateResult":
        nonlocal was_interrupted
        update_options = UpdateOptions(continuous=continuous)
        with dashboard_beside(settings, enabled=ui):
            watched = watch_update(settings, update_options, on_running=on_running)
        show_failures(watched.result)
        was_interrupted = watched.was_interrupted
        return watched.result

    with options.stdout_to_stderr() if as_json else nullcontext():
        outcome = run_demo(
            directory=storage,
            run_pipeline=run_pipeline,
            events=events,
            rate=rate,
            once=once,
            on_cluster=cluster,
            say=Output().line,
        )
    options.show(output, asdict(outcome), outcome.lines)
    if not outcome.succeeded:
        return exit_codes.UPDATE_FAILED
    is_endless = events is None and not once
    if outcome.was_cut_short or (was_interrupted and not is_endless):
        return exit_codes.INTERRUPTED
    return exit_codes.OK
