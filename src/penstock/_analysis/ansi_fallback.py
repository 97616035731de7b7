"""Queries that make sense without ANSI mode only: texts are calculated with as if numbers.

Much code for Databricks relies on that: a CSV file gives texts, `total / quantity` divides them.
Spark refuses such a query while ANSI mode is on. It is analysed in a copy of the session in which
it is off. What the mode decides is then part of the plan, which moves back to the session of the
pipeline: everything else runs in ANSI mode as before.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

_Session = contextlib.AbstractContextManager[Callable[[DataFrame], DataFrame]]
ANSI = "spark.sql.ansi.enabled"
_FIELD = "_jsparkSession"

# The JVM's session of a Python session, and the one that stands for it on this thread.
_copy: ContextVar[tuple[Any, Any] | None] = ContextVar("penstock_lenient", default=None)


def is_about_types(error: BaseException | None) -> bool:
    """Whether a query was refused because of the types of what it calculates with."""
    if not isinstance(error, AnalysisException):
        return False
    return (error.getCondition() or "").startswith("DATATYPE_MISMATCH")


def without_ansi(spark: SparkSession) -> _Session:
    """Let this thread use a copy of the session in which ANSI mode is off.

    Yields:
        What moves a DataFrame of the copy to the session that was used before.
    """
    _install()
    copy = spark.__dict__[_FIELD].cloneSession()
    copy.conf().set(ANSI, "false")
    return _using(spark, copy)


def with_ansi(spark: SparkSession) -> _Session:
    """Let this thread use the session itself again: for a query within one that uses a copy.

    Yields:
        What moves a DataFrame of it to the session that was used before.
    """
    if _copy.get() is None:
        return contextlib.nullcontext(lambda df: df)
    return _using(spark, spark.__dict__[_FIELD])


@contextlib.contextmanager
def _using(spark: SparkSession, session: Any) -> Iterator[Callable[[DataFrame], DataFrame]]:
    jvm: Any = spark._jvm
    before: Any = spark._jsparkSession

    def move(df: DataFrame) -> DataFrame:
        plan = df._jdf.queryExecution().analyzed()
        return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(before, plan), spark)

    sessions = SparkSession._get_j_spark_session_class(jvm)
    token = _copy.set((spark.__dict__[_FIELD], session))
    sessions.setActiveSession(session)
    try:
        yield move
    finally:
        sessions.setActiveSession(before)
        _copy.reset(token)


def _install() -> None:
    """Make Python's sessions ask which of the JVM's stands for theirs."""
    if isinstance(SparkSession.__dict__.get(_FIELD), property):
        return

    def read(self: SparkSession) -> Any:
        own = self.__dict__[_FIELD]
        session = _copy.get()
        return session[1] if session is not None and session[0] is own else own

    def write(self: SparkSession, value: Any) -> None:
        self.__dict__[_FIELD] = value

    setattr(SparkSession, _FIELD, property(read, write))
