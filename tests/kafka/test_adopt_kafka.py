"""A job over a part of a topic, then its declared equivalent over the rest."""

from pathlib import Path
from typing import Any

import pytest
from adopted_job import run_and_adopt
from confluent_kafka import Producer
from stored_rows import stored_rows

import penstock
from penstock._cli.main import main
from penstock._local.broker import BrokerHandle, ensure_topic
from penstock._observe.events import UpdateState

pytestmark = pytest.mark.kafka

JOB = """
rows = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", "@servers")
    .option("subscribe", "adopted")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("CAST(value AS STRING) AS value")
)
query = (
    rows.writeStream.format("delta")
    .option("checkpointLocation", "@root/checkpoint")
    .trigger(availableNow=True)
    .start("@root/values")
)
query.awaitTermination()
"""


def test_a_flow_continues_at_the_offsets_of_a_job(
    kafka_broker: BrokerHandle,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    servers = kafka_broker.bootstrap_servers
    ensure_topic(servers, "adopted", 2)

    def send(*numbers: int) -> None:
        producer = Producer({"bootstrap.servers": servers})
        for number in numbers:
            producer.produce("adopted", str(number), partition=number % 2)
        assert producer.flush(30) == 0

    send(*range(5))
    job = JOB.replace("@servers", servers).replace("@root", str(tmp_path))
    (reset,) = run_and_adopt(job, spark, capsys)
    assert main(reset) == 0
    send(*range(5, 9))
    assert penstock.run("job_pipeline.py").state is UpdateState.COMPLETED
    values = [row[0] for row in stored_rows(spark, Path("values"), "value")]
    assert values == [str(number) for number in range(9)]
