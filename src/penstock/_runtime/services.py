"""Shared dependencies of the parts of an update."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock._runtime.calls import EngineCalls
from penstock._runtime.ports import Scheduler
from penstock._runtime.reporter import UpdateReporter
from penstock._runtime.restart import RestartPolicy
from penstock._runtime.timers import Timers


@dataclass(frozen=True, kw_only=True)
class Services:
    """Engine, scheduler, restart policy with its random numbers, and reporter."""

    calls: EngineCalls
    timers: Timers
    clock: Scheduler
    policy: RestartPolicy
    jitter: Callable[[], float]
    report: UpdateReporter
