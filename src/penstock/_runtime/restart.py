"""Restart policy: whether and when a failed flow is retried. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.errors import CheckpointError, ExpectationFailedError, FlowError, PenstockError


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """The runs of a flow so far.

    The failed run started at `started_at` (seconds of the clock) after `retries` retries without a
    healthy run in between.
    """

    started_at: float
    retries: int = 0


@dataclass(frozen=True, kw_only=True)
class RestartAfter:
    """Retry after a backoff of `seconds`; `retry` counts from 1."""

    seconds: float
    retry: int


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """Do not retry; `reason` is a short clause for messages."""

    reason: str


Decision = RestartAfter | GiveUp


def is_transient(error: PenstockError) -> bool:
    """Whether a retry can help: never for violated expectations or checkpoint errors."""
    if isinstance(error, ExpectationFailedError | CheckpointError):
        return False
    return isinstance(error, FlowError) and error.retryable


JVM_DIED = "JVM_DIED"
"""Condition of failures caused by the end of Spark's JVM: only a new session can help."""

AT_ONCE = frozenset({"SCHEMA_EVOLVED", "FILES_QUARANTINED"})
"""Conditions that are resolved by a restart without backoff, which does not count as a retry. Each
restart includes something new (a field, a file), so that restarts cannot repeat forever."""


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """When a failed flow is restarted.

    Attributes:
        max_retries: Consecutive retries before the flow is given up, in addition to the first run.
        initial_backoff_seconds: Wait before the first retry; each further wait is twice as long.
        max_backoff_seconds: Longest wait.
        jitter: Fraction by which a wait is randomly lengthened or shortened, so that flows that
            failed together do not restart together: 0.2 means up to 20 %.
        healthy_after_seconds: A run that lasted this long resets the number of retries; `None`
            means never.
    """

    max_retries: int = 2
    initial_backoff_seconds: float = 5.0
    max_backoff_seconds: float = 300.0
    jitter: float = 0.2
    healthy_after_seconds: float | None = None

    def allowing(self, max_retries: int | None) -> "RestartPolicy":
        """The policy with another number of retries; `None` keeps the number."""
        return self if max_retries is None else replace(self, max_retries=max_retries)

    def decide(
        self, error: PenstockError, history: RunHistory, now: float, random: Callable[[], float]
    ) -> Decision:
        """Decide about a run that failed `now`, in seconds of the clock of the history."""
        if not is_transient(error):
            return GiveUp(reason="not retryable")
        if error.condition in AT_ONCE:
            return RestartAfter(seconds=0.0, retry=history.retries)
        return self.retry(history, now, random)

    def retry(self, history: RunHistory, now: float, random: Callable[[], float]) -> Decision:
        """Decide about a run that failed with a transient error; arguments as for `decide`."""
        healthy = (
            self.healthy_after_seconds is not None
            and now - history.started_at >= self.healthy_after_seconds
        )
        retries = 0 if healthy else history.retries
        if retries >= self.max_retries:
            runs = retries + 1
            return GiveUp(reason=f"gave up after {runs} run{'s' if runs != 1 else ''}")
        # The exponent is bounded so that a large budget cannot overflow a float.
        wait = self.initial_backoff_seconds * 2.0 ** min(retries, 60)
        spread = 1.0 + self.jitter * (2.0 * random() - 1.0)
        return RestartAfter(
            seconds=max(0.0, min(wait * spread, self.max_backoff_seconds)), retry=retries + 1
        )


TRIGGERED = RestartPolicy()
"""2 retries, never reset: a crash loop ends with the third run."""

CONTINUOUS = RestartPolicy(max_retries=10, healthy_after_seconds=600.0)
"""10 retries (in about 25 minutes), reset after 10 minutes without a failure."""

RELAUNCH = replace(CONTINUOUS, initial_backoff_seconds=1.0)
"""For an update whose JVM has ended: Spark takes as long to start as the first wait of a flow."""
