from dataclasses import replace
from pathlib import Path

import pytest

from penstock._model.dataset import DatasetKind
from penstock._model.expectation import OnViolation
from penstock._model.origin import SourceLocation
from penstock._model.pipeline import EventLogSettings


def conditions(index):
    return [error.condition for error in index.errors]


def test_no_error_is_reported_when_every_name_is_declared_once(draft):
    draft.table("bronze")
    draft.table("silver", "bronze")
    draft.empty_table("all_orders")
    draft.append_flow("from_eu", "all_orders")
    index = draft.index()
    assert conditions(index) == []
    assert list(index.datasets) == [
        "spark_catalog.default.bronze",
        "spark_catalog.default.silver",
        "spark_catalog.default.all_orders",
    ]
    assert dict(index.flow_targets)["from_eu"] == "spark_catalog.default.all_orders"


def test_relative_path_of_a_table_is_resolved_to_the_current_folder(draft):
    draft.table("bronze", path="delta/bronze")
    draft.table("silver", path="s3://lake/silver")
    paths = [node.declared.path for node in draft.index().datasets.values()]
    assert paths == [str(Path.cwd() / "delta/bronze"), "s3://lake/silver"]


@pytest.mark.parametrize(
    "name",
    ["orders", "ORDERS", "`orders`", "LIVE.orders", "live.Orders", "bronze.orders",
     "main.bronze.orders", "Main.Bronze.Orders", "LIVE.bronze.orders"],
)  # fmt: skip
def test_dataset_is_found_by_any_form_of_its_name(draft, name):
    draft.catalog, draft.schema = "main", "bronze"
    draft.table("Orders")
    node = draft.index().find(name)
    assert node is not None
    assert str(node.name) == "main.bronze.Orders"


def test_a_name_with_a_schema_is_not_that_of_a_temporary_view(draft):
    draft.catalog, draft.schema = "main", "bronze"
    draft.view("orders", "main.bronze.orders", private=True)
    draft.view("days", "orders")  # in SQL: CREATE VIEW
    index = draft.index()
    assert index.find("main.bronze.days") is not None
    assert index.find("Orders") is not None
    assert index.find("LIVE.orders") is not None
    assert index.find("bronze.orders") is None
    assert index.find("main.bronze.orders") is None


@pytest.mark.parametrize("name", ["order items", "`order items`", "LIVE.`Order Items`"])
def test_selection_accepts_display_names(draft, name):
    draft.table("`order items`")
    assert draft.index().select([name]) == {"spark_catalog.default.order items"}


@pytest.mark.parametrize("name", ["order", "silver.orders", "other.bronze.orders", "", "a.b.c.d"])
def test_no_dataset_is_found_when_the_name_differs(draft, name):
    draft.catalog, draft.schema = "main", "bronze"
    draft.table("orders")
    assert draft.index().find(name) is None


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        ("orders", "orders"),
        ("bronze.orders", "orders"),
        ("MAIN.Bronze.Orders", "Orders"),
        ("silver.orders", "silver.orders"),
        ("other.bronze.orders", "other.bronze.orders"),
    ],
)
def test_display_name_omits_the_default_catalog_and_schema(draft, declared, shown):
    draft.catalog, draft.schema = "main", "bronze"
    draft.table(declared)
    index = draft.index()
    assert [index.display(key) for key in index.datasets] == [shown]
    assert list(index.flows) == [shown]


def test_unknown_key_is_displayed_unchanged(draft):
    assert draft.index().display("a.b.c") == "a.b.c"


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("ordres", "Orders"), ("LIVE.ordrs", "Orders"), ("`ORDER`", "Orders"), ("zzz", None)],
)
def test_nearest_name_is_suggested_when_a_name_is_unknown(draft, wrong, nearest):
    draft.table("Orders")
    draft.table("customers")
    assert draft.index().nearest(wrong) == nearest


def test_a_dataset_is_a_duplicate_when_only_the_spelling_differs(draft):
    draft.table("orders")
    draft.table("spark_catalog.default.ORDERS")
    index = draft.index()
    (error,) = index.errors
    assert error.condition == "DUPLICATE_DATASET"
    assert str(error.origin) == "pipeline.py:20"
    assert "first at pipeline.py:10" in error.message
    assert len(index.datasets) == len(index.flows) == 1


def test_a_duplicate_dataset_is_one_error_when_a_loop_declares_it_on_one_line(draft):
    line = SourceLocation("pipeline.py", 5)
    draft.table("orders", origin=line)
    draft.table("orders", origin=line)
    assert conditions(draft.index()) == ["DUPLICATE_DATASET"]


