"""Events about executors that start, end or are lost."""

import pytest

from penstock._observe.events import ClusterResources, Level
from penstock._spark.executors import _change, _Executor, _message


def executor(name: str, *, is_active: bool = True, reason: str = "") -> _Executor:
    return _Executor(id=name, is_active=is_active, cores=2, reason=reason)


def by_id(*executors: _Executor) -> dict[str, _Executor]:
    return {item.id: item for item in executors}


def test_executor_changes_are_reported_between_polls() -> None:
    first = by_id(executor("0"), executor("1"))
    change = _change({}, first)
    assert change == ClusterResources(num_executors=2, num_task_slots=4, added=("0", "1"))
    assert change.level(None) is Level.INFO
    assert _change(first, first) is None
    lost = by_id(executor("0", is_active=False, reason="Command exited with code 137\nmore"))
    second = {**first, **lost}
    change = _change(first, second)
    assert change == ClusterResources(num_executors=1, num_task_slots=2, lost=("0",))
    assert change.level(None) is Level.WARN
    assert _message(change, second) == (
        "lost executor 0 (Command exited with code 137); executors now: 1 with 2 task slots"
    )
    assert _change(second, second) is None


def test_executor_that_started_and_ended_between_polls_is_added_and_lost() -> None:
    change = _change({}, by_id(executor("3", is_active=False, reason="heartbeat timed out")))
    assert change == ClusterResources(added=("3",), lost=("3",))


@pytest.mark.parametrize(
    "reason", ["Executor killed by driver.", "Executor decommission: worker decommissioned"]
)
def test_executors_released_by_spark_are_removed_and_not_lost(reason: str) -> None:
    known = by_id(executor("0"), executor("1"))
    change = _change(known, {**known, **by_id(executor("1", is_active=False, reason=reason))})
    assert change == ClusterResources(num_executors=1, num_task_slots=2, removed=("1",))
