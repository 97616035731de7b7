"""Payloads in Confluent's wire format: a zero byte, the id of the writer's schema, the record."""

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock._model.origin import capture_origin
from penstock.errors import DefinitionError
from penstock.parsing.avro import PayloadError, decode_avro, require_fastavro, struct_of_avro
from penstock.parsing.binary import decoded, not_empty
from penstock.parsing.protobuf import decode_protobuf, message_at, struct_of_message
from penstock.parsing.registry import RegisteredSchema, SchemaRegistry, UnknownSchemaError
from penstock.parsing.schema import to_struct
from penstock.parsing.schema_errors import read_schema_file, schema_invalid

_HEADER_BYTES = 5
_LONGEST_INDEXES = 32


def parse_confluent(
    df: DataFrame,
    column: str = "value",
    *,
    registry: SchemaRegistry,
    subject: str | None = None,
    schema: StructType | str | Path | None = None,
    into: str | None = None,
) -> DataFrame:
    """Parse payloads whose schemas are in a registry: Avro, Protobuf or JSON Schema.

    Each payload is decoded with the schema whose id is in its header, and then converted to the
    columns of the reader schema: a topic may have several versions of a schema, and even several
    formats. The result is that of `parse_json`. A row has an error if its payload has no such
    header, the registry has no schema with its id, or the payload does not match that schema or the
    columns. An unavailable registry is not an error of a row: the request is repeated, then the
    flow fails, and is retried.

    Args:
        df: Streaming or batch DataFrame.
        column: BINARY, such as Kafka's `value`.
        registry: Registry of the schemas.
        subject: The columns are those of the newest schema of this subject, which is requested when
            the query is built: `orders-value` for the values of topic `orders`, unless producers
            name subjects by record.
        schema: Columns instead of a subject: struct, DDL, or an Avro schema as a string or `Path`,
            whose defaults and aliases are applied.
        into: Name of a struct that holds the columns together; separate columns by default.

    Raises:
        ConnectorError: `SCHEMA_REGISTRY_UNREACHABLE`, `SCHEMA_REGISTRY_REFUSED`.
        MissingExtraError: fastavro or protobuf is not installed.
        DefinitionError: `SUBJECT_NOT_FOUND`, `INVALID_PARAMETER`, `PAYLOAD_COLUMN_INVALID`,
            `PAYLOAD_SCHEMA_INVALID`, `PARSED_COLUMN_EXISTS`.
    """
    require_fastavro()
    if (subject is None) == (schema is None):
        raise DefinitionError(
            "INVALID_PARAMETER",
            "parse_confluent takes either `subject` or `schema`",
            origin=capture_origin(),
            hint='subject="orders-value", or schema="id BIGINT, amount DECIMAL(10,2)"',
        )
    struct, reader = _of_subject(registry, subject) if subject else _of_schema(schema)
    return decoded(
        df, column, struct, lambda p: decode_confluent(not_empty(p), registry, reader), into
    )


def decode_confluent(
    payload: bytes, registry: SchemaRegistry, reader: RegisteredSchema | None = None
) -> Any:
    """The record of a payload with a header; `reader` is the reader schema of Avro payloads.

    Each schema is requested once per process.
    """
    if len(payload) < _HEADER_BYTES or payload[0] != 0:
        raise PayloadError("the payload does not begin with a schema id")
    schema_id = int.from_bytes(payload[1:_HEADER_BYTES], "big")
    body = payload[_HEADER_BYTES:]
    try:
        schema = registry.schema(schema_id)
        if schema.kind == "AVRO":
            return decode_avro(
                body,
                schema.text,
                reader.text if reader else None,
                references=schema.references,
                reader_references=reader.references if reader else (),
            )
        if schema.kind == "PROTOBUF":
            indexes, start = read_indexes(body)
            message = message_at(schema.files, indexes)
            return decode_protobuf(body[start:], schema.files, message, strict=True)
        if schema.kind == "JSON":
            return decode_json(body)
    except UnknownSchemaError:
        raise PayloadError(f"the registry has no schema with id {schema_id}") from None
    except DefinitionError as error:
        raise PayloadError(f"schema {schema_id}: {error.message}") from None
    except PayloadError as error:
        raise PayloadError(f"{error} (schema {schema_id})") from None
    raise PayloadError(f"schema {schema_id} is of the unknown kind {schema.kind}")


