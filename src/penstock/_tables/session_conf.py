"""Temporary confs of a session, and copies of sessions with other confs."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark import RDD
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)


def own_session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """A copy of a session with additional confs."""
    java: Any = spark._jsparkSession
    # The constructor binds `RDD.toDF` to the new session, which would affect user code.
    to_df = RDD.toDF
    copy = SparkSession(spark.sparkContext, java.cloneSession())
    RDD.toDF = to_df  # type: ignore[method-assign]
    for key, value in conf.items():
        copy.conf.set(key, value)
    return copy


@contextmanager
def session_conf(
    session: SparkSession, conf: Mapping[str, str], *, is_borrowed: bool = False
) -> Iterator[None]:
    """Set confs of a session, and restore them at the end.

    A session that `is_borrowed` keeps its values of confs that Spark reads only at its start.
    """
    before: dict[str, str | None] = {}
    try:
        for key, value in conf.items():
            earlier = session.conf.get(key, None)
            try:
                session.conf.set(key, value)
            except AnalysisException as error:
                if not is_borrowed or "CANNOT_MODIFY" not in (error.getCondition() or ""):
                    raise
                if earlier != value:
                    _logger.warning("the active Spark session cannot change %s: ignored", key)
                continue
            before[key] = earlier
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, earlier)
