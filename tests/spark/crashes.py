"""Crashes at kill points in this process: the steps after a point do not run."""

import contextlib
from collections.abc import Callable, Iterator

from penstock._tables.kill_points import step_callback
from penstock.errors import FlowError


@contextlib.contextmanager
def crashing(point: str, *flows: str) -> Iterator[set[str]]:
    """Let these flows (default: all) fail at a kill point each time.

    Yields:
        The flows that have failed there.
    """
    crashed: set[str] = set()

    def crash(step: str, flow: str, batch_id: int | None) -> None:
        if step == point and (not flows or flow in flows):
            crashed.add(flow)
            raise FlowError("CRASHED", f"at {step}", flow=flow, batch_id=batch_id)

    with step_callback(crash):
        yield crashed


@contextlib.contextmanager
def after_steps(prefix: str, do: Callable[[str, str], None]) -> Iterator[None]:
    """After each step of a command, call a function with its name (without prefix) and subject."""

    def call(step: str, name: str, _: int | None) -> None:
        if step.startswith(prefix):
            do(step.removeprefix(prefix), name)

    with step_callback(call):
        yield
