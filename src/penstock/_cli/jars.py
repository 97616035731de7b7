"""`jars`: the jars of Spark and of the embedded Kafka broker, and faster starts of Spark."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock._cli import exit_codes, options
from penstock._cli.scaffold import write_project
from penstock._cli.tables import print_table
from penstock._display.terminal import Output, console, detect
from penstock._display.text import size
from penstock._model.quantity import plural
from penstock.errors import SetupError

if TYPE_CHECKING:
    from penstock._local.jars import SyncProgress

_jars = typer.Typer(help="Manage the jars of Spark and of the embedded Kafka broker.")

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Only this jar set; may be repeated.", metavar="NAME"),
]

app = typer.Typer()
app.add_typer(_jars, name="jars", no_args_is_help=True)


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
    output: options.Output = "text",
) -> None:
    """Download missing jars into the shared cache and verify them against the jar lock."""
    from penstock._local import jars
    from penstock._local.lock import cache_directory

    as_json = output == "json"
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
    """A callback that shows progress: a bar on a terminal, otherwise one line per jar."""
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
    """Build a class-data archive with a training run of the `penstock init` project.

    It halves the start time of Spark's JVM; a failure only prints a warning.
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
def verify(sets: Sets = None, output: options.Output = "text") -> int:
    """Verify all jars against the jar lock; exit code 3 if one is missing or differs."""
    from penstock._local import jars

    statuses = jars.verify(sets)
    bad = [item for item in statuses if item.state is not jars.JarState.OK]
    if output == "json":
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
def list_sets(sets: Sets = None, output: options.Output = "text") -> None:
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
    if output == "json":
        options.print_json(body)
        return
    rows = [
        (row["set"], f"{row['cached']} of {row['jars']}", size(row["bytes"]), row["for"])
        for row in body
    ]
    print_table(("set", "cached", "size", "for"), rows, right=("cached", "size"))
