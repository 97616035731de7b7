"""Common patterns in code for Databricks.

Names without catalog and schema, strings as numbers, identity columns, the active session, rules
about one side of a join.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from update_project import Project

from penstock._observe.events import UpdateState
from penstock.errors import DefinitionError

SOURCE = """
from pyspark.sql import SparkSession

dp.create_streaming_table(
    "main.gold.numbered",
    schema="key BIGINT GENERATED ALWAYS AS IDENTITY, id BIGINT, price DOUBLE",
    expect_all_or_drop={"priced": "price IS NOT NULL"},
)


@dp.append_flow(target="numbered")
def fill():
    orders = spark.readStream.schema("id BIGINT, total STRING, quantity STRING").json("data")
    return orders.selectExpr("id", "total / quantity AS price")


@dp.table
def keys():
    active = SparkSession.getActiveSession()
    return active.readStream.table("gold.numbered").select("key", "id", "price")


@dp.table
@dp.expect_or_drop("priced", "keys.id IS NOT NULL")
def checked():
    orders = spark.readStream.schema("id BIGINT").json("data")
    return orders.join(spark.read.table("keys"), "id", "left").withColumnRenamed("price", "cost")


@dp.materialized_view
def summary():
    return SparkSession.getActiveSession().sql(
        "SELECT count(*) AS n, count(DISTINCT key) AS keys, sum(price) AS price"
        " FROM IDENTIFIER(concat_ws('.', :place, 'keys'))",
        args={"place": "prod.sales"},
    )
"""


def test_short_names_strings_as_numbers_and_identity_columns_are_supported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(SOURCE)
    project.add(
        "a.json",
        [
            {"id": 1, "total": "10", "quantity": "4"},
            {"id": 2, "total": "1", "quantity": "0"},
            {"id": 3, "total": "ten", "quantity": "1"},
        ],
    )
    assert project.run().state is UpdateState.COMPLETED
    project.add("b.json", [{"id": 4, "total": "3", "quantity": "2"}])
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("keys", "id", "price") == [(1, 2.5), (4, 1.5)]
    assert project.rows("summary") == [(2, 2, 4.0)]
    assert project.rows("checked", "id", "cost") == [(1, 2.5), (4, 1.5)]
    assert project.rows("checked_quarantine", "id", "cost") == [(2, None), (3, None)]
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    messages = "\n".join(event.message for event in project.events)
    for warning in (
        "`gold.numbered` is resolved to main.gold.numbered",
        "`prod.sales.keys` is resolved to spark_catalog.default.keys",
        "the query of fill computes with strings",
    ):
        assert warning in messages
    numbered = SOURCE[: SOURCE.index("@dp.append_flow")]
    project.source(
        numbered
        + """
dp.create_auto_cdc_flow(target="numbered", source="events", keys=["id"], sequence_by="id")


@dp.table
def events():
    return rows().selectExpr("id", "1D AS price")
"""
    )
    with pytest.raises(DefinitionError, match="cannot have an identity column: auto CDC"):
        project.run()


@pytest.mark.timeout(180)
def test_python_function_reads_delta_rows_with_generated_code(spark: SparkSession, tmp_path: Path):
    folder = str(tmp_path / "stored")
    spark.range(3).write.format("delta").save(folder)
    shout = F.udf(lambda number: f"{number}!", "string")
    # With generated code, as pipelines have it, the scan is columnar: SPARK-58241.
    confs = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {key: spark.conf.get(key) for key in confs}
    for key, value in confs.items():
        spark.conf.set(key, value)
    try:
        rows = spark.read.format("delta").load(folder).groupBy(shout("id").alias("k")).count()
        assert {row["k"] for row in rows.collect()} == {"0!", "1!", "2!"}
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
