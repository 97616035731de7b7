"""A database server on a free port for tests, and a proxy that cuts connections at commits."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

USER, PASSWORD = "writer", "s3cr3t-of-the-sink"
_START_SECONDS = 60.0
_NOBODY = pwd.getpwnam("nobody")


class DatabaseServer(ABC):
    """A server with a separate data folder.

    Servers refuse to run as root: then they run as `nobody`, in a folder that `nobody` owns.
    """

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="penstock-database-"))
        self.port = _free_port()
        self._is_root = os.getuid() == 0
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._own(self.root)
            self._install()
            self.start()
        except BaseException:
            self.close()
            raise

    @staticmethod
    @abstractmethod
    def why_not() -> str | None:
        """Why the server cannot run on this machine, or None."""

    @abstractmethod
    def url_at(self, port: int) -> str: ...

    @abstractmethod
    def _install(self) -> None: ...

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _answers(self, probe: socket.socket) -> bool: ...

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def _own(self, *paths: Path) -> None:
        for path in paths:
            if self._is_root:
                os.chown(path, _NOBODY.pw_uid, _NOBODY.pw_gid)

    def _user(self) -> dict[str, object]:
        if not self._is_root:
            return {}
        return {"user": _NOBODY.pw_uid, "group": _NOBODY.pw_gid, "extra_groups": []}

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def _run(self, *command: str, stdin: str = "") -> None:
        done = subprocess.run(
            command, cwd=self.root, capture_output=True, text=True, check=False, input=stdin,
            env=self._environment(), **self._user(),
        )  # type: ignore[call-overload]  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        log = (self.root / "server.log").open("ab")
        self._process = subprocess.Popen(
            self._command(), cwd=self.root, stdout=log, stderr=log, start_new_session=True,
            env=self._environment(), **self._user(),
        )  # type: ignore[call-overload]  # fmt: skip
        log.close()
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.root / "server.log").read_text())
            threading.Event().wait(0.05)

    def _accepts(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1) as probe,
        ):
            return self._answers(probe)
        return False

    def kill(self) -> None:
        """Send SIGKILL to the server and to all its processes at the same time."""
        process = self._process
        assert process is not None
        process.kill()
        process.wait()
        data = (self.root / "data").resolve()
        for backend in _processes_in(data):
            with contextlib.suppress(ProcessLookupError):
                os.kill(backend, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while _processes_in(data):
            assert time.monotonic() < deadline, "a backend survived"
            threading.Event().wait(0.02)

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.root, ignore_errors=True)


def _processes_in(data: Path) -> list[int]:
    """Processes of a server: each backend is a separate session, but all run in its folder."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink() == data:
                    pids.append(int(entry.name))
    return pids


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class CuttingProxy:
    """Forwards connections; when armed, acts when the server has committed.

    When armed, it calls `on_answer` before it forwards the server's response to a COMMIT, and then
    cuts the connection or not. Only commits on connections that sent the string `marker` count.
    """

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self._armed: tuple[bytes, Callable[[], None], bool] | None = None
        self.acted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return self._server.url_at(self.port)

    def arm(
        self, marker: bytes, on_answer: Callable[[], None] = lambda: None, *, cut: bool = True
    ) -> None:
        self._armed = (marker, on_answer, cut)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server.port), 5)
            except OSError:
                client.close()
                continue
            # The server may close a connection before it responds.
            shared = {"marked": False, "commit": False}
            for source, sink, up in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._pump, args=(source, sink, up, shared), daemon=True
                ).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, up: bool, shared: dict[str, bool]
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                armed = self._armed
                if up and armed is not None:
                    shared["marked"] |= armed[0] in chunk
                    shared["commit"] |= shared["marked"] and b"COMMIT" in chunk
                elif shared["commit"] and armed is not None:
                    self._armed = None
                    self.acted += 1
                    armed[1]()
                    if armed[2]:
                        break
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
