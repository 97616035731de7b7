"""A real PostgreSQL server on a free port, and a proxy that cuts connections at a chosen moment."""

import contextlib
import os
import platform
import pwd
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from penstock._local.jars import class_path

USER, PASSWORD = "writer", "s3cr3t-of-the-sink"
_START_SECONDS = 60.0
_NOBODY = pwd.getpwnam("nobody")


class PostgresServer:
    """One server in a folder of its own; the binaries come from the jar cache.

    The server refuses to run as root: it runs as `nobody` then, from a folder that `nobody` owns.
    """

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        self.port = _free_port()
        self._nobody = os.getuid() == 0
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._install()
            self.start()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def supported() -> bool:
        return platform.system() == "Linux" and platform.machine() in ("x86_64", "AMD64")

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def _install(self) -> None:
        (jar,) = class_path(["postgresql-server"])
        with zipfile.ZipFile(jar) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".txz"))
            with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as tar:
                tar.extractall(self.root, filter="data")
        secret = self.root / "password"
        secret.write_text(PASSWORD, encoding="utf-8")
        if self._nobody:
            for path in (self.root, secret):
                os.chown(path, _NOBODY.pw_uid, _NOBODY.pw_gid)
        self._run(
            "initdb", "-D", "data", "-U", USER, "--pwfile=password", "-A", "scram-sha-256",
            "-E", "UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        with (self.root / "data" / "postgresql.conf").open("a") as conf:
            # Killing processes loses nothing that was written; only power loss needs fsync.
            conf.write(
                "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nfsync = off\n"
                "shared_buffers = 16MB\nmax_connections = 40\nlog_min_messages = fatal\n"
                "autovacuum = off\nwal_level = logical\n"
            )

    def _user(self) -> dict[str, object]:
        if not self._nobody:
            return {}
        return {"user": _NOBODY.pw_uid, "group": _NOBODY.pw_gid, "extra_groups": []}

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.root / "bin" / program), *arguments],
            cwd=self.root, capture_output=True, text=True, check=False, **self._user(),
        )  # type: ignore[call-overload]  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        log = (self.root / "server.log").open("ab")
        self._process = subprocess.Popen(
            [str(self.root / "bin" / "postgres"), "-D", "data", "-p", str(self.port)],
            cwd=self.root, stdout=log, stderr=log, start_new_session=True, **self._user(),
        )  # type: ignore[call-overload]  # fmt: skip
        log.close()
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.root / "server.log").read_text())
            threading.Event().wait(0.05)

    def _accepts(self) -> bool:
        # A server that recovers accepts a socket, but answers a start-up with an error.
        request = b"\x00\x03\x00\x00user\x00writer\x00database\x00postgres\x00\x00"
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1) as probe,
        ):
            probe.sendall((len(request) + 4).to_bytes(4, "big") + request)
            return probe.recv(1) == b"R"
        return False

    def kill(self) -> None:
        """SIGKILL for the postmaster and, at once, for all its processes."""
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
    """Processes of a server: each backend is a session of its own, and all are in its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink() == data:
                    found.append(int(entry.name))
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class CuttingProxy:
    """Passes connections on; when armed, acts when the server has committed.

    Armed, it calls `on_answer` with the server's answer to a COMMIT at hand and not passed on yet,
    and then cuts the connection or not. Only a commit in whose connection the text `marker` went by
    counts.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._armed: tuple[bytes, Callable[[], None], bool] | None = None
        self.acted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

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
                server = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                client.close()
                continue
            # The postmaster may close a connection while its answer is awaited.
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
