"""Batches that are read several times."""

from typing import Any

from pyspark.sql import DataFrame

from penstock._tables.delta_log import DeltaJvm
from penstock._tables.write.staging import RowCounts, count_rows
from penstock.quality.split import RowSplit

# Rows of this size are sent to the driver, and back with each task that reads them. Spark warns
# about tasks that are larger.
_DRIVER_BYTES = 1_000_000


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


def keep_and_count(
    delta: DeltaJvm, df: DataFrame, split: RowSplit | None
) -> tuple[DataFrame, RowCounts]:
    """As `keep`, but computes the rows now, and counts them in the same job.

    Without expectations, few rows are moved to the driver: later reads of them start no job, and
    cannot lose them.
    """
    kept = keep(df)
    try:
        if split is not None:
            return kept, count_rows(kept, split)[0]
        if not delta.has_own_classes:
            return kept, RowCounts(kept.count(), 0, {})
        batch = delta.small_batch(kept, _DRIVER_BYTES)
        counts = RowCounts(int(batch.count()), 0, {})
        rows = batch.rows(df.sparkSession._jsparkSession)
    except BaseException:
        kept.unpersist()
        raise
    if rows is None:
        return kept, counts
    kept.unpersist()
    return DataFrame(rows, df.sparkSession), counts
