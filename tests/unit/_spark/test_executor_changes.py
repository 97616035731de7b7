"""Executors that come and go become events."""

import pytest

from penstock._observe.events import ClusterResources, Level
from penstock._spark.executors import _change, _Executor, _message


def executor(name: str, *, is_active: bool = True, reason: str = "") -> _Executor:
    return _Executor(id=name, is_active=is_active, cores=2, reason=reason)


def by_id(*executors: _Executor) -> dict[str, _Executor]:
    return {item.id: item for item in executors}


def test_changes_are_told_from_one_look_to_the_next() -> None:
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


def test_one_that_came_and_went_between_two_looks_is_both() -> None:
    change = _change({}, by_id(executor("3", is_active=False, reason="heartbeat timed out")))
    assert change == ClusterResources(added=("3",), lost=("3",))


@pytest.mark.parametrize(
    "reason", ["Executor killed by driver.", "Executor decommission: worker decommissioned"]
)
def test_executors_that_spark_gives_back_are_removed_and_not_lost(reason: str) -> None:
    known = by_id(executor("0"), executor("1"))
    change = _change(known, {**known, **by_id(executor("1", is_active=False, reason=reason))})
    assert change == ClusterResources(num_executors=1, num_task_slots=2, removed=("1",))
