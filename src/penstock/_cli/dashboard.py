"""`ui`, and the dashboard of `run --ui` and `demo --ui`."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock._cli import options
from penstock._cli.masked_output import print_as_is

if TYPE_CHECKING:
    from penstock._model.pipeline import PipelineSettings
    from penstock._ui.recording import WatchedLog

_STOP_SECONDS = 3.0
_NICENESS = 10
_SHORTEST_TOKEN = 12

WithDashboard = Annotated[
    bool, typer.Option("--ui", help="Serve the dashboard while the pipeline runs.")
]

app = typer.Typer()


@app.command("ui", epilog="Examples: penstock ui | penstock ui shop invoices --port 8080")
def ui(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Project folders, or folders of event logs; the current folder by default.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on; other than loopback requires a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any free port.")
    ] = 7070,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="PENSTOCK_UI_TOKEN",
            help="Access token; generated if it is required but not set.",
            show_envvar=True,
        ),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Allow starts, stops and replays; requires the token.")
    ] = False,
    rows: Annotated[
        bool, typer.Option("--rows/--no-rows", help="Show rows of tables and quarantines.")
    ] = True,
    storage: options.Storage = None,
    spec: options.Spec = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    event_log: Annotated[
        list[str] | None, typer.Option("--event-log", hidden=True, metavar="NAME=DIR")
    ] = None,
    sources: Annotated[Path | None, typer.Option("--sources", hidden=True)] = None,
    listening: Annotated[int | None, typer.Option("--listening", hidden=True)] = None,
) -> None:
    """Show running and past updates of pipelines in the browser, without Spark or Java."""
    from penstock._observe.loopback import is_loopback
    from penstock._ui import serving
    from penstock._ui.recording import WatchedLog

    serving.require_extra()
    if listening is not None:
        from penstock._project.excerpt import excerpt
        from penstock._tables.read.browsing import TableBrowser

        logs = [
            WatchedLog(
                label=name,
                directory=Path(place),
                tables=TableBrowser(storage, trusts_paths=True) if storage else None,
                code_of=partial(excerpt, sources) if sources is not None else None,
            )
            for name, place in options.assignments(event_log, "--event-log").items()
        ]
        os.nice(_NICENESS)
        with socket.socket(fileno=listening) as inherited:
            serving.serve(logs, inherited, until=sys.stdin.buffer)
        return
    if token is not None and len(token) < _SHORTEST_TOKEN:
        raise typer.BadParameter(
            f"expected at least {_SHORTEST_TOKEN} characters", param_hint="--token"
        )
    if token is None and (control or not is_loopback(host)):
        token = serving.new_token()
    project = options.StatusOptions(spec=spec, storage=storage, pipeline=pipeline, target=target)
    with serving.listen(host, port) as listener, ExitStack() as stack:
        logs = [_log_of(replace(project, path=path), stack) for path in paths or (None,)]
        if not rows:
            logs = [replace(log, tables=None) for log in logs]
        address = serving.address_of(listener, host, token)

        def ready() -> None:
            for log in logs:
                print(f"{log.label}: events of {log.directory}")
            print_as_is(f"dashboard at {address} (Ctrl-C ends it)")  # with its token

        with suppress(KeyboardInterrupt):
            serving.serve(logs, listener, host=host, token=token, acts=control, ready=ready)


def _log_of(project: options.StatusOptions, stack: ExitStack) -> "WatchedLog":
    from penstock._cli.controls import ProcessControl
    from penstock._observe.segments import updates
    from penstock._project.event_store import followed_events
    from penstock._project.excerpt import excerpt
    from penstock._tables.read.browsing import TableBrowser
    from penstock._ui.recording import WatchedLog

    path = project.path
    if path is not None and path.is_dir():
        folder = path.resolve()
        for directory in (folder, folder / "events"):
            if directory.is_dir() and updates(directory):
                is_beside = directory.name == "events"
                named = directory.parent if is_beside else directory
                return WatchedLog(
                    label=named.name or "pipeline",
                    directory=directory,
                    tables=TableBrowser(str(named), trusts_paths=False) if is_beside else None,
                    # If the storage is in the project's folder, the sources are there too.
                    code_of=partial(excerpt, named) if is_beside else None,
                )
    settings = project.settings()
    return WatchedLog(
        label=settings.name,
        directory=stack.enter_context(followed_events(settings)),
        tables=TableBrowser(settings.storage, trusts_paths=True),
        code_of=partial(excerpt, Path(settings.root)),
        control=ProcessControl(
            settings,
            project=[str(path)] if path is not None else [],
            choice=[
                f"--{name}={value}"
                for name, value in vars(project).items()
                if name != "path" and value is not None
            ],
        ),
    )


@contextmanager
def dashboard_beside(settings: "PipelineSettings", *, enabled: bool) -> Iterator[None]:
    """Serve the dashboard of a pipeline from a separate process while the body runs.

    A separate process does not slow down the driver. It ignores signals of the terminal, and ends
    when its standard input is closed, even if this process is killed.
    """
    if not enabled:
        yield
        return
    from penstock._observe.log import event_directory
    from penstock._ui import serving
    from penstock._ui.recording import WatchedLog

    serving.require_extra()
    log = WatchedLog(label=settings.name, directory=event_directory(settings))
    with serving.listen(serving.DEFAULT_HOST, serving.DEFAULT_PORT, or_any=True) as listener:
        address = serving.address_of(listener, serving.DEFAULT_HOST, None)
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            serving.companion_command(log, listener.fileno(), settings.storage, settings.root),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
        )
    print(f"dashboard at {address}", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
