"""Rows in user code: integers in FLOAT columns, which only Spark Connect converts."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import DoubleType, FloatType, StructType


def with_floats(data: Any, schema: Any) -> Any:
    """The rows for `createDataFrame` with integers as floats in FLOAT and DOUBLE columns."""
    if not isinstance(data, list | tuple) or not isinstance(schema, StructType | str):
        return data
    struct = _parsed(schema) if isinstance(schema, str) else schema
    if struct is None:
        return data
    wanted = {
        position: field.name
        for position, field in enumerate(struct)
        if isinstance(field.dataType, FloatType | DoubleType)
    }
    return [_converted(row, wanted) for row in data] if wanted else data


def _parsed(schema: str) -> StructType | None:
    try:
        kind = StructType.fromDDL(schema)
    except Exception:  # Spark reports the error
        return None
    return kind if isinstance(kind, StructType) else None


def _converted(row: Any, wanted: Mapping[int, str]) -> Any:
    if isinstance(row, Mapping):
        names = set(wanted.values())
        return {name: _float(value) if name in names else value for name, value in row.items()}
    if not isinstance(row, Sequence) or isinstance(row, str | bytes):
        return row
    if not any(_is_integer(row[at]) for at in wanted if at < len(row)):
        return row
    # The columns are in the order of the schema, also in a `Row`.
    return tuple(_float(value) if at in wanted else value for at, value in enumerate(row))


def _float(value: Any) -> Any:
    return float(value) if _is_integer(value) else value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
