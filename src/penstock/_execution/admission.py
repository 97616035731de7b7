"""Limits the number of concurrent batches: streaming flows take turns.

The threads of the queries take turns in the JVM (`penstock.spark.BatchAdmission`).
"""

from typing import Any

from py4j.java_gateway import JavaPackage
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

TURN_SECONDS = 5.0
"""How long a batch blocks others; a longer batch continues concurrently with them."""
PATIENCE_SECONDS = 5.0
"""How long a flow without readers yields to flows with readers."""


class BatchAdmission:
    """Lets the streaming queries of a session take turns, first come, first served.

    By default, the number of concurrent batches is one more than the number of cores, as a batch
    does not compute all the time. A borrowed session without Penstock's Java classes has no limit.
    With 0 permits, queries end the trigger in flight and begin no other.
    """

    def __init__(self, spark: SparkSession, permits: int | None = None) -> None:
        jvm: Any = spark._jvm
        java_class = jvm.penstock.spark.BatchAdmission
        self._java: Any = None
        if not isinstance(java_class, JavaPackage):
            if permits is None:
                permits = spark.sparkContext.defaultParallelism + 1
            self._java = java_class(permits, int(TURN_SECONDS * 1000))

    def attach(self, query: StreamingQuery, *, is_read: bool, is_eager: bool = False) -> None:
        """Let a query with a processing time trigger take turns; ignore others.

        With `is_eager`, its trigger interval applies only while there are no new rows; the time
        between the starts of two batches is at least 0.2 s, or 0.5 s while the number of waiting
        queries has reached the number of permits.
        """
        if self._java is not None:
            java_query: Any = query
            patience = 0 if is_read else int(PATIENCE_SECONDS * 1000)
            self._java.attach(java_query._jsq.streamingQuery(), patience, is_eager)
