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


@F.udf(returnType="BIGINT", useArrow=False)
def tenfold(number):
    # Only executors of a cluster have it.
    return number * 10 if "SPARK_EXECUTOR_DIRS" in os.environ else None


@dp.materialized_view
def gold():
    rows = dp.read("bronze").select((F.col("id") % 2).alias("k"), tenfold("id").alias("v"))
    return rows.groupBy("k").agg(F.sum("v").alias("s"))
"""


def test_update_completes_when_the_master_is_local_cluster(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "in").mkdir()
    rows = "\n".join(json.dumps({"id": number}) for number in (0, 1, 2, 3))
    (tmp_path / "in" / "a.json").write_text(rows)
    conf = ("spark.master=local-cluster[2,1,1024]", "spark.executor.memory=512m")
    options = [argument for setting in conf for argument in ("--conf", setting)]
    answer = subprocess.run(
        [sys.executable, "-m", "penstock", "run", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "COMPLETED" in answer.stdout
    tables = tmp_path / ".penstock/tables/spark_catalog/default"
    gold = DeltaTable(str(tables / "gold")).to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["s"]) for row in gold) == [(0, 20), (1, 40)]
