"""A watermark belongs to a query: queries that read its table do not have it."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from update_project import Project

from penstock._observe.events import UpdateState

SOURCE = """
@dp.table
def bronze():
    return rows()


@dp.table
def silver():
    return dp.read_stream("bronze").withWatermark("ts", "1 hour")


@dp.table
def hourly():
    window = F.window("ts", "1 hour").alias("hours")
    counted = dp.read_stream("silver").groupBy(window).agg(F.sum("amount").alias("amount"))
    return counted.select(F.col("hours.start").alias("hour"), "amount")


@dp.table
def closed_hours():
    silver = dp.read_stream("silver").withWatermark("ts", "1 hour")
    window = F.window("ts", "1 hour").alias("hours")
    counted = silver.groupBy(window).agg(F.sum("amount").alias("n"))
    return counted.select(F.col("hours.start").alias("hour"), "n")
"""


def row(number: int, hour: int, amount: int) -> dict[str, Any]:
    return {"id": number, "amount": amount, "ts": f"2026-01-01T{hour:02d}:30:00Z"}


@pytest.fixture(scope="module")
def project(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two updates; the second reads a row that is five hours late."""
    project = Project(tmp_path_factory.mktemp("watermarks"), spark).source(SOURCE)
    project.add("a.json", [row(1, 8, 10), row(2, 13, 20)])
    assert project.run().state is UpdateState.COMPLETED
    project.add("b.json", [row(3, 8, 5), row(4, 17, 40)])
    assert project.run().state is UpdateState.COMPLETED
    return project


def amounts(project: Project, table: str) -> dict[int, int]:
    return {hour.hour: amount for hour, amount in project.rows(table)}


def test_aggregate_includes_late_rows_when_only_an_upstream_table_has_a_watermark(
    project: Project,
) -> None:
    assert amounts(project, "hourly") == {8: 15, 13: 20, 17: 40}


def test_aggregate_runs_in_complete_mode_when_its_query_has_no_watermark(
    project: Project,
) -> None:
    history = project.table("hourly").sparkSession.sql(
        f"DESCRIBE HISTORY delta.`{Path(project.path('hourly'))}`"
    )
    modes = {row.operationParameters.get("outputMode") for row in history.collect()}
    assert "Complete" in modes
    assert "Append" not in modes


def test_aggregate_drops_late_rows_when_its_query_has_a_watermark(project: Project) -> None:
    assert amounts(project, "closed_hours") == {8: 10, 13: 20}
