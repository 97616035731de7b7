"""The expected rows of a CDC target, in plain Python, one event after the other.

Written from the documented meaning: events of a key are applied in the order of their sequence,
regardless of their arrival. At the same sequence a delete takes precedence over upserts. Upserts
with the same sequence are applied in the order of a digest that Spark computes; any fixed order
would be correct. A truncate removes rows before its sequence, and keeps those of its own sequence.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, ...]
UPSERT, DELETE, TRUNCATE = "U", "D", "T"


@dataclass(frozen=True)
class Event:
    """One event: `values` by column for an upsert; `updates` lists the columns that it changes."""

    key: Any
    seq: Any
    op: str
    values: Mapping[str, Any] = field(default_factory=dict)
    updates: tuple[str, ...] | None = None
    digest: int = 0


@dataclass(frozen=True)
class Rules:
    """The parameters of a flow.

    Attributes:
        columns: Values of a row, in order.
        keeps_null: Columns in which NULL keeps the stored value.
        by_list: Whether events list the columns that they change.
        tracked: Columns whose changes start a new version.
    """

    columns: tuple[str, ...]
    keeps_null: frozenset[str] = frozenset()
    by_list: bool = False
    tracked: frozenset[str] = frozenset()

    def sets(self, event: Event, column: str) -> bool:
        if self.by_list:
            return event.updates is None or column in event.updates
        return column not in self.keeps_null or event.values[column] is not None


def in_order(events: Iterable[Event]) -> list[tuple[Any, list[Event]]]:
    """Events of one key by sequence; for each, only a delete, or the upserts by digest."""
    by_sequence: dict[Any, list[Event]] = {}
    for event in events:
        by_sequence.setdefault(event.seq, []).append(event)
    result = []
    for seq in sorted(by_sequence):
        group = by_sequence[seq]
        deletes = [event for event in group if event.op == DELETE]
        result.append((seq, deletes[:1] or sorted(group, key=lambda event: event.digest)))
    return result


def change(row: dict[str, Any] | None, event: Event, rules: Rules) -> dict[str, Any]:
    """Apply an upsert to a row."""
    before = row if row is not None else dict.fromkeys(rules.columns)
    return {
        column: event.values[column] if rules.sets(event, column) else before[column]
        for column in rules.columns
    }


def current(events: Iterable[Event], rules: Rules, truncated: Any = None) -> Row | None:
    """SCD type 1: the row of one key, or None."""
    row: dict[str, Any] | None = None
    for seq, group in in_order(events):
        if truncated is not None and seq < truncated:
            continue
        for event in group:
            row = None if event.op == DELETE else change(row, event, rules)
    return None if row is None else tuple(row[column] for column in rules.columns)


def history(events: Iterable[Event], rules: Rules) -> list[Row]:
    """SCD type 2: the versions of one key, each with start and end."""
    versions: list[tuple[dict[str, Any], Any, Any]] = []
    row: dict[str, Any] | None = None
    for seq, group in in_order(events):
        if group[0].op == DELETE:
            if row is not None:
                values, start, _ = versions[-1]
                versions[-1] = (values, start, seq)
            row = None
            continue
        before = row
        for event in group:
            row = change(row, event, rules)
        assert row is not None
        same = before is not None and all(row[c] == before[c] for c in rules.tracked)
        if same:
            versions[-1] = (row, versions[-1][1], None)
            continue
        if before is not None:
            values, start, _ = versions[-1]
            versions[-1] = (values, start, seq)
        versions.append((row, seq, None))
    return [(*(v[c] for c in rules.columns), start, end) for v, start, end in versions]


def table(events: Iterable[Event], rules: Rules, scd_type: int) -> dict[Any, list[Row]]:
    """All rows of the target by key."""
    by_key: dict[Any, list[Event]] = {}
    truncates = []
    for event in events:
        if event.op == TRUNCATE:
            truncates.append(event.seq)
        else:
            by_key.setdefault(event.key, []).append(event)
    truncated = max(truncates, default=None)
    of_key: Callable[[list[Event]], list[Row]]
    if scd_type == 1:

        def of_key(of_key_events: list[Event]) -> list[Row]:
            row = current(of_key_events, rules, truncated)
            return [] if row is None else [row]

    else:

        def of_key(of_key_events: list[Event]) -> list[Row]:
            return history(of_key_events, rules)

    rows = {key: of_key(of_key_events) for key, of_key_events in by_key.items()}
    return {key: versions for key, versions in rows.items() if versions}
