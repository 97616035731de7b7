"""Schema evolution: appends new fields and applies schema hints; existing types do not change."""

import re
from collections.abc import Collection, Iterator
from functools import reduce

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from penstock._formats.sqltext import path_part
from penstock._model.exception_text import first_line
from penstock.errors import ConnectorError, DefinitionError

RESCUED = "penstock.rescued"
"""Metadata key of a field of files that belongs to the rescued data."""

_NAME = r"(?:[^\s`.:]|`(?:[^`]|``)*`)+"
_PATH = re.compile(rf"{_NAME}(?:\.{_NAME})*(?=[\s:]|\Z)")
_QUOTED = re.compile("`((?:[^`]|``)*)`")
_BY_WIDTH = (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType)


def add_fields(
    known: StructType, seen: StructType, *, rescued: bool = False
) -> tuple[StructType, list[str]]:
    """The known schema with the fields that only `seen` has, and their paths; known types stay.

    With `rescued`, added fields are marked, and nothing is added inside of arrays and maps.
    Marks of `seen` are kept.
    """
    added: list[str] = []

    def struct(known: StructType, seen: StructType, prefix: str) -> StructType:
        fields = {field.name.lower(): field for field in known.fields}
        for field in seen.fields:
            path = prefix + path_part(field.name)
            before = fields.get(field.name.lower())
            if before is None:
                metadata = {RESCUED: True} if rescued or field.metadata.get(RESCUED) else None
                grown = StructField(field.name, field.dataType, True, metadata)
                added.append(path)
            else:
                kind = inside(before.dataType, field.dataType, path)
                grown = StructField(before.name, kind, before.nullable, before.metadata)
            fields[field.name.lower()] = grown
        return StructType(list(fields.values()))

    def inside(known: DataType, seen: DataType, path: str) -> DataType:
        if isinstance(known, StructType) and isinstance(seen, StructType):
            return struct(known, seen, path + ".")
        if isinstance(known, ArrayType) and isinstance(seen, ArrayType) and not rescued:
            return ArrayType(inside(known.elementType, seen.elementType, path), True)
        if isinstance(known, MapType) and isinstance(seen, MapType | StructType) and not rescued:
            value = inside(known.valueType, _value_type(seen), path)
            return MapType(known.keyType, value, known.valueContainsNull)
        return known

    return struct(known, seen, ""), added


def _value_type(seen: MapType | StructType) -> DataType:
    """The type of a map's values; inference returns a struct with its keys as fields."""
    if isinstance(seen, MapType):
        return seen.valueType
    unseen: DataType = NullType()
    return reduce(_wider, (field.dataType for field in seen.fields), unseen)


def add_paths(known: StructType, paths: list[str]) -> tuple[StructType, list[str]]:
    """The known schema with a string field for each path that it lacks, and the added paths."""
    added: list[str] = []
    schema: DataType = known
    for path in paths:
        grown = _add_path(schema, split_path(path))
        if grown != schema:
            schema = grown
            added.append(path)
    assert isinstance(schema, StructType)
    return schema, added


def split_path(path: str) -> list[str]:
    """The names in a dotted path, some of them in backticks."""
    return _path(path)[0]


def _add_path(base: DataType, path: list[str]) -> DataType:
    if isinstance(base, ArrayType):
        return ArrayType(_add_path(base.elementType, path), True)
    if isinstance(base, MapType):
        return MapType(base.keyType, _add_path(base.valueType, path), base.valueContainsNull)
    if not isinstance(base, StructType) or not path:
        return base
    fields = {field.name.lower(): field for field in base.fields}
    before = fields.get(path[0].lower(), StructField(path[0], StringType(), True))
    if len(path) > 1 and path[0].lower() not in fields:
        return base
    inner = _add_path(before.dataType, path[1:])
    fields[path[0].lower()] = StructField(before.name, inner, before.nullable, before.metadata)
    return StructType(list(fields.values()))


def widest(schemas: list[StructType]) -> StructType:
    """The columns of all schemas, with types that hold the values of each."""
    merged: dict[str, StructField] = {}
    for schema in schemas:
        for field in schema.fields:
            before = merged.get(field.name.lower())
            kind = field.dataType if before is None else _wider(before.dataType, field.dataType)
            spelling = field.name if before is None else before.name
            merged[field.name.lower()] = StructField(spelling, kind, True)
    return StructType(list(merged.values()))


def _wider(left: DataType, other: DataType) -> DataType:
    if left == other or isinstance(other, NullType):
        return left
    if isinstance(left, NullType):
        return other
    if isinstance(left, StructType) and isinstance(other, StructType):
        return widest([left, other])
    if isinstance(left, _BY_WIDTH) and isinstance(other, _BY_WIDTH):
        return max(other, left, key=lambda kind: _BY_WIDTH.index(type(kind)))
    if isinstance(left, DecimalType) and isinstance(other, DecimalType):
        scale = max(left.scale, other.scale)
        digits = max(left.precision - left.scale, other.precision - other.scale)
        return DecimalType(min(38, digits + scale), scale)
    return StringType()


def without_void(schema: StructType) -> StructType:
    """The schema with strings where only NULLs were seen, all nullable, without metadata."""
    return StructType([StructField(f.name, _filled(f.dataType), True) for f in schema.fields])


