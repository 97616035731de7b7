"""The source without Spark: the driver's plans and the reads of tasks, against the double."""

import itertools
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from kinesis_double import ACCESS_KEY, REGION, SECRET_KEY, FaultProxy, Stream, wait_until

from penstock.errors import ConnectorError
from penstock.sources.kinesis.client import KinesisClient
from penstock.sources.kinesis.offsets import Offset, ranges
from penstock.sources.kinesis.options import KinesisOptions, source_options
from penstock.sources.kinesis.probing import Prober
from penstock.sources.kinesis.reading import read_range

MakeStream = Callable[..., Stream]
DAY_AND_A_HALF = 36 * 3600


class Query:
    """Plans batches like Spark: every offset is converted to JSON and back."""

    def __init__(self, proxy: FaultProxy, stream: str, **options: str) -> None:
        self.options: KinesisOptions = source_options(
            {
                "streamName": stream,
                "region": REGION,
                "endpoint": proxy.url,
                "awsAccessKey": ACCESS_KEY,
                "awsSecretKey": SECRET_KEY,
                "initialPosition": "trim_horizon",
                "minFetchPeriod": "10ms",
                "shardFetchInterval": "0ms",
                **options,
            }
        )
        self.restart()
        self.offset = stored(self.prober.initial())

    def restart(self) -> None:
        """Discard all state except the offset."""
        self.client = KinesisClient(self.options)
        self.prober = Prober(self.options, self.client)

    def batch(self) -> list[tuple[str, bytes]]:
        """Shard and data of the next batch; a second read by tasks must return the same records."""
        before = self.offset
        self.offset = stored(self.prober.advance(before))
        kept, again = [], []
        for part in ranges(before, self.offset):
            kept += self.prober.rows(self.offset, part) or []
            again += list(read_range(self.client, self.options, part))
        assert kept == again
        return [(row[3], row[1]) for row in kept]

    def rest(self) -> list[bytes]:
        """Data of all batches until three consecutive batches are empty."""
        records, quiet = [], 0
        while quiet < 3:
            rows = self.batch()
            quiet = 0 if rows else quiet + 1
            records += [data for _, data in rows]
        return records


def stored(offset: Offset) -> Offset:
    return Offset.from_json(json.loads(json.dumps(offset.to_json())))


