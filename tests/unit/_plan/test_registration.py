import pytest

from penstock._plan.explain import explain_json, explain_text
from penstock._plan.planner import PlanOptions, make_plan
from penstock.errors import PlanError


def plan_of(draft, catalog):
    return make_plan(draft.graph(), PlanOptions(), registered_catalog=catalog)


def test_the_plan_shows_metastore_names_except_for_private_tables(draft):
    draft.view("parsed", external=("kafka: orders",))
    draft.table("Silver", "parsed")
    draft.table("not-published", "parsed", private=True)
    graph = draft.graph()
    plan = plan_of(draft, "SPARK_CATALOG")
    assert [step.registered_as for step in plan.tables] == ["default.silver", None]
    text = "\n".join(explain_text(graph, plan))
    assert text.count("registered in the Hive metastore as default.silver") == 1
    shown = {node["name"]: node["registered_as"] for node in explain_json(graph, plan)["datasets"]}
    assert shown == {"parsed": None, "Silver": "default.silver", "not-published": None}


def test_no_table_is_registered_without_a_metastore(draft):
    draft.table("a-b", external=("kafka: orders",))
    plan = plan_of(draft, None)
    assert [step.registered_as for step in plan.tables] == [None]
    assert "registered" not in "\n".join(explain_text(draft.graph(), plan))


@pytest.mark.parametrize(
    ("name", "catalog", "text"),
    [
        ("silver", "main", "tables of the default catalog 'main' only"),
        ("a-b", "spark_catalog", "Hive does not allow the name 'a-b'"),
    ],
)
def test_a_name_that_the_metastore_does_not_allow_is_refused(draft, name, catalog, text):
    draft.table(name, external=("kafka: orders",))
    with pytest.raises(PlanError, match=text) as caught:
        plan_of(draft, catalog)
    assert caught.value.condition == "NAME_NOT_REGISTRABLE"
    assert caught.value.origin is not None
