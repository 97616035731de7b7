"""Selection of rows of a quarantine for a replay, and ids of single rows.

The id of a row consists of its file and its position in the file. It is valid as long as the file
is in the table, and can be computed with and without Spark.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from penstock.errors import SpecError

_KEY_LENGTH = 16
_ROW_ID = re.compile(rf"([0-9a-f]{{{_KEY_LENGTH}}})-(0|[1-9][0-9]{{0,11}})")


def file_key(name: str) -> str:
    """The part of a row id for a file, given its name in the table's log."""
    return hashlib.sha256(name.encode()).hexdigest()[:_KEY_LENGTH]


def row_id(file_name: str, position: int) -> str:
    return f"{file_key(file_name)}-{position}"


@dataclass(frozen=True, kw_only=True)
class RowSelection:
    """Rows that match all criteria; without criteria, all rows.

    Raises `QUARANTINE_SELECTION_INVALID` for an empty criterion or an invalid row id.
    """

    rules: tuple[str, ...] = ()  # rows that violated any of these rules
    where: str | None = None  # a SQL condition
    rows: tuple[str, ...] = ()  # ids

    def __post_init__(self) -> None:
        if "" in self.rules or (self.where is not None and not self.where.strip()):
            # An empty variable in a script must not select all rows.
            raise _invalid("a rule or a condition is empty", "omit the option to select all rows")
        for text in self.rows:
            if _ROW_ID.fullmatch(text) is None:
                raise _invalid(
                    f"{text!r} is not the id of a row",
                    "`penstock quarantine show TABLE --output json` and the dashboard show ids",
                )

    @property
    def is_all(self) -> bool:
        return not self.rules and self.where is None and not self.rows

    def positions(self) -> dict[str, set[int]]:
        positions: dict[str, set[int]] = {}
        for text in self.rows:
            key, _, position = text.partition("-")
            positions.setdefault(key, set()).add(int(position))
        return positions

    def record(self) -> dict[str, Any]:
        """JSON values that are equal for equivalent selections."""
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
