"""Updates after changes of queries, and after the loss of checkpoint entries."""

from pathlib import Path
from typing import Any

import pytest
from update_project import Project, shared_project

from penstock._execution.declaration_changes import Need
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._repair.deployment import plan_deployment
from penstock._runtime.update import UpdateResult
from penstock.errors import CheckpointError

QUERIES = """
@dp.table
def columns():
    return rows().select({columns})

@dp.table
def unique():
    return rows("events").withWatermark("ts", "1 hour").dropDuplicates([{keys}])

@dp.materialized_view
def extreme():
    return spark.read.schema(ROWS).json("events").select(F.{function}("amount").alias("x"))
"""


def row(number: int, amount: int) -> dict[str, Any]:
    return {"id": number, "amount": amount, "ts": f"2026-01-01T00:00:{number:02}Z"}


@pytest.fixture(scope="module")
def changed(
    spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, list[UpdateResult]]:
    """Three updates with different queries."""
    with shared_project(tmp_path_factory.mktemp("changed"), spark) as project:
        project.add("a.json", [row(0, 3), row(1, 9)], folder="events").add("a.json", [row(0, 1)])
        project.source(QUERIES.format(columns='"id"', keys='"id", "ts"', function="max"))
        results = [project.run()]
        wider = {"columns": '"id", "amount"', "keys": '"id", "amount", "ts"'}
        project.source(QUERIES.format(**wider, function="min")).add("b.json", [row(3, 7)])
        results.append(project.run())
        other = {**wider, "columns": 'F.col("ts").alias("id"), "amount"'}
        project.source(QUERIES.format(**other, function="min")).add("c.json", [row(4, 9)])
        results.append(project.run(refresh=("columns",), full_refresh=("unique",)))
        return project, results


def test_checkpoint_is_refused_when_a_stateful_operator_changed(changed: Any):
    _, (first, second, third) = changed
    assert first.state is UpdateState.COMPLETED, first.failures
    (failure,) = second.failures
    assert isinstance(failure, CheckpointError)
    assert failure.condition == "STATEFUL_QUERY_CHANGED"
    assert "--full-refresh unique" in str(failure)
    # The third update was a full refresh.
    assert all("unique" not in str(error) for error in third.failures)


def test_rows_are_recomputed_when_a_refused_flow_is_fully_refreshed(changed: Any):
    project, _ = changed
    assert project.rows("unique", "id", "amount") == [(0, 3), (1, 9)]


def test_new_columns_are_added_when_the_query_changes(changed: Any):
    project, _ = changed
    assert project.table("columns").orderBy("id").collect() == [(0, None), (3, 7)]


def test_type_changes_are_refused_when_the_query_changes(changed: Any):
    _, (*_, result) = changed
    assert result.state is UpdateState.FAILED
    (failure,) = result.failures
    assert failure.condition == "SCHEMA_INCOMPATIBLE"
    assert failure.origin is not None
    assert "--full-refresh" in str(failure)


def test_a_view_is_recomputed_when_its_query_changed(changed: Any):
    project, _ = changed
    assert project.rows("extreme") == [(3,)]
    before = project.spark.read.format("delta").option("versionAsOf", 1)
    assert before.load(str(project.path("extreme"))).collect() == [(9,)]


def test_full_refresh_is_needed_when_a_view_becomes_a_stream(changed: Any):
    project, _ = changed
    (view,) = project.rows("extreme")
    project.source(
        """
@dp.table(replace_where="x > 0")
def window():
    return spark.read.schema(ROWS).json("events").select(F.col("amount").alias("x"))
"""
    ).run()
    project.source(
        """
@dp.table
def extreme():
    return spark.readStream.schema(ROWS).json("events").select(F.col("amount").alias("x"))

@dp.table
def window():
    return spark.readStream.schema(ROWS).json("events").select(F.col("amount").alias("x"))
"""
    )
    changes = plan_deployment(load_settings(project.root)).changes
    needs = {change.name: change.need for change in changes}
    assert needs["extreme"] is needs["window"] is Need.FULL_REFRESH
    failures = project.run().failures
    assert [failure.condition for failure in failures] == ["DATASET_KIND_CHANGED"] * 2
    assert project.rows("extreme") == [view]
    assert project.rows("window") == [(3,), (9,)]
    tables = ("extreme", "window")
    assert project.run(full_refresh=tables).state is UpdateState.COMPLETED
    assert project.rows("extreme") == [(3,), (9,)]
    assert project.run().state is UpdateState.COMPLETED


CHECKPOINTED = """
@dp.table
def stateless():
    return rows()

@dp.table
def stateful():
    return rows().withWatermark("ts", "1 hour").dropDuplicates(["id", "ts"])
"""


@pytest.fixture(scope="module")
def repeated(
    spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, dict[str, int], UpdateResult]:
    """Both tables after an update that repeated the second batch."""
    with shared_project(tmp_path_factory.mktemp("repeated"), spark) as project:
        project.source(CHECKPOINTED).add("a.json", [row(0, 1), row(1, 2)]).run()
        project.add("b.json", [row(20, 3), row(21, 4)]).run()
        versions = {table: project.version(table) for table in ("stateless", "stateful")}
        for table in versions:
            _forget_newest(project.commits_folder(table))
        return project, versions, project.run()


def _forget_newest(commits: Path) -> None:
    newest = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("table", ["stateless", "stateful"])
def test_no_row_is_duplicated_when_the_newest_commit_entry_is_lost(repeated: Any, table: str):
    project, versions, result = repeated
    assert result.state is UpdateState.COMPLETED
    assert project.version(table) == versions[table]
    assert project.rows(table, "id") == [(0,), (1,), (20,), (21,)]
    # The batch was repeated: Spark's commit entry exists again.
    assert max(int(f.name) for f in project.commits_folder(table).iterdir() if f.name.isdigit()) > 0
