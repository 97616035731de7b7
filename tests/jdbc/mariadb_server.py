"""A real MariaDB server: Debian's package, unpacked by `make .venv-double/.mariadb`."""

import os
import socket
from pathlib import Path

from database_server import PASSWORD, USER, DatabaseServer

_FOLDER = Path(__file__).parents[2] / ".venv-double" / "mariadb"
_PROGRAM = _FOLDER / "usr" / "sbin" / "mariadbd"
_SHARE = _FOLDER / "usr" / "share" / "mysql"
_TABLES = ("system_tables", "performance_tables", "system_tables_data")


class MariaDbServer(DatabaseServer):
    """MariaDB runs in one process. Its default character set is not Unicode."""

    @staticmethod
    def why_not() -> str | None:
        if _PROGRAM.exists():
            return None
        return "no MariaDB server: `make .venv-double/.mariadb` unpacks it where apt has it"

    def url_at(self, port: int) -> str:
        return f"jdbc:mariadb://127.0.0.1:{port}/shop"

    def _environment(self) -> dict[str, str]:
        folders = {str(path.parent) for path in _FOLDER.rglob("lib*.so.*")}
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(sorted(folders))}

    def _install(self) -> None:
        (self.root / "data").mkdir()
        (self.root / "users.sql").write_text(
            f"CREATE USER IF NOT EXISTS {USER}@127.0.0.1 IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO {USER}@127.0.0.1;\n"
        )
        self._own(self.root / "data", self.root / "users.sql")
        scripts = [(_SHARE / f"mysql_{name}.sql").read_text() for name in _TABLES]
        self._run(
            *self._command(),
            "--bootstrap",
            stdin="\n".join(
                ("CREATE DATABASE mysql;", "USE mysql;", *scripts, "CREATE DATABASE shop;\n")
            ),
        )

    def _command(self) -> list[str]:
        return [
            str(_PROGRAM), "--no-defaults", f"--datadir={self.root / 'data'}",
            f"--lc-messages-dir={_SHARE}", f"--character-sets-dir={_SHARE / 'charsets'}",
            f"--port={self.port}", "--bind-address=127.0.0.1", "--socket=",
            f"--init-file={self.root / 'users.sql'}", "--innodb-buffer-pool-size=16M",
            # A killed process loses no written data; fsync is only needed for a power failure.
            "--innodb-flush-log-at-trx-commit=2", "--innodb-log-file-size=8M",
            # The settings of a server without strict mode.
            "--sql-mode=", "--default-time-zone=+05:30",
        ]  # fmt: skip

    def _answers(self, probe: socket.socket) -> bool:
        # The greeting: length, sequence number, protocol version.
        return probe.recv(5)[4:] == b"\x0a"