def read_indexes(body: bytes) -> tuple[list[int], int]:
    """The message indexes before a Protobuf payload, and where the payload begins.

    They are zigzag numbers: the count, then each index; a single 0 means the first message.
    """
    count, at = _zigzag(body, 0)
    if count == 0:
        return [0], at
    if not 0 < count <= _LONGEST_INDEXES:
        raise PayloadError("the message indexes of the payload are invalid")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(body, at)
        indexes.append(index)
    return indexes, at


def struct_of_json_schema(text: str) -> StructType:
    """The columns of an object's JSON Schema; alternatives and references are not supported."""
    try:
        json_type = _json_type(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(str(error)) from error
    if not isinstance(json_type, StructType):
        raise _unusable("it is not a schema of an object with properties")
    return json_type


def _of_subject(
    registry: SchemaRegistry, subject: str
) -> tuple[StructType, RegisteredSchema | None]:
    try:
        schema = registry.latest(subject)
    except UnknownSchemaError:
        raise DefinitionError(
            "SUBJECT_NOT_FOUND",
            f"the schema registry has no subject {subject!r}",
            origin=capture_origin(),
            hint="values of a topic are `<topic>-value`, keys `<topic>-key`, unless producers "
            "name subjects by record",
        ) from None
    if schema.kind == "AVRO":
        return struct_of_avro(schema.text, schema.references), schema
    if schema.kind == "PROTOBUF":
        return struct_of_message(schema.files, message_at(schema.files, [0])), None
    return struct_of_json_schema(schema.text), None


def _of_schema(
    schema: StructType | str | Path | None,
) -> tuple[StructType, RegisteredSchema | None]:
    if isinstance(schema, Path):
        schema = read_schema_file(schema)
    assert schema is not None
    if isinstance(schema, str) and schema.lstrip().startswith("{"):
        try:
            is_avro = json.loads(schema).get("type") == "record"
        except (ValueError, AttributeError):
            is_avro = False
        if is_avro:
            return struct_of_avro(schema), RegisteredSchema(kind="AVRO", text=schema)
    return to_struct(schema), None


def _zigzag(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(body) and shift < 64:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise PayloadError("the payload ends in its message indexes")


def decode_json(body: bytes) -> dict[str, Any]:
    """Decode a JSON object in UTF-8; numbers keep all digits."""
    try:
        document = json.loads(body.decode("utf-8"), parse_float=Decimal)
    except (ValueError, RecursionError):
        raise PayloadError("the payload is not one JSON value") from None
    if not isinstance(document, dict):
        raise PayloadError("the payload is not a JSON object")
    return document


def _json_type(schema: Mapping[str, Any]) -> DataType:
    if "$ref" in schema:
        raise ValueError("it refers to other schemas with `$ref`")
    kinds = schema.get("type")
    if kinds is None:
        options = [*schema.get("oneOf", ()), *schema.get("anyOf", ())]
        real = [option for option in options if option.get("type") != "null"]
        if len(real) != 1:
            raise ValueError("a field has no type, or several")
        return _json_type(real[0])
    names = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    if len(names) != 1:
        raise ValueError("a field has several types")
    kind = names[0]
    if kind == "object":
        properties = schema.get("properties")
        if properties:
            return StructType([StructField(n, _json_type(s)) for n, s in properties.items()])
        values = schema.get("additionalProperties")
        value_type = _json_type(values) if isinstance(values, dict) else StringType()
        return MapType(StringType(), value_type)
    if kind == "array":
        return ArrayType(_json_type(schema["items"]))
    if kind == "string":
        by_format: dict[str, DataType] = {"date-time": TimestampType(), "date": DateType()}
        return by_format.get(schema.get("format", ""), StringType())
    return {"integer": LongType(), "number": DoubleType(), "boolean": BooleanType()}[kind]


def _unusable(reason: str) -> DefinitionError:
    return schema_invalid(
        f"no columns can be taken from the JSON Schema: {reason}",
        "declare the columns as DDL with `schema`",
    )
