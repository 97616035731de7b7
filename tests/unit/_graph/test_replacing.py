import pytest

from penstock._graph.replacing import with_windows
from penstock._model.dataset import DatasetKind
from penstock.errors import DefinitionErrors, SpecError

KEY = "spark_catalog.default.t"


def conditions(draft):
    found = [error.condition for error in draft.index().errors]
    if found:
        return found
    with pytest.raises(DefinitionErrors) as caught:
        draft.graph()
    return [error.condition for error in caught.value.errors]


def test_a_batch_query_feeds_a_streaming_table_when_it_replaces_rows(draft):
    draft.empty_table("t")
    draft.append_flow("f", "t", streaming=False, replace_where="id > 1")
    assert draft.graph().datasets[KEY].kind is DatasetKind.STREAMING_TABLE


def test_a_stream_is_refused_when_it_would_replace_rows(draft):
    draft.empty_table("t")
    draft.append_flow("f", "t", replace_where="id > 1")
    assert conditions(draft) == ["REPLACE_WHERE_READS_STREAM"]


@pytest.mark.parametrize("other", [{}, {"once": True}, {"replace_where": "id < 1"}])
def test_a_second_flow_is_refused_when_one_replaces_rows(draft, other):
    draft.empty_table("t")
    draft.append_flow("first", "t", streaming=False, replace_where="id > 1")
    draft.append_flow("second", "t", streaming=not other, **other)
    assert conditions(draft) == ["REPLACE_WHERE_TARGET_SHARED"]


def test_a_sink_is_refused_when_rows_would_be_replaced_in_it(draft):
    draft.sink("out")
    draft.append_flow("f", "out", streaming=False, replace_where="id > 1")
    assert conditions(draft) == ["FLOW_TARGET_NOT_STREAMING"]


def test_another_window_holds_for_one_update_when_it_is_given(draft):
    draft.empty_table("t")
    draft.append_flow("fill", "t", streaming=False, replace_where="id > 1")
    index = with_windows(draft.index(), {"Fill": "id > 7"})
    (flow,) = index.datasets[KEY].flows
    assert flow.replace_where == index.flows["fill"].replace_where == "id > 7"
    assert with_windows(index, {}) is index


@pytest.mark.parametrize(
    ("given", "told"),
    [({"fil": "id > 7"}, "did you mean 'fill'"), ({"plain": "x"}, "there are: fill"),
     ({"fill": " "}, "is empty")],
)  # fmt: skip
def test_a_window_is_refused_when_no_flow_takes_it(draft, given, told):
    draft.empty_table("t")
    draft.append_flow("fill", "t", streaming=False, replace_where="id > 1")
    draft.table("plain")
    with pytest.raises(SpecError, match="UNKNOWN_REPLACE_WHERE_FLOW") as caught:
        with_windows(draft.index(), given)
    assert told in str(caught.value)
