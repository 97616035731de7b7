"""The data source that Spark calls, with its stream reader and its batch reader.

These classes run in Python processes that Spark starts on the driver and on executors, and that
import this module. The options are passed with the class (`kinesis_source`), not as Spark's
options: those are part of query plans, and these contain credentials.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.sources.kinesis.client import KinesisClient
from penstock.sources.kinesis.offsets import Offset, Position, ShardRange, ranges
from penstock.sources.kinesis.options import BEHIND, FORMAT, KinesisOptions
from penstock.sources.kinesis.probing import Prober
from penstock.sources.kinesis.reading import Row, read_now, read_range

COLUMNS = (
    "partitionKey STRING, data BINARY, stream STRING, shardId STRING, sequenceNumber STRING, "
    "approximateArrivalTimestamp TIMESTAMP"
)
# Larger tasks are slow to send, and on a cluster are limited to 128 MB.
_TASK_BYTES = 8 << 20


def kinesis_source(options: KinesisOptions) -> type[DataSource]:
    """A data source class for one read; it is pickled with its options, not by its name."""

    class Kinesis(KinesisDataSource):
        settings = options

    return Kinesis


class KinesisDataSource(DataSource):
    """Streams of Amazon Kinesis."""

    settings: KinesisOptions

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        """The columns of Databricks' connector."""
        return COLUMNS

    def streamReader(self, schema: StructType) -> "KinesisStreamReader":
        return KinesisStreamReader(self.settings)

    def reader(self, schema: StructType) -> "KinesisBatchReader":
        return KinesisBatchReader(self.settings)


@dataclass
class StreamTask(InputPartition):
    """What a task of a micro-batch reads: ranges with rows; `None` means to read them again."""

    slices: list[tuple[ShardRange, list[Row] | None]]


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, reads them in tasks; is pickled before it connects."""

    def __init__(self, options: KinesisOptions) -> None:
        self._options = options

    @cached_property
    def _prober(self) -> Prober:
        return Prober(self._options, KinesisClient(self._options, connections=16))

    def initialOffset(self) -> dict[str, Any]:
        return self._prober.initial().to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._prober.end_with_what_is_there()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Read the next records, limited by time and size instead of `limit`; see `probing`."""
        before = Offset.from_json(start)
        after = self._prober.advance(before)
        return start if after == before else after.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far each shard's last read was behind, as a time: Kinesis returns no record count."""
        behind = self._prober.behind_millis
        if not behind:
            return None
        return {BEHIND: {"/".join(place): millis for place, millis in sorted(behind.items())}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        until = Offset.from_json(end)
        tasks: list[StreamTask] = []
        size = 0
        for part in ranges(Offset.from_json(start), until):
            rows = self._prober.rows(until, part)
            weight = 0 if rows is None else sum(len(row[1]) for row in rows)
            full = bool(tasks) and len(tasks[-1].slices) >= self._options.shards_per_task
            if not tasks or full or size + weight > _TASK_BYTES:
                tasks.append(StreamTask([]))
                size = 0
            size += weight
            tasks[-1].slices.append((part, rows))
        return tasks

    def read(self, partition: InputPartition) -> Iterator[Row]:
        assert isinstance(partition, StreamTask)
        client: KinesisClient | None = None
        for part, rows in partition.slices:
            if rows is not None:
                yield from rows
                continue
            client = client or KinesisClient(self._options)
            yield from read_range(client, self._options, part)

    def commit(self, end: dict[str, Any]) -> None:
        self._prober.forget(Offset.from_json(end))


@dataclass
class BatchTask(InputPartition):
    """What one task of a batch reads."""

    shards: list[tuple[str, str, Position]]
    until: int


class KinesisBatchReader(DataSourceReader):
    """Reads all records that exist when the batch is planned."""

    def __init__(self, options: KinesisOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        prober = Prober(self._options, KinesisClient(self._options))
        start = prober.initial()
        shards = [
            (stream, shard, position)
            for stream, positions in sorted(start.streams.items())
            for shard, position in sorted(positions.items())
        ]
        step, end = self._options.shards_per_task, prober.end_with_what_is_there()
        return [BatchTask(shards[at : at + step], end) for at in range(0, len(shards), step)]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        assert isinstance(partition, BatchTask)
        client = KinesisClient(self._options)
        for stream, shard, position in partition.shards:
            yield from read_now(client, self._options, (stream, shard), position, partition.until)
