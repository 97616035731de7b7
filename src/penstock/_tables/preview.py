"""Looks at tables without Spark: no JVM, no lease, also while an update runs.

The newest committed version is read. Tables are found by their place in the storage layout, so this
works in a project whose sources do not even load.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from penstock._model.name import DatasetName, resolve_name
from penstock._model.pipeline import PipelineSettings
from penstock._tables.files import local_path
from penstock._tables.layout import QUARANTINE_SUFFIX, StorageLayout, segment_name
from penstock._tables.row_selection import row_id
from penstock._tables.stored_table import REFUSED, StoredTable
from penstock.errors import SpecError

FAILED_RULES_COLUMN = "_failed_rules"
ID_COLUMN = "_id"
REASON_COLUMNS = (FAILED_RULES_COLUMN, "_source", "_row")
_MOST_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class TablePreview:
    """Some rows of a table, as text.

    Attributes:
        columns: Names.
        rows: Values; NULL is the text `NULL`.
        total: Rows of the whole table.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: int


@dataclass(frozen=True, kw_only=True)
class QuarantineSummary:
    """What a table has in quarantine.

    Attributes:
        table: Name of the table.
        rows: Rows in its quarantine.
        by_rule: How many of them broke each rule; a row counts for every rule that it broke.
    """

    table: str
    rows: int
    by_rule: Mapping[str, int]


def read_table(settings: PipelineSettings, name: str, limit: int) -> TablePreview:
    """Some rows of a table, those of its newest file first.

    Raises:
        SpecError: There is no such table, or it cannot be read without Spark.
    """
    return _preview(settings, name, limit)


def read_quarantine(
    settings: PipelineSettings, name: str, limit: int, *, ids: bool = False
) -> TablePreview:
    """The newest rows of a table's quarantine: broken rules, coordinates of the source, the row.

    Args:
        settings: The pipeline.
        name: Of the table.
        limit: How many rows at most.
        ids: With the ids of the rows, for a replay of them; nowhere but on this machine.

    Raises:
        SpecError: There is no such table, or nothing of it was ever in quarantine.
    """
    if not name.lower().endswith(QUARANTINE_SUFFIX):
        name += QUARANTINE_SUFFIX
    return _preview(settings, name, limit, only=REASON_COLUMNS, ids=ids)


def list_quarantines(settings: PipelineSettings) -> list[QuarantineSummary]:
    """Every table that has a quarantine, with rows per rule; ordered by name."""
    found = []
    for name in sorted(_tables(settings), key=str):
        if not name.name.endswith(QUARANTINE_SUFFIX):
            continue
        rules: Counter[str] = Counter()
        rows = 0
        with _readable(settings, str(name)) as opened:
            for row in opened.rows((FAILED_RULES_COLUMN,)):
                rows += 1
                rules.update(row[FAILED_RULES_COLUMN] or ())
        shown = shown_name(settings, name).removesuffix(QUARANTINE_SUFFIX)
        found.append(QuarantineSummary(table=shown, rows=rows, by_rule=dict(rules.most_common())))
    return found


def _preview(
    settings: PipelineSettings,
    name: str,
    limit: int,
    only: tuple[str, ...] = (),
    *,
    ids: bool = False,
) -> TablePreview:
    with _readable(settings, name) as opened:
        columns = tuple(one for one in only if one in opened.columns) or opened.columns
        at_once = min(limit, _MOST_AT_ONCE)
        if ids:
            head: Iterator[Mapping[str, Any]] = opened.rows_with_ids(columns, at_once)
            shown = (ID_COLUMN, *columns)
        else:
            head, shown = opened.rows(columns, at_once), columns
        rows = tuple(tuple(shown_value(row[one]) for one in shown) for row in islice(head, limit))
        return TablePreview(columns=shown, rows=rows, total=opened.total())


