"""Collections and query plans of the JVM."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def iterate(collection: Any) -> Iterator[Any]:
    """The items of a Scala or Java collection.

    Py4J's iteration over a Java collection ends with a Java exception, which PySpark takes 5 ms to
    handle.
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
        plan: A logical plan, analyzed or not.
        jsession: The JVM session that analyzes and executes the plan; default: that of `session`.
    """
    jvm: Any = session._jvm
    datasets = jvm.org.apache.spark.sql.classic.Dataset
    return DataFrame(datasets.ofRows(jsession or session._jsparkSession, plan), session)
