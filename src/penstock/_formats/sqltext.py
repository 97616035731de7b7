"""Pieces of SQL text: names, literals, types, JSON fragments."""

import json
import re
from collections.abc import Iterable

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from penstock._model.sql_text import literal, quoted

PATH = "_metadata.file_path"
FILE = "__files_path"
"""Column of parsed rows: the file of each."""
NO_TEXTS = "cast(array() as array<string>)"


def literals(texts: Iterable[str]) -> str:
    inside = ", ".join(literal(text) for text in texts)
    return f"array({inside})" if inside else NO_TEXTS


def options_map(options: dict[str, str]) -> str:
    """A map literal for the options of `from_json` and similar functions."""
    inside = ", ".join(f"{literal(key)}, {literal(value)}" for key, value in options.items())
    return f"map({inside})"


def type_sql(data_type: DataType) -> str:
    """A type as DDL, with every name quoted."""
    if isinstance(data_type, StructType):
        return f"struct<{columns_sql(data_type, colon=True)}>"
    if isinstance(data_type, ArrayType):
        return f"array<{type_sql(data_type.elementType)}>"
    if isinstance(data_type, MapType):
        return f"map<{type_sql(data_type.keyType)}, {type_sql(data_type.valueType)}>"
    return data_type.simpleString()


def columns_sql(schema: StructType, *, colon: bool = False) -> str:
    """The columns of a schema as DDL, all nullable."""
    between = ": " if colon else " "
    return ", ".join(quoted(f.name) + between + type_sql(f.dataType) for f in schema.fields)


def with_value(variable: str, value: str, body: str) -> str:
    """`body` with `variable` bound to `value`, which is computed once."""
    return f"transform(array({value}), {variable} -> {body})[0]"


def case_chain(*cases: tuple[str, str]) -> str:
    """`CASE WHEN .. THEN .. END`."""
    inside = " ".join(f"WHEN {condition} THEN {value}" for condition, value in cases)
    return f"CASE {inside} END"


def json_text(text: str) -> str:
    """SQL that makes a JSON string, quotes included, of a SQL string."""
    # `to_json` does not accept a string: remove the brackets of an array with one string.
    return f"regexp_replace(to_json(array({text})), '^.|.$', '')"


def fragment(key: str, variant: str) -> str:
    """SQL of `"key":value` for a key and a variant, both SQL."""
    return f"regexp_replace(to_json(map({key}, {variant})), '^.|.$', '')"


def text_fragment(key: str, text: str) -> str:
    """SQL of `"key":"text"` for a fixed key and SQL text."""
    return f"concat({literal(json.dumps(key, ensure_ascii=False) + ':')}, {json_text(text)})"


def rescued_json(fragments: str, file: str = FILE) -> str:
    """SQL of the rescued data: a JSON object of fragments and the file, NULL without fragments."""
    # Local files as `input_file_name()` returns them.
    spelled = f"regexp_replace({file}, '^file:/+', 'file:///')"
    path = f"array({text_fragment('_file_path', spelled)})"
    joined = f"concat('{{', array_join(concat({fragments}, {path}), ','), '}}')"
    return f"CASE WHEN size({fragments}) > 0 THEN {joined} END"


def dotted(prefix: str, key: str) -> str:
    """SQL of a field's path: prefix and key, with the key quoted if needed."""
    in_backticks = f"concat('`', replace({key}, '`', '``'), '`')"
    quoted = rf"CASE WHEN {key} RLIKE '^\\w+$' THEN {key} ELSE {in_backticks} END"
    return f"concat({literal(prefix)}, {quoted})" if prefix else quoted


_PLAIN = re.compile(r"\w+", re.ASCII)


def path_part(key: str) -> str:
    """One part of a field's path, quoted if needed."""
    return key if _PLAIN.fullmatch(key) else quoted(key)
