"""Flows that read Kafka again: from other offsets, or a range of offsets."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock._local.broker import BrokerHandle, ensure_topic
from penstock._observe.bus import EventBus
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._repair.backfill import BackfillOptions, BackfillReport, backfill_flow
from penstock._repair.migrate import MigrationOptions, migrate_flow
from penstock._repair.reset import reset_flow
from penstock._update import UpdateOptions, run_update
from penstock.errors import PenstockError
from penstock.sources.base import parse_start

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

TOPIC = "read-again"
SOURCE = """
import penstock as dp


@dp.table
def bronze():
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "{servers}")
    # Where the flow begins by itself must not matter.
    rows = stream.option("subscribe", "{topic}").option("startingTimestamp", "1").load()
    return rows.selectExpr("partition", "offset", "CAST(value AS STRING) AS value")
"""


def produce(broker: BrokerHandle, first: int, end: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all"})
    for number in range(first, end):
        stamp = 1_000_000 + number * 1000
        producer.produce(TOPIC, f"v{number}", partition=partition, timestamp=stamp)
    assert producer.flush(30) == 0


def test_flow_is_reset_to_offsets_and_a_range_is_read_again(
    kafka_broker: BrokerHandle, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    servers = kafka_broker.bootstrap_servers
    (tmp_path / "pipeline.py").write_text(SOURCE.format(servers=servers, topic=TOPIC))
    settings = load_settings(tmp_path)
    ensure_topic(servers, TOPIC, 2)
    produce(kafka_broker, 0, 10)
    produce(kafka_broker, 0, 3, partition=1)

    def run() -> None:
        assert run_update(settings, UpdateOptions(), bus=EventBus()).state is UpdateState.COMPLETED

    def rows(partition: int = 0) -> list[int]:
        stored = spark.read.format("delta").load(str(table)).where(f"partition = {partition}")
        return sorted(row.offset for row in stored.collect())

    def backfill(**more: Any) -> BackfillReport:
        options = BackfillOptions(by=("partition", "offset"), execute=True, **more)
        return backfill_flow(settings, "bronze", options)

    table = next(iter([tmp_path / ".penstock/tables/spark_catalog/default/bronze"]))
    run()
    assert (rows(), rows(1)) == (list(range(10)), [0, 1, 2])

    # A range by timestamps: only the missing rows of the range are added.
    spark.sql(f"DELETE FROM delta.`{table}` WHERE offset % 2 = 0")
    produce(kafka_broker, 10, 14)
    report = backfill(
        begin=parse_start("1970-01-01T00:16:43Z"), end=parse_start("1970-01-01T00:16:47Z")
    )
    assert [(source.count, source.text) for source in report.sources] == [(4, f"{TOPIC}-0 3 to 6")]
    assert (report.counts["read"], report.counts["known"], report.counts["added"]) == (4, 2, 2)
    assert (rows(), rows(1)) == ([1, 3, 4, 5, 6, 7, 9], [1])
    # A range by offsets; it may not include rows that the flow has not read yet.
    backfill(begin=parse_start(f'{{"{TOPIC}": {{"0": 8, "1": 3}}}}'))
    assert (rows(), rows(1)) == ([1, 3, 4, 5, 6, 7, 8, 9], [1])
    with pytest.raises(PenstockError) as error:
        backfill(end=parse_start("1970-01-01T00:16:52Z"))
    assert error.value.condition == "BACKFILL_NOT_READ_YET"
    run()
    assert rows()[-5:] == [9, 10, 11, 12, 13]

    # A new checkpoint that starts at a timestamp.
    place = parse_start("1970-01-01T00:16:52Z")
    plan = reset_flow(settings, "bronze", place)
    assert (plan.sources[0].again, plan.sources[0].skipped) == (2, 0)
    assert "2 offsets would be duplicated" in (plan.refused or "")
    reset_flow(settings, "bronze", place, accept_duplicates=True, execute=True)
    produce(kafka_broker, 14, 15)
    run()
    assert rows()[-6:] == [11, 12, 12, 13, 13, 14]
    reset_flow(settings, "bronze", parse_start("latest"), execute=True)
    run()
    assert rows()[-2:] == [13, 14]

    # A recomputed table would lack the records that retention has removed, no matter which
    # checkpoint of the flow had read them.
    admin = AdminClient({"bootstrap.servers": servers})
    (gone,) = admin.delete_records([TopicPartition(TOPIC, 0, 4)]).values()
    gone.result(30)
    with pytest.raises(PenstockError) as error:
        migrate_flow(settings, "bronze", MigrationOptions(execute=True))
    assert error.value.condition == "MIGRATION_WOULD_LOSE_HISTORY"
    assert f"{TOPIC}-0 0 to 3 are not read" in error.value.message
    accepted = MigrationOptions(execute=True, accept_less=True)
    assert migrate_flow(settings, "bronze", accepted).state == "done"
    assert (rows(), rows(1)) == (list(range(4, 15)), [0, 1, 2])
    produce(kafka_broker, 15, 16)
    run()
    assert rows() == list(range(4, 16))
