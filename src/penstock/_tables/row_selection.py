"""Which rows of a quarantine a replay is about, and how people name single rows of it.

A row's id is the file that it lies in and its position there. It holds as long as the file does,
and can be made with Spark and without.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from penstock.errors import SpecError

_KEY_LENGTH = 16
_ROW_ID = re.compile(rf"([0-9a-f]{{{_KEY_LENGTH}}})-(0|[1-9][0-9]{{0,11}})")


def file_key(name: str) -> str:
    """What stands for a file of a table in the ids of its rows.

    Args:
        name: As the table's log names the file.
    """
    return hashlib.sha256(name.encode()).hexdigest()[:_KEY_LENGTH]


def row_id(file_name: str, position: int) -> str:
    """The id of a row.

    Args:
        file_name: As the table's log names the file.
        position: Of the row in it, deleted rows counted.
    """
    return f"{file_key(file_name)}-{position}"


@dataclass(frozen=True, kw_only=True)
class RowSelection:
    """Rows that fulfil everything that is given; all rows where nothing is.

    Attributes:
        rules: Rows that broke any of these.
        where: Rows for which this SQL condition is true.
        rows: Rows with these ids.

    Raises:
        SpecError: `QUARANTINE_SELECTION_INVALID`: something is empty, or no id of a row.
    """

    rules: tuple[str, ...] = ()
    where: str | None = None
    rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "" in self.rules or (self.where is not None and not self.where.strip()):
            # An empty variable of a script must not mean all rows.
            raise _invalid("a rule or a condition is empty", "leave the option out for all rows")
        for text in self.rows:
            if _ROW_ID.fullmatch(text) is None:
                raise _invalid(
                    f"{text!r} is not the id of a row",
                    "`penstock quarantine show TABLE --output json` and the dashboard show ids",
                )

    @property
    def is_all(self) -> bool:
        """Whether every row is meant."""
        return not self.rules and self.where is None and not self.rows

    def places(self) -> dict[str, set[int]]:
        """The positions of `rows`, by the key of their file."""
        found: dict[str, set[int]] = {}
        for text in self.rows:
            key, _, position = text.partition("-")
            found.setdefault(key, set()).add(int(position))
        return found

    def record(self) -> dict[str, Any]:
        """The same for every selection of the same meaning; plain values for JSON."""
        record: dict[str, Any] = {}
        if self.rules:
            record["rules"] = sorted(set(self.rules))
        if self.where is not None:
            record["where"] = self.where
        if self.rows:
            record["rows"] = sorted(set(self.rows))
        return record


def _invalid(reason: str, hint: str) -> SpecError:
    return SpecError("QUARANTINE_SELECTION_INVALID", reason, hint=hint)
