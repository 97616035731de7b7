"""A job reads a part of a topic, then the pipeline that replaces it reads the rest."""

import json
import os
import shlex
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from adopted_job import run_and_adopt
from confluent_kafka import Producer
from deltalake import DeltaTable
from pipeline_process import PipelineProcess
from stored_rows import stored_rows
from tutorial_job import PROGRAM

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


def rows_of(folder: Path, *columns: str) -> Counter[Any]:
    """The rows of a Delta table, which may not exist yet."""
    if not (folder / "_delta_log" / f"{0:020}.json").exists():
        return Counter()
    rows = DeltaTable(folder).to_pyarrow_table(columns=list(columns)).to_pylist()
    return Counter(
        tuple(str(value) if isinstance(value, dict) else value for value in row.values())
        for row in rows
    )


def sums(folder: Path) -> tuple[int, ...]:
    columns = rows_of(folder, "total_rows", "valid_rows", "invalid_rows").elements()
    return tuple(map(sum, zip(*columns, strict=True)))


TABLES = {
    "orders_bronze": ("kafka_partition", "kafka_offset", "order_id", "customer_id", "total"),
    "orders_silver": ("kafka_offset", "order_id", "customer_id", "total"),
    "orders_quarantine": ("kafka_offset", "order_id", "customer_id", "total"),
    "filtered_orders": ("kafka_offset", "order_id", "total"),
    "events_agg": ("window", "customer_id", "events"),
    "clicked_ads": ("ad_id", "user_id"),
}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_tables_of_an_adopted_job_equal_those_of_an_uninterrupted_pipeline(
    kafka_broker: BrokerHandle,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    servers = kafka_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers})
    for topic in ("orders", "clicks", "impressions"):
        ensure_topic(servers, f"adopted-{topic}", 1)

    def send(numbers: range, minute: int) -> None:
        def put(topic: str, **row: Any) -> None:
            producer.produce(f"adopted-{topic}", json.dumps(row))

        at = f"2026-03-01T08:{minute:02d}:00Z"
        for number in numbers:
            # One of ten orders is invalid; later orders update earlier orders.
            total = -1.0 if number % 10 == 3 else 90.0 + number
            put("orders", order_id=f"o{number % 40}", customer_id="c", total=total, event_ts=at)
            put("impressions", user_id="u", ad_id=f"a{number}", impression_time=at)
            put("clicks", user_id="u", ad_id=f"a{number}", click_time=at)
        assert producer.flush(30) == 0

    monkeypatch.chdir(tmp_path)
    delta = tmp_path / "delta"
    job = PROGRAM.replace("@servers", servers).replace("jobs-", "adopted-")
    Path("job.py").write_text(job, encoding="utf-8")
    send(range(35), 1)
    process = PipelineProcess(tmp_path, "job.py")
    try:
        assert process.wait_until(
            lambda: (
                sums(delta / "dq_log") == (35, 31, 4)
                and rows_of(delta / "orders_bronze", "kafka_offset").total() == 35
                and rows_of(delta / "clicked_ads", "ad_id").total() == 35
            ),
            240,
        ), process.output
        os.kill(process._process.pid, signal.SIGTERM)
        assert process._process.wait(60) == 130, process.output
    finally:
        process.kill_group()
    (filtered,) = {log.parent for log in tmp_path.rglob("filtered_orders/_delta_log")}

    assert main(["adopt", "job.py", "--output", "json"]) == 0
    _, *resets = json.loads(capsys.readouterr().out)["commands"]
    proposal = Path("job_pipeline.py").read_text(encoding="utf-8")
    name = 'name="silver.filtered_orders",'
    assert name in proposal
    with_path = proposal.replace(name, f'{name}\n    path="{filtered}",')
    Path("job_pipeline.py").write_text(with_path, encoding="utf-8")
    # The flows of these tables have state, which is computed from the beginning.
    shutil.rmtree(delta / "events_agg")
    shutil.rmtree(delta / "clicked_ads")
    for reset in resets:
        assert main(shlex.split(reset)[1:]) == 0
    send(range(35, 90), 2)
    # Closes all windows.
    producer.produce("adopted-orders", json.dumps({"event_ts": "2026-03-02T08:00:00Z"}))
    assert producer.flush(30) == 0
    assert penstock.run("job_pipeline.py").state is UpdateState.COMPLETED

    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    text = proposal.replace(name, f'{name}\n    path="delta/filtered_orders",')
    Path("job_pipeline.py").write_text(text, encoding="utf-8")
    assert penstock.run("job_pipeline.py").state is UpdateState.COMPLETED

    for table, columns in TABLES.items():
        folder = filtered if table == "filtered_orders" else delta / table
        rows = rows_of(folder, *columns)
        assert rows == rows_of(other / "delta" / table, *columns), table
        assert rows, table
    assert rows_of(delta / "orders_bronze", "kafka_offset") == Counter((n,) for n in range(91))
    assert sums(delta / "dq_log") == sums(other / "delta/dq_log") == (91, 81, 10)
