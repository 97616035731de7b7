import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock._model.dataset import DatasetKind
from penstock._model.flow import OutputMode
from penstock._model.origin import SourceLocation
from penstock.errors import DefinitionError, DefinitionErrors, UserCodeError


def key(name):
    return f"spark_catalog.default.{name}"


def errors_of(draft):
    with pytest.raises(DefinitionErrors) as caught:
        draft.graph()
    return caught.value.errors


def conditions_of(draft):
    return [error.condition for error in errors_of(draft)]


# -- kinds --------------------------------------------------------------------------------------


def test_a_table_is_streaming_when_its_query_streams(draft):
    draft.table("a", streaming=True)
    draft.table("b", streaming=False)
    kinds = {node.display: node.kind for node in draft.graph().datasets.values()}
    assert kinds == {"a": DatasetKind.STREAMING_TABLE, "b": DatasetKind.MATERIALIZED_VIEW}


def test_temporary_view_is_not_stored(draft):
    draft.view("parsed")
    draft.table("orders", "parsed")
    graph = draft.graph()
    assert [node.display for node in graph.stored()] == ["orders"]


def test_a_materialized_view_is_refused_when_its_query_streams(draft):
    draft.materialized_view("totals")
    draft.analyse("totals", streaming=True)
    (error,) = errors_of(draft)
    assert error.condition == "MATERIALIZED_VIEW_READS_STREAM"
    assert str(error.origin) == "pipeline.py:10"


def test_batch_flow_into_a_streaming_table_is_refused(draft):
    draft.empty_table("orders")
    draft.append_flow("load", "orders", streaming=False)
    (error,) = errors_of(draft)
    assert error.condition == "STREAMING_TABLE_READS_BATCH"
    assert "'load'" in error.message


def test_a_batch_query_is_refused_when_other_flows_append_to_its_table(draft):
    draft.table("orders", streaming=False)
    draft.append_flow("history", "orders", once=True)
    (error,) = errors_of(draft)
    assert error.condition == "STREAMING_TABLE_READS_BATCH"
    assert str(error.origin) == "pipeline.py:10"


def test_one_time_flow_is_accepted_when_its_query_is_a_batch(draft):
    draft.empty_table("orders")
    draft.append_flow("live", "orders")
    draft.append_flow("history", "orders", once=True)
    assert draft.graph().datasets[key("orders")].flows == ("live", "history")


def test_a_one_time_flow_is_refused_when_its_query_streams(draft):
    draft.empty_table("orders")
    draft.append_flow("history", "orders", once=True, streaming=True)
    assert conditions_of(draft) == ["ONCE_FLOW_READS_STREAM"]


def test_batch_flow_into_a_sink_is_refused(draft):
    draft.sink("out")
    draft.append_flow("publish", "out", streaming=False)
    assert conditions_of(draft) == ["SINK_NEEDS_STREAM"]


def test_one_time_streaming_flow_into_a_sink_is_refused(draft):
    draft.sink("out")
    draft.append_flow("publish", "out", once=True, streaming=True)
    assert conditions_of(draft) == ["ONCE_FLOW_READS_STREAM"]


def test_complete_mode_is_refused_when_the_table_has_other_flows(draft):
    draft.empty_table("totals")
    draft.append_flow("a", "totals", mode=OutputMode.COMPLETE)
    draft.append_flow("b", "totals")
    assert conditions_of(draft) == ["COMPLETE_MODE_WITH_SEVERAL_FLOWS"]


@pytest.mark.parametrize("mode", list(OutputMode))
def test_any_output_mode_is_accepted_when_the_table_has_one_flow(draft, mode):
    draft.table("totals", mode=mode)
    assert draft.graph().flows["totals"].analysis.output_mode is mode


# -- errors -------------------------------------------------------------------------------------


def test_error_is_reported_once_when_it_affects_several_flows(draft):
    broken = UserCodeError("QUERY_FUNCTION_FAILED", "boom", origin=SourceLocation("pipeline.py", 1))
    for name in ("a", "b", "c"):
        draft.table(name)
        draft.fails(name, broken)
    assert conditions_of(draft) == ["QUERY_FUNCTION_FAILED"]


def test_table_without_flow_is_reported_once(draft):
    draft.empty_table("lonely")
    draft.table("reader", "lonely")
    draft.fails("reader", draft.index().errors[0])
    assert conditions_of(draft) == ["DATASET_WITHOUT_FLOW"]


