"""Flows that replace the rows of a window of their table, in whole updates."""

from dataclasses import dataclass
from typing import Any

import pytest
from delta.tables import DeltaTable
from made_events import details
from update_project import Project, shared_project

from penstock._observe.events import Event, UpdateState
from penstock._runtime.update import UpdateResult
from penstock._tables.write import writer
from penstock.errors import DefinitionErrors

pytestmark = pytest.mark.spark

SOURCE = """
DAYS = "day DATE, id BIGINT, amount INT"

def days():
    return spark.read.schema(DAYS).json("days")
"""

WINDOW = (
    SOURCE
    + """
@dp.table(
    replace_where=F.col("day") >= "2026-01-10",
    table_properties={
        "delta.enableChangeDataFeed": "true", "pipelines.maxFlowRetryAttempts": "0"},
)
@dp.expect("small", "amount < 100")
@dp.expect_or_drop("known", "amount IS NOT NULL")
def recent():
    return days()

@dp.materialized_view
def totals():
    return spark.read.table("recent").groupBy("day").agg(F.sum("amount").alias("total"))
"""
)

SQL = """
CREATE STREAMING TABLE moving (CONSTRAINT known EXPECT (amount > 0))
PARTITIONED BY (day) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')
FLOW REPLACE WHERE day BETWEEN date_add(current_date(), -1000000) AND current_date() BY NAME
SELECT id, day, amount FROM json.`days`;

CREATE STREAMING TABLE by_id TBLPROPERTIES ('delta.enableDeletionVectors' = 'true');
CREATE FLOW f AS INSERT INTO by_id BY NAME REPLACE WHERE `the-id` > 1 AND amount < 50
SELECT id AS `the-id`, amount FROM json.`days`;
"""


def day(number: int, key: int, amount: int | None) -> dict:
    return {"day": f"2026-01-{number:02}", "id": key, "amount": amount}


def listed(project: Project, table: str) -> list[tuple]:
    rows = project.rows(table, "day", "id", "amount", key=str)
    return sorted(((day and int(str(day)[-2:]), *rest) for day, *rest in rows), key=str)


def _crash_between_the_commits(point: str, flow: str, batch_id: int | None) -> None:
    if (point, flow) == ("after_quarantine_commit", "recent"):
        raise RuntimeError("simulated crash")


@dataclass
class Step:
    """The content of the tables after an update."""

    result: UpdateResult
    events: list[Event]
    recent: list[tuple[Any, ...]]
    quarantined: list[tuple[Any, ...]]
    totals: list[tuple[Any, ...]]
    version: int


