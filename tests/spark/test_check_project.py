"""Checks of projects whose files read, while they are loaded, what is not on this machine."""

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


def test_what_files_read_while_they_are_loaded_is_learnt(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    shop = tmp_path / "shop"
    shop.mkdir()
    for name, text in (("rules.py", RULES), ("orders.py", ORDERS), ("silver.sql", SILVER)):
        (shop / name).write_text(text, encoding="utf-8")
    found = check_project(load_settings(tmp_path, source=shop))
    assert found.refused == ()
    assert found.unsure == {}
    assert sorted(found.datasets) == ["clean_orders", "customers", "events", "totals"]
    assert "id" in dict(next(s for s in found.missing if "crm" in s.name).columns)
    assert found.notes == ()
    assert found.assumed_settings["landing_path"] == "/penstock/assumed"
    missing = {source.name: dict(source.columns) for source in found.missing}
    assert sorted(missing["table main.quality.rules"]) == ["is_active", "tag"]
    landed = missing["csv /Volumes/x"]
    assert missing["files /penstock/assumed/events"] == {"id": "int"}  # would be read as empty
    assert {"price", "amount", "at", "net", "tax"} <= set(landed)
    assert landed["net"] == "double"
    # Places are those of the project's folder, also before it was entered.
    assert {need.origin.file for need in found.needs.imports} <= {"rules.py", "orders.py"}
    # What depends on rows that are not here may be right; what no rows can mend is not.
    (shop / "late.py").write_text(
        "import dlt\nfrom rules import rules\nCATALOG = rules('late')['catalog']\n", "utf-8"
    )
    (shop / "wrong.py").write_text("import dlt\nprint(undefined)\n", "utf-8")
    found = check_project(load_settings(tmp_path, source=shop))
    assert [error.origin.file for error in found.refused] == ["wrong.py"]
    assert [error.origin.file for error in found.unsure.values()] == ["late.py"]
