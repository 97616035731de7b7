"""Kinesis as a DataFrame, and what a flow from it did not get."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.sources.kinesis.client import require_botocore
from penstock.sources.kinesis.offsets import Offset, is_offset, ranges
from penstock.sources.kinesis.options import source_options
from penstock.sources.kinesis.source import FORMAT, kinesis_source

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class LostRecords:
    """Records of a shard that were removed before they were read.

    Attributes:
        stream: Its name.
        shard: Its name; `*` where rows of several shards are missing and only their sum is known.
        after: Sequence number after which they were; `None` if the batch had been planned.
        rows: How many; `None` if nobody knows.
    """

    stream: str
    shard: str
    after: str | None
    rows: int | None

    def __str__(self) -> str:
        where = f"{self.stream}/{self.shard}"
        if self.rows is not None:
            return f"{self.rows} row(s) of {where}"
        return f"{where} after {self.after}" if self.after else where


def read_kinesis(spark: SparkSession, options: Mapping[str, str], streaming: bool) -> DataFrame:
    """Rows of Kinesis streams; nothing is asked of Kinesis before a query starts.

    The source is registered anew for each read, with the options in its class: options of Spark's
    are shown in plans.

    Args:
        spark: The session.
        options: As the user gave them, secrets already resolved.
        streaming: Whether to wait for new records.

    Raises:
        ConnectorError: The options are wrong.
        MissingExtraError: botocore is not installed.
    """
    checked = source_options(options, streaming=streaming)
    require_botocore()
    spark.dataSource.register(kinesis_source(checked))
    reader: Any = spark.readStream if streaming else spark.read
    rows: DataFrame = reader.format(FORMAT).load()
    return rows


def lost_records(progress: Mapping[str, Any]) -> list[LostRecords]:
    """What the micro-batch of a progress report was to read, and could not.

    Only a source with `failOnDataLoss=false` gets that far.

    Args:
        progress: Spark's report.
    """
    found: list[LostRecords] = []
    for source in progress.get("sources", ()):
        start, end = source.get("startOffset"), source.get("endOffset")
        if not is_offset(end):
            continue
        before = Offset.from_json(start) if is_offset(start) else Offset()
        after = Offset.from_json(end)
        for stream, shards in after.streams.items():
            for shard, position in shards.items():
                if position.lost and before.get(stream, shard) != position:
                    number = None if position.lost == "?" else position.lost
                    found.append(LostRecords(stream=stream, shard=shard, after=number, rows=None))
        parts = ranges(before, after)
        missing = sum(part.rows for part in parts) - int(source.get("numInputRows", 0))
        if missing > 0 and after.tolerant:
            streams = sorted({part.stream for part in parts})
            shard = parts[0].shard if len(parts) == 1 else "*"
            found.append(
                LostRecords(stream=",".join(streams), shard=shard, after=None, rows=missing)
            )
    return found


def describe_lost_records(records: Sequence[LostRecords]) -> str:
    """One line about lost records."""
    shown = ", ".join(str(lost) for lost in records[:_SHOWN])
    more = f" and {len(records) - _SHOWN} more" if len(records) > _SHOWN else ""
    return f"rows were lost: {shown}{more} had been removed from Kinesis before they were read"