def test_a_duplicate_dataset_is_one_error_when_the_first_has_no_query(draft):
    draft.empty_table("orders")
    draft.table("orders")
    assert conditions(draft.index()) == ["DUPLICATE_DATASET"]


@pytest.mark.parametrize("action", [OnViolation.DROP, OnViolation.WARN])
def test_quarantine_is_off_when_the_pipeline_declares_a_table_with_its_name(draft, action):
    draft.table("orders", rules=(("small", "id < 9", action),))
    draft.table("orders_quarantine")
    draft.table("other_quarantine")
    index = draft.index()
    assert index.errors == ()
    taken = {key: node.declared.is_quarantine_taken for key, node in index.datasets.items()}
    assert [key.rpartition(".")[2] for key, is_taken in taken.items() if is_taken] == ["orders"]
    (orders, *_) = index.datasets.values()
    assert orders.declared.quarantine is False
    is_noted = any("declares 'orders_quarantine' itself" in note for note in index.notes)
    assert is_noted == (action is OnViolation.DROP)


def test_note_warns_that_invalid_events_fail_when_the_quarantine_name_is_taken(draft):
    draft.empty_table("people")
    draft.cdc_flow("changes", "people")
    draft.table("people_quarantine")
    (note,) = [note for note in draft.index().notes if "itself" in note]
    assert note.startswith("people: an invalid change event fails its flow, because")


def test_table_is_refused_when_it_has_the_name_of_an_explicit_quarantine(draft):
    draft.table("orders", rules=(("small", "id < 9", OnViolation.QUARANTINE),))
    draft.table("Orders_Quarantine")
    assert conditions(draft.index()) == ["QUARANTINE_NAME_TAKEN"]


def test_a_flow_is_a_duplicate_when_its_name_is_taken(draft):
    draft.empty_table("a")
    draft.empty_table("b")
    draft.append_flow("load", "a")
    draft.append_flow("Load", "b")
    # That `b` has no flow is not reported, because it follows from the duplicate.
    assert conditions(draft.index()) == ["DUPLICATE_FLOW"]


def test_a_flow_is_a_duplicate_when_it_has_the_name_of_a_table_with_a_query(draft):
    draft.table("orders")
    draft.empty_table("all_orders")
    draft.append_flow("orders", "all_orders")
    assert conditions(draft.index()) == ["DUPLICATE_FLOW"]


def test_a_sink_is_a_duplicate_when_its_name_is_taken(draft):
    draft.sink("out")
    draft.sink("out", format="console")
    index = draft.index()
    assert conditions(index) == ["DUPLICATE_SINK"]
    assert index.sinks["out"].format == "kafka"


def test_a_sink_is_refused_when_it_has_the_name_of_a_dataset(draft):
    draft.table("Out")
    draft.sink("out")
    draft.append_flow("publish", "out", "Out")
    (error,) = draft.index().errors
    assert error.condition == "SINK_NAMED_AS_DATASET"
    assert "pipeline.py:10" in error.message


@pytest.mark.parametrize(
    "tables",
    [("BRONZE", None), (None, "bronze_quarantine"), ("default.bronze", None), ("ops.e", "OPS.E")],
)
def test_event_table_is_refused_when_its_name_is_taken(draft, tables):
    draft.table("bronze")
    table, quality_table = tables
    draft.events = EventLogSettings(table=table, quality_table=quality_table)
    assert conditions(draft.index()) == ["EVENT_TABLE_NAME_TAKEN"]
    draft.events = EventLogSettings(table="ops.bronze", quality_table="ops.quality")
    assert conditions(draft.index()) == []


def test_invalid_dataset_name_is_one_error(draft):
    draft.table("a.b.c.d")
    (error,) = draft.index().errors
    assert error.condition == "INVALID_DATASET_NAME"
    assert str(error.origin) == "pipeline.py:10"


def test_flow_target_may_be_a_table_or_a_sink(draft):
    draft.empty_table("All_Orders")
    draft.sink("out")
    draft.append_flow("to_table", "live.all_orders")
    draft.append_flow("to_sink", "out")
    draft.append_flow("to_same_sink", "`OUT`")
    index = draft.index()
    assert conditions(index) == []
    assert dict(index.flow_targets) == {
        "to_table": "spark_catalog.default.all_orders",
        "to_sink": "out",
        "to_same_sink": "out",
    }
    assert index.select(["`Out`"]) == {"out"}


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("all_ordres", "did you mean 'All_Orders'?"),
        ("ALL_ORDRES", "did you mean 'All_Orders'?"),
        ("warehous", "did you mean 'warehouse'?"),
        ("zzz", 'declare it with create_streaming_table("zzz")'),
    ],
)
def test_hint_names_the_nearest_target_when_the_target_is_unknown(draft, target, hint):
    draft.empty_table("All_Orders")
    draft.append_flow("load", "All_Orders")
    draft.sink("warehouse")
    draft.append_flow("stray", target)
    (error,) = draft.index().errors
    assert (error.condition, error.hint) == ("FLOW_TARGET_NOT_FOUND", hint)


