"""The leases of a command: the lease of the pipeline and those of the tables that it writes."""

import contextlib
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from penstock._runtime.lease import Lease
from penstock._runtime.lease_paths import pipeline_lease_path, table_lease_path


class PipelineLeases:
    """Prevents other commands from writing to a pipeline until the block ends.

    `holder` is shown to commands that are refused meanwhile. Raises as `Lease.acquire`.
    """

    def __init__(self, storage: str, holder: Mapping[str, str]) -> None:
        self._holder = dict(holder)
        self._stack = contextlib.ExitStack()
        lease = Lease.acquire(pipeline_lease_path(storage), holder=self._holder)
        self.fd = self._stack.enter_context(lease).fd
        """Descriptor of the lease; a child that inherits it holds the lease as well."""

    def add_tables(self, paths: Iterable[str]) -> None:
        """Lease tables as well: another pipeline may write to the same path."""
        for path in sorted({table_lease_path(path) for path in paths}):
            self._stack.enter_context(Lease.acquire(path, holder=self._holder))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()
