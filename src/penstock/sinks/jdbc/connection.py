"""Connections to PostgreSQL through the JDBC driver, and queries of its catalog.

Connections are short: a driver process that hangs must hold neither locks nor sessions.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock.errors import SetupError
from penstock.sinks.jdbc.options import JdbcSinkOptions, TableName
from penstock.sinks.jdbc.postgresql import TableColumn
from penstock.sources.jdbc.database import Database, translated

_DEFAULTS = {
    "ApplicationName": "penstock",
    "connectTimeout": "10",
    "tcpKeepAlive": "true",
    # One round trip per statement; nothing is prepared twice.
    "prepareThreshold": "0",
}
# A frozen writer must not hold its locks, and no writer waits for a lock forever.
_SESSION = (
    "SET TIME ZONE 'UTC'",
    "SET lock_timeout = '60s'",
    "SET idle_in_transaction_session_timeout = '5min'",
)


class PostgreSql(Database):
    """One open connection to PostgreSQL; not shared between threads."""

    def exists(self, table: TableName) -> bool:
        return self.query("SELECT to_regclass(?)", str(table))[0][0] is not None

    def relation_kind(self, table: TableName) -> str | None:
        """`r` for a table, `p` for a partitioned one, another letter otherwise; or `None`."""
        rows = self.query("SELECT relkind FROM pg_class WHERE oid = to_regclass(?)", str(table))
        return rows[0][0] if rows else None

    def columns(self, table: TableName) -> list[TableColumn]:
        rows = self.query(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, "
            "a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a', "
            "t.typtype = 'e', t.typnotnull, format_type(t.typbasetype, t.typtypmod), t.typtype "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped "
            "ORDER BY a.attnum",
            str(table),
        )
        return [
            TableColumn(
                name=str(name),
                # A domain takes what its base type takes.
                type=str(base if kind == "d" else shown),
                not_null="t" in (not_null, domain_not_null),
                has_default=default == "t",
                generated=generated == "t",
                is_enum=enum == "t",
            )
            for name, shown, not_null, default, generated, enum, domain_not_null, base, kind in rows
        ]

    def has_unique_index(self, table: TableName, columns: Sequence[str]) -> bool:
        """Whether exactly these columns are unique, so that `ON CONFLICT` can name them."""
        rows = self.query(
            "SELECT string_agg(a.attname, chr(1) ORDER BY a.attname) "
            "FROM pg_index i JOIN pg_attribute a "
            "ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1]) "
            "WHERE i.indrelid = to_regclass(?) AND i.indisunique AND i.indpred IS NULL "
            "AND i.indexprs IS NULL AND i.indimmediate AND i.indisvalid GROUP BY i.indexrelid",
            str(table),
        )
        wanted = sorted(columns)
        return any(sorted(str(names).split("\1")) == wanted for (names,) in rows)


@contextlib.contextmanager
def connected(spark: SparkSession, options: JdbcSinkOptions) -> Iterator[PostgreSql]:
    """A connection, closed at the end; raises `DatabaseError`, or `JARS_MISSING`."""
    jvm: Any = spark._jvm
    try:
        driver = jvm.org.postgresql.Driver()
    except TypeError as error:
        raise SetupError(
            "JARS_MISSING",
            "Spark's class path has no JDBC driver of PostgreSQL",
            hint="run `penstock jars sync --set postgresql`; in a session of your own, add the jar",
        ) from error
    properties = jvm.java.util.Properties()
    for name, value in {**_DEFAULTS, **options.connection}.items():
        properties.setProperty(name, value)
    with translated():
        connection = driver.connect(options.url, properties)
    try:
        database = PostgreSql(connection)
        for statement in _SESSION:
            database.execute(statement)
        yield database
    finally:
        with contextlib.suppress(Py4JError):
            connection.close()
