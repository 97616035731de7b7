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

ANSI = "spark.sql.ansi.enabled"
_FIELD = "_jsparkSession"

# The JVM's session of a Python session, and the one that stands for it on this thread.
_copy: ContextVar[tuple[Any, Any] | None] = ContextVar("penstock_lenient", default=None)


def is_about_types(error: BaseException | None) -> bool:
    """Whether a query was refused because of the types of what it calculates with."""
    if not isinstance(error, AnalysisException):
        return False
    return (error.getCondition() or "").startswith("DATATYPE_MISMATCH")


@contextlib.contextmanager
def without_ansi(spark: SparkSession) -> Iterator[Callable[[DataFrame], DataFrame]]:
    """Let this thread use a copy of the session in which ANSI mode is off.

    Yields:
        What moves a DataFrame of the copy to the session itself.
    """
    _install()
    own: Any = spark._jsparkSession
    jvm: Any = spark._jvm
    copy = own.cloneSession()
    copy.conf().set(ANSI, "false")

    def move(df: DataFrame) -> DataFrame:
        plan = df._jdf.queryExecution().analyzed()
        return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(own, plan), spark)

    sessions = SparkSession._get_j_spark_session_class(jvm)
    token = _copy.set((own, copy))
    sessions.setActiveSession(copy)
    try:
        yield move
    finally:
        sessions.setActiveSession(own)
        _copy.reset(token)


def _install() -> None:
    """Make Python's sessions ask which of the JVM's stands for theirs."""
    if isinstance(SparkSession.__dict__.get(_FIELD), property):
        return

    def read(self: SparkSession) -> Any:
        own = self.__dict__[_FIELD]
        found = _copy.get()
        return found[1] if found is not None and found[0] is own else own

    def write(self: SparkSession, value: Any) -> None:
        self.__dict__[_FIELD] = value

    setattr(SparkSession, _FIELD, property(read, write))
