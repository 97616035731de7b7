import pytest

from penstock._model.flow import OutputMode
from penstock._repair.reset import effect_on_target


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
