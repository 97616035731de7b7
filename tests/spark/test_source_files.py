"""Source files that handle Spark's session themselves."""

import json
from dataclasses import replace

import pytest
from update_project import Project

from penstock._model.pipeline import PipelineSettings
from penstock._observe.events import UpdateState
from penstock._project.databricks.notebook_globals import notebook_globals
from penstock._project.loader import load_definitions
from penstock._project.spec import load_settings
from penstock._update import UpdateOptions, plan_update

pytestmark = pytest.mark.spark

SETUP = """# Databricks notebook source
import dlt
from pyspark.sql import SparkSession

# COMMAND ----------

mine = (
    SparkSession.builder.master("local[7]").appName("mine")
    .config("spark.test.mine", "yes").config("spark.executor.memory", "1g").getOrCreate()
)
remote = SparkSession.builder.remote("sc://nowhere").getOrCreate()
assert mine is spark and remote is spark
with SparkSession.builder.getOrCreate() as session:
    session.range(1).display()
spark.newSession().stop()
spark.stop()
sc.stop()

# COMMAND ----------

# MAGIC %sh ls
"""

CELL = """
%run ./setup
from pyspark.sql import functions as F

@F.udf("string")
def shout(text):
    return text.upper() + MARK

MARK = "!"
rows = [row.v for row in sqlContext.sql("SELECT 'a' AS v").select(shout("v").alias("v")).collect()]
display(spark.range(1))

@dlt.table
def t():
    return rows, sql("SELECT 1 AS one").collect()[0].one, sc.defaultParallelism > 0
"""


def test_session_is_shared_when_a_notebook_builds_and_stops_sessions(spark, tmp_path):
    (tmp_path / "setup.py").write_text(SETUP)
    cells = [{"cell_type": "code", "source": CELL}]
    (tmp_path / "t.ipynb").write_text(json.dumps({"cells": cells}))
    settings = PipelineSettings(
        name="p", storage="file:///x", root=str(tmp_path), source_patterns=("t",)
    )
    (flow,) = load_definitions(settings, namespace=notebook_globals(spark, settings)).flows
    assert flow.function() == (["A!"], 1, True)
    assert spark.conf.get("spark.test.mine") == "yes"
    assert spark.range(3).count() == 3
    assert not hasattr(type(spark.range(1)), "display")


MUTATING = """
from pyspark import pipelines as dp

spark.conf.set("spark.test.changed", 42)
spark.range(3).createOrReplaceTempView("seen_while_loading")
spark.range(1).createOrReplaceGlobalTempView("everywhere")
spark.udf.register("twice", lambda x: x * 2, "bigint")
spark.sql("SET spark.test.by_sql = yes")
spark.sql("CREATE DATABASE IF NOT EXISTS somewhere")
spark.catalog.setCurrentDatabase("default")
spark.catalog.dropGlobalTempView("everywhere")

@dp.materialized_view
def doubled():
    assert spark.conf.get("spark.test.changed") == "42"
    assert spark.conf.get("spark.test.by_sql") == "yes"
    rows = spark.sql("SELECT twice(id) AS n FROM seen_while_loading")
    assert rows.columns == ["n"] and rows.count() == 3
    spark.catalog.dropTempView("seen_while_loading")
    spark.range(3).createOrReplaceTempView("seen_while_loading")
    return rows
"""


def test_source_file_may_change_the_session_even_if_spark_would_block_it(
    spark, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark)
    (tmp_path / "pipeline.py").write_text(MUTATING)
    result = project.run()
    assert result.state is UpdateState.COMPLETED, result.failures
    assert project.rows("doubled") == [(0,), (2,), (4,)]


def test_warning_names_a_path_glob_filter_that_matches_no_file(tmp_path, spark, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark)
    project.add("a.json", [{"id": 1}])
    source = """
@dp.table
def t{number}():
    reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", "json")
    return reader.schema(ROWS).option("pathGlobFilter", "{pattern}").load("data")
"""
    patterns = ("data/*.json", "*.{csv,json}")
    project.source(
        "".join(
            source.replace("{number}", str(n)).replace("{pattern}", p)
            for n, p in enumerate(patterns)
        )
    )
    _, plan = plan_update(load_settings(project.root), UpdateOptions())
    (warning,) = [text for text in plan.warnings if "pathGlobFilter" in text]
    assert "matches the pathGlobFilter 'data/*.json': t0 has nothing to read" in warning


def test_source_file_reads_what_databricks_sets_for_every_pipeline(tmp_path, spark, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark)
    keys = ("pipelines.id", "pipelines.catalog", "pipelines.schema", "pipelines.target")
    project.source(
        "unity = spark.conf.get('spark.databricks.unityCatalog.enabled', 'false')\n"
        f"read = [spark.conf.get(key, 'none') for key in {keys}]\n"
        "dp.create_sink('_'.join([*read, unity]), 'noop')\n"
        "dp.materialized_view(lambda: spark.range(1), name='t')\n"
    )
    settings = replace(load_settings(project.root), schema="shop")
    settings = replace(settings, name="p", configuration={"pipelines.target": "mine"})
    graph, _ = plan_update(settings, UpdateOptions())
    assert [*graph.sinks] == ["p_spark_catalog_shop_mine_true"]
