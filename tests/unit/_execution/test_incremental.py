from types import SimpleNamespace
from typing import Any

import pytest

from penstock._execution.flow_state import ViewState
from penstock._execution.incremental import NotIncrementalError, _check_cost, _reasons
from penstock.errors import FlowError, PlanError

VIEW: Any = SimpleNamespace(display="gold", declared=SimpleNamespace(origin=None))
REFUSED = "An error occurred.\n: penstock.delta.QueryChanges$UnsupportedException: no key\n\tat x"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError(REFUSED), "no key"),
        (ValueError("bad\nmore"), "the incremental refresh failed: bad"),
        (NotIncrementalError("too many"), "too many"),
        (PlanError("X", "y differs"), "the incremental refresh failed: [X] y differs"),
    ],
)
def test_whatever_fails_is_the_reason_of_a_complete_refresh(error, reason):
    with pytest.raises(NotIncrementalError) as raised, _reasons(False, VIEW):
        raise error
    assert str(raised.value) == reason


@pytest.mark.parametrize(
    "error", [FlowError("X", "y", flow="gold"), RuntimeError("Job 3 cancelled as part of ...")]
)
def test_an_error_of_the_pipeline_and_a_stop_are_not_followed_by_a_complete_refresh(error):
    with pytest.raises(type(error)) as raised, _reasons(False, VIEW):
        raise error
    assert raised.value is error


def test_a_strict_view_fails_with_the_reason():
    message = r"REFRESH_NOT_INCREMENTAL.*but no key"
    with pytest.raises(PlanError, match=message), _reasons(True, VIEW):
        raise RuntimeError(REFUSED)


def test_a_complete_refresh_follows_one_that_took_longer_than_the_last_complete_one():
    def state(full: float | None, last: float | None) -> ViewState:
        return ViewState(
            fingerprint="",
            sources={},
            table_version=1,
            full_seconds=full,
            incremental_seconds=last,
        )

    changes = SimpleNamespace(readsRewrittenTable=lambda: False)
    for full, last in ((None, None), (3.0, None), (3.0, 2.9)):
        _check_cost(state(full, last), "GROUP_AGGREGATE", changes)
    with pytest.raises(NotIncrementalError, match=r"took 3\.1 s"):
        _check_cost(state(3.0, 3.1), "GROUP_AGGREGATE", changes)