def test_errors_are_in_declaration_order(draft):
    draft.file = "bronze.py"
    draft.table("bronze")
    draft.fails(
        "bronze", UserCodeError("Z_LAST", "boom", origin=SourceLocation("bronze.py", draft.line))
    )
    draft.materialized_view("totals")
    draft.analyse("totals", streaming=True)
    draft.file, draft.line = "another.py", 0
    draft.empty_table("lonely")
    draft.sink("out")
    draft.append_flow("publish", "out", streaming=False)
    draft.errors["nowhere"] = DefinitionError("NO_ORIGIN", "about the whole")
    assert [(e.condition, str(e.origin)) for e in errors_of(draft)] == [
        ("Z_LAST", "bronze.py:10"),
        ("MATERIALIZED_VIEW_READS_STREAM", "bronze.py:20"),
        ("DATASET_WITHOUT_FLOW", "another.py:10"),
        ("SINK_NEEDS_STREAM", "another.py:30"),
        ("NO_ORIGIN", "None"),
    ]


def test_cycle_is_refused_with_its_path(draft):
    draft.table("a", "c")
    draft.table("b", "a")
    draft.table("c", "b")
    draft.table("apart")
    (error,) = errors_of(draft)
    assert error.condition == "CYCLIC_PIPELINE"
    path = error.message.rsplit(": ", 1)[1].split(" -> ")
    # Each dataset in the path reads the next one.
    reads = {"a": "c", "b": "a", "c": "b"}
    assert path[0] == path[-1]
    assert [reads[name] for name in path[:-1]] == path[1:]


def test_cycle_is_refused_when_a_dataset_reads_itself(draft):
    draft.table("a", "a")
    (error,) = errors_of(draft)
    assert error.message.endswith("a -> a")


# -- nodes and edges ----------------------------------------------------------------------------


def test_upstream_dataset_is_first_when_declared_last(draft):
    draft.table("gold", "silver")
    draft.table("silver", "bronze")
    draft.table("bronze")
    graph = draft.graph()
    assert [node.display for node in graph.datasets.values()] == ["bronze", "silver", "gold"]
    assert list(graph.flows) == ["bronze", "silver", "gold"]
    silver = graph.datasets[key("silver")]
    assert silver.upstream == {key("bronze")}
    assert silver.downstream == {key("gold")}


def test_declaration_order_is_kept_among_independent_datasets(draft):
    names = [f"t{number}" for number in range(20)]
    for name in names:
        draft.table(name)
    draft.table("all", *reversed(names))
    graph = draft.graph()
    assert [node.display for node in graph.datasets.values()] == [*names, "all"]


