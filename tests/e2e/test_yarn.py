"""A pipeline on YARN with dynamic allocation; executor and driver are killed."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable
from pipeline_process import PipelineProcess
from yarn_cluster import YarnCluster

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(900)]

SOURCE = """
import penstock as dp
from pyspark.sql import functions as F
import rates

@dp.table
@dp.expect_or_drop("positive", "id % 10 > 0")
def bronze():
    rows = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).json("in")
    return rows.withColumn("double", F.udf(rates.double, "bigint")("id"))

@dp.table(output_mode="update", spark_conf={"penstock.growingState": "allow"})
def totals():
    return dp.read_stream("bronze").groupBy((F.col("id") % 7).alias("k")).count()
"""
SETTINGS = """
name: shop
master: yarn
quarantine: true
libraries: [{file: {path: shop.py}}]
configuration:
  spark.executor.instances: "2"
  spark.executor.memory: 600m
  spark.yarn.am.memory: 512m
  spark.yarn.jars: local:PYSPARK/jars/*
  spark.dynamicAllocation.executorIdleTimeout: 15s
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[YarnCluster]:
    cluster = YarnCluster(tmp_path / "yarn")
    yield cluster
    cluster.stop()


def test_no_row_is_lost_when_executor_and_driver_are_killed(
    cluster: YarnCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.configuration))
    (tmp_path / "in").mkdir()
    (tmp_path / "shop.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "rates.py").write_text("def double(x):\n    return 2 * x\n", encoding="utf-8")
    settings = SETTINGS.replace("PYSPARK", str(Path(pyspark.__file__).parent))
    (tmp_path / "penstock.yaml").write_text(settings, encoding="utf-8")
    bronze = tmp_path / ".penstock/tables/spark_catalog/default/bronze"

    def add(number: int) -> None:
        rows = [json.dumps({"id": 100 * number + n}) for n in range(100)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(rows), encoding="utf-8")

    def commits() -> int:
        return len(list((bronze / "_delta_log").glob("0*.json")))

    add(0)
    run = PipelineProcess(tmp_path, "--continuous")
    try:
        assert run.wait_until(lambda: commits() >= 2, 240), run.output
        before = cluster.executors()
        assert len(before) == 2
        add(1)
        os.kill(before[0], signal.SIGKILL)
        add(2)
        assert run.wait_until(lambda: commits() >= 4, 240), run.output
        assert run.wait_until(lambda: len(cluster.executors()) == 2, 60), run.output
        add(3)
    finally:
        run.kill_group()
    add(4)
    run = PipelineProcess(tmp_path, "--conf", "spark.dynamicAllocation.enabled=true")
    try:
        assert run.wait(600) == 0, run.output
    finally:
        run.kill_group()
    deadline, pause = time.monotonic() + 60, threading.Event()
    while cluster.executors() and time.monotonic() < deadline:
        pause.wait(0.2)
    assert cluster.executors() == []
    changes = [
        json.loads(line)["details"]["cluster_resources"]
        for file in sorted(tmp_path.glob(".penstock/events/**/*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if '"cluster_resources"' in line
    ]
    assert [len(change["lost"]) for change in changes if change["lost"]] == [1]
    rows = DeltaTable(str(bronze)).to_pyarrow_table().to_pydict()
    assert sorted(rows["id"]) == [n for n in range(500) if n % 10]
    assert all(double == 2 * n for n, double in zip(rows["id"], rows["double"], strict=True))
    bad = DeltaTable(f"{bronze}_quarantine").to_pyarrow_table().to_pydict()
    assert sorted(bad["id"]) == list(range(0, 500, 10))
    totals = DeltaTable(str(bronze.parent / "totals")).to_pyarrow_table().to_pydict()
    expected = Counter(n % 7 for n in range(500) if n % 10)
    assert dict(zip(totals["k"], totals["count"], strict=True)) == expected
