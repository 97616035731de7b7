"""Interfaces to tables, code and control, which the caller of the dashboard implements."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

# The current `file`, `line`, `text` and `is_cut` of a declaration; `None` if unknown. Thread-safe;
# results are bounded and contain no secrets.
CodeOf = Callable[[str], dict[str, Any] | None]


class Tables(Protocol):
    """The tables of a pipeline. Thread-safe; results are bounded and contain no secrets.

    All methods raise `SpecError` with the reason if a table cannot be read.
    """

    def preview(self, dataset: str, path: str | None, *, limit: int) -> dict[str, Any]:
        """Some rows of a table."""

    def table(self, dataset: str, path: str | None) -> dict[str, Any]:
        """Files and newest versions of a table."""

    def quarantines(self, paths: Mapping[str, str | None]) -> list[dict[str, Any]]:
        """Every table that has a quarantine, with rows per rule."""

    def quarantine(
        self,
        dataset: str,
        path: str | None,
        *,
        search: str = "",
        rule: str = "",
        before: str = "",
        limit: int,
    ) -> dict[str, Any]:
        """Rows in quarantine, newest first; `ValueError` if `before` is not a position."""


class Control(Protocol):
    """Actions on a pipeline. Thread-safe; raises `SetupError` if refused."""

    def state(self) -> dict[str, Any]:
        """The running command and the results of the actions started here, without secrets."""

    def start(
        self,
        *,
        refresh: Sequence[str] = (),
        full_refresh: Sequence[str] = (),
        continuous: bool | None = None,
    ) -> None:
        """Start an update."""

    def stop(self, *, now: bool = False) -> None:
        """Stop after the batches in flight; `now` interrupts them, after an earlier request."""

    def replay(self, dataset: str, *, rules: Sequence[str] = (), rows: Sequence[str] = ()) -> None:
        """Replay the quarantine of a dataset: all rows, or those with these ids and rules."""
