"""Whole updates of one pipeline in this process: what each does to tables, events and checkpoints.

The updates follow each other in one project, and each test is about one of them.
"""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from made_events import details
from update_project import Project, shared_project

from penstock._observe.codec import details_of
from penstock._observe.events import Event, UpdateState
from penstock._runtime.update import UpdateResult
from penstock.errors import PlanError, SpecError

CHAIN = """
@dp.table
def bronze():
    return rows()


@dp.table(comment="checked", table_properties={"quality": "silver"})
@dp.expect_or_drop("positive", "amount > 0")
@dp.expect("small", "amount < 100")
def silver():
    return dp.read_stream("bronze")


@dp.materialized_view
def gold():
    return dp.read("silver").groupBy((F.col("id") % 2).alias("k")).agg(F.sum("amount").alias("s"))


@dp.table(table_properties={"pipelines.reset.allowed": "false"})
def kept():
    return rows("more")
"""
TABLES = ("bronze", "silver", "gold", "kept")


def orders(*amounts: "int | None", start: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": start + i, "amount": amount, "ts": f"2026-01-01T00:{i:02d}:00Z"}
        for i, amount in enumerate(amounts)
    ]


@dataclass
class Step:
    """What was there after an update."""

    result: UpdateResult
    events: list[Event]
    rows: dict[str, list[tuple[Any, ...]]]
    versions: dict[str, int]
    quarantined: list[tuple[Any, ...]]
    silver_state: dict[str, Any]

    @property
    def ids(self) -> dict[str, list[int]]:
        return {table: [row[0] for row in rows] for table, rows in self.rows.items()}