def test_hint_for_an_unknown_target_of_a_sql_flow_is_a_sql_statement(draft):
    draft.append_flow("stray", "zzz")
    draft.flows[-1] = replace(draft.flows[-1], language="SQL")
    (error,) = draft.index().errors
    assert error.hint == "declare it with CREATE STREAMING TABLE"


def test_short_target_name_is_resolved_when_it_is_unambiguous(draft):
    draft.empty_table("main.gold.days")
    draft.append_flow("load", "days")
    draft.append_flow("more", "`GOLD`.days")
    index = draft.index()
    assert conditions(index) == []
    assert set(index.flow_targets.values()) == {"main.gold.days"}
    assert "`days` is resolved to main.gold.days" in index.notes[0]
    draft.empty_table("main.silver.days")
    draft.append_flow("rest", "main.silver.days")
    assert conditions(draft.index()) == ["FLOW_TARGET_NOT_FOUND"]  # ambiguous


@pytest.mark.parametrize(
    ("declared", "name", "is_found"),
    [
        ("main.gold.days", "days", True),
        ("main.gold.days", "LIVE.Gold.Days", True),
        ("main.gold.days", "silver.days", False),
        ("days", "main.gold.days", True),
        ("gold.days", "main.gold.days", True),
        ("gold.days", "main.silver.days", False),
        ("days", "samples.gold.days", False),
        ("days", "nights", False),
        ("days", "days", False),  # a complete name: `find` returns it
        ("days", "not a name", False),
    ],
)
def test_dataset_is_found_by_the_last_parts_of_its_name(draft, declared, name, is_found):
    draft.table(declared)
    assert (draft.index().find_by_end(name) is not None) is is_found


def test_names_of_other_schemas_and_ambiguous_names_are_not_found_by_their_end(draft):
    draft.schema = "gold"
    draft.table("days")
    draft.table("main.silver.nights")
    index = draft.index()
    assert index.find_by_end("main.silver.days") is None
    assert index.find_by_end("nights") is not None
    draft.table("main.bronze.nights")
    index = draft.index()
    assert index.find_by_end("nights") is None
    silver = index.find_by_end("nights", readers=["main.bronze.nights"])
    assert str(silver.name) == "main.silver.nights"


def test_streaming_table_is_refused_when_no_flow_writes_to_it(draft):
    draft.empty_table("orders")
    (error,) = draft.index().errors
    assert error.condition == "DATASET_WITHOUT_FLOW"
    assert '@append_flow(target="orders")' in error.hint


def test_a_table_with_a_query_is_a_streaming_table_when_other_flows_append_to_it(draft):
    draft.append_flow("before", "orders", once=True)
    draft.table("orders")
    index = draft.index()
    assert index.errors == ()
    (orders,) = index.datasets.values()
    assert orders.declared.kind is DatasetKind.STREAMING_TABLE
    assert [flow.name for flow in orders.flows] == ["before", "orders"]


@pytest.mark.parametrize("kind", [DatasetKind.MATERIALIZED_VIEW, DatasetKind.TEMPORARY_VIEW])
def test_view_is_refused_as_a_flow_target(draft, kind):
    draft.empty_table("orders")
    draft.datasets[-1] = type(draft.datasets[-1])(
        name="orders", kind=kind, origin=draft.datasets[-1].origin
    )
    draft.append_flow("load", "orders")
    assert conditions(draft.index()) == ["FLOW_TARGET_NOT_STREAMING"]


@pytest.mark.parametrize("clustering", [{"cluster_by": ("a",)}, {"cluster_by_auto": True}])
def test_a_table_is_refused_when_it_is_partitioned_and_clustered(draft, clustering):
    draft.table("orders", partition_cols=("day",), **clustering)
    assert conditions(draft.index()) == ["PARTITION_AND_CLUSTER"]


def test_all_errors_are_collected(draft):
    draft.table("orders")
    draft.table("orders")
    draft.table("not a name")
    draft.empty_table("lonely")
    draft.append_flow("stray", "nowhere")
    draft.table("parts", partition_cols=("a",), cluster_by=("b",))
    assert sorted(conditions(draft.index())) == [
        "DATASET_WITHOUT_FLOW",
        "DUPLICATE_DATASET",
        "FLOW_TARGET_NOT_FOUND",
        "INVALID_DATASET_NAME",
        "PARTITION_AND_CLUSTER",
    ]
