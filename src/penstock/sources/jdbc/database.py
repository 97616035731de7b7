"""Database access from the driver, through the JDBC driver in Spark's JVM; not used for rows.

Connections are short-lived: a driver process that hangs must hold neither locks nor sessions.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from penstock._observe.masking import shown

# Errors of MariaDB and MySQL about rows that have a general SQLSTATE: no default, not in the
# enumeration, wrong character, CHECK, no partition; and about a table of too many columns.
_MYSQL_GENERAL = ("HY000", "01000")
_MYSQL_ROWS = (1364, 1265, 1366, 3819, 1526, 1117)
# Errors of data, constraints, limits such as the size of an index entry, and triggers.
_ROWS = ("21", "22", "23", "45", "54", "P0")


class DatabaseError(Exception):
    """The database or the connection failed. SQLSTATE may be empty; the text has no secrets."""

    def __init__(self, state: str, text: str, code: int = 0) -> None:
        if state in _MYSQL_GENERAL and code in _MYSQL_ROWS:
            state = "22000"
        self.state = state
        self.text = text
        super().__init__(f"{text} (SQLSTATE {state or 'unknown'})")

    @property
    def is_about_rows(self) -> bool:
        """Whether the rows caused the error, so that the same rows fail again."""
        return self.state[:2] in _ROWS

    @property
    def may_pass(self) -> bool:
        """Whether the same statement may succeed later."""
        return self.state[:2] not in (*_ROWS, "0A", "28", "3D", "3F", "42", "44")


class Database:
    """One open `java.sql.Connection` in auto-commit mode; not shared between threads."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, *values: str | int) -> int:
        """Run a statement; returns the number of rows that it changed."""
        with self._prepared(sql, values) as statement:
            return int(statement.executeUpdate())

    def query(self, sql: str, *values: str | int) -> list[tuple[str | None, ...]]:
        """Run a query; returns all rows, with values as strings."""
        with self._prepared(sql, values) as statement:
            rows = statement.executeQuery()
            width = int(rows.getMetaData().getColumnCount())
            result = []
            while rows.next():
                result.append(tuple(rows.getString(at) for at in range(1, width + 1)))
            return result

    @contextlib.contextmanager
    def _prepared(self, sql: str, values: Sequence[str | int]) -> Iterator[Any]:
        with translated(), contextlib.closing(self._connection.prepareStatement(sql)) as statement:
            for at, value in enumerate(values, 1):
                if isinstance(value, str):
                    statement.setString(at, value)
                else:
                    statement.setLong(at, value)
            yield statement

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the statements of the block, or roll them back if it raises.

        After a failed commit, it is unknown whether the transaction was committed.
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


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn an exception of the JDBC driver into a `DatabaseError`."""
    try:
        yield
    except Py4JJavaError as error:
        java: Any = error.java_exception
        try:
            state, code = str(java.getSQLState() or ""), int(java.getErrorCode())
        except Py4JError:
            raise error from None  # not a `SQLException`
        text = shown(" ".join(str(java.getMessage()).split()))
        raise DatabaseError(state, text, code) from error
