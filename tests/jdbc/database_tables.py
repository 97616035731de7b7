"""Access to the databases of tests with the drivers in Spark's JVM."""

from contextlib import AbstractContextManager
from typing import Any

from database_server import PASSWORD, USER, DatabaseServer
from pyspark.sql import SparkSession

from penstock.sinks.jdbc.connection import connected, dialect_of
from penstock.sinks.jdbc.options import TableName, jdbc_sink_options
from penstock.sources.jdbc.database import Database


class Tables:
    def __init__(self, spark: SparkSession, server: DatabaseServer) -> None:
        self._spark = spark
        self._options = jdbc_sink_options(
            {"url": server.url, "dbtable": "x", "user": USER, "password": PASSWORD}
        )
        self._dialect = dialect_of(self._options.system)

    def session(self) -> AbstractContextManager[Database]:
        return connected(self._spark, self._options)

    def execute(self, sql: str) -> None:
        with self.session() as database:
            database.execute(sql)

    def script(self, sql: str) -> None:
        """Run statements in one session, one after the other."""
        with self.session() as database:
            for statement in filter(str.strip, sql.split(";\n")):
                database.execute(statement)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.session() as database:
            return database.query(sql)

    def exists(self, table: str) -> bool:
        with self.session() as database:
            return self._dialect.is_table(database, TableName(None, table)) is not None

    def staging(self) -> list[TableName]:
        with self.session() as database:
            return self._dialect.leftovers(database, None, "penstock_stage")
