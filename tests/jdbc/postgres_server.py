"""A real PostgreSQL server; the binaries come from the jar cache."""

import platform
import socket
import tarfile
import zipfile

from database_server import PASSWORD, USER, DatabaseServer

from penstock._local.jars import class_path

__all__ = ["PASSWORD", "USER", "PostgresServer"]


class PostgresServer(DatabaseServer):
    """PostgreSQL 17 runs one process per session."""

    @staticmethod
    def why_not() -> str | None:
        if platform.system() == "Linux" and platform.machine() in ("x86_64", "AMD64"):
            return None
        return "the server's binaries are for Linux on x86-64"

    def url_at(self, port: int) -> str:
        return f"jdbc:postgresql://127.0.0.1:{port}/postgres"

    def _install(self) -> None:
        (jar,) = class_path(["postgresql-server"])
        with zipfile.ZipFile(jar) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".txz"))
            with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as tar:
                tar.extractall(self.root, filter="data")
        secret = self.root / "password"
        secret.write_text(PASSWORD, encoding="utf-8")
        self._own(secret)
        self._run(
            str(self.root / "bin" / "initdb"), "-D", "data", "-U", USER, "--pwfile=password",
            "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        with (self.root / "data" / "postgresql.conf").open("a") as conf:
            # Killed processes lose no written data; fsync is only needed for a power failure.
            conf.write(
                "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nfsync = off\n"
                "shared_buffers = 16MB\nmax_connections = 40\nlog_min_messages = fatal\n"
                "autovacuum = off\nwal_level = logical\n"
            )

    def _command(self) -> list[str]:
        return [str(self.root / "bin" / "postgres"), "-D", "data", "-p", str(self.port)]

    def _answers(self, probe: socket.socket) -> bool:
        # During recovery the server accepts connections, but responds with an error.
        request = b"\x00\x03\x00\x00user\x00writer\x00database\x00postgres\x00\x00"
        probe.sendall((len(request) + 4).to_bytes(4, "big") + request)
        return probe.recv(1) == b"R"
