"""Whole updates of one pipeline in this process: their effects on tables, events and checkpoints.

The updates run one after the other in one project, and each test checks one of them.
"""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from made_events import details
from update_project import Project, shared_project

from penstock._execution.flow_state import StateStore
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
    """The tables after an update."""

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
        chain = Chain(project)
        chain.update("first")
        chain.update("nothing new")
        project.add("b.json", orders(2, start=10))
        chain.update("bronze only", refresh=("bronze",))
        chain.update("the rest")
        text = chain.silver_state.read_text()
        assert '"reset_pending": false' in text
        chain.silver_state.write_text(
            text.replace('"reset_pending": false', '"reset_pending": true')
        )
        chain.update("reset cut off", refresh=("silver",))
        (project.root / "more" / "a.json").unlink()
        chain.update("full refresh", full_refresh_all=True)
        return chain


@pytest.fixture
def in_project(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(chain.project.root)
    return chain.project


def test_rows_flow_to_gold_when_triggered(chain: Chain):
    step = chain.steps["first"]
    assert step.result.state is UpdateState.COMPLETED
    assert step.ids["bronze"] == [0, 1, 2, 3, 4]
    assert step.ids["silver"] == [0, 1, 4]
    assert step.rows["gold"] == [(0, 510), (1, 20)]


def test_null_violates_a_rule_and_is_quarantined_with_its_name(chain: Chain):
    assert chain.steps["first"].quarantined == [(2, ("positive",)), (3, ("positive",))]
    amounts = chain.project.rows("silver", "id", "amount")
    assert amounts == [(0, 10), (1, 20), (4, 500), (10, 2)]


def test_logged_counts_equal_the_rows(chain: Chain):
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


def test_event_log_has_the_counts_of_all_updates(chain: Chain):
    logged = [
        event["details"]["flow_progress"]["data_quality"]
        for event in chain.project.log("flow_progress")
        if event["origin"].get("flow_name") == "silver"
        and event["details"]["flow_progress"].get("data_quality")
    ]
    # The first batch, the batch after "bronze only", and two batches that read all rows again.
    assert [quality["dropped_records"] for quality in logged] == [2, 0, 2, 2]


def test_no_table_is_written_when_there_are_no_new_rows(chain: Chain):
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


def test_only_selected_tables_are_refreshed(chain: Chain):
    before, step = chain.steps["nothing new"], chain.steps["bronze only"]
    assert step.ids["bronze"] == [0, 1, 2, 3, 4, 10]
    assert step.ids["silver"] == [0, 1, 4]
    changed = {table for table in TABLES if step.versions[table] != before.versions[table]}
    assert changed == {"bronze"}


def test_only_rows_of_new_files_are_added(chain: Chain):
    before, step = chain.steps["bronze only"], chain.steps["the rest"]
    assert step.ids["silver"] == [0, 1, 4, 10]
    assert step.rows["gold"] == [(0, 512), (1, 20)]
    assert step.versions["silver"] == before.versions["silver"] + 1
    assert step.quarantined == before.quarantined


def test_interrupted_reset_is_repeated(chain: Chain):
    before, step = chain.steps["the rest"], chain.steps["reset cut off"]
    assert step.ids["silver"] == [0, 1, 4, 10]
    assert step.quarantined == before.quarantined
    assert step.silver_state["reset_pending"] is False
    assert step.silver_state["epoch"] != before.silver_state["epoch"]


def test_rows_and_quarantine_are_rebuilt_by_a_full_refresh(chain: Chain):
    before, step = chain.steps["reset cut off"], chain.steps["full refresh"]
    assert step.result.state is UpdateState.COMPLETED
    assert step.ids["bronze"] == [0, 1, 2, 3, 4, 10]
    assert step.ids["silver"] == [0, 1, 4, 10]
    assert step.quarantined == before.quarantined
    assert step.rows["gold"] == [(0, 512), (1, 20)]
    assert step.silver_state["epoch"] != before.silver_state["epoch"]


def test_tables_downstream_are_marked_before_a_table_is_emptied(
    in_project: Project, monkeypatch: pytest.MonkeyPatch
):
    def crash(store: StateStore, flow: str) -> None:
        if flow == "silver":
            raise PlanError("CRASHED", "before the mark")
        mark(store, flow)

    mark = StateStore.mark_reset
    with monkeypatch.context() as patch:
        patch.setattr(StateStore, "mark_reset", crash)
        result = in_project.run(full_refresh=("bronze", "silver"))
    assert result.state is UpdateState.FAILED
    # With an empty bronze and without the mark, silver could not continue.
    assert in_project.run().state is UpdateState.COMPLETED


def test_protected_table_is_kept_by_a_full_refresh_of_all_tables(chain: Chain):
    assert chain.steps["first"].ids["kept"] == [70]
    # The source file was already deleted.
    assert chain.steps["full refresh"].ids["kept"] == [70]


def test_full_refresh_of_a_protected_table_is_refused(in_project: Project):
    with pytest.raises(PlanError, match="TABLE_NOT_RESETTABLE"):
        in_project.run(full_refresh=("kept",))


def test_refresh_of_an_unknown_table_is_refused_with_a_hint(in_project: Project):
    with pytest.raises(SpecError, match="did you mean 'silver'"):
        in_project.run(refresh=("slver",))
