"""Looks into the tests' PostgreSQL through the driver in Spark's JVM."""

from typing import Any

from postgres_server import PASSWORD, USER, PostgresServer
from pyspark.sql import SparkSession

from penstock.sinks.jdbc.connection import connected
from penstock.sinks.jdbc.options import jdbc_sink_options


class Tables:
    def __init__(self, spark: SparkSession, server: PostgresServer) -> None:
        self._spark = spark
        self._options = jdbc_sink_options(
            {"url": server.url, "dbtable": "x", "user": USER, "password": PASSWORD}
        )

    def execute(self, sql: str) -> None:
        with connected(self._spark, self._options) as database:
            database.execute(sql)

    def script(self, sql: str) -> None:
        """Statements in one session, one after the other."""
        with connected(self._spark, self._options) as database:
            for statement in filter(str.strip, sql.split(";\n")):
                database.execute(statement)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with connected(self._spark, self._options) as database:
            return database.query(sql)

    def staging(self) -> list[tuple[Any, ...]]:
        return self.query("SELECT relname FROM pg_class WHERE relname LIKE 'penstock_stage%'")
