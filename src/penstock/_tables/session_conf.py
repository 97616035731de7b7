"""Temporary confs of a session, and copies of sessions with other confs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark import RDD
from pyspark.sql import SparkSession


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
def session_conf(session: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Set confs of a session, and restore them at the end."""
    before = {key: session.conf.get(key, None) for key in conf}
    for key, value in conf.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, earlier)