class Window:
    """One project, and the result of each of its updates."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.steps: dict[str, Step] = {}

    def update(self, name: str, **options: Any) -> None:
        result = self.project.run(**options)
        self.steps[name] = Step(
            result,
            self.project.events,
            listed(self.project, "recent"),
            listed(self.project, "recent_quarantine"),
            self.project.rows("totals", "total"),
            self.project.version("recent"),
        )


@pytest.fixture(scope="module")
def window(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Window:
    with shared_project(tmp_path_factory.mktemp("window"), spark) as project:
        window = Window(project.source(WINDOW))
        first = [day(9, 1, 1), day(10, 2, 2), day(11, 3, 3), day(11, 4, None)]
        project.add("a", [*first, {"id": 9, "amount": 9}], "days")
        window.update("first")
        # The window moves; earlier days are kept, although the source has other rows for them.
        project.source(WINDOW.replace("2026-01-10", "2026-01-11"))
        project.add("a", [day(10, 2, 20), day(11, 3, 300), day(12, 5, None)], "days")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer, "kill_point", _crash_between_the_commits)
            window.update("cut off")
        window.update("moved")
        window.update("nothing new")
        project.add("a", [day(10, 2, 20)], "days")
        window.update("empty")
        window.update("refreshed", full_refresh=("recent",))
        return window


def test_only_rows_of_the_window_are_written_when_the_table_is_new(window: Window):
    step = window.steps["first"]
    assert step.result.state is UpdateState.COMPLETED, step.result.failures
    assert step.recent == [(10, 2, 2), (11, 3, 3)]
    assert step.quarantined == [(11, 4, None)]
    assert step.totals == [(2,), (3,)]


def test_table_keeps_its_rows_when_the_update_crashes_between_the_commits(window: Window):
    step = window.steps["cut off"]
    assert step.result.state is UpdateState.FAILED
    assert step.recent == [(10, 2, 2), (11, 3, 3)]
    assert step.totals == [(2,), (3,)]


def test_only_the_window_is_replaced_when_the_source_changes(window: Window):
    step = window.steps["moved"]
    assert step.result.state is UpdateState.COMPLETED
    assert step.recent == [(10, 2, 2), (11, 3, 300)]
    assert step.quarantined == [(12, 5, None)]
    assert step.totals == [(2,), (300,)]


def test_rows_and_rules_are_counted_when_a_window_is_replaced(window: Window):
    (progress,) = [
        details(event)
        for event in window.steps["moved"].events
        if event.event_type == "flow_progress"
        and event.origin.flow_name == "recent"
        and details(event).get("data_quality")
    ]
    assert progress["metrics"]["num_output_rows"] == 1
    assert progress["metrics"]["num_deleted_rows"] == 1
    rules = {e["name"]: e["failed_records"] for e in progress["data_quality"]["expectations"]}
    assert rules == {"small": 2, "known": 1}


def test_change_feed_and_history_have_the_replaced_window(window: Window):
    path, version = str(window.project.path("recent")), window.steps["moved"].version
    changes = window.project.spark.read.format("delta").option("readChangeFeed", "true")
    changes = changes.options(startingVersion=version, endingVersion=version).load(path)
    net = changes.groupBy("id", "amount").agg(
        {"*": "count"} | {"_change_type": "collect_list"}  # kept rows have both types
    )
    kinds = {(row[0], row[1]): sorted(row["collect_list(_change_type)"]) for row in net.collect()}
    assert kinds.pop((3, 3)) == ["delete"]
    assert kinds.pop((3, 300)) == ["insert"]
    assert kinds in ({}, {(2, 2): ["delete", "insert"]})
    history = DeltaTable.forPath(window.project.spark, path).history()
    (commit,) = history.where(f"version = {version}").collect()
    assert "day >= " in commit.operationParameters["predicate"]


def test_nothing_is_written_when_neither_source_nor_window_changed(window: Window):
    assert window.steps["nothing new"].version == window.steps["moved"].version


def test_the_window_is_emptied_when_the_source_has_no_rows_for_it(window: Window):
    assert window.steps["empty"].recent == [(10, 2, 2)]


def test_days_before_the_window_are_removed_by_a_full_refresh(window: Window):
    assert window.steps["refreshed"].recent == []


def test_sql_flows_replace_rows_with_clauses_in_either_order(project: Project):
    (project.root / "flows.sql").write_text(SQL, encoding="utf-8")
    project.source("")
    days = [day(1, 1, 1), day(1, 2, 2), day(2, 3, 3), day(2, 4, 60)]
    result = project.add("a", days, "days").run()
    assert result.state is UpdateState.COMPLETED, result.failures
    assert listed(project, "moving") == [(1, 1, 1), (1, 2, 2), (2, 3, 3), (2, 4, 60)]
    assert project.rows("by_id") == [(2, 2), (3, 3)]
    project.add("a", [day(1, 1, -1), day(3, 3, 30), day(3, 4, 70)], "days").run()
    assert listed(project, "moving") == [(1, 1, -1), (3, 3, 30), (3, 4, 70)]
    assert project.rows("by_id") == [(3, 30)]


def test_invalid_windows_are_refused_with_a_reason(project: Project):
    project.source(
        SOURCE
        + """
def window(where, name, query=days):
    dp.table(name=name, replace_where=where)(query)

window("dat > '2026-01-01'", "unknown")
window("amount + 1", "number")
window("id IN (SELECT 1)", "other_rows")
window("rand() > 0.5", "chance")
window("amount > 0) OR (true", "brackets")
window("max(amount) > 0", "aggregate")
window("amount > 0", "stream", query=rows)

window("amount > 0", "replaced")

@dp.table
def streams():
    return spark.readStream.table("replaced")

dp.create_streaming_table("shared")

@dp.append_flow(target="shared")
def adds():
    return rows()
"""
    )
    project.add("a", [day(1, 1, 1)], "days")
    (project.root / "flows.sql").write_text(
        "CREATE FLOW replaces AS INSERT INTO shared REPLACE WHERE id > 0 BY NAME SELECT 1 AS id",
        encoding="utf-8",
    )
    with pytest.raises(DefinitionErrors) as caught:
        project.run()
    errors = [(error.condition, str(error)) for error in caught.value.errors]
    invalid = [text for condition, text in errors if condition == "REPLACE_WHERE_INVALID"]
    assert len(invalid) == 6, errors
    for name, reason in [
        ("unknown", "`dat`"),
        ("number", "BOOLEAN"),
        ("other_rows", "subquery"),
        ("chance", "chance"),
        ("brackets", "PARSE_SYNTAX_ERROR"),
        ("aggregate", "aggregate"),
    ]:
        assert any(f"flow '{name}'" in text and reason in text for text in invalid), name
    assert {condition for condition, _ in errors} == {
        "REPLACE_WHERE_INVALID",
        "REPLACE_WHERE_READS_STREAM",
        "REPLACE_WHERE_TARGET_SHARED",
        "REPLACE_WHERE_TARGET_STREAMED",
    }
    assert "pipeline.py:" in invalid[0]
