"""Debezium's change events to rows that an auto CDC flow applies."""

import re
from collections.abc import Mapping
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock._model.origin import capture_origin
from penstock.errors import DefinitionError
from penstock.parsing.avro import require_fastavro
from penstock.parsing.binary import with_decoded
from penstock.parsing.confluent import decode_confluent
from penstock.parsing.exponents import LARGE_EXPONENT
from penstock.parsing.json_payload import missing_fields, with_json
from penstock.parsing.outcome import ERROR_COLUMN, RAW_COLUMN, quoted, require_column, spread
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

_FIELDS = (
    "op STRING, source STRUCT<ts_ms: BIGINT, txId: BIGINT, lsn: BIGINT, gtid: STRING, "
    "file: STRING, pos: BIGINT, row: BIGINT>, transaction STRUCT<id: STRING, "
    "total_order: BIGINT>, status STRING, ddl STRING"
)
_PLACEHOLDER = "__debezium_unavailable_value"
_MESSAGE, _ENVELOPE = "__penstock_message", "__penstock_envelope"
_IMAGE, _ROW = "__penstock_image", "__penstock_row"

# Debezium and the converters of Kafka Connect write these in several ways, as numbers and as text.
_CONVERTED = (DateType, TimestampType, TimestampNTZType, DecimalType)
_CONVERTED_INSIDE = re.compile(r'"(?:type|\w+Type)":"(?:date|timestamp|decimal)')
_INTEGER = r"^-?\d{1,19}$"
_FIRST_MICROS, _LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999
_UNITS = ("millis", "micros", "nanos")
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
    `schema` part, or in Confluent's wire format. Each event becomes one row: the payload's column
    is replaced by those of the table, of `before` for a delete and else of `after`, and by

    - `_op`: `c`, `u`, `d`, `r` (snapshot) or `t` (truncate), as Debezium has it,
    - `_sequence`: the position in the log of the database, which orders the events of a key,
    - `_changed_at`, `_transaction`: time and transaction of the change in the database,
    - `_columns_to_update`: the columns that are in the event, if PostgreSQL left out some large
      values which did not change; else NULL,
    - `_parse_error`, `_raw_payload`: as of `parse_json`. The `_sequence` of a row with an error is
      NULL, so an auto CDC flow never applies it: it goes to quarantine.

    Tombstones, transaction markers, schema changes and logical decoding messages are no changes
    of rows, and are left out.

    Args:
        df: Streaming or not.
        column: STRING or BINARY, such as Kafka's `value`.
        schema: Columns of the table: struct or DDL. A DECIMAL has the scale that it has in the
            database. `NOT NULL` columns are checked, except in deletes. Fields that are not in the
            schema are ignored, missing ones are NULL.
        registry: Where the schemas of the events are, if they are Avro.
        decimal_handling_mode: The property `decimal.handling.mode` of the connector; for JSON.
        timestamp_units: What integers in TIMESTAMP columns count since 1970: `millis`, `micros` or
            `nanos`, for all columns or by column. Default: `micros` for PostgreSQL, `millis` for
            MySQL, which is how Debezium writes columns that declare no precision.

    Raises:
        MissingExtraError: fastavro is not installed, but `registry` is used.
        DefinitionError: `PAYLOAD_COLUMN_INVALID`, `PAYLOAD_SCHEMA_INVALID`, `PARSED_COLUMN_EXISTS`
            or `INVALID_PARAMETER`.
    """
    table = to_struct(schema)
    name = require_column(df, column)
    image = StructType([StructField(field.name, _image_type(field)) for field in table])
    if decimal_handling_mode not in _DECIMAL_MODES:
        raise _invalid("decimal_handling_mode", decimal_handling_mode, _DECIMAL_MODES)
    units = _units(table, timestamp_units)
    events = df.where(F.col(quoted(name)).isNotNull())
    if registry is None:
        events, error, image_error = _of_json(events, name, image)
    else:
        events, error, image_error = _of_avro(events, name, image, registry)
    envelope, values = F.col(_ENVELOPE), F.col(_IMAGE)
    is_base64 = registry is None and decimal_handling_mode == "precise"
    row = F.struct(
        *[
            _value(values.getField(field.name), field.dataType, units.get(field.name), is_base64)
            .alias(field.name)
            for field in table
        ]
    )  # fmt: skip
    events = events.where(~F.coalesce(_is_no_change(envelope), F.lit(False))).withColumn(_ROW, row)
    error = F.coalesce(error, _error(envelope, image_error, table))
    change = to_struct(_CHANGE)
    metadata = [
        envelope.getField("op"),
        F.when(error.isNull(), _sequence(envelope)),
        F.timestamp_millis(envelope.getField("source").getField("ts_ms")),
        _transaction(envelope),
        _columns_to_update(envelope, values, table),
    ]
    columns = [F.col(_ROW).getField(field.name).alias(field.name) for field in table]
    columns += [value.alias(f.name) for value, f in zip(metadata, change, strict=True)]
    return spread(
        events,
        name,
        schema=StructType([*table.fields, *change.fields]),
        parsed=F.struct(*columns),
        error=error,
        into=None,
    )


# -- envelopes ----------------------------------------------------------------------------------


def _of_json(df: DataFrame, name: str, image: StructType) -> tuple[DataFrame, Column, Column]:
    """Adds envelope and image; the errors are those of the message and of the image."""
    envelope = _envelope_type(StringType())
    message = StructType([*envelope.fields, StructField("payload", envelope)])
    df, error = with_json(df, F.col(quoted(name)).cast("string"), message, into=_MESSAGE)
    bare = F.struct(*[F.col(_MESSAGE).getField(f.name).alias(f.name) for f in envelope])
    df = df.withColumn(_ENVELOPE, F.coalesce(F.col(_MESSAGE).getField("payload"), bare))
    df, image_error = with_json(df, _image(F.col(_ENVELOPE)), image, into=_IMAGE)
    return df, error, image_error


def _of_avro(
    df: DataFrame, name: str, image: StructType, registry: SchemaRegistry
) -> tuple[DataFrame, Column, Column]:
    require_fastavro()
    df, envelope, error = with_decoded(
        df, name, _envelope_type(image), lambda payload: decode_confluent(payload, registry)
    )
    df = df.withColumns({_ENVELOPE: envelope, _IMAGE: _image(envelope)})
    return df, error, F.lit(None).cast("string")


def _envelope_type(image: DataType) -> StructType:
    fields = to_struct(_FIELDS).fields
    return StructType([StructField("before", image), StructField("after", image), *fields])


def _image(envelope: Column) -> Column:
    is_delete = envelope.getField("op") == "d"
    return F.when(is_delete, envelope.getField("before")).otherwise(envelope.getField("after"))


def _is_no_change(envelope: Column) -> Column:
    op = envelope.getField("op")
    marker = envelope.getField("status").isin("BEGIN", "END")
    return (op == "m") | (op.isNull() & (marker | envelope.getField("ddl").isNotNull()))


def _error(envelope: Column, image_error: Column, table: StructType) -> Column:
    """Why an event that could be read cannot be applied, or NULL."""
    op, image, row = envelope.getField("op"), F.col(_IMAGE), F.col(_ROW)
    is_upsert = op.isin("c", "r", "u")
    misfits = [
        F.when(
            image.getField(field.name).isNotNull() & row.getField(field.name).isNull(),
            f"{field.name} {field.dataType.simpleString().upper()}",
        )
        for field in table
        if isinstance(field.dataType, _CONVERTED)
    ]
    misfit = F.array_join(F.array_compact(F.array(*misfits).cast("array<string>")), ", ")
    reasons = [
        image_error,
        F.when(misfit != "", F.concat(F.lit("values do not fit: "), misfit)),
        F.when(is_upsert, missing_fields(row, table)),
    ]
    return (
        F.when(op.isNull(), "it is no change event of Debezium: there is no `op`")
        .when(~op.isin("c", "d", "r", "t", "u"), F.concat(F.lit("unknown `op`: "), op))
        .when(_sequence(envelope).isNull(), "`source` has no `lsn`, and no `file` and `pos`")
        .when(is_upsert & envelope.getField("after").isNull(), "there is no `after`")
        .when((op == "d") & envelope.getField("before").isNull(), "there is no `before`")
        .when(op != "t", F.nullif(F.concat_ws("; ", *reasons), F.lit("")))
    )


def _sequence(envelope: Column) -> Column:
    """The position in the log, which is the order of the changes of a key.

    A row of a snapshot comes before a change at the same position: PostgreSQL's position when a
    snapshot begins is where the next record starts. In a compressed transaction of MySQL all
    positions are the same, and only the order within the transaction differs.
    """
    op, source = envelope.getField("op"), envelope.getField("source")
    number = F.regexp_extract(source.getField("file"), r"(\d{1,18})$", 1)
    log = F.when(source.getField("lsn").isNotNull(), 0).otherwise(number.try_cast("bigint"))
    position = F.coalesce(source.getField("lsn"), source.getField("pos"))
    total_order = envelope.getField("transaction").getField("total_order")
    inside = F.coalesce(total_order, source.getField("row"), F.lit(0))
    row = F.when(op == "r", -1).otherwise(inside)
    parts = {"log": log, "position": position, "row": row}
    sequence = F.struct(*[part.cast("bigint").alias(name) for name, part in parts.items()])
    return F.when(log.isNotNull() & position.isNotNull(), sequence)


def _transaction(envelope: Column) -> Column:
    source = envelope.getField("source")
    return F.coalesce(
        envelope.getField("transaction").getField("id"),
        source.getField("gtid"),
        source.getField("txId").cast("string"),
    )


def _columns_to_update(envelope: Column, image: Column, table: StructType) -> Column:
    """The columns without Debezium's placeholder, if any has it."""
    names = []
    for field in table:
        value, is_absent = image.getField(field.name), F.lit(False)
        if isinstance(field.dataType, (StringType, BinaryType)):
            is_absent = value.cast("string") == _PLACEHOLDER
        elif field.dataType == ArrayType(StringType()):
            is_absent = F.array_contains(value, _PLACEHOLDER)
        names.append(F.when(~F.coalesce(is_absent, F.lit(False)), field.name))
    present = F.array_compact(F.array(*names))
    return F.when(
        envelope.getField("op").isin("c", "r", "u") & (F.size(present) < len(names)), present
    )


