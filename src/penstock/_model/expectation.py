"""Expectations: a name, a condition and the action for rows that fail it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock._model.origin import SourceLocation

if TYPE_CHECKING:
    from pyspark.sql import Column


FAILED_RULES, ROW, SOURCE = "_failed_rules", "_row", "_source"
"""Columns of a quarantine table in addition to those of its table."""


class OnViolation(StrEnum):
    """Action for a row that fails a rule. NULL counts as failed."""

    WARN = "warn"
    """The row is kept and counted."""
    DROP = "drop"
    """The row goes to quarantine (or is dropped if quarantine is disabled) and is counted."""
    QUARANTINE = "quarantine"
    """As DROP, and enables quarantine for the dataset, regardless of its settings."""
    FAIL = "fail"
    """The update of the flow fails before any row of the batch is written."""

    @property
    def removes(self) -> bool:
        """Whether failed rows are excluded from the table."""
        return self in (OnViolation.DROP, OnViolation.QUARANTINE)


@dataclass(frozen=True, kw_only=True)
class RowBounds:
    """Bounds of the number of rows of a materialized view; `None` means no bound."""

    minimum: int | None = None
    maximum: int | None = None

    def hold(self, rows: int) -> bool:
        return (self.minimum is None or rows >= self.minimum) and (
            self.maximum is None or rows <= self.maximum
        )


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One rule of one dataset; a row passes only when the condition is true.

    `unique` are columns whose values must be unique, `rows` are bounds of the number of rows. With
    either, the condition is only a description. Both are for materialized views only.
    """

    name: str
    condition: "str | Column"
    on_violation: OnViolation
    origin: SourceLocation
    unique: tuple[str, ...] = ()
    rows: RowBounds | None = None
