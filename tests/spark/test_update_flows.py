"""Flows of many kinds in one project: their rows after the first and the second update."""

import json
from typing import Any

import pytest
from made_events import details
from update_project import Project, shared_project

from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._runtime.update import UpdateResult
from penstock._update import UpdateOptions, plan_update
from penstock.errors import DefinitionErrors, ExpectationFailedError

FLOWS = """
TOKYO = {"spark.sql.session.timeZone": "Asia/Tokyo"}

# Output modes.

@dp.table
def totals():
    return rows().groupBy("id").agg(F.sum("amount").alias("s"))

@dp.table(output_mode="update")
def merged():
    return rows().groupBy("id").agg(F.sum("amount").alias("s"))

@dp.table
def windows():
    return (
        rows().withWatermark("ts", "1 minute")
        .groupBy(F.window("ts", "1 minute"))
        .agg(F.count("*").alias("n"))
    )

# Several flows.

dp.create_streaming_table("all_rows")

@dp.append_flow(target="all_rows", once=True)
def history():
    return spark.createDataFrame([(100, 1)], "id BIGINT, amount INT")

@dp.append_flow(target="all_rows")
def first():
    return rows("one").select("id", "amount")

@dp.append_flow(target="all_rows")
def second():
    return rows("two").select("id", "amount", F.lit("two").alias("folder"))

# Settings of one table.

@dp.table(spark_conf=TOKYO)
def streamed():
    return rows("one").select("id", F.current_timezone().alias("zone"))

@dp.materialized_view(spark_conf=TOKYO)
def computed():
    return spark.read.table("streamed").select("zone", F.current_timezone().alias("own"))

@dp.materialized_view
def plain():
    return spark.read.table("streamed").select("zone", F.current_timezone().alias("own"))

# Line separators of Unicode are in the statistics of the log, and end no line of it.

@dp.table(comment="\\u2028")
def texts():
    return rows().select("id", F.concat(F.lit("\\u2028\\x85"), F.col("id")).alias("text"))

@dp.table
def same_texts():
    return spark.readStream.table("texts")

# Names that Delta allows only with column mapping, in the table and its quarantine.

@dp.table(quarantine=True, table_properties={"delta.columnMapping.mode": "name"})
@dp.expect_or_drop("positive", "`the amount` > 0")
def mapped():
    return rows("signs").select("id", F.col("amount").alias("the amount"))

# Views with rules, and a sink.

@dp.temporary_view
@dp.expect_or_drop("positive", "amount > 0")
def clean():
    return rows("signs")

@dp.table
def positive():
    return spark.readStream.table("clean").select("id")

@dp.table
def from_sql():
    return spark.sql("SELECT id FROM STREAM(LIVE.positive)")

dp.create_sink("outside", "delta", {"path": "sink"})

@dp.append_flow(target="outside")
def to_outside():
    return dp.read_stream("positive").select("id")
"""

TWICE = ("totals", "merged", "windows", "all_rows", "texts", "same_texts")


def order(number: int, amount: int | None, at: str = "00:00:00") -> dict[str, Any]:
    return {"id": number, "amount": amount, "ts": f"2026-01-01T{at}Z"}


