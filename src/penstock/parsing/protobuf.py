"""Protobuf: descriptors as column types, payloads as records."""

import functools
import re
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock._model.extras import import_extra
from penstock.errors import DefinitionError
from penstock.parsing.avro import PayloadError
from penstock.parsing.schema_errors import schema_invalid

_WELL_KNOWN = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
_MAIN_FILE = "penstock_schema.proto"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WRAPPER = re.compile(
    r"google\.protobuf\.(Double|Float|Int32|Int64|UInt32|UInt64|Bool|String|Bytes)Value"
)
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"


@functools.cache
def require_protobuf() -> Any:
    """Import the `google.protobuf` package; raises `MissingExtraError`."""
    return import_extra(
        "google.protobuf",
        "google.protobuf.descriptor_pb2",
        "google.protobuf.descriptor_pool",
        "google.protobuf.message_factory",
        "google.protobuf.unknown_fields",
        extra="payloads",
        feature="a Protobuf payload",
        package="protobuf",
    )


def struct_of_message(files: bytes, message: str) -> StructType:
    """The columns of a message, by its full name.

    `files` is a serialized FileDescriptorSet, as `protoc --include_imports --descriptor_set_out`
    writes it.
    """
    return _struct(message_class(files, message).DESCRIPTOR, ())


def decode_protobuf(payload: bytes, files: bytes, message: str, *, strict: bool = False) -> Any:
    """The record of a payload.

    With `strict`, `files` is the schema that the payload was written with: unknown fields are an
    error. Otherwise they are an error only if the payload has no other fields.
    """
    made = message_class(files, message)()
    try:
        made.ParseFromString(payload)
    except Exception as error:  # DecodeError; its class depends on the implementation
        raise PayloadError(f"the payload is not a {message}: {error}") from None
    unknown_fields = require_protobuf().unknown_fields.UnknownFieldSet(made)
    unknown = sorted({f.field_number for f in unknown_fields})
    if unknown and (strict or not made.ListFields()):
        numbers = ", ".join(str(number) for number in unknown[:10])
        raise PayloadError(f"the payload is not a {message}: it has unknown fields {numbers}")
    return _record(made)


@functools.lru_cache(maxsize=512)
def message_class(files: bytes, message: str) -> Any:
    """The Python class of a message."""
    protobuf = require_protobuf()
    file_set_message = protobuf.descriptor_pb2.FileDescriptorSet()
    try:
        file_set_message.ParseFromString(files)
        pool = protobuf.descriptor_pool.DescriptorPool()
        _add(pool, list(file_set_message.file))
        return protobuf.message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except KeyError:
        files_and_messages = ((f, m) for f in file_set_message.file for m in f.message_type)
        names = sorted(f"{f.package}.{m.name}".lstrip(".") for f, m in files_and_messages)
        raise _invalid(f"there is no message {message!r}; there are {', '.join(names)}") from None
    except DefinitionError:
        raise
    except Exception as error:  # DecodeError or TypeError, depending on the implementation
        raise _invalid(f"it is not a FileDescriptorSet: {error}") from error


def message_at(files: bytes, indexes: Sequence[int]) -> str:
    """The full name of the message that the indexes of the Confluent wire format identify.

    The first one is the index of a message in the last file, the next one of a nested message, etc.
    """
    last = require_protobuf().descriptor_pb2.FileDescriptorSet.FromString(files).file[-1]
    names = [last.package] if last.package else []
    messages: Any = last.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise PayloadError(f"its schema has no message {list(indexes)}")
        names.append(messages[index].name)
        # As in Confluent's serializer, the implicit messages of map fields are not counted.
        messages = [m for m in messages[index].nested_type if not m.options.map_entry]
    return ".".join(names)


def file_set(file: bytes, imported: Mapping[str, bytes]) -> bytes:
    """A FileDescriptorSet of one file and those that it imports.

    `imported` are FileDescriptorSets by the name of their last file.
    """
    descriptor_pb2 = require_protobuf().descriptor_pb2
    made = descriptor_pb2.FileDescriptorSet()
    try:
        last = descriptor_pb2.FileDescriptorProto.FromString(file)
        names: set[str] = set()
        for name, content in imported.items():
            files = list(descriptor_pb2.FileDescriptorSet.FromString(content).file)
            files[-1].name = name
            for dependency in files:
                if dependency.name not in names:
                    names.add(dependency.name)
                    made.file.append(dependency)
    except Exception as error:  # DecodeError; its class depends on the implementation
        raise _invalid(f"it is not a file descriptor: {error}") from error
    last.name = last.name or "schema.proto"
    made.file.append(last)
    content_of_all: bytes = made.SerializeToString()
    return content_of_all


