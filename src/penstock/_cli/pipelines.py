"""`list` and `wait`: the pipelines of a storage, and the end of an update."""

import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock._cli import exit_codes, options
from penstock._cli.status import failed_flows, has_failed, no_update, shown_state
from penstock._cli.tables import is_narrow, print_table
from penstock._display.text import seconds

if TYPE_CHECKING:
    from penstock._model.pipeline import PipelineSettings

_POLL_SECONDS = 1.0

app = typer.Typer()


@app.command("list", epilog="Examples: penstock list | penstock list --storage s3a://lake")
@options.grouped
def list_pipelines(*, project: options.StatusOptions, output: options.Output = "text") -> None:
    """List the pipelines of the storage, with the state of their newest updates."""
    from penstock._project.event_store import pipelines_of

    settings = project.settings()
    rows = [row for each in pipelines_of(settings) if (row := _row(each)) is not None]
    if output == "json":
        options.print_json(rows)
        return
    if not rows:
        print(f"no pipeline has written to {settings.storage}", file=sys.stderr)
        return
    heads = ("pipeline", "state", "since", "time", "rows", "runs on", "folder")
    shown = len(heads) - is_narrow()
    print_table(
        heads[:shown],
        [
            (
                row["pipeline"],
                shown_state(row["state"] or "-", row["failed_flows"]),
                row["since"] or "-",
                seconds(row["seconds"]),
                f"{row['rows']:,}",
                row["host"] or "-",
                row["folder"],
            )[:shown]
            for row in rows
        ],
        right=("time", "rows"),
    )


def _row(settings: "PipelineSettings") -> dict[str, Any] | None:
    from penstock.monitoring import status_of

    status = status_of(settings)
    if status is None:
        return None
    return {
        "pipeline": status["pipeline"],
        "folder": settings.home,
        "update_id": status["update_id"],
        # An update whose process was killed has not written its final state.
        "state": status["state"] if status["is_alive"] or status["has_ended"] else "FAILED",
        "failed_flows": failed_flows(status),
        "since": status["since"],
        "seconds": status["seconds"],
        "rows": sum(flow["rows"] or 0 for flow in status["flows"]),
        "is_alive": status["is_alive"],
        "host": status["host"] if status["is_alive"] else None,
        "process_id": status["process_id"] if status["is_alive"] else None,
    }


@app.command("wait", epilog="Examples: penstock wait | penstock wait shop --timeout 600")
@options.grouped
def wait(
    *,
    project: options.StatusOptions,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0, metavar="SECONDS", help="Fail if it takes longer."),
    ] = None,
    output: options.Output = "text",
) -> int:
    """Wait until the running update has ended; exit code 1 if it failed or is still running."""
    from penstock._project.event_store import holder_of
    from penstock.monitoring import status_of

    settings = project.settings()
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = threading.Event()
    while True:
        status = status_of(settings)
        if status is None:
            raise no_update(settings.name, "latest")
        is_late = deadline is not None and time.monotonic() >= deadline
        # A command such as a migration holds the pipeline without being an update.
        is_held = status["is_alive"] or holder_of(settings) is not None
        if is_late or not is_held:
            break
        pause.wait(_POLL_SECONDS)
    keys = ("update_id", "state", "since", "seconds", "is_alive", "error")
    if output == "json":
        is_gone = not (status["is_alive"] or status["has_ended"])
        shown = {key: status[key] for key in keys}
        options.print_json(shown | {"state": "FAILED"} if is_gone else shown)
    elif is_held:
        what = f"update {status['update_id']}" if status["is_alive"] else "a command"
        print(f"{what} is still running after {timeout:g} s")
    elif not status["has_ended"]:
        print(f"update {status['update_id']}: FAILED, its process was killed")
    else:
        print(f"update {status['update_id']}: {status['state']}")
    failed = is_held or has_failed(status)
    return exit_codes.UPDATE_FAILED if failed else exit_codes.OK