# -- values -------------------------------------------------------------------------------------


def _image_type(field: StructField) -> DataType:
    if isinstance(field.dataType, _CONVERTED):
        return StringType()
    if _CONVERTED_INSIDE.search(field.dataType.json()):
        raise DefinitionError(
            "PAYLOAD_SCHEMA_INVALID",
            f"column {field.name!r} is {field.dataType.simpleString().upper()}: dates, times and "
            "decimals inside of other types are not converted",
            origin=capture_origin(),
            hint="declare them as they are in the event, such as ARRAY<BIGINT>",
        )
    return field.dataType


def _value(raw: Column, data_type: DataType, unit: str | None, is_base64: bool) -> Column:
    if isinstance(data_type, DateType):
        days = F.when(raw.rlike(_INTEGER), raw).try_cast("int")
        text = F.when(~raw.rlike(_INTEGER), raw)
        return F.coalesce(F.date_from_unix_date(days), text.try_cast("date"))
    if isinstance(data_type, (TimestampType, TimestampNTZType)):
        text = F.when(~raw.rlike(_INTEGER), raw)
        return F.coalesce(_epoch(raw, data_type, unit), text.try_cast(data_type))
    if isinstance(data_type, DecimalType):
        return _decimal(raw, data_type, is_base64)
    return raw


