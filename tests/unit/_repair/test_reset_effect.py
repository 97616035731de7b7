from types import SimpleNamespace
from typing import Any

import pytest

from penstock._execution.flow_state import FlowState
from penstock._model.flow import OutputMode
from penstock._repair.reset import check_resettable, effect_on_target, steps_of_target, ways_out
from penstock.errors import PlanError


@pytest.mark.parametrize(
    ("target", "effect"),
    [
        ("cdc", "keyed"),
        ("each_once", "keyed"),
        ("postgresql with keys", "keyed"),
        ("postgresql", "refused"),
        ("files", "refused"),
        ("kafka", "added"),
        ("update", "recomputed"),
        ("complete", "recomputed"),
        ("appended", "added"),
    ],
)
def test_effect_of_repeated_rows_follows_the_target(draft, target: str, effect: str) -> None:
    draft.empty_table("cdc")
    draft.cdc_flow("to cdc", "cdc")
    draft.empty_table("each_once", deduplicate_by=("id",))
    draft.append_flow("to each_once", "each_once")
    draft.sink("postgresql with keys", "jdbc", dbtable="t", Keys="id")
    draft.append_flow("to postgresql with keys", "postgresql with keys")
    draft.sink("postgresql", "jdbc", dbtable="t")
    draft.append_flow("to postgresql", "postgresql")
    draft.sink("files", "json", path="out")
    draft.append_flow("to files", "files")
    draft.sink("kafka")
    draft.append_flow("to kafka", "kafka")
    draft.empty_table("appended")
    draft.append_flow("to appended", "appended")
    for name, mode in (("update", OutputMode.UPDATE), ("complete", OutputMode.COMPLETE)):
        draft.empty_table(name)
        draft.append_flow(f"to {name}", name, mode=mode)
    graph = draft.graph()
    assert effect_on_target(graph, graph.flows[f"to {target}"]) == effect


def test_plan_shows_which_rows_stay(draft) -> None:
    draft.empty_table("cdc")
    draft.cdc_flow("to cdc", "cdc")
    for name, mode in (("update", OutputMode.UPDATE), ("complete", OutputMode.COMPLETE)):
        draft.empty_table(name)
        draft.append_flow(f"to {name}", name, mode=mode)
    graph = draft.graph()
    tables = SimpleNamespace(wants_quarantine=lambda _: True)
    pipeline: Any = SimpleNamespace(graph=graph, tables=tables)

    def steps(name: str, effect: str, *, truncate: bool = False) -> str:
        flow = graph.flows[f"to {name}"]
        return "; ".join(steps_of_target(pipeline, flow, effect, truncate=truncate))

    again = "rows that violate a rule are added to its quarantine again"
    assert "--truncate or --full-refresh is needed" in steps("cdc", "keyed")
    assert again in steps("cdc", "keyed")
    assert "no longer occur stay" in steps("update", "recomputed")
    assert again in steps("update", "recomputed")
    assert steps("complete", "recomputed") == "the target gets the recomputed values"
    assert steps("cdc", "keyed", truncate=True) == "its table and quarantine are emptied first"


def test_only_options_that_the_target_allows_are_offered(draft) -> None:
    draft.sink("kafka")
    draft.append_flow("to kafka", "kafka")
    for name, flows in (("alone", ("a",)), ("shared", ("b", "c"))):
        draft.empty_table(name)
        for flow in flows:
            draft.append_flow(flow, name)
    graph = draft.graph()
    pipeline: Any = SimpleNamespace(
        graph=graph,
        settings=SimpleNamespace(configuration={}),
        state=SimpleNamespace(flow=lambda _: None),
    )

    def offered(flow: str, effect: str = "added", *, is_whole: bool = False) -> list[str]:
        return ways_out(pipeline, graph.flows[flow], effect, is_whole=is_whole).split("; ")

    truncate = "--truncate empties the table first"
    latest = "--from latest reads nothing again"
    accept = "--accept-duplicates resets it anyway"
    empty = "--accept-duplicates, then empty the sink before the next update"
    assert offered("a") == [truncate, latest, accept]
    assert offered("a", "recomputed") == [truncate, "--from earliest reads all rows again", accept]
    assert offered("a", "recomputed", is_whole=True) == [truncate, accept]
    assert offered("b") == [latest, accept]
    assert offered("to kafka") == [latest, accept]
    assert offered("to kafka", "refused") == [empty]


def test_reset_does_not_replace_an_unfinished_full_refresh(draft) -> None:
    draft.empty_table("t")
    draft.append_flow("to t", "t")
    graph = draft.graph()
    pending = FlowState(epoch="e", reset_pending=True)
    pipeline: Any = SimpleNamespace(
        graph=graph,
        settings=SimpleNamespace(configuration={}),
        state=SimpleNamespace(flow=lambda _: pending),
    )
    with pytest.raises(PlanError, match="its full refresh is unfinished"):
        check_resettable(pipeline, graph.flows["to t"], truncate=False)
    check_resettable(pipeline, graph.flows["to t"], truncate=True)
