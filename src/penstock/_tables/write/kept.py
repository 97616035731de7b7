"""Batches that are read several times."""

from typing import Any

from pyspark.sql import DataFrame


def keep(df: DataFrame) -> DataFrame:
    """The rows of a batch, computed once, for several reads; `unpersist` it at the end.

    On a cluster, cached rows are lost with their executor. Spark would compute them again, with
    other random values or Python results, so that a row could be written twice or not at all. There
    the rows are a local checkpoint: a read of lost rows fails, and the batch is retried as a whole.
    """
    context: Any = df.sparkSession.sparkContext
    if context._jsc.sc().isLocal():
        return df.persist()
    return df.localCheckpoint(eager=False)
