import itertools

import pytest

from penstock._runtime.restart import (
    CONTINUOUS,
    TRIGGERED,
    GiveUp,
    RestartAfter,
    RestartPolicy,
    RunHistory,
    is_transient,
)
from penstock.errors import (
    CheckpointError,
    ExpectationFailedError,
    FlowError,
    InternalError,
    PenstockError,
    UserCodeError,
)

TRANSIENT = FlowError("TEST", "the broker went away", flow="f", retryable=True)


def crash_loop(policy: RestartPolicy, run_seconds: float, limit: int = 1000) -> list[float]:
    """The waits of a flow that fails after `run_seconds` in each run, until no retry is left."""
    waits: list[float] = []
    now, history = 0.0, RunHistory(started_at=0.0)
    for _ in range(limit):
        now += run_seconds
        decision = policy.decide(TRANSIENT, history, now, lambda: 0.5)
        if isinstance(decision, GiveUp):
            return waits
        waits.append(decision.seconds)
        now += decision.seconds
        history = RunHistory(started_at=now, retries=decision.retry)
    return waits


@pytest.mark.parametrize(
    "error",
    [
        FlowError("TEST", "schema", flow="f", retryable=False),
        FlowError("TEST", "the default", flow="f"),
        ExpectationFailedError("TEST", "rule", flow="f", retryable=True),
        CheckpointError("TEST", "changed", flow="f", retryable=True),
        UserCodeError("TEST", "theirs"),
        InternalError("TEST", "ours"),
        PenstockError("TEST", "any"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_deterministic_error_is_not_retried(error):
    decision = CONTINUOUS.decide(error, RunHistory(started_at=0.0), 1.0, lambda: 0.5)
    assert isinstance(decision, GiveUp)
    assert not is_transient(error)


def test_triggered_crash_loop_ends_with_the_third_run_when_the_error_is_transient():
    assert crash_loop(TRIGGERED, run_seconds=1.0) == [5.0, 10.0]


def test_retries_are_not_reset_in_a_triggered_update():
    assert len(crash_loop(TRIGGERED, run_seconds=7200.0)) == 2


def test_waits_double_up_to_the_maximum_in_a_continuous_update():
    waits = crash_loop(CONTINUOUS, run_seconds=1.0)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300, 300]


def test_retries_are_reset_in_a_continuous_update_when_the_flow_ran_well():
    assert len(crash_loop(CONTINUOUS, run_seconds=599.0)) == 10
    assert crash_loop(CONTINUOUS, run_seconds=600.0, limit=50) == [5.0] * 50


def test_wait_stays_within_the_jitter():
    policy = RestartPolicy(initial_backoff_seconds=10.0, jitter=0.2)
    waits = []
    for number in (0.0, 0.5, 1.0):
        decision = policy.decide(
            TRANSIENT, RunHistory(started_at=0.0), 1.0, itertools.repeat(number).__next__
        )
        assert isinstance(decision, RestartAfter)
        waits.append(decision.seconds)
    assert waits == [8.0, 10.0, 12.0]


def test_wait_is_bounded_when_the_retries_are_many():
    policy = RestartPolicy(max_retries=10**6)
    history = RunHistory(started_at=0.0, retries=5000)
    assert policy.decide(TRANSIENT, history, 1.0, lambda: 1.0) == RestartAfter(
        seconds=policy.max_backoff_seconds, retry=5001
    )


def test_error_is_not_retried_when_no_retry_is_allowed():
    policy = RestartPolicy(max_retries=0)
    assert policy.decide(TRANSIENT, RunHistory(started_at=0.0), 1.0, lambda: 0.5) == GiveUp(
        reason="gave up after 1 run"
    )
