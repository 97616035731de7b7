"""Connections to databases through the JDBC driver in Spark's JVM.

Connections are short-lived: a driver process that hangs must not hold locks or sessions.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock.errors import SetupError
from penstock.sinks.jdbc.dialect import Dialect
from penstock.sinks.jdbc.mysql import MySqlDialect
from penstock.sinks.jdbc.options import MYSQL, POSTGRESQL, DatabaseSystem, JdbcSinkOptions
from penstock.sinks.jdbc.postgresql import PostgreSqlDialect
from penstock.sources.jdbc.database import Database, translated

_DIALECTS = {POSTGRESQL.name: PostgreSqlDialect(), MYSQL.name: MySqlDialect()}


def dialect_of(system: DatabaseSystem) -> Dialect:
    """The dialect of a database system."""
    return _DIALECTS[system.name]


@contextlib.contextmanager
def connected(spark: SparkSession, options: JdbcSinkOptions) -> Iterator[Database]:
    """A connection, closed at the end; raises `DatabaseError`, or `JARS_MISSING`."""
    jvm: Any = spark._jvm
    system, dialect = options.system, dialect_of(options.system)
    try:
        driver = functools.reduce(getattr, system.driver.split("."), jvm)()
    except TypeError as error:
        raise SetupError(
            "JARS_MISSING",
            f"Spark's class path has no {system.driver}, the JDBC driver for {system.name}",
            hint=f"run `penstock jars sync --set {system.jar_set}`; in a session of your own, "
            "add the jar",
        ) from error
    properties = jvm.java.util.Properties()
    for name, value in {**dialect.defaults, **options.connection}.items():
        properties.setProperty(name, value)
    with translated():
        connection = driver.connect(options.url, properties)
    try:
        database = Database(connection)
        for statement in dialect.session:
            database.execute(statement)
        yield database
    finally:
        with contextlib.suppress(Py4JError):
            connection.close()
