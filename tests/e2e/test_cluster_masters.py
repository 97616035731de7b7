"""Masters whose executors are other processes: `local-cluster` and a standalone cluster.

With `local-cluster` spark-submit starts the JVM; on the cluster Penstock starts it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock._local.cluster import start_cluster, stop_cluster

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


IN_ANALYSIS = """
import penstock as dp


@dp.materialized_view
def gold():
    return spark.range(spark.range(9).repartition(2).count())
"""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cluster")
    try:
        yield start_cluster(folder, workers=2, cores=1, memory="1g").master
    finally:
        stop_cluster(folder)


@pytest.mark.parametrize("serializer", ["JavaSerializer", "KryoSerializer"])
def test_updates_complete_when_the_master_is_local_cluster(tmp_path: Path, serializer: str) -> None:
    check_two_updates(tmp_path, "local-cluster[2,1,1024]", serializer)


@pytest.mark.parametrize("serializer", ["JavaSerializer", "KryoSerializer"])
def test_updates_complete_on_a_standalone_cluster(
    tmp_path: Path, standalone: str, serializer: str
) -> None:
    check_two_updates(tmp_path, standalone, serializer)


@pytest.mark.parametrize("source", [SOURCE, IN_ANALYSIS], ids=["no job", "job in the analysis"])
def test_update_without_executors_fails(tmp_path: Path, standalone: str, source: str) -> None:
    (tmp_path / "shop.py").write_text(source, encoding="utf-8")
    (tmp_path / "in").mkdir()
    answer = run(
        tmp_path,
        f"spark.master={standalone}",
        "spark.executor.memory=60g",
        "spark.scheduler.maxRegisteredResourcesWaitingTime=4s",
    )
    assert answer.returncode == 3, answer.stdout + answer.stderr
    assert f"[NO_EXECUTORS] no executor of {standalone} registered within 4 s" in answer.stderr


def check_two_updates(project: Path, master: str, serializer: str) -> None:
    (project / "shop.py").write_text(SOURCE, encoding="utf-8")
    (project / "in").mkdir()
    conf = (
        f"spark.master={master}",
        "spark.executor.memory=512m",
        f"spark.serializer=org.apache.spark.serializer.{serializer}",
    )
    for ids in ((0, 1, 2, 3), (4, 6)):
        rows = "\n".join(json.dumps({"id": number}) for number in ids)
        (project / "in" / f"{ids[0]}.json").write_text(rows)
        answer = run(project, *conf)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert "COMPLETED" in answer.stdout
    tables = project / ".penstock/tables/spark_catalog/default"
    gold = DeltaTable(str(tables / "gold")).to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["s"]) for row in gold) == [(0, 120), (1, 40)]
    counts = DeltaTable(str(tables / "counts")).to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["count"]) for row in counts) == [(0, 3), (1, 2)]


def run(project: Path, *conf: str) -> "subprocess.CompletedProcess[str]":
    options = [argument for setting in conf for argument in ("--conf", setting)]
    return subprocess.run(
        [sys.executable, "-m", "penstock", "run", *options],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
