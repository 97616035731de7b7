"""Collections and query plans of the JVM."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def iterate(collection: Any) -> Iterator[Any]:
    """The items of a collection of Scala or Java.

    Python's own iteration over a collection of Java ends by an exception of Java, which PySpark
    examines for 5 ms.
    """
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def private_field(java: Any, name: str) -> Any:
    """The value of a field that has no accessor."""
    field = java.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java)


def dataframe(session: SparkSession, plan: Any, jsession: Any = None) -> DataFrame:
    """A DataFrame of a logical plan.

    Args:
        session: The DataFrame's session.
        plan: Analysed, or not yet.
        jsession: Analyses and executes it, if not that of `session`.
    """
    jvm: Any = session._jvm
    datasets = jvm.org.apache.spark.sql.classic.Dataset
    return DataFrame(datasets.ofRows(jsession or session._jsparkSession, plan), session)
