"""Pipelines whose tables, checkpoints and state are on S3."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_double import BUCKET, CREDENTIALS, FaultyProxy, S3Double, settings_of

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]

SOURCE = """
import penstock as dp
from pyspark.sql import functions as F


@dp.table
@dp.expect_or_drop("positive", "id % 10 > 0")
def bronze():
    return spark.readStream.schema("id BIGINT").json("{folder}")


@dp.table
def sums():
    rows = spark.readStream.table("bronze").withColumn("k", F.col("id") % 3)
    return rows.groupBy("k").agg(F.count("*").alias("n"))


dp.create_streaming_table("newest")
dp.create_auto_cdc_flow(
    target="newest", source="changes", keys=["k"], sequence_by=F.col("id"), stored_as_scd_type=1
)


@dp.temporary_view
def changes():
    return spark.readStream.table("bronze").withColumn("k", F.col("id") % 7)


@dp.materialized_view
def gold():
    return dp.read("bronze").groupBy((F.col("id") % 2).alias("k")).agg(F.sum("id").alias("s"))
"""


STORAGE = f"s3a://{BUCKET}/shop"


def write_settings(project: Path, port: int, *, storage: str = STORAGE) -> None:
    settings = {
        "name": "shop",
        "storage": storage,
        "libraries": [{"file": {"path": "shop.py"}}],
        "configuration": settings_of(port),
    }
    (project / "pipeline.yaml").write_text(json.dumps(settings), encoding="utf-8")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Double]:
    double = S3Double(tmp_path_factory.mktemp("s3") / "moto.log")
    yield double
    double.stop()


def penstock(project: Path, *arguments: str) -> str:
    """Standard output of a command that succeeds."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=project,
        env={**os.environ, **CREDENTIALS},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def session(port: int, what: str, argument: str) -> dict[str, Any]:
    """What `s3_session.py` prints."""
    script = str(Path(__file__).with_name("s3_session.py"))
    done = subprocess.run(
        [sys.executable, script, str(port), what, argument],
        env={**os.environ, **CREDENTIALS, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_each_row_is_in_one_place_when_requests_fail_and_answers_are_lost(
    server: S3Double, tmp_path: Path
) -> None:
    uploads = itertools.count(1)

    def fault(number: int, method: str, path: str) -> str:
        if method == "PUT" and next(uploads) % 10 == 0:
            return "lost"
        return "" if number % 50 else "busy"

    proxy = FaultyProxy(server.port, fault)
    incoming = tmp_path / "in"
    incoming.mkdir()
    (tmp_path / "shop.py").write_text(SOURCE.format(folder=incoming), encoding="utf-8")
    write_settings(tmp_path, proxy.port)
    try:
        for update in range(2):
            lines = [json.dumps({"id": 1000 * update + number}) for number in range(1000)]
            (incoming / f"{update}.json").write_text("\n".join(lines), encoding="utf-8")
            assert "COMPLETED" in penstock(tmp_path, "run")
    finally:
        proxy.stop()
    assert proxy.counts["busy"] > 5
    assert proxy.counts["lost"] > 5
    tables = session(server.port, "read", STORAGE)
    good = [number for number in range(2000) if number % 10]
    assert sorted(row["id"] for row in tables["bronze"]) == good
    bad = [row["id"] for row in tables["bronze_quarantine"]]
    assert sorted(bad) == [number for number in range(2000) if number % 10 == 0]
    sums = {row["k"]: row["n"] for row in tables["sums"]}
    assert sums == {k: sum(1 for number in good if number % 3 == k) for k in range(3)}
    newest = {row["k"]: row["id"] for row in tables["newest"]}
    assert newest == {k: max(number for number in good if number % 7 == k) for k in range(7)}
    gold = {row["k"]: row["s"] for row in tables["gold"]}
    assert gold == {k: sum(number for number in good if number % 2 == k) for k in range(2)}


def test_a_version_has_one_writer_also_when_the_answer_to_its_commit_is_lost(
    server: S3Double,
) -> None:
    lost: set[str] = set()

    def fault(number: int, method: str, path: str) -> str:
        if method == "PUT" and path.endswith("5.json") and path not in lost:
            lost.add(path)
            return "lost"
        return ""

    proxy = FaultyProxy(server.port, fault)
    try:
        result = session(proxy.port, "race", "penstock.storage.ObjectLogStore")
    finally:
        proxy.stop()
    a, b, contents = result["won"]["a"], result["won"]["b"], result["contents"]
    assert sorted(a + b) == list(range(len(contents)))
    assert [version for version, writer in enumerate(contents) if writer == "a"] == a
    assert len(lost) == 4


@pytest.mark.long  # each of them starts Spark
def test_commands_read_and_repair_what_is_on_s3(server: S3Double, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"id": number}) for number in range(100)]
    (tmp_path / "in" / "0.json").write_text("\n".join(lines), encoding="utf-8")
    source = SOURCE.format(folder=tmp_path / "in")
    (tmp_path / "shop.py").write_text(source, encoding="utf-8")
    write_settings(tmp_path, server.port, storage=f"{STORAGE}-commands")
    assert "COMPLETED" in penstock(tmp_path, "run")
    rows = json.loads(penstock(tmp_path, "preview", "bronze", "-n", "500", "--output", "json"))
    assert len(rows) == 90
    listed = json.loads(penstock(tmp_path, "quarantine", "list", "--output", "json"))
    assert listed == [{"table": "bronze", "rows": 10, "by_rule": {"positive": 10}}]
    assert "positive" in penstock(tmp_path, "quarantine", "show", "bronze")
    assert "bronze" in penstock(tmp_path, "checkpoint", "list")
    (tmp_path / "shop.py").write_text(source.replace("id % 10 > 0", "id % 10 >= 0"), "utf-8")
    penstock(tmp_path, "quarantine", "replay", "bronze")
    assert "COMPLETED" in penstock(tmp_path, "run", "--full-refresh", "gold")
    gold = json.loads(penstock(tmp_path, "preview", "gold", "--output", "json"))
    assert sum(int(row["s"]) for row in gold) == sum(range(100))
