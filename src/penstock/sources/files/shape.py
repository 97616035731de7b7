"""Regular expressions for JSON lines that a schema certainly holds.

A line that matches is one complete object whose keys are all in the schema, each at most once.
Together with a `from_json` that had nothing to complain about, nothing of the line is missing from
the typed columns, and no slower comparison is needed. What does not match may still fit: it takes
that way.

Keys are expected in the order that the files' writer uses, because Java can tell repeated keys
from new ones in no cheaper way. All loops are possessive, so Java matches them without recursion,
however long the line is.
"""

import json
import re
from collections.abc import Mapping, Sequence

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

_SPACE = r"\s*+"
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_SCALAR = r'[^\s,{}\[\]"]++'
# Only whole numbers of a length that no parser changes: a string column must hold them exactly.
_EXACT = r"(?:-?+\d{1,18}+(?![\d.eE])|true|false|null)"
_NOTHING = r"(?!)"
_MOST_FIELDS = 1000

_NUMBER_OUTSIDE_OF_STRINGS = (
    r'\G((?:[^"\d-]++|"(?:[^"\\]++|\\.)*+"|-?+\d{1,18}+(?![\d.eE]))*+)(-?\d[\d.eE+-]*+)'
)

KeyOrder = Mapping[str, Sequence[str]]
"""Keys of each object as files have them, by the object's path; the record's own path is empty."""


def clean_line(
    schema: StructType, order: KeyOrder, *, exact: bool = True, rounds: bool = True
) -> str | None:
    """The expression for a schema; `None` where it would be too large to be fast.

    With `exact`, string columns hold only numbers that stay as they are; with `rounds`, decimals
    may have more digits than their columns hold. Keys that are not in `order` come last.
    """
    if _count(schema) > _MOST_FIELDS:
        return None
    builder = _Builder(order, exact, rounds)
    return f"^{_SPACE}{builder.object(schema, '')}{_SPACE}$"


def key_order(texts: Sequence[str]) -> dict[str, list[str]]:
    """The order of keys in sample records; what is no JSON object teaches nothing."""
    order: dict[str, list[str]] = {}
    for text in texts:
        try:
            pairs = json.loads(text, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError):
            continue
        for record in (
            pairs if isinstance(pairs, list) and not isinstance(pairs, _Pairs) else [pairs]
        ):
            _learn(record, "", order)
    return order


def is_all_strings(data_type: DataType) -> bool:
    """Whether every leaf is a string, as where types are not inferred."""
    if isinstance(data_type, StructType):
        return all(is_all_strings(field.dataType) for field in data_type.fields)
    if isinstance(data_type, ArrayType):
        return is_all_strings(data_type.elementType)
    return isinstance(data_type, StringType)


def quote_numbers() -> tuple[str, str]:
    """A pattern and its replacement: JSON numbers that a parser would write differently."""
    return _NUMBER_OUTSIDE_OF_STRINGS, '$1"$2"'


class _Pairs(list[tuple[str, object]]):
    """A JSON object as its pairs, to tell it from an array."""


def _learn(value: object, path: str, order: dict[str, list[str]]) -> None:
    if isinstance(value, _Pairs):
        known = order.setdefault(path, [])
        position = 0
        for key, inner in value:
            if key in known:
                position = max(position, known.index(key) + 1)
            else:
                # Behind what it followed here, so that optional keys keep their place.
                known.insert(position, key)
                position += 1
            _learn(inner, f"{path}/{key}", order)
    elif isinstance(value, list):
        for inner in value[:20]:
            _learn(inner, path, order)


class _Builder:
    def __init__(self, order: KeyOrder, exact: bool, rounds: bool) -> None:
        self._order = order
        self._exact = exact
        self._rounds = rounds

    def object(self, schema: StructType, path: str) -> str:
        ranks = {key: rank for rank, key in enumerate(self._order.get(path, ()))}
        fields = sorted(schema.fields, key=lambda field: ranks.get(field.name, len(ranks)))
        pairs = []
        for field in fields:
            key = re.sub(r"([^\w])", r"\\\1", json.dumps(field.name, ensure_ascii=False)[1:-1])
            value = self._value(field.dataType, f"{path}/{field.name}")
            between = rf'(?:,{_SPACE}(?=")|(?=\}}))'
            pairs.append(f'(?:"{key}"{_SPACE}:{_SPACE}{value}{_SPACE}{between})?+')
        return rf"\{{{_SPACE}{''.join(pairs)}\}}"

    def _value(self, data_type: DataType, path: str) -> str:
        if isinstance(data_type, StructType):
            return f"(?:null|{self.object(data_type, path)})"
        if isinstance(data_type, ArrayType):
            return f"(?:null|{self._array(data_type.elementType, path)})"
        if isinstance(data_type, MapType | VariantType):
            return _NOTHING
        if isinstance(data_type, StringType) and self._exact:
            return f"(?:{_STRING}|{_EXACT})"
        if isinstance(data_type, DecimalType) and not self._rounds:
            whole, scale = max(data_type.precision - data_type.scale, 1), data_type.scale
            fraction = rf"(?:\.\d{{1,{scale}}}+)?+" if scale else ""
            return rf"(?:-?+\d{{1,{whole}}}+{fraction}(?![\d.eE])|null)"
        return f"(?:{_STRING}|{_SCALAR})"

    def _array(self, element: DataType, path: str) -> str:
        if isinstance(element, MapType | VariantType):
            return _NOTHING
        is_decimal = isinstance(element, DecimalType) and not self._rounds
        if isinstance(element, StructType | ArrayType) or is_decimal:
            inner = f"{self._value(element, path)}{_SPACE}(?:,{_SPACE})?+"
            return rf"\[{_SPACE}(?:{inner})*+\]"
        if isinstance(element, StringType) and self._exact:
            return rf"\[(?:{_STRING}|{_EXACT}|[\s,]++)*+\]"
        return rf'\[(?:{_STRING}|[^\[\]{{}}"]++)*+\]'


def _count(data_type: DataType) -> int:
    if isinstance(data_type, StructType):
        return sum(1 + _count(field.dataType) for field in data_type.fields)
    if isinstance(data_type, ArrayType):
        return _count(data_type.elementType)
    return 0
