"""Event times from the formats of producers, and date columns for partitioning."""

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

# The year 5138 in seconds: smaller numbers are seconds, larger ones milliseconds, and so on.
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
    """Add the event time: the first candidate column that has a valid time.

    A candidate may be a TIMESTAMP, DATE, number or string. Numbers, also in strings, count from
    1970; their magnitude determines whether they are seconds, milliseconds, microseconds or
    nanoseconds. A string is parsed with each of `formats`, then as a number, then as ISO 8601;
    without a time zone, it is in the zone of the session, UTC by default. Values that are not times
    are skipped without an error.

    The column `<into>_source` has the name of the candidate or fallback that was used, or NULL.
    So `expect_or_quarantine("has a time", "event_time IS NOT NULL")` finds rows without an event
    time, and `event_time_source` those with the fallback.

    Args:
        df: Streaming or batch DataFrame.
        candidates: Columns or fields of structs (`payload.created_at`), in order of preference.
        formats: Patterns of Spark's `to_timestamp`.
        into: Name of the new column.
        fallback: A column that always has a time, such as Kafka's `timestamp`.
        max_future_seconds: Skip times that are further ahead of `fallback` than this. Otherwise,
            one wrong clock would advance the watermark, and rows of other producers would be late.

    Raises:
        DefinitionError: `EVENT_TIME_INVALID`: no candidates, unknown columns, or columns of other
            types; `max_future_seconds` without a `fallback`.
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
    """Add partition columns: the date and the hour of a time, in the session's time zone.

    Args:
        df: Streaming or batch DataFrame.
        time: Column of type TIMESTAMP.
        date: Name of the DATE column.
        hour: Name of the INT column, 0 to 23; `None` to add none.
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
            # Formats first: they may consist of digits only.
            *[F.try_to_timestamp(text, F.lit(pattern)) for pattern in formats],
            _epoch(number.try_cast("decimal(28,9)")),
            # A four-digit number would be read as a year.
            F.when(number.isNull(), text).try_cast("timestamp"),
        )
    raise _invalid(f"column {name!r} is {data_type.simpleString().upper()}, which holds no time")


def _epoch(number: Column) -> Column:
    """A number since 1970 as a timestamp; its magnitude determines the unit."""
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
