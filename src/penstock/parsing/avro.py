"""Avro: schemas as column types, payloads as records, decoded by fastavro.

Spark's `from_avro` is not used: it supports only one writer schema for all rows, and reports
neither why a payload cannot be read nor that bytes are left over.
"""

import functools
import io
import json
from importlib import import_module
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock._model.extras import import_extra
from penstock.errors import DefinitionError
from penstock.parsing.schema_errors import schema_invalid

_PRIMITIVE: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
# Logical types that fastavro converts, except UUIDs, whose columns are strings or `fixed` bytes.
_LOGICAL: dict[str, DataType] = {
    "int-date": DateType(),
    "long-timestamp-millis": TimestampType(),
    "long-timestamp-micros": TimestampType(),
    "long-local-timestamp-millis": TimestampNTZType(),
    "long-local-timestamp-micros": TimestampNTZType(),
}
_WIDENED = (({"int", "long"}, LongType()), ({"int", "long", "float", "double"}, DoubleType()))


class PayloadError(ValueError):
    """A payload cannot be decoded; the message becomes the `_parse_error` of the row."""


@functools.cache
def require_fastavro() -> Any:
    """Import the fastavro package; raises `MissingExtraError`."""
    return import_extra("fastavro", extra="payloads", feature="an Avro payload")


def struct_of_avro(text: str, references: tuple[str, ...] = ()) -> StructType:
    """The columns of an Avro record.

    `references` are the schemas of the named types that it uses, dependencies first.
    """
    types = _Types()
    for at, reference in enumerate(references):
        types.of(_parsed(reference, references[:at])[0])
    struct = types.of(_parsed(text, references)[0])
    if not isinstance(struct, StructType) or not struct.fields:
        raise _invalid("it is not a record with fields")
    return struct


def decode_avro(
    payload: bytes,
    writer: str,
    reader: str | None = None,
    *,
    references: tuple[str, ...] = (),
    reader_references: tuple[str, ...] = (),
) -> Any:
    """The value of a binary Avro payload without a header, written with the schema `writer`.

    Defaults and aliases of `reader` are applied; `references` belong to the writer schema.
    """
    fastavro = require_fastavro()
    stream = io.BytesIO(payload)
    written, is_recursive = _parsed(writer, references)
    wanted = _parsed(reader, reader_references)[0] if reader else None
    # The compiled reader does not limit recursion: a few kilobytes would crash the process.
    module = import_module("fastavro._read_py") if is_recursive else fastavro
    try:
        value = module.schemaless_reader(stream, written, wanted)
    except RecursionError:
        raise PayloadError("the payload is nested too deeply") from None
    except (EOFError, IndexError):  # IndexError: in the middle of a number
        raise PayloadError("the payload ends too early for its Avro schema") from None
    except Exception as error:  # fastavro raises many types for invalid bytes
        raise PayloadError(f"the payload does not match its Avro schema: {_said(error)}") from None
    if left := len(payload) - stream.tell():
        raise PayloadError(f"{left} bytes are left over after the Avro record")
    return value


@functools.lru_cache(maxsize=512)
def _parsed(text: str, references: tuple[str, ...] = ()) -> tuple[Any, bool]:
    """The schema parsed by fastavro, and whether one of its types is recursive."""
    fastavro = require_fastavro()
    named: dict[str, Any] = {}
    try:
        for reference in references:
            fastavro.parse_schema(json.loads(reference), named_schemas=named)
        parsed = fastavro.parse_schema(json.loads(text), named_schemas=named)
        for record in named.values():
            for field in record.get("fields", ()):
                _read_default(fastavro, field)
        return parsed, _is_recursive(parsed, named, frozenset(), set())
    except Exception as error:  # ValueError of JSON, several types of fastavro
        raise _invalid(_said(error)) from error


def _is_recursive(
    part: Any, named: dict[str, Any], above: frozenset[str | None], done: set[str | None]
) -> bool:
    if isinstance(part, str):
        if part in above or part in done or part not in named:
            return part in above
        part = named[part]
    if isinstance(part, list):
        return any(_is_recursive(branch, named, above, done) for branch in part)
    name = part.get("name")
    inside = [part["type"], part.get("items", ()), part.get("values", ())]
    inside += [field["type"] for field in part.get("fields", ())]
    if any(_is_recursive(kind, named, above | {name}, done) for kind in inside if kind):
        return True
    done.add(name)
    return False


def _read_default(fastavro: Any, field: dict[str, Any]) -> None:
    """Convert a default from JSON to bytes, a decimal or a time, which fastavro does not do."""
    kind, default = field["type"], field.get("default")
    kind = kind[0] if isinstance(kind, list) else kind
    name = kind["type"] if isinstance(kind, dict) else kind
    if name in ("bytes", "fixed") and isinstance(default, str):
        default = default.encode("latin-1")
    elif default is None or name == "string" or kind == name or "logicalType" not in kind:
        return
    content = io.BytesIO()
    fastavro.schemaless_writer(content, kind, default)
    content.seek(0)
    field["default"] = fastavro.schemaless_reader(content, kind, None)


class _Types:
    """Column types of one schema; named types may be reused after their definition."""

    def __init__(self) -> None:
        self._named: dict[str, DataType | None] = {}

    def of(self, schema: Any) -> DataType:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self._primitive(schema)
        kind = schema["type"]
        if isinstance(kind, (list, dict)):
            return self.of(kind)
        data_type = self._complex(schema, kind)
        if "name" in schema:
            self._named[schema["name"]] = data_type
        return data_type

    def _complex(self, schema: Any, kind: str) -> DataType:
        logical = f"{kind}-{schema.get('logicalType')}"
        if logical in ("bytes-decimal", "fixed-decimal"):
            return DecimalType(schema["precision"], schema.get("scale", 0))
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        if kind == "array":
            return ArrayType(self.of(schema["items"]))
        if kind == "map":
            return MapType(StringType(), self.of(schema["values"]))
        if kind in ("record", "error"):
            self._named[schema["name"]] = None
            fields = [StructField(f["name"], self.of(f["type"])) for f in schema["fields"]]
            return StructType(fields)
        return self._primitive(kind)

    def _primitive(self, name: str) -> DataType:
        if name in _PRIMITIVE:
            return _PRIMITIVE[name]
        if name == "null":
            return StringType()
        named_type = self._named.get(name)
        if named_type is None:
            raise _invalid(f"{name} contains itself, which columns do not support")
        return named_type

    def _union(self, branches: list[Any]) -> DataType:
        kinds = [branch for branch in branches if branch != "null"]
        if len(kinds) == 1:
            return self.of(kinds[0])
        if all(isinstance(kind, str) for kind in kinds):
            for names, data_type in _WIDENED:
                if set(kinds) <= names:
                    return data_type
        raise _invalid("a union of several types has no column type")


def _said(error: Exception) -> str:
    text = str(error).strip().split("\n", 1)[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _invalid(reason: str) -> DefinitionError:
    return schema_invalid(
        f"the Avro schema cannot be used: {reason}",
        "declare the columns as DDL; a field of type STRING accepts any value",
    )
