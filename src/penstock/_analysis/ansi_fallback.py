"""ANSI mode: queries that use strings as numbers.

These are common in code for Databricks: columns of a CSV file are strings, and `total / quantity`
divides them. If Spark refuses such a query in ANSI mode, the query is analysed in a copy of the
session without ANSI mode. The mode is then part of the plan, which is moved back to the session of
the pipeline, where everything else runs in ANSI mode.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from penstock._spark.generated_names import without_generated_names
from penstock._spark.plans import analyzed, own_class
from penstock._tables.jvm import dataframe

_Session = contextlib.AbstractContextManager[Callable[[DataFrame], DataFrame]]
ANSI = "spark.sql.ansi.enabled"
_FIELD = "_jsparkSession"
_logger = logging.getLogger(__name__)

# The JVM session of a Python session, and its replacement on this thread.
_copy: ContextVar[tuple[Any, Any] | None] = ContextVar("penstock_ansi_fallback", default=None)


def is_about_types(error: BaseException | None) -> bool:
    """Whether a query was refused because of the types of its operands."""
    if not isinstance(error, AnalysisException):
        return False
    return (error.getCondition() or "").startswith("DATATYPE_MISMATCH")


def without_ansi(spark: SparkSession) -> _Session:
    """Use a copy of the session without ANSI mode on this thread.

    Yields a function that moves a DataFrame of the copy to the session that was used before.
    """
    _install()
    copy = spark.__dict__[_FIELD].cloneSession()
    copy.conf().set(ANSI, "false")
    return _using(spark, copy)


def with_ansi(spark: SparkSession) -> _Session:
    """Use the original session again, for a query within a query that uses a copy.

    Yields a function that moves a DataFrame of this session to the one that was used before.
    """
    if _copy.get() is None:
        return contextlib.nullcontext(lambda df: df)
    return _using(spark, spark.__dict__[_FIELD])


@contextlib.contextmanager
def _using(spark: SparkSession, session: Any) -> Iterator[Callable[[DataFrame], DataFrame]]:
    before: Any = spark._jsparkSession

    def move(df: DataFrame) -> DataFrame:
        return dataframe(spark, analyzed(df), before)

    sessions = SparkSession._get_j_spark_session_class(spark._jvm)
    token = _copy.set((spark.__dict__[_FIELD], session))
    sessions.setActiveSession(session)
    try:
        yield move
    finally:
        sessions.setActiveSession(before)
        _copy.reset(token)


def _install() -> None:
    """Make Python sessions use the JVM session of the current context."""
    if isinstance(SparkSession.__dict__.get(_FIELD), property):
        return

    def read(self: SparkSession) -> Any:
        own = self.__dict__[_FIELD]
        session = _copy.get()
        return session[1] if session is not None and session[0] is own else own

    def write(self: SparkSession, value: Any) -> None:
        self.__dict__[_FIELD] = value

    setattr(SparkSession, _FIELD, property(read, write))


def text_numbers(df: DataFrame) -> tuple[str, ...]:
    """The expressions in which Spark casts a string to a number implicitly, in ANSI mode.

    In these, a string that is not a number fails the batch. Never raises, and returns an empty
    tuple in a session without Penstock's Java classes: the result is used for a note only.
    """
    own = own_class(df)
    if own is None:
        return ()
    try:
        lines = str(own.textNumbers(analyzed(df)))
    except Exception as error:
        _logger.debug("implicit casts are not known: %s", error)
        return ()
    shown = (without_generated_names(line).replace("`", "") for line in lines.split("\0") if line)
    return tuple(dict.fromkeys(shown))
