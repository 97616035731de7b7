"""At-least-once to Kafka, with an id per message: consumers see which one came twice."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock._tables.kill_points import kill_point
from penstock.sinks.report import SinkCommit

ROW_ID_HEADER = "penstock-id"
_SENT = ("topic", "partition", "key", "value", "headers")


class KafkaSinkWriter:
    """Sends the batches of one flow.

    Spark's producer confirms each message, but nothing ties a batch to a commit: a batch that runs
    again is sent again. Each message has a header `penstock-id` that is the same then:
    the column `row_id` if the query has one, else `<epoch>/<batch>/<digest>`.

    Args:
        options: Checked, for Spark's writer.
        flow: Its name.
        epoch: Of its checkpoint.
    """

    def __init__(self, options: Mapping[str, str], *, flow: str, epoch: str) -> None:
        self._options = options
        self._flow = flow
        self._epoch = epoch

    def write(self, df: DataFrame, batch_id: int) -> SinkCommit:
        """Send one micro-batch; for `foreachBatch`."""
        kill_point("before_write", self._flow, batch_id)
        header = F.struct(
            F.lit(ROW_ID_HEADER).alias("key"), row_id(df, self._epoch, batch_id).alias("value")
        )
        headers = F.array(header)
        if "headers" in df.columns:
            given = F.coalesce(F.col("headers"), F.array().cast(df.schema["headers"].dataType))
            headers = F.concat(given, headers)
        sent = df.withColumn("headers", headers)
        sent.write.format("kafka").options(**self._options).save()
        kill_point("after_target_commit", self._flow, batch_id)
        return SinkCommit(rows=None)


def row_id(df: DataFrame, epoch: str, batch_id: int) -> Column:
    """The id of a row: the same whenever the batch is run again."""
    if "row_id" in df.columns:
        return F.col("row_id").cast("binary")
    parts = [F.col(name) for name in _SENT if name in df.columns]
    # The hashes pass over NULL: without the flags, (1, NULL) and (NULL, 1) would be alike.
    parts += [F.isnull(part) for part in parts]
    digest = F.concat(F.hex(F.xxhash64(*parts)), F.hex(F.hash(*parts)))
    return F.concat(F.lit(f"{epoch}/{batch_id}/"), F.lower(digest)).cast("binary")