def payloads(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_each_record_is_read_once_after_its_parent_shards_when_shards_split_and_merge(
    proxy: FaultProxy, make_stream: MakeStream
):
    stream = make_stream(2)
    written = itertools.count(0, 10)
    stream.put(*payloads(next(written), 10))
    query = Query(proxy, stream.name)
    rows = query.batch()
    stream.split("shardId-000000000000")
    stream.put(*payloads(next(written), 10))
    stream.merge("shardId-000000000002", "shardId-000000000003")
    stream.put(*payloads(next(written), 10))
    query.restart()
    order: dict[str, int] = {}
    for number in range(12):
        batch = query.batch()
        rows += batch
        for shard, _ in batch:
            order.setdefault(shard, number)
    assert sorted(int(data) for _, data in rows) == list(range(30))
    assert order["shardId-000000000002"] < order["shardId-000000000004"]
    assert order["shardId-000000000003"] < order["shardId-000000000004"]
    positions = query.offset.streams[stream.name]
    assert [shard[-1] for shard, p in positions.items() if p.closed] == ["0", "2", "3"]
    proxy.forgotten = {"shardId-000000000000"}
    assert query.rest() == []
    assert "shardId-000000000000" not in query.offset.streams[stream.name]


def test_stream_without_a_checkpoint_starts_at_the_initial_position(
    proxy: FaultProxy, make_stream: MakeStream
):
    stream = make_stream(2)
    stream.put(*payloads(0, 10))
    # Timestamps of records have millisecond precision.
    border = time.time() + 0.002
    latest = Query(proxy, stream.name, initialPosition="latest")
    time_text = datetime.fromtimestamp(border, UTC).isoformat(timespec="milliseconds")
    stream.put(*payloads(10, 4))
    timed = Query(proxy, stream.name, initialPosition=json.dumps({"at_timestamp": time_text}))
    assert sorted(latest.rest()) == payloads(10, 4)
    assert sorted(timed.rest()) == payloads(10, 4)
    assert sorted(Query(proxy, stream.name).rest()) == sorted(payloads(0, 14))
    latest.restart()
    stream.put(*payloads(14, 4))
    assert sorted(latest.rest()) == payloads(14, 4)


def test_batch_ends_at_its_maximum_size(proxy: FaultProxy, make_stream: MakeStream):
    stream = make_stream()
    stream.put(*payloads(0, 30))
    query = Query(proxy, stream.name, maxRecordsPerFetch="7", fetchBufferSize="10b")
    batches = [[data for _, data in query.batch()] for _ in range(5)]
    assert [len(batch) for batch in batches] == [7, 7, 7, 7, 2]
    assert [data for batch in batches for data in batch] == payloads(0, 30)


def test_available_now_ends_while_records_keep_arriving(proxy: FaultProxy, make_stream: MakeStream):
    stream = make_stream(2)
    stream.put(*payloads(0, 10))
    query = Query(proxy, stream.name, maxRecordsPerFetch="2", fetchBufferSize="1b")
    query.prober.end_with_what_is_there()
    # The target has a precision of one second; later records must have a later second.
    border = time.monotonic() + 1.1
    wait_until(lambda: time.monotonic() > border, "the clock stands still")
    records = []
    for number in range(30):
        stream.put(*payloads(100 + number, 1))
        before = query.offset
        records += [data for _, data in query.batch()]
        if query.offset == before:
            break
    else:
        raise AssertionError("it never ended")
    assert sorted(records, key=int) == payloads(0, 10)


def test_reading_continues_when_kinesis_throttles_and_iterators_expire(
    proxy: FaultProxy, make_stream: MakeStream
):
    stream = make_stream()
    stream.put(*payloads(0, 5))
    query = Query(proxy, stream.name)
    proxy.throttled = 3
    assert [data for _, data in query.batch()] == payloads(0, 5)
    assert proxy.requests["GetRecords"] >= 4
    stream.put(*payloads(5, 5))
    proxy.expired = 1
    assert [data for _, data in query.batch()] == payloads(5, 5)
    strict = Query(proxy, stream.name, retryTimeout="300ms")
    proxy.throttled = 1000
    with pytest.raises(ConnectorError, match="ProvisionedThroughputExceeded") as caught:
        strict.batch()
    assert caught.value.condition == "KINESIS_UNREACHABLE"


def test_expired_records_fail_the_flow_or_are_reported(proxy: FaultProxy, make_stream: MakeStream):
    stream = make_stream()
    numbers = [number for _, number in stream.put(*payloads(0, 10), key="k")]
    strict = Query(proxy, stream.name, maxRecordsPerFetch="3", fetchBufferSize="1b")
    tolerant = Query(
        proxy, stream.name, maxRecordsPerFetch="3", fetchBufferSize="1b", failOnDataLoss="false"
    )
    assert [data for _, data in strict.batch()] == payloads(0, 3)
    assert [data for _, data in tolerant.batch()] == payloads(0, 3)
    planned = ranges(Offset(), tolerant.offset)
    # Records that were read expire: this is no data loss, however late the query is.
    proxy.removed = set(numbers[:2])
    proxy.ahead_seconds = DAY_AND_A_HALF
    strict.restart()
    assert [data for _, data in strict.batch()] == payloads(3, 2)
    # A planned batch is read again and is no longer complete.
    again = [
        row[1] for part in planned for row in read_range(tolerant.client, tolerant.options, part)
    ]
    assert again == payloads(2, 1)
    with pytest.raises(ConnectorError, match="has 1 of 3 rows"):
        list(read_range(strict.client, strict.options, planned[0]))
    proxy.removed = set(numbers[:8])
    strict.restart()
    tolerant.restart()
    proxy.ahead_seconds = 2 * DAY_AND_A_HALF
    with pytest.raises(ConnectorError, match="may have been removed") as caught:
        strict.batch()
    assert caught.value.condition == "SOURCE_ROWS_LOST"
    before = tolerant.offset
    records = [data for _, data in tolerant.batch()]
    (position,) = tolerant.offset.streams[stream.name].values()
    assert position.lost == numbers[2] == before.streams[stream.name]["shardId-000000000000"].after
    assert tolerant.offset.tolerant
    assert records + tolerant.rest() == payloads(8, 2)


def test_recreated_stream_is_refused_with_the_checkpoint_of_the_old_one(
    proxy: FaultProxy, make_stream: MakeStream
):
    stream = make_stream()
    stream.put(*payloads(0, 3))
    query = Query(proxy, stream.name)
    query.rest()
    stream.remake()
    stream.put(*payloads(3, 3))
    query.restart()
    with pytest.raises(ConnectorError) as caught:
        query.batch()
    assert caught.value.condition == "STREAM_RECREATED"


def test_error_about_a_missing_stream_has_a_hint(proxy: FaultProxy):
    with pytest.raises(ConnectorError) as caught:
        Query(proxy, "no-such-stream")
    assert caught.value.condition == "KINESIS_REFUSED"
    assert "streamName" in str(caught.value.hint)
    assert SECRET_KEY not in str(caught.value)
