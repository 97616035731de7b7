"""Crashes at kill points without a process: what comes after a point does not happen."""

import contextlib
import importlib
from collections.abc import Iterator

import pytest

from penstock.errors import FlowError

# Modules that call `kill_point`, each by a name of its own.
_CALLERS = (
    "penstock._tables.cdc_writer",
    "penstock._tables.writer",
    "penstock.sinks.jdbc.writer",
    "penstock.sinks.kafka",
)


@contextlib.contextmanager
def crashing(monkeypatch: pytest.MonkeyPatch, point: str, *flows: str) -> Iterator[set[str]]:
    """Let these flows (all, if none is named) fail each time they come to a point.

    Yields:
        The flows that came there so far.
    """
    crashed: set[str] = set()

    def crash(here: str, flow: str, batch_id: int | None) -> None:
        if here == point and (not flows or flow in flows):
            crashed.add(flow)
            raise FlowError("CRASHED", f"at {here}", flow=flow, batch_id=batch_id)

    with monkeypatch.context() as patch:
        for module in _CALLERS:
            patch.setattr(importlib.import_module(module), "kill_point", crash)
        yield crashed
