"""Compares the schema of a query with that of a table: equal, additive, or incompatible.

Delta's `writeFiles` checks nothing: a table with a string written into a double column cannot be
read any more. So every write calls `reconcile` first.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from penstock._model.sql_text import quoted
from penstock.errors import PlanError

GENERATED = "delta.generationExpression"
IDENTITY_START = "delta.identity.start"
IDENTITY_STEP = "delta.identity.step"
IDENTITY_EXPLICIT = "delta.identity.allowExplicitInsert"
LENGTHS = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata of a column: its type with the lengths of CHAR and VARCHAR; the table has STRING."""
COLUMN_MAPPING = "delta.columnMapping.mode"
FORBIDDEN_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that column names can have only with column mapping."""
KEPT_METADATA = ("comment", LENGTHS)
INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
EXACT_IN_DOUBLE = (T.ByteType, T.ShortType, T.IntegerType, T.FloatType)
DIGITS: dict[type[T.DataType], int] = {
    T.ByteType: 3,
    T.ShortType: 5,
    T.IntegerType: 10,
    T.LongType: 19,
}

ColumnPath: TypeAlias = tuple[str, ...]
"""The names of a column and its nested fields, as in `ALTER COLUMN`: `("a", "element", "b")`."""
Leaf: TypeAlias = Callable[[T.DataType, T.DataType, ColumnPath], T.DataType]
"""A function of two atomic types, or types of different kinds, and the path of their column."""


@dataclass(frozen=True)
class SchemaDifference:
    merged: T.StructType  # the table's schema, with the query's new columns at the end
    added: tuple[str, ...] = ()  # nested ones with dots
    missing: tuple[str, ...] = ()  # not in the query, and not computed by Delta
    conflicts: tuple[tuple[str, str, str], ...] = ()  # column, type in the table, type in the query


def compare(table: T.StructType, query: T.StructType) -> SchemaDifference:
    """Compare by name (case-insensitive), ignoring order, nullability and metadata."""
    added: list[str] = []
    missing: list[str] = []
    conflicts: list[tuple[str, str, str]] = []

    def leaf(have: T.DataType, want: T.DataType, path: ColumnPath) -> T.DataType:
        if have.simpleString() != want.simpleString():
            conflicts.append((".".join(path), have.simpleString(), want.simpleString()))
        return have

    def new_fields(
        table: T.StructType, query: T.StructType, path: ColumnPath
    ) -> list[T.StructField]:
        have = {field.name.lower(): field for field in table}
        want = {field.name.lower(): field for field in query}
        gone = [field for name, field in have.items() if name not in want]
        missing.extend(".".join((*path, field.name)) for field in gone if not is_computed(field))
        new = [field for name, field in want.items() if name not in have]
        added.extend(".".join((*path, field.name)) for field in new)
        return plain_schema(T.StructType(new), nullable=True).fields

    merged = map_leaves(table, query, leaf, new_fields)
    return SchemaDifference(merged, tuple(added), tuple(missing), tuple(conflicts))


def reconcile(
    table: T.StructType,
    query: T.StructType,
    *,
    name: str,
    allow_missing: bool = False,
    declared: bool = False,
) -> SchemaDifference:
    """Compare, and raise if rows of the query cannot be written.

    With `allow_missing`, columns that the query lacks become NULL. With `declared`, `query` is the
    declared schema.
    """
    check_columns(query, name)
    difference = compare(table, query)
    if difference.conflicts:
        column, have, want = difference.conflicts[0]
        more = len(difference.conflicts) - 1
        other = f"is declared {want.upper()}" if declared else f"{want.upper()} in the query"
        way_out = "declare the type of the table" if declared else "cast the column in the query"
        raise _incompatible(
            f"column {column!r} of {name} is {have.upper()} in the table and {other}"
            + (f" ({more} more columns differ)" if more else ""),
            f"{way_out}, or rebuild the table: --full-refresh {name}",
        )
    if difference.missing and not allow_missing:
        columns = ", ".join(repr(column) for column in difference.missing)
        raise _incompatible(
            f"the query for {name} has no column {columns}, which the table has",
            f"select NULL under that name, or rebuild the table: --full-refresh {name}",
        )
    return difference


def _incompatible(message: str, hint: str) -> PlanError:
    return PlanError("SCHEMA_INCOMPATIBLE", message, hint=hint)


def check_columns(query: T.StructType, name: str) -> None:
    """Refuse columns with the same name, and columns of type VOID."""
    seen: set[str] = set()
    for column in query:
        if column.name.lower() in seen:
            raise _incompatible(
                f"the query for {name} has two columns named {column.name!r}",
                "give one of them another name with alias()",
            )
        seen.add(column.name.lower())
        if any(isinstance(kind, T.NullType) for kind in nested_types(column.dataType)):
            raise _incompatible(
                f"column {column.name!r} of {name} has no type: it is always NULL",
                "cast it, for example CAST(NULL AS STRING)",
            )


def absent_key(table: T.StructType, keys: Collection[str], name: str) -> PlanError | None:
    """The error for a key column that the table lacks: it would be NULL in all existing rows."""
    have = {column.lower() for column in table.names}
    absent = [key for key in keys if key.lower() not in have]
    if not absent:
        return None
    return _incompatible(
        f"{name} has rows, but no column {absent[0]!r}, which is a key of its flow",
        f"revert the change, or rebuild the table: --full-refresh {name}",
    )


def nested_types(kind: T.DataType) -> Iterator[T.DataType]:
    yield kind
    children: list[T.DataType] = []
    if isinstance(kind, T.StructType):
        children = [field.dataType for field in kind]
    elif isinstance(kind, T.ArrayType):
        children = [kind.elementType]
    elif isinstance(kind, T.MapType):
        children = [kind.keyType, kind.valueType]
    for child in children:
        yield from nested_types(child)


def column_mapping(schema: T.StructType) -> dict[str, str]:
    """The property without which Delta refuses names in a schema; empty if it is not required."""
    structs = (kind for kind in nested_types(schema) if isinstance(kind, T.StructType))
    needs_it = any(FORBIDDEN_IN_NAMES.search(name) for kind in structs for name in kind.names)
    return {COLUMN_MAPPING: "name"} if needs_it else {}


def map_leaves(
    schema: T.StructType,
    other: T.StructType,
    leaf: Leaf,
    new_fields: Callable[[T.StructType, T.StructType, ColumnPath], list[T.StructField]]
    | None = None,
) -> T.StructType:
    """A schema with each leaf replaced by what `leaf` returns for it and the same leaf of `other`.

    Struct fields are matched by name (case-insensitive); those that `other` lacks are kept. The
    `new_fields` of a struct are added at its end.
    """

    def struct(have: T.StructType, want: T.StructType, path: ColumnPath) -> T.StructType:
        types = {field.name.lower(): field.dataType for field in want}
        fields = []
        for field in have:
            inner = field.dataType
            if field.name.lower() in types:
                inner = mapped(inner, types[field.name.lower()], (*path, field.name))
            fields.append(T.StructField(field.name, inner, field.nullable, field.metadata))
        return T.StructType(fields + (new_fields(have, want, path) if new_fields else []))

    def mapped(have: T.DataType, want: T.DataType, path: ColumnPath) -> T.DataType:
        if isinstance(have, T.StructType) and isinstance(want, T.StructType):
            return struct(have, want, path)
        if isinstance(have, T.ArrayType) and isinstance(want, T.ArrayType):
            element = mapped(have.elementType, want.elementType, (*path, "element"))
            return T.ArrayType(element, have.containsNull)
        if isinstance(have, T.MapType) and isinstance(want, T.MapType):
            key = mapped(have.keyType, want.keyType, (*path, "key"))
            value = mapped(have.valueType, want.valueType, (*path, "value"))
            return T.MapType(key, value, have.valueContainsNull)
        return leaf(have, want, path)

    return struct(schema, other, ())


def conform(df: DataFrame, table: T.StructType) -> DataFrame:
    """Cast columns to the table's types if no value changes; others are left to `reconcile`."""
    return _cast(df, conformed(df.schema, table))


