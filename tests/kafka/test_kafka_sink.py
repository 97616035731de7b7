"""The Kafka sink against a real broker: message ids, replays, the outbox, refused sinks."""

import importlib.util
import json
import shutil
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from made_events import details
from update_project import Project

from penstock._local.broker import BrokerHandle, ensure_topic
from penstock._observe.bus import EventBus
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._update import UpdateOptions, run_update
from penstock.errors import DefinitionErrors

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "kafka-outbox"


@pytest.fixture
def topic(kafka_broker: BrokerHandle) -> str:
    name = f"sink-{uuid.uuid4().hex[:8]}"
    ensure_topic(kafka_broker.bootstrap_servers, name, 2)
    return name


def in_topic(spark: Any, broker: BrokerHandle, topic: str) -> list[tuple[Any, ...]]:
    reader = spark.read.format("kafka").option("includeHeaders", "true").option("subscribe", topic)
    df = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers).load()
    return [
        (row.key, bytes(row.value), {header.key: bytes(header.value) for header in row.headers})
        for row in df.collect()
    ]


def forget_last_commit(root: Path, flow: str) -> None:
    (epoch,) = (root / ".penstock" / "checkpoints" / flow).iterdir()
    commits = [file for file in (epoch / "commits").iterdir() if file.name.isdigit()]
    newest = max(commits, key=lambda file: int(file.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


SINK = """
@dp.append_flow(target="messages")
def send():
    return rows().select(
        F.col("id").cast("string").alias("key"),
        F.when(F.col("amount").isNotNull(), F.to_json(F.struct("amount"))).alias("value"),
        F.when(F.col("id") > 1, F.expr("array(struct('kind' AS key, X'01' AS value))")).alias(
            "headers"
        ),
    )

dp.create_sink("messages", "kafka", {{
    "kafka.bootstrap.servers": "{servers}", "topic": "{topic}"
}})
"""


def test_a_message_that_is_sent_again_has_the_same_id(
    tmp_path: Path, spark, kafka_broker: BrokerHandle, topic: str, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark)
    project.source(SINK.format(servers=kafka_broker.bootstrap_servers, topic=topic))
    project.add("a.json", [{"id": 1, "amount": 5}, {"id": 2, "amount": 6}, {"id": 2, "amount": 7}])
    assert project.run().state is UpdateState.COMPLETED
    first = in_topic(spark, kafka_broker, topic)
    assert sorted(headers.get("kind", b"") for _, _, headers in first) == [b"", b"\1", b"\1"]
    progress = [details(e) for e in project.events if e.event_type == "flow_progress"]
    written = [(entry.get("metrics") or {}).get("num_output_rows", 0) for entry in progress]
    assert sum(written) == 3
    forget_last_commit(tmp_path, "send")
    assert project.run().state is UpdateState.COMPLETED
    again = in_topic(spark, kafka_broker, topic)
    ids = Counter(headers["penstock-id"] for _, _, headers in again)
    assert (len(first), len(again)) == (3, 6)
    assert sorted(ids.values()) == [2, 2, 2]
    by_id = {headers["penstock-id"]: (key, value) for key, value, headers in again}
    assert sorted(by_id.values()) == sorted((key, value) for key, value, _ in first)


def test_the_outbox_example_sends_each_message_once_when_its_batches_are_repeated(
    tmp_path: Path, spark, kafka_broker: BrokerHandle, topic: str, monkeypatch
):
    root = tmp_path / "example"
    shutil.copytree(EXAMPLE, root)
    monkeypatch.chdir(root)
    servers = kafka_broker.bootstrap_servers
    settings = load_settings(root, configuration={"kafka.servers": servers, "kafka.topic": topic})

    def run() -> None:
        result = run_update(settings, UpdateOptions(), bus=EventBus())
        assert result.state is UpdateState.COMPLETED, result.failures

    run()
    for flow in ("outbox", "relay"):
        forget_last_commit(root, flow)
    (root / "data" / "2026-01-06.json").write_text('{"id": 9, "amount": 1}\n')
    run()
    table = root / ".penstock" / "tables" / "spark_catalog" / "default" / "outbox"
    rows = spark.read.format("delta").load(str(table)).collect()
    assert sorted(row.key for row in rows) == ["1", "1", "2", "9"]
    bad = spark.read.format("delta").load(f"{table}_quarantine").collect()
    assert [row._failed_rules for row in bad] == [["has_id"]]
    sent = in_topic(spark, kafka_broker, topic)
    assert len(sent) == 7
    known = {(row.row_id.encode(), row.value.encode()) for row in rows}
    assert {(headers["penstock-id"], value) for _, value, headers in sent} == known

    spec = importlib.util.spec_from_file_location("outbox_consumer", root / "consumer.py")
    assert spec is not None and spec.loader is not None
    consumer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(consumer)
    got = list(consumer.messages(servers, topic, set(), idle_seconds=5.0))
    assert sorted(json.loads(value)["id"] for value in got) == [1, 1, 2, 9]


def test_sinks_that_cannot_work_are_refused_before_anything_starts(
    tmp_path: Path, spark, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark)
    project.source(
        """
dp.create_sink("no_topic", "kafka", {"kafka.bootstrap.servers": "h:1"})
dp.create_sink("same", "kafka", {"kafka.bootstrap.servers": "h:1,i:1", "topic": "orders"})
dp.create_sink("typo", "kafka", {
    "kafka.bootstrap.servers": "h:1", "topic": "t", "kafka.compresion.type": "zstd"
})
dp.create_sink("files", "parquet", {"path": "out"})
dp.create_sink("nowhere", "json")
dp.create_sink("merged", "delta", {"path": "out2"})
dp.create_sink("rows_of", "jdbc", {"url": "jdbc:postgresql://h/d", "dbtable": "t"})

@dp.append_flow(target="no_topic")
def typed():
    return rows().select(F.col("id").alias("key"), F.struct("*").alias("value"))

def stream(**options):
    kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "i:1")
    return kafka.options(**options).load()

dp.append_flow(target="same", name="topic")(lambda: stream(subscribe="a, orders"))
dp.append_flow(target="same", name="pattern")(lambda: stream(subscribePattern="ord.*"))
dp.append_flow(target="same", name="filtered")(lambda: stream(subscribe="orders").where("false"))
dp.append_flow(target="same", name="partition")(lambda: stream(assign='{"orders": [0]}'))
dp.append_flow(target="typo", name="misspelt")(lambda: stream(subscribe="orders"))

@dp.append_flow(target="nowhere")
def plain():
    return rows()

def counted():
    return rows().groupBy("id").count()

dp.append_flow(target="files")(counted)
dp.update_flow(target="merged", name="changed")(counted)
dp.append_flow(target="rows_of", name="repeated")(counted)
"""
    ).add("a.json", [{"id": 1}])
    with pytest.raises(DefinitionErrors) as caught:
        project.run()
    text = str(caught.value)
    assert text.count("location kafka://h:1,i:1/orders is read by its own flow") == 2
    for said in (
        "did you mean `kafka.compression.type`",
        "column `key` is bigint, not string or binary",
        "neither option `topic` nor a column `topic`",
        "A parquet sink takes rows in append mode only",
        "a file sink needs option `path`",
        '@dp.table(output_mode="update") merges by the grouping columns',
        "mode `append` would add the whole result with every batch",
    ):
        assert said in text
    assert not (tmp_path / "out").exists()