def compile_files(text: str, imports: Mapping[str, str]) -> bytes:
    """Compile a `.proto` text to a FileDescriptorSet that ends with it; `imports` are by name."""
    grpc_tools = import_extra(
        "grpc_tools",
        "grpc_tools.protoc",
        extra="payloads",
        feature="a registry that returns Protobuf schemas as source",
        package="grpcio-tools",
    )
    known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, content in {**imports, _MAIN_FILE: text}.items():
            file = (root / name).resolve()
            if not file.is_relative_to(root.resolve()):
                raise _invalid(f"the import {name!r} is outside of its folder")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        output = root / "schema.desc"
        options = [f"-I{root}", f"-I{known}", f"--descriptor_set_out={output}"]
        status = grpc_tools.protoc.main(["protoc", "--include_imports", *options, _MAIN_FILE])
        if status != 0:
            raise _invalid("protoc cannot compile it; its messages are in the log of the worker")
        return output.read_bytes()


def _add(pool: Any, files: list[Any]) -> None:
    """Add files to a pool, imported ones first."""
    waiting = {file.name: file for file in files}
    known: set[str] = set()

    def add(name: str) -> None:
        if name in known:
            return
        known.add(name)
        file = waiting.get(name) or _well_known(name)
        if file is None:
            raise _invalid(f"it imports {name!r}, which it does not contain")
        for needed in file.dependency:
            add(needed)
        pool.Add(file)

    for name in waiting:
        add(name)


def _well_known(name: str) -> Any:
    short = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if short not in _WELL_KNOWN or name != f"google/protobuf/{short}.proto":
        return None
    module = import_module(f"google.protobuf.{short}_pb2")
    file = require_protobuf().descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file


def _struct(descriptor: Any, above: tuple[str, ...]) -> StructType:
    if descriptor.full_name in above:
        raise _invalid(f"{descriptor.full_name} contains itself, which columns do not support")
    inside = (*above, descriptor.full_name)
    return StructType([StructField(f.name, _type(f, inside)) for f in descriptor.fields])


def _type(field: Any, above: tuple[str, ...]) -> DataType:
    if _is_map(field):
        key, value = field.message_type.fields
        return MapType(_single(key, above), _single(value, above))
    single = _single(field, above)
    return ArrayType(single) if field.is_repeated else single


def _single(field: Any, above: tuple[str, ...]) -> DataType:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return TimestampType()
        if name == _DURATION:
            return DayTimeIntervalType()
        if _WRAPPER.fullmatch(name):
            return _single(field.message_type.fields[0], above)
        return _struct(field.message_type, above)
    return _CPP_TYPES[field.cpp_type]() if field.type != field.TYPE_BYTES else BinaryType()


# Types by `FieldDescriptor.CPPTYPE_*`; unsigned integers have a wider type.
_CPP_TYPES: dict[int, Any] = {
    1: IntegerType,
    2: LongType,
    3: LongType,
    4: lambda: DecimalType(20, 0),
    5: DoubleType,
    6: FloatType,
    7: BooleanType,
    8: StringType,
    9: StringType,
}


def _record(message: Any) -> dict[str, Any]:
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Any, field: Any) -> Any:
    if _is_map(field):
        value_field = field.message_type.fields_by_name["value"]
        entries = getattr(message, field.name)
        return {key: _plain(entries[key], value_field) for key in entries}
    if field.is_repeated:
        return [_plain(item, field) for item in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(getattr(message, field.name), field)


def _plain(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    if field.message_type is None:
        return value
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if name == _DURATION:
        return timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    return value.value if _WRAPPER.fullmatch(name) else _record(value)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _invalid(reason: str) -> DefinitionError:
    return schema_invalid(
        f"the Protobuf schema cannot be used: {reason}",
        "protoc --include_imports --descriptor_set_out=order.desc order.proto",
    )
