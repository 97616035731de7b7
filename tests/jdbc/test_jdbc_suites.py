"""The JDBC source and sink pass the suites of all connectors on PostgreSQL and MariaDB."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from database_server import PASSWORD, USER, DatabaseServer
from database_tables import Tables

from penstock.sinks.jdbc.sink import JdbcSink
from penstock.sources.jdbc.source import JdbcSource
from penstock.testing import SinkSuite, SourceSuite


class InDatabase:
    """Creates a separate table for each test."""

    @pytest.fixture(autouse=True)
    def _connect(self, server: DatabaseServer, tables: Tables) -> None:
        self.tables, self.table = tables, f"suite_{uuid.uuid4().hex[:8]}"
        self.connection = {"url": server.url, "user": USER, "password": PASSWORD}


class TestAppendingSink(InDatabase, SinkSuite):
    sink = JdbcSink
    secrets = ("password",)
    lost_checkpoint = "SINK_CHECKPOINT_LOST"
    wrong_options: Sequence[Mapping[str, str | None]] = (
        {"url": None},
        {"url": "jdbc:sqlserver://h;database=d"},
        {"dbtable": ""},
        {"mode": "replace"},
        {"keys": "id", "mode": None},
        {"pasword": "x"},
    )

    def options(self, folder: Path) -> Mapping[str, str]:
        return {**self.connection, "dbtable": self.table}

    def read_back(self, spark: Any, options: Mapping[str, str]) -> Iterable[tuple[Any, ...]]:
        rows = self.tables.query(f"SELECT id, name FROM {self.table}")
        return [(int(number), name) for number, name in rows]


class TestUpsertingSink(TestAppendingSink):
    lost_checkpoint = ""
    wrong_options = ({"keys": None}, {"keys": " , "})

    def options(self, folder: Path) -> Mapping[str, str]:
        return {**super().options(folder), "mode": "upsert", "keys": "id"}


class TestUpsertingSinkOnMariaDb(TestUpsertingSink):
    @pytest.fixture
    def server(self, mariadb_server: DatabaseServer) -> DatabaseServer:
        return mariadb_server


class TestSource(InDatabase, SourceSuite):
    source = JdbcSource
    secrets = ("password",)
    has_latest = True
    has_ranges = True

    def options(self, folder: Path) -> Mapping[str, str]:
        return {**self.connection, "dbtable": self.table, "partitionColumn": "id"}

    def add_rows(self, spark: Any, folder: Path, rows: Sequence[tuple[Any, ...]]) -> None:
        values = ", ".join(
            f"({number}, {'NULL' if name is None else repr(name)})" for number, name in rows
        )
        self.tables.execute(
            f"CREATE TABLE IF NOT EXISTS {self.table} (id bigint PRIMARY KEY, name text)"
        )
        self.tables.execute(f"INSERT INTO {self.table} VALUES {values}")
