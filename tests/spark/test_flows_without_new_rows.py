"""Triggered flows whose table has no new rows: their queries are not started, unless needed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from update_project import Project

from penstock._execution.flow_query import FlowQueries
from penstock._observe.events import FlowProgress, FlowStatus, UpdateState

SOURCE = """
@dp.table
def bronze():
    return rows()

@dp.table
def silver():
    return spark.readStream.table("bronze").where("{condition}")

@dp.temporary_view
def cheap():
    return spark.readStream.table("bronze").where("amount < 10")

dp.create_streaming_table("latest")
dp.create_auto_cdc_flow(target="latest", source="cheap", keys=["id"], sequence_by="ts")

@dp.table
def counts():
    return spark.readStream.table("bronze").groupBy("id").count()

@dp.table
def both():
    return spark.readStream.table("bronze").union(spark.readStream.table("bronze"))
"""
# Flows that read files, have state, or read two streams are always started.
ALWAYS = ["bronze", "both", "counts"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the flows whose queries were started."""
    names: list[str] = []
    start = FlowQueries.start

    def recorded(self: Any, writer: Any, node: Any) -> Any:
        names.append(node.flow.name)
        return start(self, writer, node)

    monkeypatch.setattr(FlowQueries, "start", recorded)
    return names


def row(number: int, amount: int = 1) -> dict[str, Any]:
    return {"id": number, "amount": amount, "ts": f"2026-01-01T00:00:{number:02}Z"}


def test_a_query_is_started_only_when_there_are_new_rows_or_changes(
    spark, tmp_path, monkeypatch, started
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(SOURCE.format(condition="id > 0"))
    project.add("1.json", [row(0), row(1), row(2)])

    def flows_of_update(change: Callable[[], Any] = lambda: None, **options: Any) -> list[str]:
        change()
        started.clear()
        assert project.run(**options).state is UpdateState.COMPLETED
        assert project.rows("silver", "id") == [(number,) for number in silver]
        return [name for name in started if name not in ALWAYS]

    silver = [1, 2]
    both = ["latest", "silver"]
    assert sorted(flows_of_update()) == both
    assert flows_of_update() == []
    assert statuses_of(project, "silver") == [
        FlowStatus.QUEUED,
        FlowStatus.STARTING,
        FlowStatus.RUNNING,
        FlowStatus.COMPLETED,
    ]

    silver = [1, 2, 3]
    assert sorted(flows_of_update(lambda: project.add("2.json", [row(3)]))) == both
    assert flows_of_update() == []

    # New versions without new rows.
    bronze, version = f"delta.`{project.path('bronze')}`", project.version("bronze")
    assert flows_of_update(lambda: spark.sql(f"OPTIMIZE {bronze}")) == []
    assert project.version("bronze") == version + 1
    spark.sql(f"ALTER TABLE {bronze} SET TBLPROPERTIES ('note' = 'a')")
    assert sorted(flows_of_update()) == both

    # A changed query is recorded, and an unfinished batch is repeated.
    assert flows_of_update(lambda: project.source(SOURCE.format(condition="id > 1"))) == ["silver"]
    assert flows_of_update() == []
    newest = max(project.commits_folder("silver").iterdir(), key=lambda file: file.name)
    assert flows_of_update(newest.unlink) == ["silver"]
    assert flows_of_update() == []

    silver = [2, 3]
    assert flows_of_update(full_refresh=("silver",)) == ["silver"]
    assert flows_of_update() == []


def statuses_of(project: Project, flow: str) -> list[FlowStatus]:
    events = (event for event in project.events if event.origin.flow_name == flow)
    return [event.body.status for event in events if isinstance(event.body, FlowProgress)]


def test_commits_are_reported_and_tables_are_checked_when_there_are_no_new_rows(
    spark, tmp_path: Path, monkeypatch, started
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(SOURCE.format(condition="id > 0"))
    project.add("1.json", [row(1)])
    assert project.run().state is UpdateState.COMPLETED
    shutil.rmtree(tmp_path / ".penstock" / "events")
    started.clear()
    assert project.run().state is UpdateState.COMPLETED
    (reported,) = [
        event
        for event in project.events
        if event.origin.flow_name == "silver" and event.origin.batch_id is not None
    ]
    assert reported.message.endswith("recorded by the table, reported after a restart")
    shutil.rmtree(project.path("silver"))
    (failure,) = project.run().failures
    assert failure.condition == "TABLE_REPLACED"
    assert "silver" not in started
