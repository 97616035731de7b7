"""A master that is not this process: Spark's `local-cluster`, with executors of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

SOURCE = """\
import os

import penstock as dp
from pyspark.sql import functions as F


@dp.table
@dp.expect_or_drop("positive", "id > 0")
def bronze():
    return spark.readStream.schema("id BIGINT").json("in")


@dp.table(output_mode="update")
def counts():
    return dp.read_stream("bronze").groupBy((F.col("id") % 2).alias("k")).count()


@F.udf(returnType="BIGINT", useArrow=False)
def tenfold(number):
    # Only executors of a cluster have it.
    return number * 10 if "SPARK_EXECUTOR_DIRS" in os.environ else None


@dp.materialized_view
def gold():
    rows = dp.read("bronze").select((F.col("id") % 2).alias("k"), tenfold("id").alias("v"))
    return rows.groupBy("k").agg(F.sum("v").alias("s"))
"""


@pytest.mark.parametrize("serializer", ["JavaSerializer", "KryoSerializer"])
def test_updates_complete_when_the_master_is_local_cluster(tmp_path: Path, serializer: str) -> None:
    (tmp_path / "shop.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "in").mkdir()
    update(tmp_path, serializer, (0, 1, 2, 3))
    update(tmp_path, serializer, (4, 6))
    tables = tmp_path / ".penstock/tables/spark_catalog/default"
    gold = DeltaTable(str(tables / "gold")).to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["s"]) for row in gold) == [(0, 120), (1, 40)]
    counts = DeltaTable(str(tables / "counts")).to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["count"]) for row in counts) == [(0, 3), (1, 2)]


def update(project: Path, serializer: str, ids: tuple[int, ...]) -> None:
    rows = "\n".join(json.dumps({"id": number}) for number in ids)
    (project / "in" / f"{ids[0]}.json").write_text(rows)
    conf = (
        "spark.master=local-cluster[2,1,1024]",
        "spark.executor.memory=512m",
        f"spark.serializer=org.apache.spark.serializer.{serializer}",
    )
    options = [argument for setting in conf for argument in ("--conf", setting)]
    answer = subprocess.run(
        [sys.executable, "-m", "penstock", "run", *options],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "COMPLETED" in answer.stdout
