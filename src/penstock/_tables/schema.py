"""Comparing the schema of a query with that of a table: equal, additive, or incompatible.

Delta's `writeFiles` checks nothing: a string written into a double column makes a table that cannot
be read any more. Everything that is written goes through `reconcile` first.
"""

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from penstock.errors import PlanError

_GENERATED = "delta.generationExpression"
IDENTITY_START = "delta.identity.start"
IDENTITY_STEP = "delta.identity.step"
IDENTITY_EXPLICIT = "delta.identity.allowExplicitInsert"
LENGTHS = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata of a column: its type with the lengths of CHAR and VARCHAR; a table holds STRING."""
_KEPT_METADATA = ("comment", LENGTHS)
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_DIGITS = {"ByteType": 3, "ShortType": 5, "IntegerType": 10, "LongType": 19}


@dataclass(frozen=True)
class SchemaDifference:
    """How a query differs from a table.

    Attributes:
        merged: The table's schema with the query's new columns at the end.
        added: New columns, nested ones with dots.
        missing: Columns of the table that the query does not have and that Delta does not compute.
        conflicts: Column, type in the table, type in the query.
    """

    merged: StructType
    added: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    conflicts: tuple[tuple[str, str, str], ...] = field(default=())


def compare(table: StructType, query: StructType) -> SchemaDifference:
    """Compare by name, in any case and order; nullability and metadata do not matter."""
    added: list[str] = []
    missing: list[str] = []
    conflicts: list[tuple[str, str, str]] = []
    merged = _merge_struct(table, query, "", added, missing, conflicts)
    return SchemaDifference(merged, tuple(added), tuple(missing), tuple(conflicts))


def reconcile(
    table: StructType,
    query: StructType,
    *,
    name: str,
    allow_missing: bool = False,
    declared: bool = False,
) -> SchemaDifference:
    """Compare, and refuse what cannot be written.

    Args:
        table: Schema of the table.
        query: Schema of the query, without helper columns.
        name: Of the table, for messages.
        allow_missing: Columns that the query lacks become NULL instead of an error.
        declared: Whether `query` is what the table declares, not what a query has.

    Raises:
        PlanError: `SCHEMA_INCOMPATIBLE`.
    """
    check_columns(query, name)
    difference = compare(table, query)
    if difference.conflicts:
        column, have, want = difference.conflicts[0]
        more = len(difference.conflicts) - 1
        there = f"is declared {want.upper()}" if declared else f"{want.upper()} in the query"
        way = "declare it as it is" if declared else "cast the column in the query"
        raise PlanError(
            "SCHEMA_INCOMPATIBLE",
            f"column {column!r} of {name} is {have.upper()} in the table and {there}"
            + (f" ({more} more columns differ)" if more else ""),
            hint=f"{way}, or rebuild the table: --full-refresh {name}",
        )
    if difference.missing and not allow_missing:
        columns = ", ".join(repr(column) for column in difference.missing)
        raise PlanError(
            "SCHEMA_INCOMPATIBLE",
            f"the query for {name} has no column {columns}, which the table has",
            hint=f"select NULL under that name, or rebuild the table: --full-refresh {name}",
        )
    return difference


def check_columns(query: StructType, name: str) -> None:
    """Refuse a schema that no table can have.

    Raises:
        PlanError: `SCHEMA_INCOMPATIBLE`: two columns with one name, or a column without a type.
    """
    seen: set[str] = set()
    for column in query:
        if column.name.lower() in seen:
            raise PlanError(
                "SCHEMA_INCOMPATIBLE",
                f"the query for {name} has two columns named {column.name!r}",
                hint="give one of them another name with alias()",
            )
        seen.add(column.name.lower())
        if _has_void(column.dataType):
            raise PlanError(
                "SCHEMA_INCOMPATIBLE",
                f"column {column.name!r} of {name} has no type: it is always NULL",
                hint="cast it, for example CAST(NULL AS STRING)",
            )


def conform(df: DataFrame, table: StructType) -> DataFrame:
    """Cast columns up to the table's type where no value can change.

    Anything else stays as it is and is refused by `reconcile`.

    Args:
        df: The query.
        table: Schema of the table, or the declared one.
    """
    casts = {
        column.name: F.col("`" + column.name.replace("`", "``") + "`").cast(kind)
        for column, kind in zip(df.schema, conformed(df.schema, table), strict=True)
        if kind != column.dataType
    }
    return df.withColumns(casts) if casts else df


def conformed(
    query: StructType, table: StructType, fits: Callable[[DataType, DataType], bool] | None = None
) -> list[DataType]:
    """The types of a query's columns as `conform` casts them.

    Args:
        query: Schema of the query.
        table: Schema of the table.
        fits: Whether a type that is not made of others becomes that of the table; by default, where
            no value changes by that.
    """
    fits = fits or _lossless
    wanted = {column.name.lower(): column.dataType for column in table}
    return [_conformed(c.dataType, wanted.get(c.name.lower(), c.dataType), fits) for c in query]


def _conformed(
    source: DataType, target: DataType, fits: Callable[[DataType, DataType], bool]
) -> DataType:
    """A type with the target's leaves in the place of its own where they fit."""
    if isinstance(source, StructType) and isinstance(target, StructType):
        kinds = conformed(source, target, fits)
        fields = zip(source, kinds, strict=True)
        return StructType([StructField(f.name, kind, f.nullable, f.metadata) for f, kind in fields])
    if isinstance(source, ArrayType) and isinstance(target, ArrayType):
        element = _conformed(source.elementType, target.elementType, fits)
        return ArrayType(element, source.containsNull)
    if isinstance(source, MapType) and isinstance(target, MapType):
        key = _conformed(source.keyType, target.keyType, fits)
        value = _conformed(source.valueType, target.valueType, fits)
        return MapType(key, value, source.valueContainsNull)
    return target if source == target or fits(source, target) else source


