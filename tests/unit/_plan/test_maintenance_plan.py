"""Maintenance settings from table properties and flows."""

import pytest

from penstock._plan.maintenance import table_maintenance
from penstock._plan.planner import PlanOptions, make_plan
from penstock.errors import SpecError


def maintenance_of(draft, name, stored=None):
    graph = draft.graph()
    return table_maintenance(graph, graph.datasets[f"spark_catalog.default.{name}"], stored or {})


@pytest.mark.parametrize(
    ("properties", "compacts", "at_end"),
    [
        ({}, True, False),
        ({"delta.autoOptimize.autoCompact": "Auto"}, True, True),
        ({"DELTA.AUTOOPTIMIZE.AUTOCOMPACT": "true"}, True, True),
        ({"delta.autoOptimize": "true"}, True, True),
        ({"delta.autoOptimize.autoCompact": "false"}, False, False),
        (
            {
                "delta.autoOptimize.autoCompact": "true",
                "pipelines.autoOptimize.managed": "false",
            },
            False,
            False,
        ),
    ],
)
def test_compaction_follows_the_table_properties(draft, properties, compacts, at_end):
    draft.table("t", table_properties=properties)
    maintenance = maintenance_of(draft, "t")
    assert (maintenance.compacts, maintenance.compacts_at_end) == (compacts, at_end)


def test_the_declared_property_overrides_the_stored_one(draft):
    draft.table("t", table_properties={"delta.autoOptimize.autoCompact": "false"})
    stored = {"delta.autoOptimize.autoCompact": "true"}
    assert not maintenance_of(draft, "t", stored).compacts
    draft.table("u")
    assert maintenance_of(draft, "u", stored).compacts_at_end


def test_a_materialized_view_is_compacted_between_refreshes_and_never_z_ordered(draft):
    draft.table("t")
    draft.materialized_view("v", "t", table_properties={"pipelines.autoOptimize.zOrderCols": "id"})
    maintenance = maintenance_of(draft, "v")
    assert (maintenance.compacts, maintenance.alone, maintenance.z_order, maintenance.vacuums) == (
        True,
        True,
        (),
        True,
    )


def test_a_table_with_its_own_path_is_vacuumed_only_when_managed(draft):
    draft.table("a", path="/data/a")
    managed = {"pipelines.autoOptimize.managed": "true"}
    draft.table("b", path="/data/b", table_properties=managed)
    assert not maintenance_of(draft, "a").vacuums
    assert maintenance_of(draft, "b").vacuums


def test_z_order_has_the_columns_of_the_property_unless_the_table_is_clustered(draft):
    columns = {"pipelines.autoOptimize.zOrderCols": "id, `a b` ,"}
    draft.table("a", table_properties=columns)
    draft.table("b", table_properties=columns, cluster_by=("id",))
    assert maintenance_of(draft, "a").z_order == ("id", "a b")
    assert maintenance_of(draft, "b").z_order == ()


def test_compaction_does_not_overlap_batches_that_remove_files(draft):
    draft.table("plain")
    draft.table("unique", deduplicate_by=("id",))
    assert not maintenance_of(draft, "plain").alone
    assert maintenance_of(draft, "unique").alone


def test_an_invalid_value_is_refused_before_the_update_starts(draft):
    draft.table("t", table_properties={"pipelines.autoOptimize.managed": "maybe"})
    with pytest.raises(SpecError, match=r"pipelines\.autoOptimize\.managed is 'maybe'"):
        make_plan(draft.graph(), PlanOptions())
