"""The leases of a command: the lease of the pipeline and those of the tables that it writes."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, Self

from penstock._model.duration import parse_seconds
from penstock._runtime.lease import Lease
from penstock._runtime.lease_paths import pipeline_lease_path, table_lease_path
from penstock.errors import SpecError

DURATION = "penstock.lease.duration"
_DEFAULT_SECONDS = 30.0
NOT_STOPPABLE = {"stoppable": "no"}
"""Recorded for a command that a signal would kill: it does not stop gracefully."""


def lease_seconds(configuration: Mapping[str, str]) -> float:
    """How long a lease in a storage on another machine is valid without a renewal."""
    text = configuration.get(DURATION)
    seconds = _DEFAULT_SECONDS if text is None else parse_seconds(text)
    if not seconds:
        raise SpecError(
            "INVALID_LEASE_DURATION",
            f"{DURATION} is {text!r}",
            hint='write a number and a unit, such as "30 seconds"',
        )
    return seconds


class RemoteLease(Protocol):
    """The lease of a storage on another machine; see `_execution.storage_lease`."""

    def add_tables(self, paths: Iterable[str]) -> None:
        """Record tables before they are written."""

    def failure(self) -> str | None:
        """The failure if another driver has taken over the lease; reads the storage."""

    def on_lost(self, call: Callable[[str], None]) -> None:
        """Set the function to call with the failure when another driver takes over the lease."""


class PipelineLeases:
    """Prevents other commands from writing to a pipeline until the block ends.

    `holder` is shown to commands that are refused. Raises the errors of `Lease.acquire`.
    """

    def __init__(self, storage: str, holder: Mapping[str, str]) -> None:
        self.holder = dict(holder)
        self._stack = contextlib.ExitStack()
        lease = Lease.acquire(pipeline_lease_path(storage), holder=self.holder)
        self.fd = self._stack.enter_context(lease).fd
        """Descriptor of the lease; a child that inherits it holds the lease as well."""
        self.remote: RemoteLease | None = None
        """Set while a session is open, if the storage is on another machine."""
        self.on_wait: Callable[[str], None] = lambda _: None
        """Called with the reason when a lease cannot be taken immediately."""

    def add_tables(self, paths: Iterable[str]) -> None:
        """Lease tables as well: another pipeline may write to the same path."""
        for path in sorted({table_lease_path(path) for path in paths}):
            self._stack.enter_context(Lease.acquire(path, holder=self.holder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
