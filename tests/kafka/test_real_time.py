"""Real-time mode from Kafka to Kafka: rows are written before the batch ends; their latency."""

import json
import runpy
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from example_project import EXAMPLES
from update_project import ContinuousRun, Project

from penstock._local.broker import BrokerHandle, ensure_topic

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

FOLDER = EXAMPLES / "real_time"
PAYMENTS = 200
# Shorter than the minimum duration of a batch in this mode.
SLOWEST_MEDIAN_MS = 5000

NOT_ALLOWED = """

dp.create_sink("nowhere", "kafka", {"kafka.bootstrap.servers": SERVERS, "topic": "verdicts"})


@dp.update_flow(target="nowhere", spark_conf={"pipelines.trigger": "realTime=5 minutes"})
def with_python():
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    shout = F.udf(lambda text: text.upper(), "string")
    rows = reader.option("subscribe", "instant-payments").load()
    return rows.select(shout(F.col("value").cast("string")).alias("value"))
"""


class Sent:
    """The messages that a topic has received so far."""

    def __init__(self, broker: BrokerHandle, topic: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": f"reader-{topic}"}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.messages: list[Any] = []

    def wait_for(self, count: int, still_fine: Callable[[], None], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while len(self.messages) < count:
            still_fine()
            assert time.monotonic() < deadline, f"{len(self.messages)} of {count} in time"
            message = self._consumer.poll(0.5)
            if message is not None:
                assert message.error() is None
                self.messages.append(message)

    def close(self) -> None:
        self._consumer.close()


def test_payments_are_forwarded_before_the_batch_ends(
    kafka_broker: BrokerHandle, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
):
    servers = kafka_broker.bootstrap_servers
    for topic in ("instant-payments", "verdicts", "instant-payments-refused"):
        ensure_topic(servers, topic, 1)
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark)
    for file in FOLDER.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    settings = tmp_path / "penstock.yaml"
    settings.write_text(settings.read_text().replace("localhost:9092", servers))
    with (tmp_path / "pipeline.py").open("a") as source:
        source.write(NOT_ALLOWED)

    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
    sent, refused = Sent(kafka_broker, "verdicts"), Sent(kafka_broker, "instant-payments-refused")
    producer.produce("instant-payments", json.dumps({"id": 0, "amount": 1.0}))
    assert producer.flush(30) == 0
    run = ContinuousRun(project)

    def still_runs() -> None:
        if run.error is not None:
            raise run.error

    try:
        sent.wait_for(1, still_runs)
        # The query runs; the next messages measure the latency.
        pause = threading.Event()
        for number in range(1, PAYMENTS):
            producer.produce(
                "instant-payments", json.dumps({"id": number, "amount": number * 10.0})
            )
            producer.poll(0)
            pause.wait(0.01)
        for bad in ("no json", '{"id": 7}'):
            producer.produce("instant-payments", bad)
        assert producer.flush(30) == 0
        sent.wait_for(PAYMENTS, still_runs)
        refused.wait_for(2, still_runs)
        # The messages were forwarded although no batch has finished: a batch takes five minutes.
        assert not list(project.commits_folder("judge").glob("[0-9]*"))
    finally:
        result = run.stop()
        sent.close()
        refused.close()

    verdicts = [json.loads(message.value()) for message in sent.messages]
    assert [verdict["id"] for verdict in verdicts] == list(range(PAYMENTS))
    assert {verdict["verdict"] for verdict in verdicts if verdict["amount"] > 1000} == {
        "look at it"
    }
    assert [message.value() for message in refused.messages] == [b"no json", b'{"id": 7}']
    # An operation that Spark does not support fails only its own flow, with an error that names it.
    (failure,) = result.failures
    assert failure.condition == "REAL_TIME_NOT_SUPPORTED"
    assert "with_python" in failure.message
    assert "Python" in failure.message or "ArrowEval" in failure.message

    latency = runpy.run_path(str(FOLDER / "latency.py"))
    milliseconds = list(latency["latencies"](servers, "verdicts"))[1:]
    print(latency["summary"](milliseconds))
    assert len(milliseconds) == PAYMENTS - 1
    assert sorted(milliseconds)[len(milliseconds) // 2] < SLOWEST_MEDIAN_MS
