"""PostgreSQL from the driver, through the JDBC driver in Spark's JVM.

A handful of statements per micro-batch go this way; rows never do. Connections are short: a driver
process that hangs must hold neither locks nor sessions.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from penstock._observe.masking import shown
from penstock.connectors.jdbc import JdbcSinkOptions, TableName
from penstock.connectors.postgresql import TableColumn
from penstock.errors import SetupError

_DEFAULTS = {
    "ApplicationName": "penstock",
    "connectTimeout": "10",
    "tcpKeepAlive": "true",
    # One round trip per statement; nothing is prepared twice.
    "prepareThreshold": "0",
}
# A frozen writer must not hold its locks, and nobody waits for one for ever.
_SESSION = (
    "SET TIME ZONE 'UTC'",
    "SET lock_timeout = '60s'",
    "SET idle_in_transaction_session_timeout = '5min'",
)


class DatabaseError(Exception):
    """The database or the way to it failed.

    Attributes:
        state: SQLSTATE; empty if it is not known.
        text: What it said, without secrets.
    """

    def __init__(self, state: str, text: str) -> None:
        self.state = state
        self.text = text
        super().__init__(f"{text} (SQLSTATE {state or 'unknown'})")

    @property
    def is_about_rows(self) -> bool:
        """Whether the rows are what is wrong: the same ones fail again."""
        return self.state[:2] in ("21", "22", "23")

    @property
    def may_pass(self) -> bool:
        """Whether the same statement may succeed later."""
        return self.state[:2] not in ("0A", "21", "22", "23", "28", "3D", "3F", "42", "44")


class Database:
    """One open connection; not shared between threads.

    Args:
        connection: `java.sql.Connection`, in auto-commit mode.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, *values: str | int) -> int:
        """Run a statement; returns the number of rows that it changed.

        Raises:
            DatabaseError: It failed.
        """
        with translated():
            statement = self._connection.prepareStatement(sql)
            try:
                _bind(statement, values)
                return int(statement.executeUpdate())
            finally:
                statement.close()

    def query(self, sql: str, *values: str | int) -> list[tuple[str | None, ...]]:
        """Run a query; returns all rows, as text.

        Raises:
            DatabaseError: It failed.
        """
        with translated():
            statement = self._connection.prepareStatement(sql)
            try:
                _bind(statement, values)
                rows = statement.executeQuery()
                width = int(rows.getMetaData().getColumnCount())
                found = []
                while rows.next():
                    found.append(tuple(rows.getString(at) for at in range(1, width + 1)))
                return found
            finally:
                statement.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block did, or roll it back if it raises.

        Raises:
            DatabaseError: A statement or the commit failed. After a failed commit nobody knows
                whether the transaction is in.
        """
        with translated():
            self._connection.setAutoCommit(False)
        try:
            yield
        except BaseException:
            with contextlib.suppress(Py4JError):
                self._connection.rollback()
                self._connection.setAutoCommit(True)
            raise
        with translated():
            self._connection.commit()
            self._connection.setAutoCommit(True)

    def exists(self, table: TableName) -> bool:
        """Whether there is a relation of that name."""
        return self.query("SELECT to_regclass(?)", str(table))[0][0] is not None

    def relation_kind(self, table: TableName) -> str | None:
        """`r` for a table, `p` for a partitioned one, other letters for the rest."""
        rows = self.query("SELECT relkind FROM pg_class WHERE oid = to_regclass(?)", str(table))
        return rows[0][0] if rows else None

    def columns(self, table: TableName) -> list[TableColumn]:
        """The columns of a table, in their order."""
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
def connected(spark: SparkSession, options: JdbcSinkOptions) -> Iterator[Database]:
    """A connection, closed at the end.

    Raises:
        DatabaseError: There is none.
        SetupError: `JARS_MISSING`.
    """
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
        database = Database(connection)
        for statement in _SESSION:
            database.execute(statement)
        yield database
    finally:
        with contextlib.suppress(Py4JError):
            connection.close()


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn an exception of the JDBC driver into a `DatabaseError`."""
    try:
        yield
    except Py4JJavaError as error:
        java: Any = error.java_exception
        try:
            state = str(java.getSQLState() or "")
        except Py4JError:
            raise error from None  # no exception of the database
        raise DatabaseError(state, shown(" ".join(str(java.getMessage()).split()))) from error


def _bind(statement: Any, values: Sequence[str | int]) -> None:
    for at, value in enumerate(values, 1):
        if isinstance(value, str):
            statement.setString(at, value)
        else:
            statement.setLong(at, value)
