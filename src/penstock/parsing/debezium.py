"""Debezium change events as rows that an auto CDC flow applies."""

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock._model.origin import capture_origin
from penstock._model.sql_text import quoted
from penstock.errors import DefinitionError
from penstock.parsing.avro import PayloadError, require_fastavro
from penstock.parsing.binary import not_empty, with_decoded
from penstock.parsing.confluent import decode_confluent, decode_json
from penstock.parsing.fit import MisfitError, misfit
from penstock.parsing.outcome import ERROR_COLUMN, RAW_COLUMN, require_column, spread
from penstock.parsing.registry import SchemaRegistry
from penstock.parsing.schema import to_struct

_CHANGE = (
    "_op STRING, _sequence STRUCT<log: BIGINT, position: BIGINT, row: BIGINT>, "
    "_changed_at TIMESTAMP, _transaction STRING, _columns_to_update ARRAY<STRING>"
)
CHANGE_COLUMNS = (
    "_op",
    "_sequence",
    "_changed_at",
    "_transaction",
    "_columns_to_update",
    ERROR_COLUMN,
    RAW_COLUMN,
)
"""The columns that `debezium` adds to those of the table, for `except_column_list`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACEHOLDER = "__debezium_unavailable_value"
# The placeholder as a string, as bytes, as bytes in JSON; as an array of one of these; as an array
# of numbers (one per byte) or of UUIDs; as hstore.
_SCALARS = (
    _PLACEHOLDER,
    _PLACEHOLDER.encode(),
    base64.b64encode(_PLACEHOLDER.encode()).decode(),
)
_ABSENT = (
    *_SCALARS,
    *([scalar] for scalar in _SCALARS),
    list(_PLACEHOLDER.encode()),
    ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
    {_PLACEHOLDER: _PLACEHOLDER},
    f'{{"{_PLACEHOLDER}":"{_PLACEHOLDER}"}}',
)
_NANOS = {"millis": 1_000_000, "micros": 1000, "nanos": 1}
_DECIMAL_MODES = ("precise", "string", "double")


def debezium(
    df: DataFrame,
    column: str = "value",
    *,
    schema: StructType | str,
    registry: SchemaRegistry | None = None,
    decimal_handling_mode: Literal["precise", "string", "double"] = "precise",
    timestamp_units: str | Mapping[str, str] | None = None,
) -> DataFrame:
    """Parse Debezium's change events of one table into rows for `create_auto_cdc_flow`.

    Events of the connectors for PostgreSQL, MySQL and MariaDB, as JSON with or without the
    `schema` part, or as Avro in Confluent's wire format. Each event becomes one row: the payload's
    column is replaced by those of the table, from `before` for a delete and `after` otherwise, and

    - `_op`: the operation `c`, `u`, `d`, `r` (snapshot) or `t` (truncate),
    - `_sequence`: the position in the log of the database, which orders the events of a key,
    - `_changed_at`, `_transaction`: time and transaction of the change in the database,
    - `_columns_to_update`: the columns that are in the event, if PostgreSQL omitted large values
      that did not change; otherwise NULL,
    - `_parse_error`, `_raw_payload`: as in `parse_avro`. A row with an error has no `_sequence`, so
      an auto CDC flow never applies it: it goes to quarantine.

    Tombstones, transaction markers, schema changes and logical decoding messages are dropped.

    Args:
        df: Streaming or batch DataFrame.
        column: STRING or BINARY, such as Kafka's `value`.
        schema: Columns of the table: struct or DDL. A DECIMAL has the scale that it has in the
            database. `NOT NULL` columns are checked, except in deletes. Fields that are not in the
            schema are ignored, missing ones are NULL.
        registry: Registry of the schemas, for events in Avro.
        decimal_handling_mode: Property `decimal.handling.mode` of the connector; for JSON.
        timestamp_units: Unit of integers in TIMESTAMP columns, since 1970: `millis`, `micros` or
            `nanos`, for all columns or by column. Default: `micros` for PostgreSQL, `millis` for
            MySQL, which is how Debezium writes columns that declare no precision.

    Raises:
        MissingExtraError: fastavro is not installed, but `registry` is used.
        DefinitionError: `PAYLOAD_COLUMN_INVALID`, `PAYLOAD_SCHEMA_INVALID`, `PARSED_COLUMN_EXISTS`
            or `INVALID_PARAMETER`.
    """
    table = to_struct(schema)
    name = require_column(df, column)
    if decimal_handling_mode not in _DECIMAL_MODES:
        raise _invalid("decimal_handling_mode", decimal_handling_mode, _DECIMAL_MODES)
    if registry is not None:
        require_fastavro()
    read = change_reader(
        table,
        (lambda payload: decode_confluent(payload, registry)) if registry else decode_json,
        is_base64=registry is None and decimal_handling_mode == "precise",
        units=_units(table, timestamp_units),
    )
    columns = [StructField(f.name, f.dataType) for f in table]
    struct = StructType([*columns, *to_struct(_CHANGE).fields])
    messages = df.where(F.col(quoted(name)).isNotNull())
    decoded, record, error = with_decoded(messages, name, struct, read, once=True)
    changes = spread(decoded, name, schema=struct, parsed=record, error=error, into=None)
    return changes.where(F.col("_op").isNotNull() | F.col(ERROR_COLUMN).isNotNull())


def change_reader(
    table: StructType,
    decode: Callable[[bytes], Any],
    *,
    is_base64: bool,
    units: Mapping[str, str],
) -> Callable[[bytes], dict[str, Any]]:
    """A function from a message to the columns of its change; empty if no row has changed.

    It runs in Spark's Python workers, and raises `PayloadError` or `MisfitError`.
    """
    required = [f.name for f in table if not f.nullable]

    def read(payload: bytes) -> dict[str, Any]:
        envelope = decode(not_empty(payload))
        if isinstance(envelope, dict) and "op" not in envelope and "payload" in envelope:
            envelope = envelope["payload"]
        if envelope is None:
            return {}
        if not isinstance(envelope, dict):
            raise PayloadError("not a change event of Debezium, but a single value")
        op, source = envelope.get("op"), envelope.get("source")
        is_marker = envelope.get("status") in ("BEGIN", "END") or "ddl" in envelope
        if op == "m" or (op is None and is_marker):
            return {}
        if op not in ("c", "d", "r", "t", "u"):
            raise PayloadError(f"not a change event of Debezium: its `op` is {str(op)[:20]}")
        if not isinstance(source, dict):
            raise PayloadError("there is no `source`")
        transaction = envelope.get("transaction")
        change = _metadata(op, source, transaction if isinstance(transaction, dict) else {})
        if op == "t":
            return change
        side = "before" if op == "d" else "after"
        image = envelope.get(side)
        if not isinstance(image, dict):
            raise PayloadError(f"there is no `{side}`")
        default = "micros" if source.get("lsn") is not None else "millis"
        for field in table:
            value = image.get(field.name)
            if value is not None:
                unit = units.get(field.name, default)
                try:
                    change[field.name] = _value(value, field.dataType, unit, is_base64)
                except MisfitError as error:
                    raise error.below(field.name) from None
        missing = [column for column in required if change.get(column) is None]
        if missing and op != "d":
            raise PayloadError(f"NULL or missing: {', '.join(missing)}")
        if op == "u":
            present = [f.name for f in table if image.get(f.name) not in _ABSENT]
            change["_columns_to_update"] = present if len(present) < len(table) else None
        return change

    return read


def _metadata(op: str, source: Mapping[str, Any], transaction: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that describe the change.

    `_sequence` orders the changes of a key. A row of a snapshot comes before a change at the same
    position: PostgreSQL's position at the start of a snapshot is that of the next record. In a
    compressed transaction of MySQL all positions are the same, and only the order within the
    transaction differs.
    """
    log, position = 0, source.get("lsn")
    if position is None:
        number, position = re.search(r"\d{1,18}$", str(source.get("file"))), source.get("pos")
        if number is None or position is None:
            raise PayloadError("`source` has neither `lsn` nor `file` and `pos`")
        log = int(number[0])
    row = -1 if op == "r" else transaction.get("total_order") or source.get("row") or 0
    return {
        "_op": op,
        "_sequence": {"log": log, "position": position, "row": row},
        "_changed_at": _value(source.get("ts_ms"), TimestampType(), "millis", is_base64=False),
        "_transaction": transaction.get("id") or source.get("gtid") or source.get("txId"),
    }


