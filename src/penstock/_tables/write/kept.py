"""Batches that are read several times."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame

from penstock._tables.delta_log import DeltaJvm
from penstock._tables.write.staging import RowCounts, count_values, counted_columns
from penstock.quality.split import RowSplit

# Rows up to this size are collected to the driver, and sent with each task that reads them. Spark
# warns about larger tasks.
_DRIVER_BYTES = 1_000_000


def keep(df: DataFrame) -> DataFrame:
    """The rows of a batch, computed once, for several reads; `release` it at the end.

    On a cluster, cached rows are lost with their executor. Spark would compute them again, with
    other random values or Python results, so that a row could be duplicated or lost. So on a
    cluster, the rows are a local checkpoint: a read of lost rows fails, and the whole batch is
    retried.
    """
    if _is_local(df):
        return df.persist()
    return df.localCheckpoint(eager=False)


@contextmanager
def kept_rows(df: DataFrame) -> Iterator[DataFrame]:
    """The rows of `keep`, released at the end of the context."""
    kept = keep(df)
    try:
        yield kept
    finally:
        release(kept)


def release(df: DataFrame) -> None:
    """Free the rows that `keep` has stored; `unpersist` does nothing for a local checkpoint."""
    df.unpersist()
    if _is_local(df):
        return
    plan: Any = df._jdf.logicalPlan()
    if str(plan.getClass().getSimpleName()) == "LogicalRDD":
        plan.rdd().unpersist(False)


def _is_local(df: DataFrame) -> bool:
    context: Any = df.sparkSession.sparkContext
    return bool(context._jsc.sc().isLocal())


def keep_and_count(
    delta: DeltaJvm, df: DataFrame, split: RowSplit | None, by: str | None = None
) -> tuple[DataFrame, RowCounts]:
    """Like `keep`, but computes the rows immediately, and counts them in the same job.

    Few rows are moved to the driver: later reads start no job, and the rows cannot be lost. Valid
    rows are also counted by the values of an INT column `by`.
    """
    columns = [] if split is None else counted_columns(split, by)
    kept, rows = keep(df), None
    try:
        if delta.has_own_classes:
            batch = delta.own.SmallBatch(kept._jdf, _DRIVER_BYTES, columns)
            rows = batch.rows(df.sparkSession._jsparkSession)
            counted = json.loads(batch.counts())
        else:
            counted = kept.groupBy(*columns).count().collect()
        counts = count_values({tuple(row[:-1]): row[-1] for row in counted}, split)
    except BaseException:
        release(kept)
        raise
    if rows is None:
        return kept, counts
    release(kept)
    return DataFrame(rows, df.sparkSession), counts
