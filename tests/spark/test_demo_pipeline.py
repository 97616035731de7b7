"""The demo's pipeline with a Kafka log in files that tests split into micro-batches."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demo_oracle import Record, differences, read_tables

from penstock._local.demo import orders
from penstock._local.demo.folders import TOPIC, DemoFolders
from penstock._local.demo.orders import OrderStream
from penstock._observe.bus import EventBus
from penstock._observe.events import UpdateState
from penstock._update import UpdateOptions, run_update

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

KAFKA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
DDL = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
HOUR_MS = 3_600_000
START_MS = 1_790_000_000_000


class FileKafka:
    """The demo's project with files instead of Kafka: each `cut` is a micro-batch."""

    def __init__(self, folder: Path) -> None:
        self.folders = DemoFolders(folder)
        self.settings = self.folders.write_project("unused:1")
        source = folder / "pipeline.py"
        text = source.read_text()
        begin = text.index('spark.readStream.format("kafka")')
        end = text.index(".load()", begin) + len(".load()")
        log = folder / "log"
        log.mkdir()
        reader = f"spark.readStream.schema({DDL!r}).parquet({str(log)!r})"
        source.write_text(text[:begin] + reader + text[end:])
        self._folder = log
        self.records: list[Record] = []

    def update(self, cut: Sequence[Record]) -> None:
        """Run a micro-batch of bronze, and the batches of all tables that depend on it."""
        rows = [
            {
                "key": record.key,
                "value": record.value,
                "topic": TOPIC,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp_ms * 1000,
            }
            for record in cut
        ]
        # A file per partition, like a task per partition in Spark's Kafka source.
        for partition in sorted({record.partition for record in cut}):
            own = [row for row in rows if row["partition"] == partition]
            name = f"{len(self.records)}-{partition}.parquet"
            pq.write_table(pa.Table.from_pylist(own, schema=KAFKA), self._folder / name)
        self.records += cut
        result = run_update(self.settings, UpdateOptions(), bus=EventBus())
        assert result.state is UpdateState.COMPLETED, result.failures

    def differences(self) -> list[str]:
        return differences(self.records, read_tables(self.folders))


def log_of(*streams: tuple[OrderStream, int]) -> list[Record]:
    """Messages in three partitions, by key."""
    ends = [0, 0, 0]
    records = []
    for stream, count in streams:
        for index in range(count):
            message = stream.message(index)
            partition = sum(message.key or bytes([index % 256])) % 3
            records.append(
                Record(
                    partition=partition,
                    offset=ends[partition],
                    timestamp_ms=message.timestamp_ms,
                    key=message.key,
                    value=message.value,
                )
            )
            ends[partition] += 1
    return records


def cut_at(records: Sequence[Record], *times_ms: int, lag_ms: Sequence[int]) -> list[list[Record]]:
    """Split the log at these times, for each partition earlier by its lag."""
    cuts: list[list[Record]] = [[] for _ in (*times_ms, None)]
    for record in records:
        shown_at = record.timestamp_ms + lag_ms[record.partition]
        cuts[sum(shown_at >= time_ms for time_ms in times_ms)].append(record)
    return cuts


@pytest.fixture
def kafka(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> FileKafka:
    monkeypatch.chdir(tmp_path)
    return FileKafka(tmp_path)


@pytest.mark.long
def test_no_row_is_too_late_when_the_pipeline_catches_up_after_pauses(
    kafka: FileKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half of all orders are late, by at most the maximum of the generator.
    monkeypatch.setattr(orders, "LATE_SHARE", 0.5)
    first = OrderStream(run_id="a", rate=1.0, start_ms=START_MS)
    second = OrderStream(run_id="b", rate=0.5, start_ms=START_MS + 3 * HOUR_MS)
    third = OrderStream(run_id="c", rate=2.0, start_ms=START_MS + 5 * HOUR_MS)
    log = log_of((first, 600), (second, 3500), (third, 900))
    cuts = cut_at(
        log,
        START_MS + 300_000,
        # Two hours of backlog in one batch, after a pause of three hours without any order.
        START_MS + 5 * HOUR_MS + 100_000,
        START_MS + 5 * HOUR_MS + 101_000,
        # The maximum difference of partitions that the producer allows.
        lag_ms=(0, 5000, 2500),
    )
    assert [len(cut) > 0 for cut in cuts] == [True] * 4
    for cut in cuts:
        kafka.update(cut)
    assert kafka.differences() == []


@pytest.mark.long
def test_oracle_reports_missing_rows_when_partitions_drift_beyond_the_watermark(
    kafka: FileKafka,
) -> None:
    # The negative control: partition 1 is 25 minutes late, but the watermark delay is 10 minutes.
    log = log_of((OrderStream(run_id="a", rate=0.2, start_ms=START_MS), 500))
    for cut in cut_at(log, START_MS + 1_600_000, lag_ms=(0, 1_500_000, 0)):
        kafka.update(cut)
    report = kafka.differences()
    assert any(line.startswith("order ") and "has 0 rows" in line for line in report), report[:5]


def test_rows_equal_the_oracle_for_unusual_values(kafka: FileKafka) -> None:
    whole = OrderStream(run_id="odd", rate=10.0, start_ms=START_MS)
    good = next(m for m in map(whole.message, range(50)) if m.value.startswith(b'{"order_id"'))
    values = [
        b"",
        b"   ",
        b"{}",
        b"{",
        b"\x00",
        b"\xff\xfe",
        good.value[:-1],
        good.value + b"}",
        good.value.replace(b'"event_time":"', b'"event_time":"x'),
        good.value.replace(b'"quantity":', b'"quantity":null,"q":'),
        good.value.replace(b'"amount":', b'"amount":null,"a":'),
        good.value.replace(b'"customer_id":"C', '"customer_id":"Ü'.encode()),
        *(
            b'{"order_id":"t%d","event_time":"%s"}' % (number, text)
            for number, text in enumerate(
                [
                    b"yesterday",
                    b"now",
                    b"2026",
                    b"2026-09-21",
                    b"2026-09-21T14:13:20Z",
                    b"2026-02-30T00:00:00.000Z",
                    b"2026-09-21T24:00:00.000Z",
                    b"9999-12-31T23:59:59.999Z",
                    b"0001-01-01T00:00:00.000Z",
                ]
            )
        ),
    ]
    base = Record(partition=0, offset=0, timestamp_ms=START_MS, key=None, value=b"")
    # Each row has a different order id, so there are no duplicates.
    kafka.update(
        [
            replace(base, offset=at, value=value.replace(b'"odd-', b'"odd-%d-' % at))
            for at, value in enumerate(values)
        ]
    )
    assert kafka.differences() == []
