"""A continuous update is started again when its JVM has ended."""

from collections.abc import Iterable

import pytest

from penstock._observe.events import UpdateState
from penstock._runtime.relaunch import run_with_relaunches
from penstock._runtime.restart import CONTINUOUS, RestartAfter, RestartPolicy
from penstock._runtime.update import UpdateResult
from penstock.errors import FlowError, PenstockError, SetupError

DIED = FlowError("JVM_DIED", "Spark's JVM ended with signal 9", flow="f")
BROKEN = FlowError("FLOW_FAILED", "x", flow="f")
NO_JVM = SetupError("JVM_START_FAILED", "no memory")


def result(*failures: PenstockError, setup_was_cut: bool = False) -> UpdateResult:
    state = UpdateState.FAILED if failures else UpdateState.CANCELED
    return UpdateResult(update_id="u", state=state, failures=failures, setup_was_cut=setup_was_cut)


class Runs:
    """Updates with scripted results, 100 seconds each. Records each start and each wait."""

    def __init__(
        self, outcomes: Iterable[UpdateResult | PenstockError], stop: bool = False
    ) -> None:
        self.outcomes = iter(outcomes)
        self.started: list[tuple[int, bool]] = []
        self.waits: list[float] = []
        self.now = 0.0
        self.stop = stop

    def run(self, retry: int, is_set_up: bool) -> UpdateResult:
        self.started.append((retry, is_set_up))
        self.now += 100
        outcome = next(self.outcomes)
        if isinstance(outcome, PenstockError):
            raise outcome
        return outcome

    def wait(self, error: PenstockError, decision: RestartAfter) -> bool:
        self.waits.append(decision.seconds)
        self.now += decision.seconds
        return not self.stop

    def all(self, policy: RestartPolicy = CONTINUOUS) -> UpdateResult:
        return run_with_relaunches(
            self.run, policy, on_relaunch=self.wait, monotonic=lambda: self.now, jitter=lambda: 0.5
        )


def test_update_is_started_again_when_the_jvm_died_in_flows_or_analysis() -> None:
    runs = Runs([DIED, result(BROKEN, DIED), result()])
    assert runs.all().state is UpdateState.CANCELED
    assert runs.started == [(0, False), (1, False), (2, True)]
    assert runs.waits == [5.0, 10.0]


def test_tables_are_reset_again_when_the_jvm_died_during_set_up() -> None:
    cut = result(DIED, setup_was_cut=True)
    runs = Runs([cut, result(DIED), cut, result()])
    runs.all()
    assert [is_set_up for _, is_set_up in runs.started] == [False, False, True, True]


def test_update_is_not_started_again_after_other_failures() -> None:
    runs = Runs([result(BROKEN)])
    assert runs.all().failures == (BROKEN,)
    with pytest.raises(SetupError):
        Runs([NO_JVM]).all()
    assert len(runs.started) == 1


def test_new_updates_are_limited_by_the_retry_policy() -> None:
    policy = RestartPolicy(max_retries=2)
    runs = Runs([result(DIED), NO_JVM, DIED])
    with pytest.raises(FlowError):
        runs.all(policy)
    assert [retry for retry, _ in runs.started] == [0, 1, 2]
    alone = Runs([result(DIED)])
    assert alone.all(policy.allowing(0)).failures == (DIED,)
    assert alone.waits == []
    healthy = Runs([*[result(DIED)] * 50, result()])
    healthy.all(RestartPolicy(max_retries=1, healthy_after_seconds=100.0))
    assert len(healthy.started) == 51


def test_update_is_not_started_again_after_a_stop_request() -> None:
    runs = Runs([result(DIED)], stop=True)
    assert runs.all().failures == (DIED,)
    assert len(runs.started) == 1
    with pytest.raises(FlowError):
        Runs([DIED], stop=True).all()
