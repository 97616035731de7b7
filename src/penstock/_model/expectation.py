"""Expectations: a name, a condition and what happens to a row that breaks it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock._model.origin import SourceLocation

if TYPE_CHECKING:
    from pyspark.sql import Column


class OnViolation(StrEnum):
    """What happens to a row that breaks a rule. NULL counts as broken."""

    WARN = "warn"
    """The row is kept and counted."""
    DROP = "drop"
    """The row goes to quarantine (or is dropped where quarantine is off) and is counted."""
    FAIL = "fail"
    """The update of the flow fails before anything of the batch is written."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One rule of one dataset.

    Attributes:
        name: Unique within its dataset.
        condition: SQL boolean expression or Column; a row passes only when it is true.
        on_violation: What happens to the others.
        origin: Where it was declared.
    """

    name: str
    condition: "str | Column"
    on_violation: OnViolation
    origin: SourceLocation