class _Local:
    """A table on this machine: with deletion vectors and names that its files do not have."""

    def __init__(self, path: Path) -> None:
        self._snapshot = StoredTable(path).snapshot()
        self.columns = tuple(one.name for one in self._snapshot.columns)

    def rows(
        self, columns: Sequence[str], at_once: int = _MOST_AT_ONCE
    ) -> Iterator[Mapping[str, Any]]:
        for _, row in self._places(columns, at_once):
            yield row

    def rows_with_ids(self, columns: Sequence[str], at_once: int) -> Iterator[Mapping[str, Any]]:
        for place, row in self._places(columns, at_once):
            yield {ID_COLUMN: row_id(*place), **row}

    def _places(
        self, columns: Sequence[str], at_once: int
    ) -> Iterator[tuple[tuple[str, int], Mapping[str, Any]]]:
        wanted = [one for one in self._snapshot.columns if one.name in columns]
        for file in self._snapshot.files:
            for position, row in self._snapshot.read(file, wanted, at_once=max(1, at_once)):
                yield (file.name, position), row

    def total(self) -> int:
        known = self._snapshot.rows
        return known if known is not None else sum(1 for _ in self.rows(self.columns[:1]))


def shown_value(value: object) -> str:
    """A value as a cell of text."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(shown_value(item) for item in value)
    return str(value)


@contextmanager
def _readable(settings: PipelineSettings, name: str) -> Iterator[_Local]:
    """A table by its name; what goes wrong while it is read is told as a `SpecError`."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        resolved = resolve_name(name, catalog=settings.catalog, schema=settings.schema)
    except ValueError as error:
        raise SpecError("INVALID_DATASET_NAME", str(error)) from None
    uri = StorageLayout(settings.storage).table_path(resolved)
    path = local_path(uri)
    if path is None:
        raise SpecError("STORAGE_NOT_LOCAL", f"{settings.storage} cannot be read without Spark")
    try:
        yield _Local(path)
    except TableNotFoundError:
        raise table_unknown(settings, name, _tables(settings)) from None
    except (SpecError, DeltaError) as error:
        if isinstance(error, SpecError) and error.condition == "TABLE_NOT_FOUND":
            raise table_unknown(settings, name, _tables(settings)) from None
        reason = error.message if isinstance(error, SpecError) else str(error)
        raise SpecError(
            "TABLE_NOT_READABLE",
            f"table {name!r} cannot be read without Spark: {reason.removeprefix(REFUSED)}",
            hint=f"read it with Spark: spark.read.format('delta').load('{uri}')",
        ) from error


def table_unknown(
    settings: PipelineSettings, name: str, tables: Iterable[DatasetName]
) -> SpecError:
    """The error about a table that is not among those of the storage."""
    known = sorted(shown_name(settings, table) for table in tables)
    plain = [table for table in known if not table.endswith(QUARANTINE_SUFFIX)]
    near = difflib.get_close_matches(name.lower(), known, n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif plain:
        hint = f"tables: {', '.join(plain)}"
    else:
        hint = "run the pipeline first: penstock run"
    if name.endswith(QUARANTINE_SUFFIX) and name.removesuffix(QUARANTINE_SUFFIX) in known:
        message = f"no row of {name.removesuffix(QUARANTINE_SUFFIX)!r} was ever in quarantine"
        return SpecError("QUARANTINE_NOT_FOUND", message)
    return SpecError(
        "TABLE_NOT_FOUND", f"there is no table {name!r} below {settings.storage}", hint=hint
    )


def _tables(settings: PipelineSettings) -> Iterator[DatasetName]:
    """Names of all tables of a local storage root; nothing elsewhere."""
    root = local_path(StorageLayout(settings.storage).root)
    if root is None:
        return
    for log in (root / "tables").glob("*/*/*/_delta_log"):
        *_, catalog, schema, name = log.parent.parts
        yield DatasetName(*(segment_name(part) for part in (catalog, schema, name)))


def shown_name(settings: PipelineSettings, name: DatasetName) -> str:
    """A table as its pipeline calls it: without its own catalog and schema."""
    if name.catalog.lower() != settings.catalog.lower():
        return str(name)
    if name.schema.lower() != settings.schema.lower():
        return f"{name.schema}.{name.name}"
    return name.name