def test_order_is_the_same_in_every_process():
    # The iteration order of sets of strings differs between processes.
    code = (
        "import importlib.util as u, sys\n"
        "spec = u.spec_from_file_location('drafts', sys.argv[1])\n"
        "drafts = u.module_from_spec(spec); sys.modules['drafts'] = drafts\n"
        "spec.loader.exec_module(drafts)\n"
        "draft = drafts.Draft()\n"
        "draft.table('top', *'hgfedcba')\n"
        "for name in 'hgfedcba': draft.table(name)\n"
        "print([node.display for node in draft.graph().datasets.values()])"
    )
    conftest = Path(__file__).resolve().parents[1] / "conftest.py"
    orders = {
        subprocess.run(
            [sys.executable, "-c", code, str(conftest)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(orders) == 1


def test_views_are_resolved_to_stored_tables(draft):
    draft.table("bronze")
    draft.table("customers", streaming=False)
    draft.view("parsed", "bronze")
    draft.view("cleaned", "parsed", "bronze")
    draft.view("outside", external=("kafka: orders",))
    draft.table("silver", "cleaned", "customers", "outside")
    graph = draft.graph()
    assert graph.flows["silver"].upstream == {key("bronze"), key("customers")}
    assert graph.flows["cleaned"].upstream == {key("bronze")}
    assert graph.datasets[key("silver")].upstream == {
        key("cleaned"),
        key("customers"),
        key("outside"),
    }


def test_views_are_resolved_quickly_when_they_branch_at_every_level(draft):
    draft.table("bronze")
    below = ("bronze", "bronze")
    for level in range(40):
        for side in ("left", "right"):
            draft.view(f"{side}{level}", *below)
        below = (f"left{level}", f"right{level}")
    draft.table("silver", *below)
    assert draft.graph().flows["silver"].upstream == {key("bronze")}


def test_flow_into_a_sink_is_ordered_after_its_source(draft):
    draft.sink("out")
    draft.append_flow("publish", "out", "bronze")
    draft.table("bronze")
    graph = draft.graph()
    assert list(graph.flows) == ["bronze", "publish"]
    assert graph.flows["publish"].target == "out"
    assert graph.flows["publish"].upstream == {key("bronze")}


def test_several_flows_are_refused_when_a_sink_uses_batch_ids(draft):
    draft.sink("topic", "kafka", topic="t")
    for name, path in (("folder", "out"), ("same", "out"), ("other", "else"), ("unknown", "${p}")):
        draft.sink(name, "json", path=path)
        draft.append_flow(f"to {name}", name)
    for number in range(2):
        draft.append_flow(f"{number} to topic", "topic")
    draft.append_flow("more to unknown", "unknown")
    first, second = errors_of(draft)
    assert {first.condition, second.condition} == {"SINK_TAKES_ONE_FLOW"}
    assert "(to folder, to same)" in first.message and "'folder' and 'same'" in first.message
    assert "(to unknown, more to unknown)" in second.message
    assert draft.graph(selected=["topic", "other"]).sinks


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ORDERS", "orders"),
        ("live.orders", "orders"),
        ("`orders`", "orders"),
        ("bronze.orders", "orders"),
        ("main.bronze.Orders", "orders"),
        ("LIVE.bronze.orders", "orders"),
        ("silver.orders", "silver.orders"),
        ("main.silver.orders", "silver.orders"),
        ("other.bronze.orders", "other.bronze.orders"),
        ("gold.orders", None),
        ("order", None),
        ("no name", None),
    ],
)
def test_dataset_is_found_by_any_form_of_its_name(draft, name, expected):
    draft.catalog, draft.schema = "main", "bronze"
    draft.table("orders")
    draft.table("silver.orders")
    draft.table("other.bronze.orders")
    node = draft.graph().find(name)
    assert (node.display if node else None) == expected


def test_graph_is_immutable(draft):
    draft.table("a")
    graph = draft.graph()
    with pytest.raises(TypeError):
        graph.datasets["x"] = None


def test_flow_types_are_those_of_the_event_log(draft):
    draft.table("appends")
    draft.table("completes", mode=OutputMode.COMPLETE)
    draft.materialized_view("shown")
    draft.view("looked", streaming=False)
    for name in ("changed", "followed", "replaced", "filled"):
        draft.empty_table(name)
    draft.cdc_flow("c", "changed")
    draft.snapshot_flow("s", "followed")
    draft.append_flow("r", "replaced", streaming=False, replace_where="id > 1")
    draft.append_flow("o", "filled", once=True)
    draft.sink("out")
    draft.append_flow("p", "out")
    graph = draft.graph()
    types = {n: f.type_name(graph.datasets.get(f.target)) for n, f in graph.flows.items()}
    assert types == {
        "appends": "APPEND",
        "completes": "COMPLETE",
        "shown": "MATERIALIZED_VIEW",
        "looked": "VIEW",
        "c": "CHANGE",
        "s": "SNAPSHOT_CHANGE",
        "r": "REPLACE_WHERE",
        "o": "APPEND",
        "p": "APPEND",
    }


# -- selection ----------------------------------------------------------------------------------


def test_errors_of_unselected_datasets_are_ignored(draft):
    draft.table("a")
    draft.table("bad", "a")
    draft.table("below", "bad")
    draft.materialized_view("kind")
    draft.analyse("kind", streaming=True)
    error = UserCodeError("QUERY_FUNCTION_RAISED", "no")
    draft.errors["bad"] = draft.errors["below"] = error
    del draft.analyses["bad"], draft.analyses["below"]
    graph = draft.graph({key("a")})
    assert set(graph.datasets) == {key("a"), key("kind")}
    assert set(graph.flows) == {"a", "kind"}
    with pytest.raises(DefinitionErrors) as caught:
        draft.graph({key("a"), key("below")})
    assert caught.value.errors == (error,)
    with pytest.raises(DefinitionErrors) as caught:
        draft.graph({key("kind")})
    assert [e.condition for e in caught.value.errors] == ["MATERIALIZED_VIEW_READS_STREAM"]


def test_refused_flow_is_an_error_only_with_other_errors(draft):
    refusal = DefinitionError("OUTPUT_MODE_NOT_SUPPORTED", "no")
    draft.table("a")
    draft.analyses["a"] = replace(draft.analyses["a"], refusal=refusal)
    assert draft.graph().flows["a"].analysis.refusal is refusal
    draft.materialized_view("kind")
    draft.analyse("kind", streaming=True)
    assert refusal in errors_of(draft)
    with pytest.raises(DefinitionErrors) as caught:
        draft.graph({key("kind")})
    assert refusal not in caught.value.errors


def test_a_selection_is_resolved_to_keys(draft):
    draft.table("a")
    index = draft.index()
    assert index.select(["LIVE.A"]) == {key("a")}
    assert index.select([]) is None
    assert index.select(["a", "nothing"]) is None
