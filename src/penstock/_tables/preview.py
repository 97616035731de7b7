"""Looks at tables without Spark: no JVM, no lease, also while an update runs.

delta-rs reads the newest committed version. Tables are found by their place in the storage layout,
so this works in a project whose sources do not even load.
"""

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from penstock._model.name import DatasetName, resolve_name
from penstock._model.pipeline import PipelineSettings
from penstock._tables.files import local_path
from penstock._tables.layout import QUARANTINE_SUFFIX, StorageLayout, segment_name
from penstock._tables.row_selection import row_id
from penstock._tables.stored_table import Snapshot, StoredTable
from penstock.errors import SpecError

FAILED_RULES_COLUMN = "_failed_rules"
ID_COLUMN = "_id"
_REASON_COLUMNS = (FAILED_RULES_COLUMN, "_source", "_row")


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
    """The first rows of a table.

    Raises:
        SpecError: There is no such table, or delta-rs cannot read it.
    """
    return _preview(_open(settings, name), limit)


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
    table = _open(settings, name)
    folder = local_path(_uri(settings, name)) if ids else None
    if folder is None:
        return _preview(table, limit, only=_REASON_COLUMNS)
    return _with_ids(StoredTable(folder).snapshot(), limit)


def list_quarantines(settings: PipelineSettings) -> list[QuarantineSummary]:
    """Every table that has a quarantine, with rows per rule; ordered by name."""
    found = []
    for name in sorted(_tables(settings), key=str):
        if not name.name.endswith(QUARANTINE_SUFFIX):
            continue
        table = _open(settings, str(name))
        rules: Counter[str] = Counter()
        rows = 0
        for batch in table.to_pyarrow_dataset().to_batches(columns=[FAILED_RULES_COLUMN]):
            rows += batch.num_rows
            for broken in batch.column(0).to_pylist():
                rules.update(broken or ())
        shown = _shown(settings, name).removesuffix(QUARANTINE_SUFFIX)
        found.append(QuarantineSummary(table=shown, rows=rows, by_rule=dict(rules.most_common())))
    return found


def _preview(table: Any, limit: int, only: tuple[str, ...] = ()) -> TablePreview:
    data = table.to_pyarrow_dataset()
    columns = [name for name in only if name in data.schema.names] or data.schema.names
    # An Arrow scanner knows no "last rows": these are the first of the newest file.
    head = data.head(limit, columns=columns).to_pylist()
    rows = tuple(tuple(_text(row[name]) for name in columns) for row in head)
    return TablePreview(columns=tuple(columns), rows=rows, total=data.count_rows())


def _with_ids(found: Snapshot, limit: int) -> TablePreview:
    columns = [one for name in _REASON_COLUMNS for one in found.columns if one.name == name]
    places = (
        (file, position, values)
        for file in found.files
        for position, values in found.read(file, columns, at_once=limit)
    )
    rows = tuple(
        (row_id(file.name, position), *map(_text, values.values()))
        for file, position, values in islice(places, limit)
    )
    names = tuple(one.name for one in columns)
    total = len(rows) if found.rows is None else found.rows
    return TablePreview(columns=(ID_COLUMN, *names), rows=rows, total=total)


def _text(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    return str(value)


def _open(settings: PipelineSettings, name: str) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    uri = _uri(settings, name)
    path = local_path(uri)
    try:
        return DeltaTable(str(path) if path is not None else uri)
    except TableNotFoundError:
        raise _unknown(settings, name) from None
    except DeltaError as error:
        raise SpecError(
            "TABLE_NOT_READABLE",
            f"table {name!r} cannot be read without Spark: {error}",
            hint=f"read it with Spark: spark.read.format('delta').load('{uri}')",
        ) from error


def _uri(settings: PipelineSettings, name: str) -> str:
    try:
        resolved = resolve_name(name, catalog=settings.catalog, schema=settings.schema)
    except ValueError as error:
        raise SpecError("INVALID_DATASET_NAME", str(error)) from None
    return StorageLayout(settings.storage).table_path(resolved)


def _unknown(settings: PipelineSettings, name: str) -> SpecError:
    known = sorted(_shown(settings, table) for table in _tables(settings))
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


def _shown(settings: PipelineSettings, name: DatasetName) -> str:
    if name.catalog.lower() != settings.catalog.lower():
        return str(name)
    if name.schema.lower() != settings.schema.lower():
        return f"{name.schema}.{name.name}"
    return name.name
