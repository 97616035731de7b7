"""Jobs from tutorials of Structured Streaming, with a real broker."""

import contextlib
import json
import os
import signal
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pipeline_process import PipelineProcess
from tutorial_blocks import BLOCKS
from tutorial_job import PROGRAM

import penstock
from penstock._local.broker import BrokerHandle, ensure_topic
from penstock._observe.events import UpdateState
from penstock.monitoring import status

pytestmark = [pytest.mark.kafka, pytest.mark.e2e]

FLOWS = {"orders_bronze", "query", "silver.filtered_orders", "events_agg", "clicked"}


def order(number: int, total: float, customer: str | None = "c", minute: int | None = None) -> str:
    at = f"2026-03-01T08:{number % 5 if minute is None else minute:02d}:00Z"
    row = {"order_id": f"o{number}", "customer_id": customer, "total": total, "event_ts": at}
    return json.dumps(row)


def send(broker: BrokerHandle, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def send_pairs(broker: BrokerHandle, *numbers: int) -> None:
    """Send an impression for each number, and a click one minute later."""
    topics = (("impressions", "impression_time", 1), ("clicks", "click_time", 2))
    for topic, column, minute in topics:
        at = f"2026-03-01T08:{minute:02d}:00Z"
        rows = [{"user_id": "u", "ad_id": f"a{number}", column: at} for number in numbers]
        send(broker, f"jobs-{topic}", *map(json.dumps, rows))


def column(table: Path, name: str) -> list[Any]:
    if not (table / "_delta_log" / f"{0:020}.json").exists():
        return []
    return DeltaTable(table).to_pyarrow_table(columns=[name])[name].to_pylist()


def states(root: Path) -> dict[str, str]:
    update = status(root / "job.py")
    assert update is not None
    return {flow["flow"]: flow["state"] for flow in update["flows"]}


def last(folder: Path) -> int:
    """The newest micro-batch in a log of a checkpoint."""
    return max(int(file.name) for file in folder.iterdir() if file.name.isdigit())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_tutorial_job_resumes_after_a_kill_and_stops_after_its_batches(
    kafka_broker: BrokerHandle, tmp_path: Path
) -> None:
    for topic in ("orders", "clicks", "impressions"):
        ensure_topic(kafka_broker.bootstrap_servers, f"jobs-{topic}", 1)
    job = PROGRAM.replace("@servers", kafka_broker.bootstrap_servers)
    (tmp_path / "job.py").write_text(job, encoding="utf-8")
    delta = tmp_path / "delta"
    bronze, clicked = delta / "orders_bronze", delta / "clicked_ads"

    def silver() -> int:
        return len(column(delta / "orders_silver", "order_id"))

    good = [order(number, 99.0 + number) for number in range(8)]
    send(kafka_broker, "jobs-orders", *good, order(8, -1.0), order(9, 1.0, customer=None))
    send_pairs(kafka_broker, 0, 1)
    first = PipelineProcess(tmp_path, "job.py")
    try:
        assert first.wait_until(
            lambda: silver() == 8 and len(column(clicked, "ad_id")) == 2, 200
        ), first.output
        # Four micro-batches; the process is killed after the first.
        more = [order(number, 200.0) for number in range(10, 89)]
        send(kafka_broker, "jobs-orders", order(0, 500.0), *more)
        send_pairs(kafka_broker, 2, 3)
        assert first.wait_until(lambda: len(column(bronze, "order_id")) > 10, 60), first.output
    finally:
        first.kill_group()
    assert len(column(bronze, "order_id")) < 90
    second = PipelineProcess(tmp_path, "job.py")
    try:
        # Closes all windows of the morning.
        send(kafka_broker, "jobs-orders", json.dumps({"event_ts": "2026-03-02T08:00:00Z"}))

        def is_done() -> bool:
            return (
                silver() == 87
                and len(column(clicked, "ad_id")) == 4
                and len(column(bronze, "order_id")) == 91
                and len(column(delta / "events_agg", "events")) == 4
            )

        assert second.wait_until(is_done, 200), second.output
        running = states(tmp_path)
        os.kill(second._process.pid, signal.SIGTERM)
        assert second._process.wait(30) == 130, second.output
    finally:
        second.kill_group()
    assert running == dict.fromkeys(FLOWS, "RUNNING")
    assert states(tmp_path) == dict.fromkeys(FLOWS, "STOPPED")
    for text in ("after awaitTermination", "listener: 1 rows", "| Input:"):
        assert text in second.log.read_text(), second.output
    assert "interrupting" not in second.output
    for offsets in (tmp_path / "checkpoints").rglob("offsets"):
        assert last(offsets) == last(offsets.parent / "commits"), offsets

    # Transactions of Delta and MERGE: each row once.
    offsets = column(bronze, "kafka_offset")
    assert sorted(offsets) == list(range(91))
    orders = dict(
        zip(*(column(delta / "orders_silver", name) for name in ("order_id", "total")), strict=True)
    )
    assert orders == {f"o{n}": 99.0 + n for n in range(1, 8)} | {
        f"o{n}": 200.0 for n in range(10, 89)
    } | {"o0": 500.0}
    assert sorted(column(clicked, "ad_id")) == ["a0", "a1", "a2", "a3"]
    windows = Counter(column(delta / "events_agg", "customer_id"))
    assert windows == {"c": 2, None: 2}
    assert sum(column(delta / "events_agg", "events")) == 2 * 90
    # Appends in foreachBatch: a repeated micro-batch appends its rows again, as in Spark itself.
    assert set(column(delta / "orders_quarantine", "kafka_offset")) == {8, 9, 90}
    batches = dict(
        zip(*(column(delta / "dq_log", name) for name in ("batch_id", "total_rows")), strict=True)
    )
    assert sum(batches.values()) == 91


PRINTED = (
    "parquet 1",
    "csv 2",
    "socket a line",
    "complete Row(customer_id='c', total=230.0)",
    "Processing batch 0 with 3 rows",
    "alerts ['o3']",
    "jdbc [Row(customer_id='c', count=3)]",
    "Input rows       : 3",
    '  End offset: {"jobs-blocks": {"0": 3}}',
    "Batch 0: 3 rows",
    "timeout False",
)
REFUSED = {
    "Trigger": "ImportError",
    "update": "AnalysisException [DELTA_UNSUPPORTED_OUTPUT_MODE]",
    "partitionBy": "AnalysisException Partition column window.start not found",
    "mapGroupsWithState": "AttributeError",
    "schema": "AnalysisException [SCHEMA_NOT_FOUND]",
    "value.user_id": "AnalysisException [INVALID_EXTRACT_BASE_FIELD_TYPE]",
    "countDistinct": "AnalysisException",
    "dropDuplicates": "TypeError",
    "current_timestamp": "PySparkTypeError [CANNOT_INFER_TYPE_FOR_FIELD]",
    "alias": "AnalysisException [UNRESOLVED_COLUMN",
    "triggerExecution": "KeyError",
}


def test_other_code_blocks_of_tutorials(
    kafka_broker: BrokerHandle, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = "jobs-blocks"
    ensure_topic(kafka_broker.bootstrap_servers, topic, 1)
    send(kafka_broker, topic, order(1, 10.0), order(2, 20.0), order(3, 200.0))
    (tmp_path / "landing" / "orders").mkdir(parents=True)
    (tmp_path / "landing" / "events").mkdir()
    pq.write_table(pa.table({"order_id": ["p"]}), tmp_path / "landing" / "orders" / "1.parquet")
    (tmp_path / "landing" / "events" / "1.csv").write_text("order_id,customer_id\nc,1\nd,2\n")
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.chdir(tmp_path):
        threading.Thread(target=lambda: server.accept()[0].send(b"a line\n"), daemon=True).start()
        text = BLOCKS.replace("@servers", kafka_broker.bootstrap_servers)
        text = text.replace("@root", str(tmp_path)).replace("@port", str(server.getsockname()[1]))
        Path("blocks.py").write_text(text, encoding="utf-8")
        result = penstock.run("blocks.py")
    assert result.state is UpdateState.COMPLETED
    assert result.completed == (
        *("available", "once", "parquet", "csv", "lines", "orders_live", "country_totals"),
        *("query", "m"),
    )
    for name in ("available", "once", "events", "m"):
        assert sorted(column(tmp_path / "delta" / name, "order_id")) == ["o1", "o2", "o3"]
    lines = capsys.readouterr().out.splitlines()
    for line in PRINTED:
        assert line in lines
    for block, error in REFUSED.items():
        assert next(line for line in lines if line.startswith(f"refused {block} ")).startswith(
            f"refused {block} {error}"
        )
