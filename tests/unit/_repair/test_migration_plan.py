"""Which flows can be migrated, what the plan says, and when it refuses."""

import pytest

from penstock._execution.flow_state import FlowState
from penstock._model.pipeline import PipelineSettings
from penstock._repair.migration_plan import (
    BUILDING,
    Migration,
    Reader,
    changed_columns,
    changed_operators,
    check_columns,
    check_flow,
    reads,
    steps_back,
    steps_forth,
    why_refused,
)
from penstock.errors import PlanError
from penstock.sources.base import StartReport

SETTINGS = PipelineSettings(name="p", storage="/s", root="/r")
TABLE = {"id": "t", "version": 7, "rows": 1200, "size": 34_567, "columns": {}}
MIGRATION = Migration(
    migration_id="def",
    flow="w",
    stage=BUILDING,
    start="earliest",
    position={},
    table_id="t",
    query={},
    old={"epoch": "abc"},
    old_version=7,
    old_quarantine=-1,
)


def test_migration_needs_a_replaceable_table_with_one_streaming_flow(draft):
    draft.table("bronze", external=("kafka: orders",))
    draft.table("windows", "bronze")
    draft.materialized_view("view", "windows")
    draft.view("passing", "windows")
    draft.sink("out")
    draft.append_flow("away", "out", "passing")
    draft.empty_table("shared")
    draft.append_flow("one", "shared", "bronze")
    draft.append_flow("two", "shared", "bronze")
    draft.empty_table("filled")
    draft.append_flow("once", "filled", "bronze", once=True)
    draft.empty_table("newest")
    draft.cdc_flow("changes", "newest", "bronze")
    draft.table("kept", "bronze", table_properties={"pipelines.reset.allowed": "false"})
    draft.table("grows", "bronze", table_properties={"delta.appendOnly": "true"})
    draft.table("numbered", "bronze", schema="n BIGINT GENERATED ALWAYS AS IDENTITY, id BIGINT")
    graph = draft.graph()
    assert check_flow(graph, SETTINGS, graph.flows["windows"]).display == "windows"
    windows = graph.flows["windows"].target
    assert reads(graph, graph.flows["away"], windows)
    assert not reads(graph, graph.flows["two"], windows)
    for flow, words in {
        "view": "no checkpoint",
        "away": "writes to a sink",
        "passing": "temporary view",
        "one": "rows of other flows (two)",
        "once": "no checkpoint",
        "changes": "change events",
        "kept": "pipelines.reset.allowed",
        "grows": "appendOnly",
        "numbered": "identity",
    }.items():
        with pytest.raises(PlanError) as error:
            check_flow(graph, SETTINGS, graph.flows[flow])
        assert error.value.condition == "MIGRATION_NOT_POSSIBLE"
        assert words in error.value.message, flow
        assert error.value.hint
        assert error.value.origin is not None
        # Without --truncate, events of the old query remain in the CDC state.
        assert flow != "changes" or "--truncate" in str(error.value.hint)


def test_plan_shows_sources_replaced_rows_and_readers():
    sources = [
        StartReport(source="table /b", unit="versions", again=4, size=1000),
        StartReport(source="kafka", unit="offsets", again=None, missing="offsets 0 to 3"),
        StartReport(source="table /c", unit="versions", again=1, note="its log begins at 5"),
    ]
    readers = [Reader(flow=f"f_{name}", target=f"t_{name}", effect=name) for name in _EFFECTS]
    text = "\n".join(steps_forth(MIGRATION, "windows", sources, readers, TABLE))
    for words in (
        "table /b: 4 versions (1,000 bytes) are read again, starting at earliest",
        "kafka: an unknown number of offsets",
        "kafka: offsets 0 to 3",
        "table /c: its log begins at 5",
        "1,200 rows (34,567 bytes)",
        "that of epoch abc and version 7 of the table stay",
        *_EFFECTS.values(),
    ):
        assert words in text, words
    assert why_refused(sources[:1]) is None
    assert "kafka: offsets 0 to 3" in (why_refused(sources) or "")
    back = list(steps_back(MIGRATION, "windows", readers[:1], is_old_query=False))
    assert any("revert the change" in step for step in back)
    assert any("to version 7" in step for step in back)
    assert any("epoch abc" in step for step in back)


_EFFECTS = {
    "stops": "stops at the replacement: afterwards `penstock migrate f_stops`",
    "skips": "f_skips streams it with skipChangeCommits",
    "changes": "with all old rows deleted",
    "recomputes": "t_recomputes is recomputed from it by each update",
}


def test_changes_are_described_by_operator_mode_and_column():
    old = FlowState(epoch="e", stateful_operators=("aggregate a", "source S"), output_mode="append")
    query = {"operators": ["aggregate b", "source S"], "output_mode": "update"}
    assert changed_operators(old, query) == (
        "gone: aggregate a",
        "new: aggregate b",
        "output mode: append, now update",
    )
    assert changed_columns({"A": "int", "b": "int", "c": "int"}, {"a": "int", "b": "bigint",
                           "d": "date"}) == (
        "c is removed",
        "d date is new",
        "b was int and is bigint",
    )  # fmt: skip


def test_column_changes_that_delta_cannot_commit_with_the_rows_are_refused(draft):
    draft.table("a")
    (dataset,) = draft.graph().datasets.values()
    both = {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}
    check_columns(dataset, both, ())
    check_columns(dataset, {"delta.enableChangeDataFeed": "true"}, ("n is gone",))
    with pytest.raises(PlanError, match="n is gone") as error:
        check_columns(dataset, both, ("n is gone",))
    assert error.value.condition == "MIGRATION_NOT_POSSIBLE"
