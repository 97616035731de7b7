"""Functions for event times of wrong clocks, and for windows as plain columns.

They run no Spark job. `penstock.parsing.event_time` parses event times of producers; these
functions protect the watermark from times in the future. Import them in source files:
`from penstock.timing import not_in_future, window_columns`.
"""

from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from penstock._model.duration import parse_seconds
from penstock._model.origin import capture_origin
from penstock._model.sql_text import quoted
from penstock.errors import DefinitionError

__all__ = ["cap_future", "not_in_future", "window_columns"]


def cap_future(column: str | Column, max_future: str = "0 seconds") -> Column:
    """Replace timestamps that are more than `max_future` ahead of the current time by that time.

    The watermark follows the maximum event time. One device whose clock is a year ahead would move
    it a year ahead, and all rows of other devices would be late from then on. The current time is
    the timestamp of the micro-batch, which Spark stores in the checkpoint, so a repeated batch has
    the same result. A rule with `not_in_future` sends such rows to quarantine instead.

    Args:
        column: A timestamp.
        max_future: How far ahead a timestamp may be, such as `"5 minutes"`.

    Raises:
        DefinitionError: `INVALID_PARAMETER`.
    """
    time = F.col(column) if isinstance(column, str) else column
    now = F.current_timestamp()
    return F.when(time > now + F.lit(_interval(max_future)), now).otherwise(time)


def not_in_future(column: str, max_future: str = "0 seconds") -> str:
    """The condition of a rule: the timestamp is at most `max_future` ahead of the current time.

    A missing or invalid timestamp violates the rule. The condition is a SQL string, and does not
    need a session.

    Args:
        column: Name of a timestamp, a date, or text that Spark can read as a timestamp.
        max_future: How far ahead it may be, such as `"5 minutes"`.

    Raises:
        DefinitionError: `INVALID_PARAMETER`.
    """
    seconds = _interval(max_future).total_seconds()
    ahead = f" + INTERVAL '{seconds:f}' SECOND" if seconds else ""
    name = ".".join(f"`{part.replace('`', '``')}`" for part in column.replace("`", "").split("."))
    return f"try_to_timestamp({name}) <= current_timestamp(){ahead}"


def window_columns(df: DataFrame) -> DataFrame:
    """Replace each window of a DataFrame with two plain columns.

    `window` becomes `window_start` and `window_end`, `session_window` becomes
    `session_window_start` and `session_window_end`. A table can be partitioned and clustered by
    them, which it cannot by a field of a struct. Use it as `df.transform(window_columns)`.

    Raises:
        DefinitionError: `WINDOW_COLUMN_MISSING`: the DataFrame has no window.
    """
    columns: list[Column] = []
    has_window = False
    for field in df.schema:
        column = F.col(quoted(field.name))
        if _is_window(field.dataType):
            has_window = True
            columns += [column[end].alias(f"{field.name}_{end}") for end in ("start", "end")]
        else:
            columns.append(column)
    if not has_window:
        raise DefinitionError(
            "WINDOW_COLUMN_MISSING",
            "`window_columns`: the DataFrame has no column that window() or session_window() made",
            origin=capture_origin(),
            hint=f"columns: {', '.join(df.columns)}",
        )
    return df.select(*columns)


def _interval(text: str) -> timedelta:
    seconds = parse_seconds(text)
    if seconds is None:
        raise DefinitionError(
            "INVALID_PARAMETER",
            f"{text!r} is not a duration",
            origin=capture_origin(),
            hint='a number and a unit: "30 seconds", "5 minutes", "1 hour"',
        )
    return timedelta(seconds=seconds)


def _is_window(data_type: object) -> bool:
    if not isinstance(data_type, StructType) or data_type.fieldNames() != ["start", "end"]:
        return False
    return all(isinstance(f.dataType, TimestampType | TimestampNTZType) for f in data_type)