def _cast(df: DataFrame, schema: T.StructType) -> DataFrame:
    casts = {
        column.name: _named(column.name).cast(wanted.dataType)
        for column, wanted in zip(df.schema, schema, strict=True)
        if wanted.dataType != column.dataType
    }
    return df.withColumns(casts) if casts else df


def conformed(
    query: T.StructType,
    table: T.StructType,
    fits: Callable[[T.DataType, T.DataType], bool] | None = None,
) -> T.StructType:
    """The schema of a query after `conform`.

    `fits` decides whether an atomic type is cast to that of the table; by default, it is cast if no
    value changes.
    """
    fits = fits or is_lossless

    def leaf(have: T.DataType, want: T.DataType, _: object) -> T.DataType:
        return want if have == want or fits(have, want) else have

    return map_leaves(query, table, leaf)


def _named(name: str) -> Column:
    return F.col(quoted(name))


def columns_as(
    want: T.StructType, have: Sequence[T.StructField], column_of: Callable[[str], Column] = _named
) -> list[Column]:
    """Columns cast to other types; columns and fields are matched by name, missing ones are NULL.

    Delta checks NOT NULL when it writes; a cast to it is refused.
    """
    by_name = {field.name.lower(): field for field in have}
    columns = []
    for field in want.toNullable():
        own = by_name.get(field.name.lower())
        if own is None:
            column = F.lit(None).cast(field.dataType)
        else:
            column = cast_by_name(column_of(own.name), own.dataType, field.dataType)
        columns.append(column.alias(field.name))
    return columns


