"""Pipelines on object stores, and the commands and sessions with which tests run them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from s3_double import BUCKET, CREDENTIALS

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


def write_settings(project: Path, storage: str, configuration: Mapping[str, str]) -> None:
    settings = {
        "name": "shop",
        "storage": storage,
        "libraries": [{"file": {"path": "shop.py"}}],
        "configuration": dict(configuration),
    }
    (project / "pipeline.yaml").write_text(json.dumps(settings), encoding="utf-8")


def penstock(project: Path, *arguments: str, kill_at: str = "") -> str:
    """Standard output of a command that succeeds, or is killed at a kill point."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=project,
        env={**os.environ, **CREDENTIALS, **({"PENSTOCK_KILL_AT": kill_at} if kill_at else {})},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == (-9 if kill_at else 0), done.stdout + done.stderr
    return done.stdout


class StoreSession:
    """The process of `store_session.py`, which executes calls one after the other."""

    def __init__(self, jar_set: str, configuration: Mapping[str, str], storage: str) -> None:
        script = str(Path(__file__).with_name("store_session.py"))
        self._process = subprocess.Popen(
            [sys.executable, script, jar_set, json.dumps(dict(configuration)), storage],
            env={**os.environ, **CREDENTIALS, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, what: str, *arguments: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, *arguments]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def penstock(self, project: Path, *arguments: str) -> str:
        """The output of a command that must succeed; it uses this session."""
        code, output = self("penstock", str(project), *arguments)
        assert code == 0, output
        return output

    def stop(self) -> None:
        self._process.communicate(timeout=60)


def check_tables(tables: Mapping[str, list[dict[str, Any]]], ids: int) -> None:
    """Each row of `SOURCE` is in exactly one table, and the computed tables are correct."""
    good = [number for number in range(ids) if number % 10]
    assert sorted(row["id"] for row in tables["bronze"]) == good
    bad = [row["id"] for row in tables["bronze_quarantine"]]
    assert sorted(bad) == [number for number in range(ids) if number % 10 == 0]
    sums = {row["k"]: row["n"] for row in tables["sums"]}
    assert sums == {k: sum(1 for number in good if number % 3 == k) for k in range(3)}
    newest = {row["k"]: row["id"] for row in tables["newest"]}
    assert newest == {k: max(number for number in good if number % 7 == k) for k in range(7)}
    gold = {row["k"]: row["s"] for row in tables["gold"]}
    assert gold == {k: sum(number for number in good if number % 2 == k) for k in range(2)}
