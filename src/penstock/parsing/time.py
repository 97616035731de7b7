"""Event times out of what producers send, and the columns that tables are partitioned by."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from penstock._model.origin import capture_origin
from penstock._model.sql_text import quoted
from penstock.errors import DefinitionError

# Seconds until the year 5138; below it a number is seconds, above it milliseconds, and so on.
_SECONDS_LIMIT = 100_000_000_000
_NUMBER = r"^\s*[+-]?\d{1,19}(\.\d{1,9})?\s*$"


def event_time(
    df: DataFrame,
    candidates: Sequence[str],
    *,
    formats: Sequence[str] = (),
    into: str = "event_time",
    fallback: str | None = None,
    max_future_seconds: int | None = None,
) -> DataFrame:
    """Add the time of an event: that of the first candidate which holds one.

    A candidate may be TIMESTAMP, DATE, a number or text. Numbers, also as text, count from 1970;
    their size says whether they are seconds, milliseconds, microseconds or nanoseconds. Text is
    tried with each of `formats`, then as a number, then as ISO 8601; without a zone it is in the
    session's, UTC by default. A value that is no time is skipped without an error.

    The column `<into>_source` has the candidate that was used, the fallback's name, or NULL.
    So `expect_or_quarantine("has a time", "event_time IS NOT NULL")` finds rows without one, and
    `event_time_source` those whose time is that of their arrival.

    Args:
        df: Streaming or not.
        candidates: Columns or fields of structs (`payload.created_at`), the best first.
        formats: Patterns of Spark's `to_timestamp`.
        into: Name of the new column.
        fallback: A column with a time that is always there, such as Kafka's `timestamp`.
        max_future_seconds: Pass over times that are further ahead of `fallback` than this; one
            wrong clock would otherwise push the watermark past everyone else's rows.

    Raises:
        DefinitionError: `EVENT_TIME_INVALID`: no candidates, unknown columns, or columns that hold
            no times; `max_future_seconds` without a `fallback`.
    """
    if not candidates:
        raise _invalid("it has no candidates")
    if max_future_seconds is not None and fallback is None:
        raise _invalid("max_future_seconds needs a fallback to compare with")
    names = [*candidates, *([fallback] if fallback else [])]
    times = [_time(df, name, formats) for name in names]
    if max_future_seconds is not None:
        limit = times[-1] + F.make_dt_interval(secs=F.lit(max_future_seconds))
        times = [*[F.when(~F.coalesce(t > limit, F.lit(False)), t) for t in times[:-1]], times[-1]]
    source = F.coalesce(
        *[F.when(t.isNotNull(), F.lit(n)) for n, t in zip(names, times, strict=True)]
    )
    return df.withColumns({into: F.coalesce(*times), f"{into}_source": source})


def with_date_columns(
    df: DataFrame, time: str = "event_time", *, date: str = "date", hour: str | None = "hour"
) -> DataFrame:
    """Add the date and the hour of a time, in the session's zone, to partition a table by.

    Args:
        df: Streaming or not.
        time: Column of type TIMESTAMP.
        date: Name of the DATE column.
        hour: Name of the INT column, 0 to 23; `None` for none.
    """
    value = F.col(quoted(time))
    columns = {date: F.to_date(value)}
    if hour is not None:
        columns[hour] = F.hour(value)
    return df.withColumns(columns)


def _time(df: DataFrame, name: str, formats: Sequence[str]) -> Column:
    column, data_type = _find(df, name)
    if isinstance(data_type, (TimestampType, TimestampNTZType, DateType)):
        return column.cast("timestamp")
    if isinstance(data_type, NumericType):
        return _epoch(column.try_cast("decimal(28,9)"))
    if isinstance(data_type, StringType):
        text = F.trim(column)
        number = F.when(text.rlike(_NUMBER), text)
        return F.coalesce(
            # First, as a format may consist of digits only.
            *[F.try_to_timestamp(text, F.lit(pattern)) for pattern in formats],
            _epoch(number.try_cast("decimal(28,9)")),
            # A four-digit number would be read as a year.
            F.when(number.isNull(), text).try_cast("timestamp"),
        )
    raise _invalid(f"column {name!r} is {data_type.simpleString().upper()}, which holds no time")


def _epoch(number: Column) -> Column:
    """A number as a time: by its size in seconds, milli-, micro- or nanoseconds."""
    size = F.abs(number)
    micros = (
        F.when(size < _SECONDS_LIMIT, number * 1_000_000)
        .when(size < _SECONDS_LIMIT * 1_000, number * 1_000)
        .when(size < _SECONDS_LIMIT * 1_000_000, number)
        .otherwise(number / 1_000)
    )
    return F.timestamp_micros(F.floor(micros).try_cast("bigint"))


def _find(df: DataFrame, name: str) -> tuple[Column, DataType]:
    fields = {field.name.lower(): field for field in df.schema}
    instant: Column | None = None
    data_type: DataType = df.schema
    for part in [name] if name.lower() in fields else name.split("."):
        inner = getattr(data_type, "fields", None)
        match = next((f for f in inner or () if f.name.lower() == part.lower()), None)
        if match is None:
            raise _invalid(f"there is no column {name!r}; there are {', '.join(df.columns)}")
        data_type = match.dataType
        instant = F.col(quoted(match.name)) if instant is None else instant.getField(match.name)
    assert instant is not None
    return instant, data_type


def _invalid(reason: str) -> DefinitionError:
    return DefinitionError(
        "EVENT_TIME_INVALID",
        f"no event time can be taken: {reason}",
        origin=capture_origin(),
        hint='event_time(df, ["payload.created_at", "ts"], fallback="timestamp")',
    )
