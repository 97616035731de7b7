"""Reads rows of local tables without Spark: no JVM, no lease, also while an update runs.

Tables are found by their path in the storage layout, so this works for a project whose source files
cannot be loaded.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from penstock._model.expectation import FAILED_RULES, ROW, SOURCE
from penstock._model.name import DatasetName, resolve_name, segment_name
from penstock._model.pipeline import PipelineSettings
from penstock._model.similar import nearest
from penstock._tables.files import local_path
from penstock._tables.layout import QUARANTINE_SUFFIX, layout_of
from penstock._tables.read.row_selection import row_id
from penstock._tables.read.stored_table import REFUSED, Snapshot, StoredTable
from penstock.errors import SpecError

ID_COLUMN = "_id"
REASON_COLUMNS = (FAILED_RULES, SOURCE, ROW)
_MOST_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class TablePreview:
    """Some rows of a table, as strings and NULL; `total` counts the rows of the whole table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    total: int


@dataclass(frozen=True, kw_only=True)
class QuarantineSummary:
    table: str
    rows: int
    by_rule: Mapping[str, int]


def read_table(
    settings: PipelineSettings,
    name: str,
    limit: int,
    only: tuple[str, ...] = (),
    *,
    ids: bool = False,
) -> TablePreview:
    """Some rows of the newest version of a table, starting with its newest file."""
    with _readable(settings, name) as snapshot:
        known = {column.name: column for column in snapshot.columns}
        names = tuple(name for name in only if name in known) or tuple(known)
        columns = [known[name] for name in names]
        rows = []
        at_once = max(1, min(limit, _MOST_AT_ONCE))
        for file, position, row in islice(snapshot.scan(columns, at_once=at_once), limit):
            cells = [shown_cell(row[name]) for name in names]
            rows.append((row_id(file.name, position), *cells) if ids else tuple(cells))
        total = snapshot.rows
        if total is None:
            total = sum(1 for _ in snapshot.scan(snapshot.columns[:1], at_once=_MOST_AT_ONCE))
        shown = (ID_COLUMN, *names) if ids else names
        return TablePreview(columns=shown, rows=tuple(rows), total=total)


def read_quarantine(
    settings: PipelineSettings, name: str, limit: int, *, ids: bool = False
) -> TablePreview:
    """The newest rows of a table's quarantine: violated rules, source position and row."""
    return read_table(settings, quarantine_name(name), limit, REASON_COLUMNS, ids=ids)


def quarantine_name(table: str) -> str:
    quote = "`" if table.endswith("`") else ""
    name = table.removesuffix(quote)
    is_quarantine = name.lower().endswith(QUARANTINE_SUFFIX)
    return table if is_quarantine else f"{name}{QUARANTINE_SUFFIX}{quote}"


def list_quarantines(settings: PipelineSettings) -> list[QuarantineSummary]:
    summaries = []
    for name in sorted(_tables(settings), key=str):
        if not name.name.endswith(QUARANTINE_SUFFIX):
            continue
        rules: Counter[str] = Counter()
        rows = 0
        with _readable(settings, str(name)) as snapshot:
            columns = [each for each in snapshot.columns if each.name == FAILED_RULES]
            if not columns:
                continue  # a dataset of this name
            for _, _, row in snapshot.scan(columns, at_once=_MOST_AT_ONCE):
                rows += 1
                rules.update(row[FAILED_RULES] or ())
        table = shown_name(settings, name).removesuffix(QUARANTINE_SUFFIX)
        by_rule = dict(rules.most_common())
        summaries.append(QuarantineSummary(table=table, rows=rows, by_rule=by_rule))
    return summaries


def shown_cell(value: object) -> str | None:
    return None if value is None else shown_value(value)


def shown_value(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(shown_value(item) for item in value)
    return str(value)


def resolve_table(settings: PipelineSettings, name: str) -> DatasetName:
    try:
        return resolve_name(name, catalog=settings.catalog, schema=settings.schema)
    except ValueError as error:
        # Names with other characters need no backticks here.
        for table in _tables(settings):
            if name in (str(table), shown_name(settings, table)):
                return table
        raise SpecError("INVALID_DATASET_NAME", str(error)) from None


@contextmanager
def _readable(settings: PipelineSettings, name: str) -> Iterator[Snapshot]:
    uri = layout_of(settings).table_path(resolve_table(settings, name))
    path = local_path(uri)
    if path is None:
        raise SpecError("STORAGE_NOT_LOCAL", f"{settings.storage} cannot be read without Spark")
    try:
        yield StoredTable(path).snapshot()
    except SpecError as error:
        if error.condition == "TABLE_NOT_FOUND":
            raise table_unknown(settings, name, _tables(settings)) from None
        reason = error.message.removeprefix(REFUSED)
        raise SpecError(
            "TABLE_NOT_READABLE",
            f"table {name!r} cannot be read without Spark: {reason}",
            hint=f"read it with Spark: spark.read.format('delta').load('{uri}')",
        ) from error


def table_unknown(
    settings: PipelineSettings, name: str, tables: Iterable[DatasetName]
) -> SpecError:
    known = sorted(shown_name(settings, table) for table in tables)
    plain = [table for table in known if not table.endswith(QUARANTINE_SUFFIX)]
    if name.endswith(QUARANTINE_SUFFIX):
        name, known = name.removesuffix(QUARANTINE_SUFFIX), plain
        if name in known:
            message = f"no row of {name!r} was ever in quarantine"
            return SpecError("QUARANTINE_NOT_FOUND", message)
    if near := nearest(name, known):
        hint = f"did you mean {near!r}?"
    else:
        hint = f"tables: {', '.join(plain)}" if plain else "run the pipeline first: penstock run"
    return SpecError(
        "TABLE_NOT_FOUND", f"there is no table {name!r} below {settings.storage}", hint=hint
    )


def _tables(settings: PipelineSettings) -> Iterator[DatasetName]:
    root = local_path(layout_of(settings).root)
    if root is None:
        return
    for log in (root / "tables").glob("*/*/*/_delta_log"):
        yield DatasetName(*(segment_name(part) for part in log.parent.parts[-3:]))


def shown_name(settings: PipelineSettings, name: DatasetName) -> str:
    """The shortest name of a table in its pipeline: without its own catalog and schema."""
    if name.catalog.lower() != settings.catalog.lower():
        return str(name)
    if name.schema.lower() != settings.schema.lower():
        return f"{name.schema}.{name.name}"
    return name.name
