"""Wider types, which hold the values of two types, and Delta's ALTER TABLE for them.

Existing files are not rewritten; they are read with the wider type.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import types as T

from penstock._model.exception_text import first_line
from penstock._model.origin import SourceLocation
from penstock._model.sql_text import delta_table, quoted
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import TableRef
from penstock._tables.write.schema import (
    DIGITS,
    EXACT_IN_DOUBLE,
    INTEGERS,
    ColumnPath,
    compare,
    conformed,
    is_lossless,
    map_leaves,
)
from penstock.errors import PlanError

ENABLED = "delta.enableTypeWidening"
"""The table property without which Delta refuses to widen."""

# Digits of the smallest decimals that Delta widens these types to.
_LEAST_DIGITS: dict[type[T.DataType], int] = {
    T.ByteType: 10,
    T.ShortType: 10,
    T.IntegerType: 10,
    T.LongType: 20,
}
_MOST_DIGITS = 38


@dataclass(frozen=True)
class TypeChange:
    """The change of a column's type; `path` as in `ALTER COLUMN`: `a.element.b`."""

    path: tuple[str, ...]
    before: T.DataType
    after: T.DataType

    def __str__(self) -> str:
        after = self.after.simpleString().upper()
        return f"{'.'.join(self.path)!r} {self.before.simpleString().upper()} -> {after}"


def widened(have: T.DataType, want: T.DataType) -> T.DataType | None:
    """The type that a column of type `have` is widened to for values of type `want`.

    `None` if Delta does not widen `have` to such a type, or if no change is needed.
    """
    if isinstance(have, INTEGERS) and isinstance(want, INTEGERS):
        return want if INTEGERS.index(type(have)) < INTEGERS.index(type(want)) else None
    if isinstance(have, EXACT_IN_DOUBLE) and isinstance(want, (*EXACT_IN_DOUBLE, T.DoubleType)):
        # A double holds both; neither holds the other.
        return T.DoubleType() if type(have) is not type(want) else None
    if isinstance(have, T.DateType) and isinstance(want, T.TimestampNTZType):
        return want
    return _decimal(have, want)


def _decimal(have: T.DataType, want: T.DataType) -> T.DataType | None:
    if not isinstance(have, T.DecimalType) and not isinstance(want, T.DecimalType):
        return None
    whole, scale = _digits(have, _LEAST_DIGITS)
    more, finer = _digits(want, DIGITS)
    if not whole or not more:
        return None
    whole, scale = max(whole, more), max(scale, finer)
    wider = T.DecimalType(min(whole + scale, _MOST_DIGITS), scale)
    return wider if whole + scale <= _MOST_DIGITS and wider != have else None


def _digits(kind: T.DataType, of_integers: dict[type[T.DataType], int]) -> tuple[int, int]:
    """Digits before and after the decimal point; (0, 0) for a type that no decimal holds."""
    if isinstance(kind, T.DecimalType):
        return max(kind.precision - kind.scale, 1), kind.scale
    return of_integers.get(type(kind), 0), 0


def widen(table: T.StructType, query: T.StructType) -> tuple[T.StructType, tuple[TypeChange, ...]]:
    changes: list[TypeChange] = []

    def leaf(have: T.DataType, want: T.DataType, path: tuple[str, ...]) -> T.DataType:
        wider = widened(have, want)
        if wider is None:
            return have
        changes.append(TypeChange(path, have, wider))
        return wider

    return map_leaves(table, query, leaf), tuple(changes)


def merged(schemas: Iterable[T.StructType]) -> T.StructType:
    """The columns of several queries for one table.

    A column has a type that holds the values of all queries if there is one, otherwise the first.
    """

    def leaf(have: T.DataType, want: T.DataType, _: ColumnPath) -> T.DataType:
        return want if is_lossless(have, want) else widened(have, want) or have

    def new_columns(
        have: T.StructType, want: T.StructType, path: ColumnPath
    ) -> list[T.StructField]:
        names = {field.name.lower() for field in have}
        # Nested fields are added by the first rows that have them.
        return [] if path else [field for field in want if field.name.lower() not in names]

    columns = T.StructType()
    for schema in schemas:
        columns = map_leaves(columns, schema, leaf, new_columns)
    return columns


def common_schema(
    table: str, flows: Mapping[str, str], origin: SourceLocation | None = None
) -> T.StructType:
    """The columns of a table from those of its flows, in Spark's JSON form by name of the flow.

    Raises:
        PlanError: no type of a column holds the values of all flows.
    """
    queries = {name: T.StructType.fromJson(json.loads(text)) for name, text in flows.items()}
    columns = merged(queries.values())
    for name, query in queries.items():
        for column, want, have in compare(columns, conformed(query, columns)).conflicts:
            raise PlanError(
                "SCHEMA_INCOMPATIBLE",
                f"column {column!r} of {table} is {have.upper()} in flow {name!r}, but "
                f"{want.upper()} in other flows",
                origin=origin,
                hint="cast the column in one of the queries",
            )
    return columns


def alter_types(
    delta: DeltaJvm,
    table: TableRef,
    changes: Sequence[TypeChange],
    *,
    origin: SourceLocation | None = None,
) -> None:
    """Widen columns of a table without rewriting files, in two commits.

    The first one sets `delta.enableTypeWidening`, after which readers need Delta 4.0 or newer.
    Delta refuses, for example, a column on which a CHECK constraint or generated column depends.
    """
    properties = {ENABLED: "true"}
    if any(isinstance(change.after, T.TimestampNTZType) for change in changes):
        properties["delta.feature.timestampNtz"] = "supported"
    pairs = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    columns = ", ".join(
        quoted(*change.path) + f" TYPE {change.after.simpleString()}" for change in changes
    )
    alter = f"ALTER TABLE {delta_table(table.path)}"
    try:
        delta.spark.sql(f"{alter} SET TBLPROPERTIES ({pairs})")
        delta.spark.sql(f"{alter} ALTER COLUMN {columns}")
    except (PySparkException, Py4JJavaError) as error:
        listed = ", ".join(str(change) for change in changes)
        raise PlanError(
            "SCHEMA_INCOMPATIBLE",
            f"columns of {table.name} cannot be widened ({listed}): {first_line(error)}",
            origin=origin,
            hint="drop what depends on the column, cast the column in the query, or rebuild the "
            f"table: --full-refresh {table.name}",
        ) from error
