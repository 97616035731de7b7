"""Crashes at kill points without a process: what comes after a point does not happen."""

import contextlib
from collections.abc import Callable, Iterator

from penstock._tables.kill_points import step_callback
from penstock.errors import FlowError


@contextlib.contextmanager
def crashing(point: str, *flows: str) -> Iterator[set[str]]:
    """Let these flows (all, if none is named) fail each time they come to a point.

    Yields:
        The flows that came there so far.
    """
    crashed: set[str] = set()

    def crash(here: str, flow: str, batch_id: int | None) -> None:
        if here == point and (not flows or flow in flows):
            crashed.add(flow)
            raise FlowError("CRASHED", f"at {here}", flow=flow, batch_id=batch_id)

    with step_callback(crash):
        yield crashed


@contextlib.contextmanager
def after_steps(of: str, do: Callable[[str, str], None]) -> Iterator[None]:
    """Call with each step of a command, without its prefix, and with what the step is about."""

    def call(here: str, name: str, _: int | None) -> None:
        if here.startswith(of):
            do(here.removeprefix(of), name)

    with step_callback(call):
        yield