def unmarked(schema: StructType) -> StructType:
    """All fields of the schema, nullable and without metadata."""
    return StructType([StructField(f.name, f.dataType, True) for f in schema.fields])


def _filled(data_type: DataType) -> DataType:
    if isinstance(data_type, NullType):
        return StringType()
    if isinstance(data_type, StructType):
        return without_void(data_type)
    if isinstance(data_type, ArrayType):
        return ArrayType(_filled(data_type.elementType), True)
    if isinstance(data_type, MapType):
        return MapType(data_type.keyType, _filled(data_type.valueType), True)
    return data_type


def one_spelling(schema: StructType) -> StructType:
    """The schema with only the first of the fields whose names differ only in case."""
    fields: dict[str, StructField] = {}
    for field in schema.fields:
        kind = field.dataType
        if isinstance(kind, StructType):
            kind = one_spelling(kind)
        elif isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
            kind = ArrayType(one_spelling(kind.elementType), True)
        fields.setdefault(field.name.lower(), StructField(field.name, kind, True))
    return StructType(list(fields.values()))


def visible(schema: StructType) -> StructType:
    """The schema without the fields that go to the rescued data."""
    shown = [field for field in schema.fields if not field.metadata.get(RESCUED)]
    return StructType([StructField(f.name, _visible_type(f.dataType), f.nullable) for f in shown])


def rescue_fields(schema: StructType, names: Collection[str]) -> StructType:
    """The schema in which the fields of these names, in lower case, go to the rescued data."""
    return StructType(
        [
            StructField(f.name, f.dataType, True, {RESCUED: True}) if f.name.lower() in names else f
            for f in schema.fields
        ]
    )


def _visible_type(data_type: DataType) -> DataType:
    return visible(data_type) if isinstance(data_type, StructType) else data_type


def apply_hints(schema: StructType, hints: str) -> StructType:
    """The schema with the types of hints such as `id BIGINT, address.zip STRING, tags.element INT`.

    Columns that it lacks are added.
    """
    merged: DataType = schema
    for part in _top_level(hints):
        path, rest = _path(part)
        if not path or not rest:
            raise _bad_hints(hints, f"{part!r} is not `name TYPE`")
        try:
            kind = parse_ddl(f"c {rest}").fields[0].dataType
        except Exception as error:
            raise _bad_hints(hints, f"{rest!r} is not a type") from error
        merged = _set(merged, path, kind)
    assert isinstance(merged, StructType)
    return merged


def parse_ddl(text: str) -> StructType:
    """The columns of a DDL string; raises Spark's exception if it is invalid."""
    parsed = DataType.fromDDL(text)
    assert isinstance(parsed, StructType)
    return parsed


def parse_schema(schema: StructType | str | None) -> StructType | None:
    """The columns of a schema that may be DDL; raises `SCHEMA_INVALID`."""
    if schema is None or isinstance(schema, StructType):
        return schema
    try:
        return parse_ddl(schema)
    except Exception as error:
        raise DefinitionError(
            "SCHEMA_INVALID",
            f"the schema is not valid DDL: {first_line(error)}",
            hint="write `name TYPE`, separated by commas",
        ) from error


def _top_level(text: str) -> Iterator[str]:
    depth, quoted, part = 0, False, ""
    for char in text:
        if char == "`":
            quoted = not quoted
        elif not quoted and char in "<(":
            depth += 1
        elif not quoted and char in ">)":
            depth -= 1
        if char == "," and depth == 0 and not quoted:
            if part.strip():
                yield part.strip()
            part = ""
        else:
            part += char
    if part.strip():
        yield part.strip()


def _path(part: str) -> tuple[list[str], str]:
    """The names of a path and the text after it; no names if it is not a path."""
    match = _PATH.match(part)
    if match is None:
        return [], ""
    names = [
        _QUOTED.sub(lambda quoted: quoted[1].replace("``", "`"), name)
        for name in re.findall(_NAME, match[0])
    ]
    rest = part[match.end() :].strip().removeprefix(":").strip()
    return (names if all(names) else []), rest


def _set(base: DataType, path: list[str], kind: DataType) -> DataType:
    if not path:
        return kind
    head, rest = path[0], path[1:]
    if isinstance(base, ArrayType) and head.lower() == "element":
        return ArrayType(_set(base.elementType, rest, kind), True)
    if isinstance(base, MapType) and head.lower() in ("key", "value"):
        if head.lower() == "key":
            return MapType(_set(base.keyType, rest, kind), base.valueType, True)
        return MapType(base.keyType, _set(base.valueType, rest, kind), True)
    if not isinstance(base, StructType):
        # The hint replaces a different inferred type.
        base = StructType([])
    fields = {field.name.lower(): field for field in base.fields}
    before = fields.get(head.lower())
    inner = _set(StructType([]) if before is None else before.dataType, rest, kind)
    # The hint's spelling is the one that the user writes in queries.
    fields[head.lower()] = StructField(head, inner, True)
    return StructType(list(fields.values()))


def _bad_hints(hints: str, why: str) -> ConnectorError:
    return ConnectorError(
        "SCHEMA_HINTS_INVALID",
        f"cloudFiles.schemaHints {hints!r}: {why}",
        hint="write `name TYPE, outer.inner TYPE`, separated by commas",
    )