@pytest.fixture(scope="module")
def flows(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One update of all flows, and a second update of the flows in `TWICE`."""
    with shared_project(tmp_path_factory.mktemp("flows"), spark) as project:
        project.source(FLOWS.replace('"sink"', f'"{project.root}/sink"'))
        project.add("a.json", [order(1, 5)])
        project.add("a.json", [order(0, 1)], folder="one")
        project.add("a.json", [order(50, 2)], folder="two")
        project.add("a.json", [order(0, 1), order(1, -1), order(2, None)], folder="signs")
        result = project.run()
        assert result.state is UpdateState.COMPLETED, result.failures
        project.add("b.json", [order(1, 7, "00:00:30"), order(2, 1, "00:10:00")])
        result = project.run(refresh=TWICE)
        assert result.state is UpdateState.COMPLETED, result.failures
        return project


@pytest.mark.parametrize("table", ["totals", "merged"])
def test_groups_are_up_to_date_when_a_stream_aggregates(flows: Project, table: str):
    assert flows.rows(table) == [(1, 12), (2, 1)]


def test_windows_are_written_once_when_the_watermark_has_passed(flows: Project):
    assert flows.rows("windows", "n") == [(2,)]


def test_one_time_and_streaming_flows_write_to_one_table(flows: Project):
    assert flows.rows("all_rows", "id") == [(0,), (50,), (100,)]
    defined = [
        details(event)["schema_json"]
        for event in flows.events
        if event.event_type == "dataset_definition" and "all_rows" in event.origin.dataset_name
    ]
    assert [f["nullable"] for f in json.loads(defined[0])["fields"]] == [True] * 3


def test_confs_of_a_table_apply_only_to_its_own_query(flows: Project):
    session_zone = flows.spark.conf.get("spark.sql.session.timeZone")
    assert flows.rows("streamed", "zone") == [("Asia/Tokyo",)]
    assert flows.rows("computed") == [("Asia/Tokyo", "Asia/Tokyo")]
    assert flows.rows("plain") == [("Asia/Tokyo", session_zone)]
    assert session_zone != "Asia/Tokyo"


@pytest.mark.parametrize("table", ["texts", "same_texts"])
def test_values_may_have_unicode_line_separators(flows: Project, table: str):
    assert flows.rows(table) == [(n, f"\u2028\x85{n}") for n in (1, 1, 2)]


def test_column_names_may_have_spaces_in_a_table_and_its_quarantine(flows: Project):
    assert flows.rows("mapped", "id", "`the amount`") == [(0, 1)]
    assert flows.rows("mapped_quarantine", "id", "`the amount`") == [(1, -1), (2, None)]


@pytest.mark.parametrize("table", ["positive", "from_sql"])
def test_temporary_views_drop_rows_by_their_rules(flows: Project, table: str):
    assert flows.rows(table) == [(0,)]


def test_sink_has_the_rows_of_its_flow(flows: Project):
    sink = flows.spark.read.format("delta").load(f"{flows.root}/sink")
    assert [row["id"] for row in sink.collect()] == [0]


FAILING = """
@dp.table
def bronze():
    return rows()

@dp.table
@dp.expect_or_fail("has_amount", "amount IS NOT NULL")
def strict():
    return dp.read_stream("bronze")

@dp.table
def below():
    return dp.read_stream("strict")

@dp.table
def other():
    return dp.read_stream("bronze")

@dp.table
@dp.expect_or_fail("ok", "amount > 0")
def silver():
    return rows("more")

@dp.materialized_view
def gold():
    return dp.read("silver").groupBy().agg(F.sum("amount").alias("s"))
"""


@pytest.fixture(scope="module")
def failed(
    spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, UpdateResult, UpdateResult]:
    """`strict` fails in the first update, `silver` in the second."""
    with shared_project(tmp_path_factory.mktemp("failed"), spark) as project:
        project.source(FAILING).add("a.json", [order(0, 1), order(1, None)])
        project.add("a.json", [order(0, 4)], folder="more")
        first = project.run()
        project.add("b.json", [order(9, -1)], folder="more")
        return project, first, project.run(refresh=("silver", "gold"))


def test_the_batch_is_not_written_when_a_fail_rule_is_violated(failed: Any):
    project, result, _ = failed
    assert result.state is UpdateState.FAILED
    (failure,) = result.failures
    assert isinstance(failure, ExpectationFailedError)
    text = str(failure)
    assert "has_amount" in text and '"amount":null' in text and "batch 0" in text
    assert "pipeline.py:" in text
    assert project.rows("strict") == []


def test_other_flows_complete_when_a_fail_rule_is_violated(failed: Any):
    project, result, _ = failed
    assert result.skipped == ("below",)
    assert len(project.rows("other")) == 2


def test_the_view_keeps_its_rows_when_its_upstream_fails(failed: Any):
    project, _, result = failed
    assert result.state is UpdateState.FAILED
    assert result.skipped == ("gold",)
    assert project.rows("gold") == [(4,)]


def test_all_definition_errors_are_reported_together(
    spark: Any, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(
        """
@dp.table
def silver():
    return rows()

@dp.table
def gold():
    return dp.read("sliver")

@dp.table
@dp.expect("rule", "amuont > 0")
def third():
    return rows()

@dp.table
@dp.expect_or_fail("of_union", "amount > 0")
def fourth():
    return rows().union(rows()).withColumnRenamed("amount", "sum")

@dp.append_flow(target="nowhere")
def lost():
    return rows()
"""
    )
    with pytest.raises(DefinitionErrors) as caught:
        project.run()
    text = str(caught.value)
    assert [e.condition for e in caught.value.errors] == [
        "DATASET_NOT_FOUND",
        "EXPECTATION_INVALID",
        "EXPECTATION_INVALID",
        "FLOW_TARGET_NOT_FOUND",
    ]
    assert "did you mean 'silver'" in text and "did you mean 'amount'" in text
    assert text.count("pipeline.py:") == 4


def test_dry_run_refuses_a_table_that_cannot_be_created_and_an_update_runs_the_others(
    spark: Any, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(
        """
@dp.materialized_view
def spaced():
    return spark.range(1).selectExpr("id AS `order id`")

@dp.temporary_view
def passed_on():
    return spark.range(1).selectExpr("id AS `order id`", "id AS ID", "id")

@dp.materialized_view
def repeated():
    return spark.read.table("passed_on").selectExpr("1 AS A", "2 AS a")

@dp.materialized_view(partition_cols=["day"])
def partitioned():
    return spark.range(1)

dp.create_streaming_table("mixed")

@dp.append_flow(target="mixed", once=True)
def numbers():
    return spark.range(1).selectExpr("id AS v")

@dp.append_flow(target="mixed", once=True)
def strings():
    return spark.range(1).selectExpr("'a' AS v")

@dp.materialized_view
def good():
    return spark.range(1)
"""
    )
    with pytest.raises(DefinitionErrors) as caught:
        plan_update(load_settings(tmp_path), UpdateOptions())
    assert [(e.condition, e.origin is not None) for e in caught.value.errors] == [
        ("COLUMN_NAME_INVALID", True),
        ("SCHEMA_INCOMPATIBLE", True),
        ("PARTITION_COLUMN_UNKNOWN", True),
        ("SCHEMA_INCOMPATIBLE", True),
    ]
    text = "column 'v' of mixed is STRING in flow 'strings', but BIGINT in other flows"
    assert text in str(caught.value)
    assert project.run().state is UpdateState.FAILED
    assert project.rows("good") == [(0,)]