def _value(value: Any, data_type: DataType, unit: str, is_base64: bool) -> Any:
    """Convert a value that Debezium or a converter writes as a number or bytes; keep others."""
    if isinstance(data_type, ArrayType) and isinstance(value, list):
        return [_value(item, data_type.elementType, unit, is_base64) for item in value]
    if isinstance(data_type, DecimalType) and isinstance(value, (str, dict)):
        return _decimal(value, data_type.scale, is_base64)
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        if isinstance(data_type, DateType):
            return _EPOCH.date() + timedelta(days=value)
        if isinstance(data_type, (TimestampType, TimestampNTZType)):
            micros = value * _NANOS[unit] // 1000
            return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        # Microseconds that are read as milliseconds, or PostgreSQL's infinity.
        raise misfit(value, "a time before the year 10000") from None
    return value


def _decimal(value: Any, scale: int, is_base64: bool) -> Any:
    """Decode an unscaled number in bytes; for NUMERIC without a scale, the event has the scale."""
    number: Any = value
    places: Any = scale
    if isinstance(value, dict):
        number, places = value.get("value"), value.get("scale")
    elif not is_base64:
        return value
    try:
        unscaled = number if isinstance(number, bytes) else base64.b64decode(number, validate=True)
    except (ValueError, TypeError):
        raise misfit(value, "a number in base64") from None
    if not (0 < len(unscaled) <= 64 and isinstance(places, int) and abs(places) <= 1000):
        raise misfit(value, "a number in base64")
    return Decimal(f"{int.from_bytes(unscaled, 'big', signed=True)}E{-places}")


def _units(table: StructType, units: str | Mapping[str, str] | None) -> Mapping[str, str]:
    """The units of the columns for which one is declared."""
    if units is None or isinstance(units, str):
        units = {} if units is None else dict.fromkeys(table.names, units)
    for column, unit in units.items():
        if unit not in _NANOS:
            raise _invalid("timestamp_units", unit, tuple(_NANOS))
        if column not in table.names:
            raise _invalid("timestamp_units", column, tuple(table.names))
    return units


def _invalid(parameter: str, value: object, allowed: tuple[str, ...]) -> DefinitionError:
    return DefinitionError(
        "INVALID_PARAMETER",
        f"{parameter} has {value!r}, which is unknown",
        origin=capture_origin(),
        hint=f"it can have {', '.join(allowed)}",
    )
