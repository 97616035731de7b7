"""Which types of columns may become wider in place, and which type holds the values of two.

Delta's rules of type widening, as pure functions over types: files that were written before stay as
they are, and are read with the wider type.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
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
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
)

from penstock._model.exception_text import first_line
from penstock._model.origin import SourceLocation
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import TableRef
from penstock.errors import PlanError

ENABLED = "delta.enableTypeWidening"
"""The table property without which Delta refuses to widen."""

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_EXACT_IN_DOUBLE = (ByteType, ShortType, IntegerType, FloatType)
# Digits of the decimals that Delta lets these become, at the least; and those of their values.
_LEAST_DIGITS: dict[type[DataType], int] = {
    ByteType: 10,
    ShortType: 10,
    IntegerType: 10,
    LongType: 20,
}
_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_MOST_DIGITS = 38


@dataclass(frozen=True)
class TypeChange:
    """One column that becomes wider.

    Attributes:
        path: Its name behind those of the structs around it; `element`, `key` and `value` inside of
            collections.
        before: Its type.
        after: The type that it gets.
    """

    path: tuple[str, ...]
    before: DataType
    after: DataType

    def __str__(self) -> str:
        after = self.after.simpleString().upper()
        return f"{'.'.join(self.path)!r} {self.before.simpleString().upper()} -> {after}"


def widened(have: DataType, want: DataType) -> DataType | None:
    """The type that a column gets so that it holds the values of both types.

    Args:
        have: Type of the column.
        want: Type of what shall go into it.

    Returns:
        `None` if there is no such type that Delta changes `have` to, or if `have` is it.
    """
    if isinstance(have, _INTEGERS) and isinstance(want, _INTEGERS):
        return want if _INTEGERS.index(type(have)) < _INTEGERS.index(type(want)) else None
    if isinstance(have, _EXACT_IN_DOUBLE) and isinstance(want, (*_EXACT_IN_DOUBLE, DoubleType)):
        # Two that a double holds, and of which neither holds the other.
        return DoubleType() if type(have) is not type(want) else None
    if isinstance(have, DateType) and isinstance(want, TimestampNTZType):
        return want
    return _decimal(have, want)


def _decimal(have: DataType, want: DataType) -> DataType | None:
    if not isinstance(have, DecimalType) and not isinstance(want, DecimalType):
        return None
    whole, scale = _digits(have, _LEAST_DIGITS)
    more, finer = _digits(want, _DIGITS)
    if not whole or not more:
        return None
    whole, scale = max(whole, more), max(scale, finer)
    found = DecimalType(min(whole + scale, _MOST_DIGITS), scale)
    return found if whole + scale <= _MOST_DIGITS and found != have else None


def _digits(kind: DataType, of_integers: dict[type[DataType], int]) -> tuple[int, int]:
    """Digits before and behind the point; none at all for a type that no decimal holds."""
    if isinstance(kind, DecimalType):
        return max(kind.precision - kind.scale, 1), kind.scale
    return of_integers.get(type(kind), 0), 0


def widen(table: StructType, query: StructType) -> tuple[StructType, tuple[TypeChange, ...]]:
    """The schema of a table with every column wide enough for a query, where that is possible.

    Args:
        table: Schema of the table; names and metadata stay.
        query: Columns by name, in any case.

    Returns:
        The schema, and what changed in it.
    """
    changes: list[TypeChange] = []
    return _struct(table, query, (), changes), tuple(changes)


def _struct(
    table: StructType, query: StructType, path: tuple[str, ...], changes: list[TypeChange]
) -> StructType:
    theirs = {column.name.lower(): column.dataType for column in query}
    columns = []
    for column in table:
        want = theirs.get(column.name.lower())
        kind = column.dataType
        if want is not None:
            kind = _type(kind, want, (*path, column.name), changes)
        columns.append(StructField(column.name, kind, column.nullable, column.metadata))
    return StructType(columns)


def _type(
    have: DataType, want: DataType, path: tuple[str, ...], changes: list[TypeChange]
) -> DataType:
    if isinstance(have, StructType) and isinstance(want, StructType):
        return _struct(have, want, path, changes)
    if isinstance(have, ArrayType) and isinstance(want, ArrayType):
        element = _type(have.elementType, want.elementType, (*path, "element"), changes)
        return ArrayType(element, have.containsNull)
    if isinstance(have, MapType) and isinstance(want, MapType):
        key = _type(have.keyType, want.keyType, (*path, "key"), changes)
        value = _type(have.valueType, want.valueType, (*path, "value"), changes)
        return MapType(key, value, have.valueContainsNull)
    wider = widened(have, want)
    if wider is None:
        return have
    changes.append(TypeChange(path, have, wider))
    return wider


def alter_types(
    delta: DeltaJvm,
    table: TableRef,
    changes: Sequence[TypeChange],
    *,
    origin: SourceLocation | None = None,
) -> None:
    """Make columns of a table wider: one commit for all of them, which leaves its files alone.

    The table gets `delta.enableTypeWidening`, and needs Delta 4.0 or newer to be read from then on.

    Args:
        delta: The bridge.
        table: The table.
        changes: From `widen`.
        origin: Where the table was declared.

    Raises:
        PlanError: `SCHEMA_INCOMPATIBLE`: Delta refuses, as where a CHECK constraint or a generated
            column depends on the column.
    """
    properties = {ENABLED: "true"}
    if any(isinstance(change.after, TimestampNTZType) for change in changes):
        properties["delta.feature.timestampNtz"] = "supported"
    pairs = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    columns = ", ".join(
        ".".join("`" + name.replace("`", "``") + "`" for name in change.path)
        + f" TYPE {change.after.simpleString()}"
        for change in changes
    )
    place = f"ALTER TABLE delta.`{table.path}`"
    try:
        delta.spark.sql(f"{place} SET TBLPROPERTIES ({pairs})")
        delta.spark.sql(f"{place} ALTER COLUMN {columns}")
    except (PySparkException, Py4JJavaError) as error:
        told = ", ".join(str(change) for change in changes)
        raise PlanError(
            "SCHEMA_INCOMPATIBLE",
            f"{table.name} cannot become wider in place ({told}): {first_line(error)}",
            origin=origin,
            hint="drop what depends on the column, cast the column in the query, or rebuild the "
            f"table: --full-refresh {table.name}",
        ) from error
