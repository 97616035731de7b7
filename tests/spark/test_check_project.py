"""Checks of projects whose files read missing sources while they are loaded."""

from pathlib import Path

import pytest

from penstock._check import check_project
from penstock._project.spec import load_settings

pytestmark = pytest.mark.spark

RULES = """
from no_such_library import Step
from pyspark.sql import SparkSession

spark = SparkSession.getActiveSession()

class Clean(Step):
    def __init__(self, name):
        super().__init__(name)
        self.name = name

CLEAN = Clean("clean")

def rules(tag):
    table = spark.read.table("main.quality.rules").where(f"tag = '{tag}' AND is_active")
    return {row["name"]: row["condition"] for row in table.collect()}
"""
ORDERS = """
import dlt
from pyspark.sql import functions as F
from no_such_library import scored
from rules import CLEAN, rules

landed = spark.readStream.format("cloudFiles").option("cloudFiles.format", "csv").load("/Volumes/x")

@dlt.table(name=f"{CLEAN.name}_orders")
@dlt.expect_all_or_drop(rules("orders"))
def orders():
    return landed.withColumn("total", F.col("price") * F.col("amount")).withColumn(
        "score", scored(F.col("total")))

spark.udf.register("scored", scored)

dlt.create_streaming_table("customers")
dlt.apply_changes_from_snapshot(
    target="customers", snapshot_and_version=(spark.read.table("crm.customers"), 1), keys=["id"],
    stored_as_scd_type=1)
"""
SILVER = """
SET shop.source;
CREATE OR REFRESH STREAMING TABLE events
AS SELECT *, _metadata.file_path AS file
FROM STREAM read_files("${landing_path}/events", schema => "id INT");
CREATE OR REFRESH MATERIALIZED VIEW totals COMMENT "per day"
AS SELECT date_trunc('day', at) AS day, sum(net + tax) AS paid FROM clean_orders GROUP BY ALL;
"""


def test_check_infers_columns_of_sources_that_are_read_while_files_are_loaded(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    shop = tmp_path / "shop"
    shop.mkdir()
    for name, text in (("rules.py", RULES), ("orders.py", ORDERS), ("silver.sql", SILVER)):
        (shop / name).write_text(text, encoding="utf-8")
    check = check_project(load_settings(tmp_path, source=shop))
    assert check.refused == ()
    assert check.unsure == {}
    assert sorted(check.datasets) == ["clean_orders", "customers", "events", "totals"]
    assert "id" in dict(next(s for s in check.missing if "crm" in s.name).columns)
    assert check.notes == ()
    assert check.assumed_settings["landing_path"] == "/penstock/assumed"
    missing = {source.name: dict(source.columns) for source in check.missing}
    assert sorted(missing["table main.quality.rules"]) == ["is_active", "tag"]
    landed = missing["csv /Volumes/x"]
    assert missing["files /penstock/assumed/events"] == {"id": "int"}  # would be read as empty
    assert {"price", "amount", "at", "net", "tax"} <= set(landed)
    assert landed["net"] == "double"
    # Source locations are relative to the project folder.
    assert {need.origin.file for need in check.needs.imports} <= {"rules.py", "orders.py"}
    # Errors that depend on missing rows are unsure; other errors are refused.
    (shop / "late.py").write_text(
        "import dlt\nfrom rules import rules\nCATALOG = rules('late')['catalog']\n", "utf-8"
    )
    (shop / "wrong.py").write_text("import dlt\nprint(undefined)\n", "utf-8")
    check = check_project(load_settings(tmp_path, source=shop))
    assert [error.origin.file for error in check.refused] == ["wrong.py"]
    assert [error.origin.file for error in check.unsure.values()] == ["late.py"]


def test_check_refuses_a_project_that_declares_nothing(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helpers.py").write_text("import dlt\n\ndef orders(): ...\n", "utf-8")
    check = check_project(load_settings(tmp_path, source=tmp_path))
    assert [error.condition for error in check.refused] == ["PIPELINE_EMPTY"]


def test_check_refuses_wrong_schema_hints_of_a_missing_source(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    query = "SELECT * FROM STREAM read_files('/Volumes/x', schemaHints => 'id STRNG')"
    (tmp_path / "x.sql").write_text(f"CREATE STREAMING TABLE x AS {query}", "utf-8")
    check = check_project(load_settings(tmp_path, source=tmp_path))
    assert [error.condition for error in check.refused] == ["SCHEMA_HINTS_INVALID"]


OPTIONS = """
import dlt

def raw(key, value):
    reader = spark.readStream.schema("id INT").format("cloudFiles")
    return reader.options(**{"cloudFiles.format": "json", key: value}).load("/Volumes/x")

@dlt.table
def misspelt():
    return raw("cloudFiles.maxFilePerTrigger", 1)

@dlt.table
def wrong():
    return raw("cloudFiles.maxFilesPerTrigger", "many")

@dlt.table
def assumed():
    return raw("cloudFiles.schemaEvolutionMode", spark.conf.get("mode"))

@dlt.table
def near():
    return spark.readStream.table("assumd")

dlt.create_sink("out", "kafka", {"kafka.bootstrap.servers": "a:1", "topics": "t"})

@dlt.append_flow(target="out")
def send():
    return spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
"""
FILES = """
CREATE STREAMING TABLE unknown AS SELECT * FROM STREAM read_files('/Volumes/x');

CREATE STREAMING TABLE refused AS SELECT * FROM
  STREAM read_files('/Volumes/x', format => 'json', schemaEvolutionMode => 'some');
"""


def test_check_refuses_wrong_options_of_missing_sources_and_of_sinks(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "options.py").write_text(OPTIONS, "utf-8")
    (tmp_path / "files.sql").write_text(FILES, "utf-8")
    check = check_project(load_settings(tmp_path, source=tmp_path))
    assert [(error.condition, str(error.origin)) for error in check.refused] == [
        ("AUTOLOADER_OPTION_INVALID", "files.sql:4"),
        ("AUTOLOADER_OPTION_UNKNOWN", "options.py:6"),
        ("AUTOLOADER_OPTION_INVALID", "options.py:6"),
        ("KAFKA_OPTION_UNKNOWN", "options.py:26"),
    ]
    reasons = {source.name: source.reason for source in check.missing}
    assert reasons["table assumd"].endswith("did you mean 'assumed'?")


def test_check_accepts_a_project_that_declares_only_a_sink(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    shop = tmp_path / "shop"
    shop.mkdir()
    code = 'from pyspark import pipelines as dp\n\ndp.create_sink("out", "console", {})\n'
    (shop / "sinks.py").write_text(code, encoding="utf-8")
    check = check_project(load_settings(tmp_path, source=shop))
    assert check.refused == ()
    assert check.datasets == {}