def _epoch(raw: Column, data_type: DataType, unit: str | None) -> Column:
    """The time that an integer counts to; in UTC if the type has no time zone."""
    number = F.when(raw.rlike(_INTEGER), raw).try_cast("decimal(19,0)")
    by_unit = {"millis": number * 1000, "micros": number, "nanos": F.floor(number / 1000)}
    if unit is None:
        is_postgres = F.col(_ENVELOPE).getField("source").getField("lsn").isNotNull()
        micros = F.when(is_postgres, by_unit["micros"]).otherwise(by_unit["millis"])
    else:
        micros = by_unit[unit]
    # Beyond these years the unit is wrong, or it is PostgreSQL's infinity.
    inside = F.when(micros.between(_FIRST_MICROS, _LAST_MICROS), micros)
    seconds = (inside.cast("decimal(24,6)") / 1_000_000).cast("decimal(18,6)")
    return F.lit("1970-01-01 00:00:00Z").cast(data_type) + F.make_dt_interval(secs=seconds)


def _decimal(raw: Column, data_type: DecimalType, is_base64: bool) -> Column:
    """Text, or the unscaled number in base64; NUMERIC without a scale has its scale beside it."""
    is_object = raw.startswith("{")
    text = F.when(~raw.rlike(LARGE_EXPONENT), raw)
    if is_base64:
        text = F.concat(_unscaled(raw), F.lit(f"E-{data_type.scale}"))
    scale = F.get_json_object(raw, "$.scale").try_cast("smallint")
    value = _unscaled(F.get_json_object(raw, "$.value"))
    scaled = F.concat(value, F.lit("E"), F.negate(scale).cast("string"))
    return F.when(is_object, scaled).otherwise(text).try_cast(data_type)


def _unscaled(base64: Column) -> Column:
    """Big-endian bytes with a sign, of up to 128 bits, as text."""
    number = F.try_to_binary(base64, F.lit("base64"))
    digits = F.hex(F.when(F.length(number).between(1, 16), number))
    sign = F.when(F.substring(digits, 1, 1) >= "8", "F").otherwise("0")
    filled = F.concat(F.repeat(sign, 32 - F.length(digits)), digits)
    high = F.conv(F.substring(filled, 1, 16), 16, -10).try_cast("decimal(19,0)")
    low = F.conv(F.substring(filled, 17, 16), 16, 10).try_cast("decimal(20,0)")
    above = F.try_multiply(high, F.lit(2**64).cast("decimal(20,0)"))
    return F.try_add(above, low).cast("string")


def _units(table: StructType, units: str | Mapping[str, str] | None) -> Mapping[str, str]:
    """The units of the TIMESTAMP columns for which one is declared."""
    names = [f.name for f in table if isinstance(f.dataType, (TimestampType, TimestampNTZType))]
    if units is None or isinstance(units, str):
        units = {} if units is None else dict.fromkeys(names, units)
    for column, unit in units.items():
        if unit not in _UNITS:
            raise _invalid("timestamp_units", unit, _UNITS)
        if column not in names:
            raise _invalid("timestamp_units", column, names)
    return units


def _invalid(
    parameter: str, value: object, allowed: tuple[str, ...] | list[str]
) -> DefinitionError:
    return DefinitionError(
        "INVALID_PARAMETER",
        f"{parameter} has {value!r}, which is unknown",
        origin=capture_origin(),
        hint=f"it can have {', '.join(allowed)}",
    )
