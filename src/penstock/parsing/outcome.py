"""The result of every parser: the columns of the payload, or the error and the payload."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._model.origin import capture_origin
from penstock._model.sql_text import quoted
from penstock.errors import DefinitionError

ERROR_COLUMN = "_parse_error"
RAW_COLUMN = "_raw_payload"
EXTRA_COLUMN = "_extra_fields"

PARSED = f"{ERROR_COLUMN} IS NULL"
"""The condition of an expectation: the payload of the row could be parsed."""


def require_column(df: DataFrame, column: str) -> str:
    """The payload's column as the DataFrame spells it; it must be STRING or BINARY."""
    field = next((field for field in df.schema if field.name.lower() == column.lower()), None)
    if field is None:
        problem = f"there is no column {column!r} to parse; there are {', '.join(df.columns)}"
    elif field.dataType.typeName() in ("string", "binary"):
        return field.name
    else:
        kind = field.dataType.simpleString().upper()
        problem = f"column {column!r} is {kind}; a payload is STRING or BINARY"
    raise DefinitionError("PAYLOAD_COLUMN_INVALID", problem, origin=capture_origin())


def spread(
    df: DataFrame,
    column: str,
    *,
    schema: StructType,
    parsed: Column,
    error: Column,
    into: str | None,
    extra: Column | None = None,
) -> DataFrame:
    """Replace the payload with the parsed columns, and append the columns of the outcome.

    `parsed` (a struct) and `error` are expressions over `df`; `error` is NULL for parsed rows.
    `into` keeps the struct as one column; `extra` is the value of `_extra_fields`.
    """
    kept = [name for name in df.columns if name != column and not name.startswith("__penstock_")]
    new = [into] if into else [field.name for field in schema]
    outcome = [ERROR_COLUMN, RAW_COLUMN, *([EXTRA_COLUMN] if extra is not None else [])]
    _refuse_twice([*kept, *new, *outcome], payload=[*new, *outcome])
    fields = (
        [parsed.alias(into)]
        if into
        else [parsed.getField(field.name).alias(field.name) for field in schema]
    )
    raw = F.when(error.isNotNull(), F.col(quoted(column)).cast("binary"))
    return df.select(
        *[F.col(quoted(name)) for name in kept],
        *fields,
        error.alias(ERROR_COLUMN),
        raw.alias(RAW_COLUMN),
        *([extra.alias(EXTRA_COLUMN)] if extra is not None else []),
    )


def _refuse_twice(names: Sequence[str], *, payload: Sequence[str]) -> None:
    lower = [name.lower() for name in names]
    twice = sorted({name for name in payload if lower.count(name.lower()) > 1})
    if twice:
        raise DefinitionError(
            "PARSED_COLUMN_EXISTS",
            f"the parsed columns {', '.join(twice)} have the names of others",
            origin=capture_origin(),
            hint='keep the payload together with into="payload", or rename the others before',
        )
