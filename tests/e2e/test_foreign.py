"""Projects of other engines, run unchanged from their folders."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from command_line import penstock
from deltalake import DeltaTable

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(600)]

SECONDS = 300.0

BUNDLE = {
    "databricks.yml": """\
bundle:
  name: retail
include: [resources/*.yml]
variables:
  catalog: {default: main}
targets:
  dev: {default: true, mode: development}
""",
    "resources/retail.pipeline.yml": """\
resources:
  pipelines:
    retail:
      name: retail_${bundle.target}
      catalog: ${var.catalog}
      target: retail
      serverless: true
      configuration:
        retail.source: /Volumes/main/retail/landing
      libraries:
        - notebook: {path: ../src/notebooks/bronze.py}
        - file: {path: ../src/silver.sql}
        - notebook: {path: ../src/notebooks/gold}
""",
    "src/notebooks/bronze.py": """\
# Databricks notebook source
# MAGIC %md
# MAGIC # Bronze

# COMMAND ----------
import dlt
from pyspark.sql.functions import *

source = spark.conf.get("retail.source")
token = dbutils.secrets.get(scope="crm", key="token")

# COMMAND ----------
@dlt.table(name="orders_raw", table_properties={"quality": "bronze"})
def orders_raw():
    return (
        spark.readStream.format("cloudFiles")
        .option("cloudFiles.format", "json")
        .option("cloudFiles.inferColumnTypes", "true")
        .load(f"{source}/orders")
        .withColumn("file", col("_metadata.file_name"))
    )

@dlt.view
def customer_changes():
    return spark.readStream.table("main.crm.customer_feed")

dlt.create_streaming_table("customers")
dlt.apply_changes(
    target="customers", source="customer_changes", keys=["id"], sequence_by=col("ts"),
    ignore_null_updates=None, apply_as_deletes=expr("op = 'D'"), apply_as_truncates=None,
    column_list=None, except_column_list=["op", "ts"], stored_as_scd_type=2)

# COMMAND ----------
display(spark.range(1))
""",
    "src/silver.sql": """\
CREATE OR REFRESH STREAMING LIVE TABLE orders (
  CONSTRAINT valid_id EXPECT (order_id IS NOT NULL) ON VIOLATION DROP ROW
)
COMMENT "cleaned orders" TBLPROPERTIES ("quality" = "silver")
AS SELECT order_id, customer_id, CAST(amount AS DOUBLE) AS amount FROM STREAM(LIVE.orders_raw);

CREATE OR REFRESH LIVE TABLE revenue AS
SELECT c.name, sum(o.amount) AS revenue
FROM LIVE.orders o JOIN main.retail.customers c ON o.customer_id = c.id AND c.__END_AT IS NULL
GROUP BY ALL
""",
    "src/notebooks/gold.sql": """\
-- Databricks notebook source
-- MAGIC %md gold

-- COMMAND ----------
CREATE MATERIALIZED VIEW best AS
SELECT name, revenue FROM revenue QUALIFY row_number() OVER (ORDER BY revenue DESC) = 1

-- COMMAND ----------
CREATE OR REFRESH STREAMING TABLE events AS
SELECT * FROM STREAM read_files("/Volumes/main/retail/events", format => "csv", header => true)
""",
}
OVERLAY = """\
paths:
  /Volumes/main/retail: data
tables:
  main.crm.customer_feed: data/feed
"""
SDP = {
    "spark-pipeline.yml": """\
name: shop
storage: file://{root}/storage
libraries:
  - glob:
      include: transformations/**
""",
    "transformations/bronze.py": """\
from pyspark import pipelines as dp
from pyspark.sql.functions import col


@dp.table
def bronze():
    return spark.readStream.schema("id BIGINT, amount DOUBLE, city STRING").json("{root}/in")


@dp.temporary_view
def paid():
    return spark.readStream.table("bronze").where(col("amount") > 0)
""",
    "transformations/gold.sql": """\
CREATE STREAMING TABLE silver AS SELECT id, amount, upper(city) AS city FROM STREAM paid;
CREATE MATERIALIZED VIEW gold AS SELECT city, sum(amount) AS revenue FROM silver GROUP BY city;
CREATE STREAMING TABLE ids;
CREATE FLOW from_bronze AS INSERT INTO ids BY NAME SELECT id FROM STREAM(bronze);
""",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{root}", str(folder)), encoding="utf-8")


def lines(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    write(folder, {name: "\n".join(json.dumps(row) for row in rows)})


def spark_pipelines(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run Spark's own command in a process."""
    scripts = Path(sys.executable).parent
    done = subprocess.run(
        [str(scripts / "spark-pipelines"), *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PATH": f"{scripts}:{os.environ['PATH']}",
        },
        check=False,
    )
    return done.returncode, done.stdout


def rows(folder: Path, *names: str) -> list[tuple[Any, ...]]:
    table = DeltaTable(folder.joinpath("tables", *names)).to_pyarrow_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_bundle_is_checked_without_paths_and_tables(tmp_path: Path, spark):
    write(tmp_path, BUNDLE)
    answer = penstock(tmp_path, "check", "--output", "json")
    assert answer.code == 0, answer.text
    report = json.loads(answer.out)
    assert report["refused"] == []
    assert report["not_certain"] == []
    assert sorted(report["datasets"]) == [
        *("best", "customer_changes", "customers", "events", "orders", "orders_raw", "revenue")
    ]
    assert {need["kind"] for need in report["needs"]} == {"secret", "source"}
    assert "main.crm.customer_feed" in str(report["missing_sources"])


def test_bundle_of_notebooks_and_sql_runs_with_paths_and_tables_mapped(
    tmp_path: Path, spark, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path, BUNDLE)
    lines(
        tmp_path,
        "data/landing/orders/a.json",
        [
            {"order_id": 1, "customer_id": 1, "amount": "5.5"},
            {"order_id": None, "customer_id": 1, "amount": "1"},
            {"order_id": 2, "customer_id": 2, "amount": "7.5"},
        ],
    )
    lines(
        tmp_path,
        "data/feed/f.json",
        [
            {"id": 1, "name": "ann", "op": "I", "ts": 1},
            {"id": 1, "name": "anna", "op": "U", "ts": 3},
            {"id": 2, "name": "bob", "op": "I", "ts": 2},
            {"id": 3, "name": "cy", "op": "I", "ts": 2},
            {"id": 3, "name": "cy", "op": "D", "ts": 4},
        ],
    )
    write(tmp_path, {"data/events/e.csv": "a,b\n1,x\n", "penstock.yaml": OVERLAY})
    monkeypatch.setenv("PENSTOCK_SECRET_CRM_TOKEN", "t")
    answer = penstock(tmp_path, "run")
    assert answer.code == 0, answer.text
    storage = tmp_path / ".penstock"
    retail = ("main", "retail")
    assert rows(storage, *retail, "orders") == [(1, 1, 5.5), (2, 2, 7.5)]
    assert len(rows(storage, *retail, "orders_quarantine")) == 1
    assert rows(storage, *retail, "customers") == [
        (1, "ann", 1, 3),
        (1, "anna", 3, None),
        (2, "bob", 2, None),
        (3, "cy", 2, 4),
    ]
    assert rows(storage, *retail, "revenue") == [("anna", 5.5), ("bob", 7.5)]
    assert rows(storage, *retail, "best") == [("bob", 7.5)]
    assert [row[:2] for row in rows(storage, *retail, "events")] == [(1, "x")]


SDP_ROWS = {
    "bronze": [(1, 2.0, "rome"), (2, -1.0, "rome"), (3, 4.0, "oslo")],
    "silver": [(1, 2.0, "ROME"), (3, 4.0, "OSLO")],
    "gold": [("OSLO", 4.0), ("ROME", 2.0)],
    "ids": [(1,), (2,), (3,)],
}


def sdp(folder: Path) -> None:
    """A project of Spark's own engine with input rows."""
    write(folder, SDP)
    names = ("id", "amount", "city")
    lines(folder, "in/a.json", [dict(zip(names, row, strict=True)) for row in SDP_ROWS["bronze"]])


def test_spark_pipelines_project_runs_unchanged(tmp_path: Path, spark):
    sdp(tmp_path)
    answer = penstock(tmp_path, "run")
    assert answer.code == 0, answer.text
    storage = tmp_path / "storage"
    written = {name: rows(storage, "spark_catalog", "default", name) for name in SDP_ROWS}
    assert written == SDP_ROWS


@pytest.mark.long
def test_spark_pipelines_creates_the_same_tables(tmp_path: Path):
    sdp(tmp_path)
    hive = ("--conf", "spark.sql.catalogImplementation=hive")
    code, out = spark_pipelines(tmp_path, "run", *hive)
    assert code == 0, out
    for name, wanted in SDP_ROWS.items():
        files = [
            str(file)
            for file in (tmp_path / "spark-warehouse" / name).glob("*.parquet")
            if file.stat().st_size
        ]
        table = ds.dataset(files, format="parquet").to_table()
        assert sorted(tuple(row.values()) for row in table.to_pylist()) == wanted, name
