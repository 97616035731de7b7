"""Planning without the data: missing sources get the columns that the queries use."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_states import MemoryStates
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as dp
from penstock._analysis.assumptions import Assumptions
from penstock._analysis.context import ReadContext
from penstock._analysis.external_tables import ExternalTables
from penstock._analysis.survey import Survey, survey
from penstock._api.registry import Registry, registration
from penstock._graph.indexing import build_index
from penstock._model.pipeline import PipelineSettings
from penstock._tables.layout import StorageLayout


@pytest.fixture
def run_survey(
    spark: SparkSession, tmp_path: Path
) -> Iterator[Callable[[Callable[[], None]], Survey]]:
    """Surveys the declarations of a function."""
    assumptions = Assumptions(spark)

    def run(declare: Callable[[], None]) -> Survey:
        registry = Registry()
        with registration(registry):
            declare()
        settings = PipelineSettings(name="p", storage=tmp_path.as_uri(), root=str(tmp_path))
        context = ReadContext(
            external_tables=ExternalTables(
                spark,
                {},
                StorageLayout(tmp_path.as_uri()),
                catalog="spark_catalog",
                schema="default",
            ),
            memories=MemoryStates().store,
            assumptions=assumptions,
        )
        return survey(spark, build_index(registry.build(), settings), context)

    yield run
    assumptions.close()


def columns(result: Survey) -> dict[str, list[str]]:
    return {source.name: sorted(source.columns) for source in result.missing}


def test_columns_are_assumed_when_their_sources_are_missing(run_survey, spark: SparkSession):
    def declare() -> None:
        @dp.table
        def bronze():
            reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", "json")
            return reader.load("/Volumes/main/raw").select("*", F.col("_metadata.file_path"))

        @dp.table
        @dp.expect_or_drop("known", "country_code IS NOT NULL AND amount > 0")
        def silver():
            customers = spark.read.table("main.crm.customers")
            orders = dp.read_stream("bronze").withWatermark("ordered_at", "1 hour")
            return (
                orders.join(customers, "customer_id", "left")
                .withColumn("city", F.col("address.city"))
                .withColumn("item", F.explode("items"))
                .dropDuplicates(["order_id"])
            )

        @dp.materialized_view
        def gold():
            text = """
                SELECT s.city, c.name, sum(s.amount) AS total, date_trunc('day', s.ordered_at) AS d
                FROM silver s JOIN samples.ref.countries c ON s.country_code = c.code
                GROUP BY ALL
            """
            return spark.sql(text)

        @dp.table(name="plain")
        def typed():
            return spark.readStream.schema("id INT").json("/nowhere")

    result = run_survey(declare)
    assert result.errors == ()
    assert result.unsure == {}
    assert result.graph is not None
    assert sorted(result.graph.datasets) == [
        f"spark_catalog.default.{name}" for name in ("bronze", "gold", "plain", "silver")
    ]
    known = columns(result)
    assert known["json /nowhere"] == ["id"]
    assert known["table samples.ref.countries"] == ["code", "name"]
    assert "customer_id" in known["table main.crm.customers"]
    files = known["json /Volumes/main/raw"]
    assert {"ordered_at", "customer_id"} <= set(files)
    assert "order_id" in {*files, *known["table main.crm.customers"]}
    (address,) = [s.column_types["address"] for s in result.missing if "address" in s.columns]
    assert address == "map<string,void>"  # the query reads a field
    assert result.analyses["gold"].inputs == {"spark_catalog.default.silver"}
    assert result.analyses["gold"].text_numbers == ()  # the type of `amount` is unknown


def test_update_flow_into_a_sink_needs_no_merge_keys(run_survey, spark: SparkSession):
    def declare() -> None:
        dp.create_sink("alerts", "console", {})

        @dp.update_flow(target="alerts")
        def counted():
            events = spark.readStream.format("rate").load()
            return events.groupBy("value").applyInPandasWithState(
                lambda key, rows, state: iter(()), "n BIGINT", "n BIGINT", "update", "NoTimeout"
            )

        @dp.update_flow(target="alerts")
        def plain():
            return spark.readStream.format("rate").load()

    result = run_survey(declare)
    assert result.errors == ()
    modes = {name: str(flow.output_mode) for name, flow in result.analyses.items()}
    assert modes == {"counted": "update", "plain": "append"}


def test_columns_of_joined_sources_and_exploded_arrays_are_inferred(
    run_survey, spark: SparkSession
):
    def declare() -> None:
        @dp.materialized_view
        def joined():
            left, right = spark.read.table("a.b.left"), spark.read.table("a.b.right")
            return left.join(right, left["id"] == right["id"]).select(left["id"], "n")

        @dp.materialized_view
        def items():
            order = spark.read.table("a.b.orders")
            lines = order.select("order_id", F.explode("basket.lines").alias("line"))
            return lines.select("order_id", "line.price", F.upper("line.product.name"))

    result = run_survey(declare)
    assert result.errors == ()
    assert result.unsure == {}
    assert "id" in columns(result)["table a.b.left"]
    assert "id" in columns(result)["table a.b.right"]
    assert columns(result)["table a.b.orders"] == ["basket", "order_id"]


def test_sources_of_a_union_share_their_columns(run_survey, spark: SparkSession):
    def define() -> None:
        @dp.materialized_view
        def by_name():
            rows = spark.read.table("raw.u1").unionByName(spark.read.table("raw.u2"))
            return rows.select("a", "b")

        @dp.materialized_view
        def by_position():
            return spark.sql(
                "SELECT a, max(b) AS b FROM (TABLE raw.u3 UNION ALL TABLE raw.u4) GROUP BY a"
            )

    result = run_survey(define)
    assert result.unsure == {}
    for number in range(1, 5):
        assert columns(result)[f"table raw.u{number}"] == ["a", "b"]


def test_all_columns_of_a_step_are_inferred_together(run_survey, spark: SparkSession):
    calls = []

    def declare() -> None:
        @dp.materialized_view
        def wide():
            calls.append(1)
            df = spark.read.table("a.b.wide")
            names = [F.col(f"c{n}") for n in range(12)]
            return df.select(*names, (F.col("x") + 1).alias("y"), F.upper("z"))

    result = run_survey(declare)
    assert result.unsure == {}
    assert columns(result)["table a.b.wide"] == sorted([*[f"c{n}" for n in range(12)], "x", "z"])
    assert len(calls) <= 3


def test_error_is_reported_when_it_does_not_depend_on_a_missing_source(
    run_survey, spark: SparkSession
):
    def declare() -> None:
        @dp.materialized_view
        def wrong():
            return spark.range(3).select("no_such_column")

        @dp.materialized_view
        def below_wrong():
            return dp.read("wrong")

        @dp.materialized_view
        def good():
            return spark.range(3)

    result = run_survey(declare)
    assert [error.condition for error in result.errors] == ["QUERY_INVALID"]
    assert result.graph is None
    assert sorted(result.analyses) == ["good"]


def test_missing_settings_are_assumed(run_survey, spark: SparkSession):
    read: dict[str, Any] = {}

    def declare() -> None:
        @dp.materialized_view
        def table():
            for key in ("shop.catalog", "shop.batch_days", "shop.landing_path", "shop.enable_x"):
                read[key] = spark.conf.get(key)
            return spark.range(int(read["shop.batch_days"]))

    assert run_survey(declare).errors == ()
    assert read == {
        "shop.catalog": "catalog",
        "shop.batch_days": "1",
        "shop.landing_path": "/penstock/assumed",
        "shop.enable_x": "false",
    }


def test_table_rules_are_accepted_when_the_source_is_missing(run_survey, spark: SparkSession):
    def declare() -> None:
        @dp.materialized_view
        @dp.expect_unique("one", "id")
        @dp.expect_row_count("some", minimum=1)
        def people():
            return spark.read.table("a.b.people").select("id")

    result = run_survey(declare)
    assert result.errors == ()
    assert result.unsure == {}
    assert result.graph is not None


def test_flow_is_unsure_when_its_result_depends_on_data(run_survey, spark: SparkSession):
    def declare() -> None:
        @dp.materialized_view
        def pivoted():
            df = spark.read.table("a.b.measures")
            return df.select(F.inline("readings"))

        @dp.materialized_view
        def crashes():
            return spark.read.table("a.b.measures").limit(1).collect()[0]

    result = run_survey(declare)
    assert result.errors == ()
    assert sorted(result.unsure) == ["crashes", "pivoted"]
    assert result.graph is None