def cast_by_name(column: Column, have: T.DataType, want: T.DataType) -> Column:
    """Cast a column of type `have`; fields that it lacks become NULL.

    Spark's cast and union match the fields of structs by their position.
    """
    if have == want:
        return column
    if _field_names(have) == _field_names(want):
        return column.cast(want)
    if isinstance(have, T.StructType) and isinstance(want, T.StructType):
        fields = F.struct(*columns_as(want, have.fields, column.getField))
        return F.when(column.isNotNull(), fields)
    if isinstance(have, T.ArrayType) and isinstance(want, T.ArrayType):
        kinds = have.elementType, want.elementType
        return F.transform(column, lambda element: cast_by_name(element, *kinds))
    if isinstance(have, T.MapType) and isinstance(want, T.MapType):
        keys, values = (have.keyType, want.keyType), (have.valueType, want.valueType)
        column = F.transform_keys(column, lambda key, _: cast_by_name(key, *keys))
        return F.transform_values(column, lambda _, value: cast_by_name(value, *values))
    return column.cast(want)


def _field_names(kind: T.DataType) -> list[str]:
    return [
        name for each in nested_types(kind) if isinstance(each, T.StructType) for name in each.names
    ]


def with_fields(df: DataFrame, schema: T.StructType) -> DataFrame:
    """A query with the nested fields of `schema`, which has all its columns, in their order."""
    kinds = {field.name.lower(): field.dataType for field in schema}
    casts = {}
    for field in df.schema:
        have, want = field.dataType, kinds[field.name.lower()]
        if _field_names(have) != _field_names(want):
            casts[field.name] = cast_by_name(_named(field.name), have, want)
    return df.withColumns(casts) if casts else df


def union(rows: DataFrame, other: DataFrame) -> DataFrame:
    """The union of two DataFrames; columns and nested fields are matched by name."""
    schema = compare(rows.schema, other.schema).merged
    rows, other = with_fields(rows, schema), with_fields(other, schema)
    return rows.unionByName(other, allowMissingColumns=True)


def with_types(df: DataFrame, declared: T.StructType | None = None) -> DataFrame:
    """The query with the declared type, or STRING, instead of VOID (the type of NULL)."""
    schema = conformed(
        df.schema, declared or T.StructType(), lambda kind, _: isinstance(kind, T.NullType)
    )
    texts = map_leaves(
        schema, schema, lambda have, *_: T.StringType() if isinstance(have, T.NullType) else have
    )
    return _cast(df, texts)


def plain_schema(
    schema: T.StructType, *, nullable: bool = False, keep_comments: bool = True
) -> T.StructType:
    """A schema for a table: without watermark and other query metadata.

    With `nullable`, as for the columns of a query, also without lengths: a later query may return
    longer values.
    """
    columns = []
    for column in schema.toNullable() if nullable else schema:
        metadata = {
            key: value
            for key, value in (column.metadata or {}).items()
            if keep_comments and key in KEPT_METADATA and not (nullable and key == LENGTHS)
        }
        columns.append(T.StructField(column.name, column.dataType, column.nullable, metadata))
    return T.StructType(columns)


def leaf_count(columns: Collection[T.StructField]) -> int:
    """Number of leaf columns, as Delta counts them for statistics."""
    return sum(
        leaf_count(column.dataType.fields) if isinstance(column.dataType, T.StructType) else 1
        for column in columns
    )


def is_computed(column: T.StructField) -> bool:
    """Whether Delta computes the column if the query does not have it."""
    metadata = column.metadata or {}
    return GENERATED in metadata or IDENTITY_START in metadata or "CURRENT_DEFAULT" in metadata


def is_identity(column: T.StructField) -> bool:
    return IDENTITY_START in (column.metadata or {})


def has_identity(schema: T.StructType) -> bool:
    return any(is_identity(column) for column in schema)


def schema_json(schema: T.StructType) -> str:
    return json.dumps(schema.jsonValue(), separators=(",", ":"))


def is_lossless(source: T.DataType, target: T.DataType) -> bool:
    """Whether the atomic type `target` holds every value of the different type `source`."""
    if isinstance(source, T.NullType):
        return True
    if isinstance(source, INTEGERS) and isinstance(target, INTEGERS):
        return INTEGERS.index(type(source)) < INTEGERS.index(type(target))
    if isinstance(source, EXACT_IN_DOUBLE) and isinstance(target, T.DoubleType):
        return True
    if isinstance(target, T.DecimalType):
        room = target.precision - target.scale
        if isinstance(source, T.DecimalType):
            return source.scale <= target.scale and source.precision - source.scale <= room
        digits = DIGITS.get(type(source))
        return digits is not None and digits <= room
    return isinstance(source, T.DateType) and isinstance(target, T.TimestampNTZType)
