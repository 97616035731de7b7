"""Reruns continuous updates after the JVM has ended, and jobs after a failed query."""

import random
import time
from collections.abc import Callable

from penstock._runtime.restart import JVM_DIED, RestartAfter, RestartPolicy, RunHistory
from penstock._runtime.update import UpdateResult
from penstock.errors import PenstockError

_NO_SESSION = frozenset({JVM_DIED, "JVM_START_FAILED", "SPARK_START_FAILED"})
"""Conditions of a failed retry that allow another one: memory may be free later."""


def has_no_jvm(error: PenstockError) -> bool:
    return error.condition == JVM_DIED


def run_with_relaunches(
    run: Callable[[int, bool], UpdateResult],
    policy: RestartPolicy,
    *,
    on_relaunch: Callable[[PenstockError, RestartAfter], bool],
    needs_relaunch: Callable[[PenstockError], bool] = has_no_jvm,
    monotonic: Callable[[], float] = time.monotonic,
    jitter: Callable[[], float] = random.random,
) -> UpdateResult:
    """Run updates until one ends without a failure that needs a new session.

    `run` gets the number of the retry, 0 for the first run, and whether the set-up of tables is
    done, so that nothing is reset again. `on_relaunch` waits for the backoff, and returns `False`
    if a stop was requested: then there is no retry. Raises the exception of the last run.
    """
    history, is_set_up = RunHistory(started_at=monotonic()), False
    while True:
        try:
            result = run(history.retries, is_set_up)
        except PenstockError as error:
            retries = _NO_SESSION if history.retries else {JVM_DIED}
            decision = policy.retry(history, monotonic(), jitter)
            if error.condition not in retries or not isinstance(decision, RestartAfter):
                raise
            if not on_relaunch(error, decision):
                raise
        else:
            is_set_up = is_set_up or not result.setup_was_cut
            failure = next((e for e in result.failures if needs_relaunch(e)), None)
            decision = policy.retry(history, monotonic(), jitter)
            if failure is None or not isinstance(decision, RestartAfter):
                return result
            if not on_relaunch(failure, decision):
                return result
        history = RunHistory(started_at=monotonic(), retries=decision.retry)