class Chain:
    """The project and its updates by name."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.steps: dict[str, Step] = {}
        self.silver_state = project.root / ".penstock" / "state" / "flows" / "silver.json"

    def update(self, name: str, **options: Any) -> None:
        result = self.project.run(**options)
        bad = self.project.rows("silver_quarantine", "id", "_failed_rules")
        self.steps[name] = Step(
            result,
            self.project.events,
            {
                table: self.project.rows(table, *(("k", "s") if table == "gold" else ("id",)))
                for table in TABLES
            },
            {table: self.project.version(table) for table in TABLES},
            [(key, tuple(rules)) for key, rules in bad],
            json.loads(self.silver_state.read_text()),
        )


@pytest.fixture(scope="module")
def chain(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    with shared_project(tmp_path_factory.mktemp("chain"), spark) as project:
        project.source(CHAIN).add("a.json", orders(10, 20, -1, None, 500))
        project.add("a.json", orders(7, start=70), folder="more")
        made = Chain(project)
        made.update("first")
        made.update("nothing new")
        project.add("b.json", orders(2, start=10))
        made.update("bronze only", refresh=("bronze",))
        made.update("the rest")
        text = made.silver_state.read_text()
        assert '"reset_pending": false' in text
        made.silver_state.write_text(
            text.replace('"reset_pending": false', '"reset_pending": true')
        )
        made.update("reset cut off", refresh=("silver",))
        (project.root / "more" / "a.json").unlink()
        made.update("everything anew", full_refresh_all=True)
        return made


@pytest.fixture
def at_home(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(chain.project.root)
    return chain.project


def test_rows_flow_to_gold_when_triggered(chain: Chain):
    step = chain.steps["first"]
    assert step.result.state is UpdateState.COMPLETED
    assert step.ids["bronze"] == [0, 1, 2, 3, 4]
    assert step.ids["silver"] == [0, 1, 4]
    assert step.rows["gold"] == [(0, 510), (1, 20)]


def test_null_is_a_violation_with_its_rule_when_quarantined(chain: Chain):
    assert chain.steps["first"].quarantined == [(2, ("positive",)), (3, ("positive",))]
    amounts = chain.project.rows("silver", "id", "amount")
    assert amounts == [(0, 10), (1, 20), (4, 500), (10, 2)]


def test_counts_equal_rows_when_logged(chain: Chain):
    logged = {"positive": [0, 0], "small": [0, 0]}
    dropped = quarantined = 0
    for event in chain.steps["first"].events:
        if event.event_type != "flow_progress":
            continue
        quality = details(event).get("data_quality", {})
        dropped += quality.get("dropped_records", 0)
        quarantined += quality.get("quarantined_records", 0)
        for rule in quality.get("expectations", ()):
            logged[rule["name"]][0] += rule["passed_records"]
            logged[rule["name"]][1] += rule["failed_records"]
    assert logged == {"positive": [3, 2], "small": [3, 2]}
    assert dropped == quarantined == 2


def test_the_event_log_has_what_was_notified_when_the_updates_are_over(chain: Chain):
    logged = [
        event["details"]["flow_progress"]["data_quality"]
        for event in chain.project.log("flow_progress")
        if event["origin"].get("flow_name") == "silver"
        and event["details"]["flow_progress"].get("data_quality")
    ]
    # Of the first batch, of the one after "bronze only", and of the two that read everything again.
    assert [quality["dropped_records"] for quality in logged] == [2, 0, 2, 2]


def test_nothing_is_written_when_nothing_is_new(chain: Chain):
    before, step = chain.steps["first"], chain.steps["nothing new"]
    assert step.result.state is UpdateState.COMPLETED
    assert step.versions == before.versions
    (plan,) = [
        details_of(event.body)
        for event in step.events
        if event.event_type == "planning_information"
    ]
    (technique,) = plan["planning_information"]["technique_information"]
    assert technique["maintenance_type"] == "MAINTENANCE_TYPE_NO_OP"


def test_only_the_selection_is_updated_when_refreshing(chain: Chain):
    before, step = chain.steps["nothing new"], chain.steps["bronze only"]
    assert step.ids["bronze"] == [0, 1, 2, 3, 4, 10]
    assert step.ids["silver"] == [0, 1, 4]
    changed = {table for table in TABLES if step.versions[table] != before.versions[table]}
    assert changed == {"bronze"}


def test_only_new_rows_are_added_when_files_come(chain: Chain):
    before, step = chain.steps["bronze only"], chain.steps["the rest"]
    assert step.ids["silver"] == [0, 1, 4, 10]
    assert step.rows["gold"] == [(0, 512), (1, 20)]
    assert step.versions["silver"] == before.versions["silver"] + 1
    assert step.quarantined == before.quarantined


def test_a_reset_is_done_again_when_it_was_cut_off(chain: Chain):
    before, step = chain.steps["the rest"], chain.steps["reset cut off"]
    assert step.ids["silver"] == [0, 1, 4, 10]
    assert step.quarantined == before.quarantined
    assert step.silver_state["reset_pending"] is False
    assert step.silver_state["epoch"] != before.silver_state["epoch"]


def test_rows_and_quarantine_are_rebuilt_when_fully_refreshed(chain: Chain):
    before, step = chain.steps["reset cut off"], chain.steps["everything anew"]
    assert step.result.state is UpdateState.COMPLETED
    assert step.ids["bronze"] == [0, 1, 2, 3, 4, 10]
    assert step.ids["silver"] == [0, 1, 4, 10]
    assert step.quarantined == before.quarantined
    assert step.rows["gold"] == [(0, 512), (1, 20)]
    assert step.silver_state["epoch"] != before.silver_state["epoch"]


def test_a_protected_table_is_kept_when_everything_is_reset(chain: Chain):
    assert chain.steps["first"].ids["kept"] == [70]
    # Its file is gone by then.
    assert chain.steps["everything anew"].ids["kept"] == [70]


def test_a_protected_table_is_refused_when_named(at_home: Project):
    with pytest.raises(PlanError, match="TABLE_NOT_RESETTABLE"):
        at_home.run(full_refresh=("kept",))


def test_an_unknown_name_is_refused_when_selected(at_home: Project):
    with pytest.raises(SpecError, match="did you mean 'silver'"):
        at_home.run(refresh=("slver",))
