"""Lossless conversion of decoded values to the types of a schema.

Used in Spark's Python workers: a value that does not fit is an error of its row, not of the query.
"""

import base64
import json
import math
import struct
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from typing import Any, TypeVar

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.parsing.schema_errors import schema_invalid

T = TypeVar("T")
Fit = Callable[[Any], Any]

_LONGEST_SHOWN = 60
_EXACT = Context(prec=80)  # the default context has 28 digits


class MisfitError(ValueError):
    """A value does not fit its type; callers prepend the names of the enclosing fields."""

    def __init__(self, reason: str, path: tuple[str, ...] = ()) -> None:
        self.reason, self.path = reason, path
        super().__init__(reason)

    def below(self, name: str) -> "MisfitError":
        """The same error with the name of an enclosing field."""
        return MisfitError(self.reason, (name, *self.path))

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.reason}" if self.path else self.reason


def compile_fit(data_type: DataType) -> Fit:
    """A function that converts a decoded value, not NULL, to one that Arrow accepts for a type.

    It raises `MisfitError`. Unsupported types, such as VARIANT, raise `DefinitionError` here.
    """
    if isinstance(data_type, StructType):
        return _struct(data_type)
    if isinstance(data_type, ArrayType):
        inner = compile_fit(data_type.elementType)
        return lambda value: [
            None if item is None else inner(item) for item in _is(value, list, "an array")
        ]
    if isinstance(data_type, MapType):
        return _map(data_type)
    if isinstance(data_type, DecimalType):
        return lambda value: _decimal(value, data_type)
    simple = _SIMPLE.get(type(data_type))
    if simple is None:
        raise schema_invalid(f"a payload cannot be decoded to {data_type.simpleString().upper()}")
    return simple


def _struct(kind: StructType) -> Fit:
    fields = [(f.name, compile_fit(f.dataType), f.nullable) for f in kind]

    def fit(value: Any) -> Any:
        record = _is(value, dict, "a record")
        result = {}
        for name, inner, nullable in fields:
            item = record.get(name)
            if item is not None:
                try:
                    item = inner(item)
                except MisfitError as error:
                    raise error.below(name) from None
            elif not nullable:
                raise MisfitError("NULL or missing", (name,))
            result[name] = item
        return result

    return fit


def _map(data_type: MapType) -> Fit:
    key_of, value_of = compile_fit(data_type.keyType), compile_fit(data_type.valueType)

    def fit(value: Any) -> Any:
        return [
            (key_of(key), None if item is None else value_of(item))
            for key, item in _is(value, dict, "a map").items()
        ]

    return fit


def _is(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind):
        raise misfit(value, name)
    return value


def misfit(value: Any, wanted: str) -> MisfitError:
    """The error for a value that does not fit its column."""
    shown = repr(value)
    if len(shown) > _LONGEST_SHOWN:
        shown = shown[:_LONGEST_SHOWN] + "..."
    return MisfitError(f"{shown} is not {wanted}")


def _integer(bits: int) -> Fit:
    limit = 1 << (bits - 1)

    def fit(value: Any) -> int:
        if isinstance(value, time):  # Avro's time of day: milliseconds in an INT, or microseconds
            micros = (value.hour * 3600 + value.minute * 60 + value.second) * 1_000_000
            micros += value.microsecond
            return micros // 1000 if bits == 32 else micros
        if not isinstance(value, int) or isinstance(value, bool):
            raise misfit(value, "an integer")
        if not -limit <= value < limit:
            raise misfit(value, f"an integer of {bits} bits")
        return value

    return fit


def _decimal(value: Any, data_type: DecimalType) -> Decimal:
    wanted = f"a {data_type.simpleString().upper()}"
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, str)):
        raise misfit(value, wanted)
    if isinstance(value, str) and "_" in value:  # which Decimal() ignores
        raise misfit(value, wanted)
    try:
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        exact = number.quantize(Decimal(1).scaleb(-data_type.scale), context=_EXACT)
    except InvalidOperation:
        raise misfit(value, wanted) from None
    if exact != number or len(exact.as_tuple().digits) > data_type.precision:  # also for NaN
        raise misfit(value, wanted)
    return exact


def _double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise misfit(value, "a number")
    try:
        number = float(value)
    except OverflowError:
        raise misfit(value, "a DOUBLE") from None
    if math.isinf(number) and not isinstance(value, float):
        raise misfit(value, "a DOUBLE")
    return number


def _float(value: Any) -> float:
    number = _double(value)
    try:
        struct.pack("<f", number)
    except OverflowError:
        raise misfit(value, "a FLOAT") from None
    return number


def _string(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        raise misfit(value, "a string")
    # Any value of a STRING field is kept as text, as by Spark's JSON reader.
    text = _json(value) if isinstance(value, (dict, list, bool)) else str(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # an unpaired surrogate
            raise misfit(value, "a string of Unicode characters") from None
    return text


def _json(value: Any) -> str:
    """A value as JSON; numbers keep all digits."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(str(key))}: {_json(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        raise misfit(value, "a part of a string")
    return json.dumps(value, default=str, ensure_ascii=False)


def _binary(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, str):
        with suppress(ValueError):  # binascii.Error is a subclass
            return base64.b64decode(value, validate=True)
    raise misfit(value, "base64")


def _from_text(value: Any, parse: Callable[[str], T], wanted: str) -> T:
    if isinstance(value, str):
        with suppress(ValueError):
            return parse(value.strip())
    raise misfit(value, wanted)


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    return _from_text(value, date.fromisoformat, "a date")


def _time(value: Any, *, is_local: bool) -> datetime:
    """A timestamp in UTC, without a time zone if it is local."""
    known = isinstance(value, datetime)
    parsed: datetime = value if known else _from_text(value, datetime.fromisoformat, "a time")
    try:
        in_utc = parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except OverflowError:  # in UTC, it is before the year 1 or after 9999
        raise misfit(parsed.isoformat(), "a time between the years 1 and 9999") from None
    return in_utc.replace(tzinfo=None) if is_local else in_utc


def _duration(value: Any) -> timedelta:
    duration: timedelta = _is(value, timedelta, "a duration")
    if abs(duration // timedelta(microseconds=1)) >= 1 << 63:
        raise misfit(value, "a duration of 64 bits")
    return duration


_SIMPLE: dict[type[DataType], Fit] = {
    BooleanType: partial(_is, kind=bool, name="a boolean"),
    ByteType: _integer(8),
    ShortType: _integer(16),
    IntegerType: _integer(32),
    LongType: _integer(64),
    FloatType: _float,
    DoubleType: _double,
    StringType: _string,
    BinaryType: _binary,
    DateType: _date,
    TimestampType: partial(_time, is_local=False),
    TimestampNTZType: partial(_time, is_local=True),
    DayTimeIntervalType: _duration,
}
