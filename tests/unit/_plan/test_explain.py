import json

import pytest

from penstock._model.expectation import OnViolation
from penstock._model.flow import OutputMode
from penstock._plan.explain import explain_json, explain_text
from penstock._plan.planner import PlanOptions, make_plan

NESTED = (
    '{"type":"array","containsNull":true,"elementType":{"type":"struct","fields":['
    '{"name":"sku","type":"string","nullable":true,"metadata":{}},'
    '{"name":"tags","type":{"type":"map","keyType":"string","valueType":"long",'
    '"valueContainsNull":true},"nullable":true,"metadata":{}}]}}'
)


@pytest.fixture
def shop(draft):
    draft.table("bronze", external=("kafka: orders",), columns="value binary, day date")
    draft.view("parsed", "bronze", columns="id long")
    draft.table(
        "silver",
        "parsed",
        columns=f"id long, lines {NESTED}",
        rules=(
            ("has_id", "id IS NOT NULL", OnViolation.DROP),
            ("small", "id < 10", OnViolation.WARN),
        ),
    )
    draft.materialized_view("totals", "silver", columns="n long")
    draft.table("joined", "silver", "bronze", mode=OutputMode.UPDATE)
    draft.sink("out")
    draft.append_flow("publish", "out", "silver")
    return draft


def text_of(draft, **options):
    graph = draft.graph()
    return explain_text(graph, make_plan(graph, PlanOptions(**options)))


def json_of(draft, **options):
    graph = draft.graph()
    return explain_json(graph, make_plan(graph, PlanOptions(**options)))


def test_the_plan_is_shown_as_a_tree(shop):
    assert text_of(shop) == [
        "Plan: triggered update of 4 tables",
        "bronze [streaming table]",
        "  | flow bronze: append, everything available from kafka: orders",
        "  | columns: value binary, day date",
        "  parsed [temporary view]",
        "    | columns: id long",
        "    silver [streaming table]",
        "      | flow silver: append, everything available",
        "      | expect has_id: id IS NOT NULL [drop]",
        "      | expect small: id < 10 [warn]",
        "      | columns: id long, lines array<struct<sku: string, tags: map<string, long>>>",
        "      totals [materialized view]",
        "        | refresh: if a source changed, refresh policy auto",
        "        | columns: n long",
        "      joined [streaming table]",
        "        | flow joined: update, everything available",
        "        | columns: id long",
        "  joined [streaming table] (shown above)",
        "sink out [kafka] <- flow publish: append, everything available",
    ]


def test_the_tree_shows_tables_that_are_not_selected(shop):
    lines = text_of(shop, full_refresh=("totals",))
    assert lines[:2] == [
        "Plan: triggered update of 1 table",
        "Reset first (rows, quarantine, checkpoints): totals",
    ]
    assert "bronze [streaming table] (not selected)" in lines
    assert "  | flow bronze from kafka: orders" in lines
    assert "        | refresh: recompute" in lines
    assert not [line for line in lines if line.startswith("sink")]


def test_the_tree_shows_intervals_of_a_continuous_update(shop):
    lines = text_of(shop, continuous=True)
    assert lines[0] == "Plan: continuous update of 4 tables"
    assert "  | flow bronze: append, as rows arrive from kafka: orders" in lines
    assert (
        "        | refresh: if a source changed, checked every 10 s, refresh policy auto" in lines
    )


def test_notes_are_shown_last(draft):
    draft.table("a", table_properties={"pipelines.reset.allowed": "false"})
    assert (
        text_of(draft, full_refresh_all=True)[-1]
        == "note: a keeps its rows: pipelines.reset.allowed is false"
    )


def test_a_one_time_flow_is_shown_as_once(draft):
    draft.empty_table("orders")
    draft.append_flow("history", "orders", once=True, external=("files: /old",))
    assert "  | flow history: once from files: /old" in text_of(draft)


def test_the_plan_is_serializable_to_json(shop):
    shown = json.loads(json.dumps(json_of(shop)))
    assert set(shown) == {
        *("mode", "resets", "excluded", "notes", "warnings", "datasets", "steps"),
    }
    assert shown["mode"] == "triggered"
    silver = next(dataset for dataset in shown["datasets"] if dataset["name"] == "silver")
    assert {name: silver[name] for name in silver if name != "schema"} == {
        "name": "silver",
        "full_name": "spark_catalog.default.silver",
        "kind": "streaming table",
        "registered_as": None,
        "flows": ["silver"],
        "reads": ["parsed"],
        "read_by": ["joined", "totals"],
        "declared_at": "pipeline.py:30",
        "expectations": [
            {"name": "has_id", "condition": "id IS NOT NULL", "on_violation": "drop"},
            {"name": "small", "condition": "id < 10", "on_violation": "warn"},
        ],
    }
    assert [field["name"] for field in silver["schema"]["fields"]] == ["id", "lines"]


def test_json_has_only_the_steps_that_run(shop):
    assert json_of(shop, refresh=("bronze", "totals", "out"))["steps"] == [
        {
            "step": "StartFlow",
            "flow": "bronze",
            "target": "bronze",
            "after": [],
            "reads_external": ["kafka: orders"],
            "output_mode": "append",
            "interval_seconds": None,
        },
        {
            "step": "StartFlow",
            "flow": "publish",
            "target": "out",
            "after": [],
            "reads_external": [],
            "output_mode": "append",
            "interval_seconds": None,
        },
        {
            "step": "RefreshView",
            "flow": "totals",
            "target": "totals",
            "after": [],
            "reads_external": [],
            "interval_seconds": None,
        },
    ]


def test_json_has_resets_and_excluded_tables(shop):
    shown = json_of(shop, full_refresh=("bronze",))
    assert shown["resets"] == ["bronze"]
    assert shown["excluded"] == ["silver", "totals", "joined"]


def test_text_and_json_have_the_same_steps(shop):
    graph = shop.graph()
    plan = make_plan(graph, PlanOptions())
    text = "\n".join(explain_text(graph, plan))
    for step in explain_json(graph, plan)["steps"]:
        assert f"{step['target']} [" in text
