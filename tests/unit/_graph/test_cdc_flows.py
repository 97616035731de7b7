import pytest

from penstock._graph.cdc import cdc_text
from penstock._model.cdc import ScdType, TrackHistory
from penstock._model.expectation import Expectation, OnViolation
from penstock._plan.explain import explain_json, explain_text
from penstock._plan.planner import PlanOptions, make_plan
from penstock._plan.steps import RefreshView, RunOnceFlow, StartFlow
from penstock.errors import DefinitionErrors


def conditions(index):
    return [error.condition for error in index.errors]


def raised(draft):
    with pytest.raises(DefinitionErrors) as caught:
        draft.graph()
    return [error.condition for error in caught.value.errors]


def test_default_flow_name_is_the_display_name_of_its_target(draft):
    draft.table("s")
    draft.empty_table("default.customers")
    draft.cdc_flow("LIVE.customers", "LIVE.customers", "s")
    index = draft.index()
    assert conditions(index) == []
    assert list(index.flows) == ["s", "customers"]


def test_several_cdc_flows_may_write_a_table_when_they_agree(draft):
    draft.table("s")
    draft.empty_table("customers")
    draft.cdc_flow("first", "customers", "s", once=True, sequence_by="0")
    draft.cdc_flow("second", "customers", "s", keys=("ID",))
    assert conditions(draft.index()) == []
    assert draft.graph().datasets["spark_catalog.default.customers"].flows == ("first", "second")


@pytest.mark.parametrize(
    "other",
    [
        {"keys": ("id", "region")},
        {"scd_type": ScdType.TWO},
        {"track_history": TrackHistory(columns=("city",))},
    ],
)
def test_cdc_flows_are_refused_when_their_settings_differ(draft, other):
    draft.empty_table("customers")
    draft.cdc_flow("first", "customers")
    draft.cdc_flow("second", "customers", **other)
    assert conditions(draft.index()) == ["CDC_FLOWS_DISAGREE"]


def test_cdc_flows_are_refused_when_their_sequence_types_differ(draft):
    draft.empty_table("customers")
    draft.cdc_flow("first", "customers")
    draft.cdc_flow("second", "customers", sequence_type="timestamp")
    assert raised(draft) == ["CDC_FLOWS_DISAGREE"]


def test_cdc_target_is_refused_when_other_flows_write_it(draft):
    draft.empty_table("customers")
    draft.cdc_flow("first", "customers")
    draft.append_flow("second", "customers")
    draft.snapshot_flow("third", "customers")
    assert conditions(draft.index()) == ["CDC_TARGET_SHARED"] * 2


def test_two_snapshot_flows_are_refused_when_they_have_the_same_target(draft):
    draft.empty_table("customers")
    draft.snapshot_flow("first", "customers")
    draft.snapshot_flow("second", "customers")
    assert conditions(draft.index()) == ["CDC_TARGET_SHARED"]


def test_expectations_are_refused_on_the_target_of_a_snapshot_flow(draft):
    rule = Expectation(
        name="r", condition="id > 0", on_violation=OnViolation.WARN, origin=draft.here()
    )
    draft.empty_table("customers", expectations=(rule,))
    draft.snapshot_flow("follow", "customers")
    assert conditions(draft.index()) == ["CDC_SNAPSHOT_EXPECTATIONS"]


@pytest.mark.parametrize("kind", ["missing", "table", "sink", "view"])
def test_cdc_target_is_refused_when_it_is_not_a_declared_streaming_table(draft, kind):
    expected = {
        "missing": "FLOW_TARGET_NOT_FOUND",
        "table": "CDC_TARGET_SHARED",
        "sink": "FLOW_TARGET_NOT_STREAMING",
        "view": "FLOW_TARGET_NOT_STREAMING",
    }
    if kind == "sink":
        draft.sink("customers")
    elif kind != "missing":
        getattr(draft, kind)("customers")
    draft.cdc_flow("changes", "customers")
    assert conditions(draft.index()) == [expected[kind]]


def test_plan_has_a_step_for_every_kind_of_cdc_flow(draft):
    draft.table("s")
    draft.empty_table("a")
    draft.empty_table("b")
    draft.cdc_flow("once_batch", "a", "s", once=True, streaming=False)
    draft.cdc_flow("once_stream", "a", "s", once=True)
    draft.cdc_flow("always", "a", "s", scd_type=ScdType.ONE)
    draft.snapshot_flow("snapshots", "b", "s", scd_type=ScdType.TWO)
    graph = draft.graph()
    plan = make_plan(graph, PlanOptions())
    steps = {step.flow: step for step in plan.runs}
    assert isinstance(steps["once_batch"], RunOnceFlow)
    assert isinstance(steps["once_stream"], RunOnceFlow)
    assert isinstance(steps["always"], StartFlow)
    assert isinstance(steps["snapshots"], RefreshView)
    text = "\n".join(explain_text(graph, plan))
    assert "flow always: auto CDC of s by id, SCD type 1, everything available" in text
    assert "flow once_stream: auto CDC of s by id, SCD type 1, once" in text
    assert "flow snapshots: snapshots of s by id, SCD type 2, what is new" in text
    shown = {step["flow"]: step for step in explain_json(graph, plan)["steps"]}
    assert shown["always"]["cdc"] == "auto CDC of s by id, SCD type 1"
    continuous = make_plan(graph, PlanOptions(continuous=True))
    assert "SCD type 2, every 10 s" in "\n".join(explain_text(graph, continuous))


def test_snapshot_flow_description_names_a_function_as_the_source(draft):
    draft.empty_table("b")
    flow = draft.snapshot_flow("f", "b", source=None, next_snapshot=lambda latest: None)
    assert cdc_text(flow) == "snapshots of a function by id, SCD type 1"
