import pytest

from penstock._graph.replacing import with_windows
from penstock._model.dataset import DatasetKind
from penstock.errors import DefinitionErrors, SpecError

KEY = "spark_catalog.default.t"


def conditions(draft):
    index_errors = [error.condition for error in draft.index().errors]
    if index_errors:
        return index_errors
    with pytest.raises(DefinitionErrors) as caught:
        draft.graph()
    return [error.condition for error in caught.value.errors]


def test_batch_query_with_replace_where_may_write_a_streaming_table(draft):
    draft.empty_table("t")
    draft.append_flow("f", "t", streaming=False, replace_where="id > 1")
    assert draft.graph().datasets[KEY].kind is DatasetKind.STREAMING_TABLE


def test_streaming_query_with_replace_where_is_refused(draft):
    draft.empty_table("t")
    draft.append_flow("f", "t", replace_where="id > 1")
    assert conditions(draft) == ["REPLACE_WHERE_READS_STREAM"]


@pytest.mark.parametrize("other", [{}, {"once": True}, {"replace_where": "id < 1"}])
def test_a_second_flow_is_refused_when_one_replaces_rows(draft, other):
    draft.empty_table("t")
    draft.append_flow("first", "t", streaming=False, replace_where="id > 1")
    draft.append_flow("second", "t", streaming=not other, **other)
    assert conditions(draft) == ["REPLACE_WHERE_TARGET_SHARED"]


def test_replace_where_into_a_sink_is_refused(draft):
    draft.sink("out")
    draft.append_flow("f", "out", streaming=False, replace_where="id > 1")
    assert conditions(draft) == ["FLOW_TARGET_NOT_STREAMING"]


def test_replace_where_of_an_update_overrides_that_of_the_flow(draft):
    draft.empty_table("t")
    draft.append_flow("fill", "t", streaming=False, replace_where="id > 1")
    index = with_windows(draft.index(), {"Fill": "id > 7"})
    (flow,) = index.datasets[KEY].flows
    assert flow.replace_where == index.flows["fill"].replace_where == "id > 7"
    assert with_windows(index, {}) is index


@pytest.mark.parametrize(
    ("windows", "message"),
    [({"fil": "id > 7"}, "did you mean 'fill'"), ({"plain": "x"}, "there are: fill"),
     ({"fill": " "}, "is empty")],
)  # fmt: skip
def test_replace_where_of_an_update_is_refused_when_it_is_invalid(draft, windows, message):
    draft.empty_table("t")
    draft.append_flow("fill", "t", streaming=False, replace_where="id > 1")
    draft.table("plain")
    with pytest.raises(SpecError, match="UNKNOWN_REPLACE_WHERE_FLOW") as caught:
        with_windows(draft.index(), windows)
    assert message in str(caught.value)