def merged(schemas: Iterable[StructType]) -> StructType:
    """The columns of several queries for one table, each once.

    A column has the wider of two types where one holds all values of the other, else the first.
    """
    found: dict[str, StructField] = {}
    for schema in schemas:
        for column in schema:
            first = found.setdefault(column.name.lower(), column)
            if _lossless(first.dataType, column.dataType):
                found[column.name.lower()] = StructField(
                    first.name, column.dataType, first.nullable, first.metadata
                )
    return StructType(list(found.values()))


def with_types(df: DataFrame, declared: StructType | None = None) -> DataFrame:
    """The query with STRING in the place of VOID: a column that is always NULL has no type.

    Args:
        df: The query.
        declared: Columns of its table; one that is VOID in the query has the type that it has here.
    """
    kinds = conformed(df.schema, declared or StructType(), _is_void)
    untyped = {
        column.name: F.col("`" + column.name.replace("`", "``") + "`").cast(without_void(kind))
        for column, kind in zip(df.schema, kinds, strict=True)
        if _has_void(column.dataType)
    }
    return df.withColumns(untyped) if untyped else df


def _is_void(kind: DataType, _: DataType) -> bool:
    return isinstance(kind, NullType)


def without_void(kind: DataType) -> DataType:
    """A type with STRING in the place of every VOID, which no table can hold."""
    if isinstance(kind, NullType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(without_void(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        key, value = without_void(kind.keyType), without_void(kind.valueType)
        return MapType(key, value, kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType(
            [StructField(f.name, without_void(f.dataType), f.nullable, f.metadata) for f in kind]
        )
    return kind


def plain_schema(
    schema: StructType, *, nullable: bool = False, keep_comments: bool = True
) -> StructType:
    """A schema as a table should store it: without watermark and other query metadata.

    Args:
        schema: Of a query or a table.
        nullable: Make every column nullable, as a query's columns are.
        keep_comments: Keep column comments.
    """
    columns = []
    for column in schema:
        metadata = {
            key: value
            for key, value in (column.metadata or {}).items()
            if keep_comments and key in _KEPT_METADATA
        }
        data_type = as_nullable(column.dataType) if nullable else column.dataType
        columns.append(StructField(column.name, data_type, nullable or column.nullable, metadata))
    return StructType(columns)


def as_nullable(data_type: DataType) -> DataType:
    """The type with nullable fields, elements and values at every depth."""
    if isinstance(data_type, StructType):
        return StructType(
            [StructField(f.name, as_nullable(f.dataType), True, f.metadata) for f in data_type]
        )
    if isinstance(data_type, ArrayType):
        return ArrayType(as_nullable(data_type.elementType), True)
    if isinstance(data_type, MapType):
        return MapType(as_nullable(data_type.keyType), as_nullable(data_type.valueType), True)
    return data_type


def leaf_count(columns: Collection[StructField]) -> int:
    """How many leaf columns Delta counts when it decides which ones get statistics."""
    return sum(
        leaf_count(column.dataType.fields) if isinstance(column.dataType, StructType) else 1
        for column in columns
    )


def is_computed(column: StructField) -> bool:
    """Whether Delta fills the column when the query does not."""
    metadata = column.metadata or {}
    return _GENERATED in metadata or IDENTITY_START in metadata or "CURRENT_DEFAULT" in metadata


def is_identity(column: StructField) -> bool:
    """Whether Delta numbers the rows in the column."""
    return IDENTITY_START in (column.metadata or {})


def has_identity(schema: StructType) -> bool:
    """Whether a column is an identity column."""
    return any(is_identity(column) for column in schema)


def schema_json(schema: StructType) -> str:
    """Spark's JSON form."""
    return json.dumps(schema.jsonValue(), separators=(",", ":"))


def _merge_struct(
    table: StructType,
    query: StructType,
    prefix: str,
    added: list[str],
    missing: list[str],
    conflicts: list[tuple[str, str, str]],
) -> StructType:
    theirs = {column.name.lower(): column for column in query}
    columns: list[StructField] = []
    for column in table:
        other = theirs.pop(column.name.lower(), None)
        if other is None:
            columns.append(column)
            if not is_computed(column):
                missing.append(prefix + column.name)
            continue
        merged = _merge_type(
            column.dataType, other.dataType, prefix + column.name, added, missing, conflicts
        )
        columns.append(StructField(column.name, merged, column.nullable, column.metadata))
    for column in theirs.values():
        added.append(prefix + column.name)
        columns.append(plain_schema(StructType([column]), nullable=True)[0])
    return StructType(columns)


def _merge_type(
    table: DataType,
    query: DataType,
    path: str,
    added: list[str],
    missing: list[str],
    conflicts: list[tuple[str, str, str]],
) -> DataType:
    if isinstance(table, StructType) and isinstance(query, StructType):
        return _merge_struct(table, query, f"{path}.", added, missing, conflicts)
    if isinstance(table, ArrayType) and isinstance(query, ArrayType):
        element = _merge_type(
            table.elementType, query.elementType, f"{path}.element", added, missing, conflicts
        )
        return ArrayType(element, table.containsNull)
    if isinstance(table, MapType) and isinstance(query, MapType):
        key = _merge_type(table.keyType, query.keyType, f"{path}.key", added, missing, conflicts)
        value = _merge_type(
            table.valueType, query.valueType, f"{path}.value", added, missing, conflicts
        )
        return MapType(key, value, table.valueContainsNull)
    if table.simpleString() != query.simpleString():
        conflicts.append((path, table.simpleString(), query.simpleString()))
    return table


def _has_void(data_type: DataType) -> bool:
    if isinstance(data_type, NullType):
        return True
    children: list[Any] = []
    if isinstance(data_type, StructType):
        children = [column.dataType for column in data_type]
    elif isinstance(data_type, ArrayType):
        children = [data_type.elementType]
    elif isinstance(data_type, MapType):
        children = [data_type.keyType, data_type.valueType]
    return any(_has_void(child) for child in children)


def _lossless(source: DataType, target: DataType) -> bool:
    if isinstance(source, NullType):
        return True
    if isinstance(source, _INTEGERS) and isinstance(target, _INTEGERS):
        return _INTEGERS.index(type(source)) < _INTEGERS.index(type(target))
    if isinstance(source, FloatType) and isinstance(target, DoubleType):
        return True
    if isinstance(source, (ByteType, ShortType, IntegerType)) and isinstance(target, DoubleType):
        return True
    if isinstance(target, DecimalType):
        room = target.precision - target.scale
        if isinstance(source, DecimalType):
            return source.scale <= target.scale and source.precision - source.scale <= room
        digits = _DIGITS.get(type(source).__name__)
        return digits is not None and digits <= room
    return isinstance(source, DateType) and isinstance(target, TimestampNTZType)
