"""`jars`, `doctor`, `broker` and `demo`: the requirements of the machine, and a demo."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock._cli import exit_codes, options
from penstock._cli.dashboard import WithDashboard, dashboard_beside
from penstock._cli.options import OutputFormat
from penstock._cli.scaffold import write_project
from penstock._cli.tables import print_table
from penstock._display.terminal import Output, console, detect
from penstock._display.text import plural, size
from penstock.errors import SetupError, SpecError

if TYPE_CHECKING:
    from penstock._display.signals import Stoppable
    from penstock._local.jars import SyncProgress
    from penstock._model.pipeline import PipelineSettings
    from penstock._runtime.update import UpdateResult

_jars = typer.Typer(help="Manage the jars of Spark and of the embedded Kafka broker.")
_broker = typer.Typer(help="Manage the embedded Kafka broker for development.")

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Only this jar set; may be repeated.", metavar="NAME"),
]
Directory = Annotated[
    Path, typer.Option("--dir", help="Folder of the broker's data.", metavar="DIR")
]
_BROKER_DIRECTORY = Path(".penstock/broker")

app = typer.Typer()
app.add_typer(_jars, name="jars", no_args_is_help=True)
app.add_typer(_broker, name="broker", no_args_is_help=True)


@_jars.command(
    "sync",
    epilog="Examples: penstock jars sync | penstock jars sync --set delta --set kafka | "
    "penstock jars sync --from /media/jars --output json",
)
def sync(
    sets: Sets = None,
    repo: Annotated[
        str | None, typer.Option("--repo", help="Maven repository to download from.", metavar="URL")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Folder to copy the jars from, without a network.", metavar="DIR"
        ),
    ] = None,
    archive: Annotated[
        bool,
        typer.Option(
            "--archive/--no-archive",
            help="Also speed up starts of Spark, with a class-data archive from a training run.",
        ),
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
    output: options.Output = OutputFormat.TEXT,
) -> None:
    """Download missing jars into the shared cache and verify them against the jar lock."""
    from penstock._local import jars
    from penstock._local.lock import cache_directory

    as_json = output is OutputFormat.JSON
    quiet = quiet or as_json
    with shown_progress(quiet=quiet) as progress:
        result = jars.sync(sets, repository=repo, from_dir=source, progress=progress)
    if not quiet:
        fetched = "nothing to fetch"
        if result.fetched:
            fetched = f"{plural(len(result.fetched), 'jar')} fetched, {size(result.fetched_bytes)}"
        print(f"{fetched}; {plural(len(result.paths), 'jar')} ready in {cache_directory()}")
    if archive:
        prepare_fast_start(quiet=quiet)
    if as_json:
        body = {
            "directory": str(cache_directory()),
            "ready": [str(path) for path in result.paths],
            "fetched": len(result.fetched),
            "fetched_bytes": result.fetched_bytes,
        }
        options.print_json(body)


@contextmanager
def shown_progress(*, quiet: bool) -> "Iterator[Callable[[SyncProgress], None] | None]":
    """A callback that shows a sync: a progress bar on a terminal, else a line per jar."""
    if quiet:
        yield None
        return
    terminal = detect(sys.stderr)
    if not terminal.is_live:
        yield _line_per_jar(Output(sys.stderr))
        return

    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console(terminal, sys.stderr),
        refresh_per_second=4,
        expand=True,
    )
    with bar:
        task = bar.add_task("jars", total=None, start=False)

        def show(progress: "SyncProgress") -> None:
            if not bar.tasks[0].started:
                bar.start_task(task)
            bar.update(
                task,
                description=f"jars {progress.done_files}/{progress.total_files}",
                completed=progress.done_bytes,
                total=progress.total_bytes,
            )

        yield show
        if not bar.tasks[0].started:
            bar.update(task, visible=False)


def _line_per_jar(output: Output) -> "Callable[[SyncProgress], None]":
    done = 0

    def show(progress: "SyncProgress") -> None:
        nonlocal done
        if progress.done_files > done:
            done = progress.done_files
            output.line(
                f"{progress.done_files} of {progress.total_files} {progress.file_name} "
                f"({size(progress.done_bytes)} of {size(progress.total_bytes)})"
            )

    return show


def prepare_fast_start(*, quiet: bool) -> None:
    """Build a class-data archive by a training run of the `penstock init` project.

    It halves the start of Spark's JVM; every failure is only a warning.
    """
    from penstock._local import cds
    from penstock._local.jars import SPARK_JAR_SETS, class_path

    try:
        jars = class_path(SPARK_JAR_SETS)
        if cds.is_ready(jars):
            return
        if not quiet:
            print("preparing faster starts of Spark by one training run ...", flush=True)
        with tempfile.TemporaryDirectory(prefix="penstock-training-") as scratch:
            write_project(Path(scratch), "training")
            project = str(Path(scratch) / "training")
            command = [sys.executable, "-m", "penstock", "run", project, "--quiet"]
            archive = cds.build(command, jars)
        if not quiet:
            print(f"class-data archive ready: {archive}")
    except SetupError as error:
        if error.condition != "JARS_MISSING":
            print(f"warning: {error}", file=sys.stderr)


@_jars.command("verify", epilog="Example: penstock jars verify --output json")
def verify(sets: Sets = None, output: options.Output = OutputFormat.TEXT) -> int:
    """Verify all jars against the jar lock; exit code 3 if one is missing or differs."""
    from penstock._local import jars

    statuses = jars.verify(sets)
    bad = [item for item in statuses if item.state is not jars.JarState.OK]
    if output is OutputFormat.JSON:
        body = [
            {
                "path": str(item.path),
                "state": item.state.value,
                "locked_sha256": item.jar.sha256,
                "actual_sha256": item.actual_sha256,
            }
            for item in statuses
        ]
        options.print_json(body)
    else:
        for item in bad:
            print(f"{item.state.value:<8} {item.path}")
            if item.actual_sha256 is not None:
                print(f"         locked SHA-256 {item.jar.sha256}")
                print(f"         file's SHA-256 {item.actual_sha256}")
        print(f"{len(statuses) - len(bad)} of {len(statuses)} jars match the lock")
        if bad:
            print("run `penstock jars sync` to repair them", file=sys.stderr)
    return exit_codes.ENVIRONMENT if bad else exit_codes.OK


@_jars.command("list", epilog="Example: penstock jars list --output json")
def list_sets(sets: Sets = None, output: options.Output = OutputFormat.TEXT) -> None:
    """List the jar sets and whether their jars are cached."""
    from penstock._local.lock import cache_directory, load_lock

    root = cache_directory()
    body: list[dict[str, Any]] = [
        {
            "set": jar_set.name,
            "cached": sum(jar.path(root).is_file() for jar in jar_set.jars),
            "jars": len(jar_set.jars),
            "bytes": jar_set.size,
            "for": jar_set.description,
        }
        for jar_set in load_lock().select(sets)
    ]
    if output is OutputFormat.JSON:
        options.print_json(body)
        return
    rows = [
        (row["set"], f"{row['cached']} of {row['jars']}", size(row["bytes"]), row["for"])
        for row in body
    ]
    print_table(("set", "cached", "size", "for"), rows, right=("cached", "size"))


@app.command("doctor", epilog="Examples: penstock doctor | penstock doctor --output json")
def doctor(
    storage: Annotated[
        Path | None,
        typer.Option("--storage", help="Storage folder to check; default: the current folder."),
    ] = None,
    output: options.Output = OutputFormat.TEXT,
) -> int:
    """Check whether this machine can run pipelines; exit code 3 and fixes if it cannot."""
    from penstock._local.doctor import CheckState, check_metastore, run_checks

    checks = run_checks(storage if storage is not None else Path.cwd())
    address = _metastore_address()
    if address is not None:
        checks.append(check_metastore(address))
    if output is OutputFormat.JSON:
        options.print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            print(f"{check.state.value.upper():<5} {check.name}: {check.detail}")
            if check.fix:
                print(f"      fix: {check.fix}")
    has_failed = any(check.state is CheckState.FAIL for check in checks)
    return exit_codes.ENVIRONMENT if has_failed else exit_codes.OK


def _metastore_address() -> str | None:
    """Where the project of the current folder registers its tables."""
    from penstock._project.spec import load_settings
    from penstock._spark.hive import metastore_address

    try:
        settings = load_settings(Path.cwd())
        if settings.metastore is None:
            return None
        return metastore_address(settings.metastore.options, settings.storage)
    except SpecError:  # reported by the commands that need the settings
        return None


@_broker.command("start", epilog="Example: penstock broker start --output json")
def start(
    directory: Directory = _BROKER_DIRECTORY, output: options.Output = OutputFormat.TEXT
) -> None:
    """Start the broker unless it is running, and print its address."""
    from penstock._local.broker import start_broker

    handle = start_broker(directory)
    body = options.attributes(handle, "bootstrap_servers", "pid")
    body |= {"directory": str(handle.directory)}
    line = f"broker ready at {handle.bootstrap_servers} (pid {handle.pid}, {handle.directory})"
    options.show(output, body, [line])


@_broker.command("stop", epilog="Example: penstock broker stop")
def stop(
    directory: Directory = _BROKER_DIRECTORY, output: options.Output = OutputFormat.TEXT
) -> None:
    """Stop the broker; its data is kept."""
    from penstock._local.broker import stop_broker

    if output is OutputFormat.JSON:
        options.print_json({"stopped": stop_broker(directory)}, indent=None)
        return
    print("broker stopped" if stop_broker(directory) else "no broker is running")


@_broker.command("status", epilog="Example: penstock broker status --output json")
def status(
    directory: Directory = _BROKER_DIRECTORY, output: options.Output = OutputFormat.TEXT
) -> int:
    """Print the state of the broker; exit code 3 if it is not running."""
    from penstock._local.broker import broker_status

    broker = broker_status(directory)
    if output is OutputFormat.JSON:
        body = {
            **options.attributes(broker, "running", "bootstrap_servers", "pid"),
            "directory": str(broker.directory),
            "log_file": str(broker.log_file),
        }
        options.print_json(body)
    elif broker.running:
        print(f"running at {broker.bootstrap_servers} (pid {broker.pid}, log {broker.log_file})")
    else:
        print(f"not running ({broker.directory})")
    return exit_codes.OK if broker.running else exit_codes.ENVIRONMENT


@_broker.command("topic", epilog="Example: penstock broker topic orders --partitions 4")
def topic(
    name: Annotated[str, typer.Argument(help="Name of the topic.", metavar="TOPIC")],
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Number of partitions.")
    ] = 1,
    directory: Directory = _BROKER_DIRECTORY,
    output: options.Output = OutputFormat.TEXT,
) -> int:
    """Create a topic unless it exists; exit code 3 if the broker is not running."""
    from penstock._local.broker import broker_status, ensure_topic

    servers = broker_status(directory).bootstrap_servers
    if not broker_status(directory).running or servers is None:
        print(f"not running ({directory}): penstock broker start", file=sys.stderr)
        return exit_codes.ENVIRONMENT
    count = ensure_topic(servers, name, partitions)
    line = f"topic {name} has {count} partition{'' if count == 1 else 's'}"
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
    output: options.Output = OutputFormat.TEXT,
) -> int:
    """Run a demo pipeline: generated orders from a real Kafka through bronze, silver and gold.

    Without --events or --once it runs until Ctrl-C, with exit code 0.
    """
    from penstock._cli.update import show_failures
    from penstock._local.demo.run import run_demo
    from penstock._update import UpdateOptions
    from penstock.pipelines import watch_update

    was_interrupted = False
    as_json = output is OutputFormat.JSON

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
