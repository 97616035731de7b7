"""Runs the server of the dashboard until it is stopped."""

import asyncio
import ipaddress
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import BinaryIO
from urllib.parse import quote

from penstock._model.extras import import_extra
from penstock._ui.recording import Recording, WatchedLog
from penstock.errors import SetupError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7070
_TOKEN_BYTES = 24
_BACKLOG = 128
_IDLE_SECONDS = 10.0


def recordings_of(logs: Sequence[WatchedLog]) -> list[Recording]:
    """One recording per event log, each with a unique key for URLs."""
    recordings: list[Recording] = []
    seen: set[str] = set()
    for log in logs:
        base = re.sub(r"[^a-z0-9]+", "-", log.label.lower()).strip("-") or "pipeline"
        key, number = base, 2
        while key in seen:
            key, number = f"{base}-{number}", number + 1
        seen.add(key)
        recordings.append(Recording(key=key, **vars(log)))
    return recordings


def listen(host: str, port: int, *, or_any: bool = False) -> socket.socket:
    """A listening socket; on any free port if `port` is 0 or, with `or_any`, cannot be used."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        if or_any and port:
            return listen(host, 0)
        raise SetupError(
            "CANNOT_LISTEN",
            f"the dashboard cannot listen on {host}, port {port}: {error.strerror or error}",
            hint="set another port with --port; --port 0 selects a free port",
        ) from error
    return listener


def new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


def address_of(listening: socket.socket, host: str, token: str | None) -> str:
    port = listening.getsockname()[1]
    name = host
    try:
        if ipaddress.ip_address(host).is_unspecified:
            name = socket.gethostname()
        elif ":" in host:
            name = f"[{host}]"
    except ValueError:
        pass
    return f"http://{name}:{port}/" + (f"?token={quote(token, safe='')}" if token else "")


def require_extra() -> None:
    """Raise `MISSING_EXTRA` unless the server's packages are installed."""
    import_extra("fastapi", "uvicorn", extra="ui", feature="the dashboard")


def serve(
    logs: Sequence[WatchedLog],
    listening: socket.socket,
    *,
    host: str = DEFAULT_HOST,
    token: str | None = None,
    acts: bool = False,
    until: BinaryIO | None = None,
    ready: Callable[[], None] | None = None,
) -> None:
    """Serve until Ctrl-C, SIGTERM, or the end of the stream `until`.

    `listening` is from `listen`, on the address `host`. `ready` is called before the first request
    is answered; visitors may start, stop and replay with `acts`, which needs a token.
    """
    require_extra()
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from penstock._ui.hub import Hub
    from penstock._ui.server import build_app

    hub = Hub()

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await hub.close()
            await super().shutdown(sockets)

    class Protocol(H11Protocol):
        """Closes connections without a request: a slow client could keep many of them open."""

        was_idle = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(_IDLE_SECONDS, self.look)

        def look(self) -> None:
            if self.transport.is_closing():
                return
            is_idle = self.cycle is None or self.cycle.response_complete
            if is_idle and self.was_idle:
                self.transport.close()
                return
            self.was_idle = is_idle
            self.loop.call_later(_IDLE_SECONDS, self.look)

    server = Server(
        uvicorn.Config(
            build_app(recordings_of(logs), host=host, token=token, hub=hub, acts=acts),
            access_log=False,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
            ws="none",
            http=Protocol,
            h11_max_incomplete_event_size=32 << 10,
        )
    )
    if until is not None:
        threading.Thread(target=_stop_at_end, args=(until, server), daemon=True).start()
    if ready is not None:
        ready()
    server.run(sockets=[listening])


def _stop_at_end(stream: BinaryIO, server: object) -> None:
    while stream.read(1024):
        pass
    server.should_exit = True  # type: ignore[attr-defined]


def companion_command(log: WatchedLog, descriptor: int, storage: str, root: str) -> list[str]:
    """The command of a process that shows one pipeline and ends with its standard input."""
    return [
        sys.executable,
        "-m",
        "penstock",
        "ui",
        f"--event-log={log.label}={log.directory}",
        f"--listening={descriptor}",
        f"--storage={storage}",
        f"--sources={root}",
    ]
