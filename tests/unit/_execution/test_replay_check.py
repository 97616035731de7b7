import pytest

from penstock._execution.replay_check import check_replay
from penstock._model.dataset import LateRows
from penstock.errors import PlanError


def test_replay_is_refused_when_flows_do_not_only_append(draft):
    draft.empty_table("replaced")
    draft.append_flow("r", "replaced", streaming=False, replace_where="id > 1")
    draft.empty_table("changed")
    draft.cdc_flow("c", "changed")
    draft.materialized_view("view")
    draft.empty_table("keeps_late", late_rows=LateRows.QUARANTINE)
    draft.append_flow("l", "keeps_late")
    draft.empty_table("each_once", deduplicate_by=("id",))
    draft.append_flow("e", "each_once")
    draft.empty_table("added")
    draft.append_flow("a", "added")
    graph = draft.graph()
    for node in graph.datasets.values():
        flows = [graph.flows[name] for name in node.flows]
        if node.display == "added":
            check_replay(node, flows)
            continue
        with pytest.raises(PlanError, match="QUARANTINE_REPLAY_NOT_POSSIBLE") as caught:
            check_replay(node, flows)
        assert node.display in str(caught.value)
