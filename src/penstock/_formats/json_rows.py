"""JSON: from text to typed columns and what did not fit.

A line that matches the expression of `clean_line` is one complete object whose keys are all in the
schema, each at most once. Together with a `from_json` that had nothing to complain about, nothing
of the line is missing from the typed columns, and no slower comparison is needed. What does not
match may still fit: it takes that way.

Keys are expected in the order that the files' writer uses, because Java can tell repeated keys
from new ones in no cheaper way. All loops are possessive or in atomic groups, so Java matches them
without recursion, however long the line is.

Most lines match a narrower expression first (`plain`), without escapes and with the spaces that
writers of JSON use. The time of a match depends on the number of its parts, and this one has half
of them. What it matches, the full expression matches as well.
"""

import json
import re
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from penstock._formats.options import Evolution, FileOptions
from penstock._formats.rescue import FLAW, Comparison, typed_columns
from penstock._formats.rows import LEFT, TYPED, Rows, decoded, left_sql
from penstock._formats.sqltext import (
    NO_TEXTS,
    case_chain,
    options_map,
    text_fragment,
    with_value,
)
from penstock._model.sql_literal import literal
from penstock.parsing.exponents import huge_number

_TEXT = "__files_text"
_ITEMS = "__files_items"
_RANK = "__files_rank"
_HUGE = 3
# What only the reader of files understands.
_READER_ONLY = frozenset(
    {"mode", "multiline", "columnnameofcorruptrecord", "encoding", "charset", "linesep"}
    | {"primitivesasstring", "inferschema", "samplingratio", "compression", "header"}
)

_SPACE = r"\s*+"
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_SCALAR = r'[^\s,{}\[\]"]++'
# A greedy loop in an atomic group: Java has a faster loop for it than for a possessive one.
_PLAIN_STRING = r'"(?>[^"\\]*)"'
_PLAIN_SCALAR = r'(?>[^\s,{}\[\]"]+)'
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
    schema: StructType,
    order: KeyOrder,
    *,
    exact: bool = True,
    rounds: bool = True,
    plain: bool = False,
) -> str | None:
    """The expression for a schema; `None` where it would be too large to be fast.

    With `exact`, string columns hold only numbers that stay as they are; with `rounds`, decimals
    may have more digits than their columns hold. Keys that are not in `order` come last. With
    `plain`, the expression is narrower and faster: no escapes, no unusual spaces.
    """
    if _count(schema) > _MOST_FIELDS:
        return None
    builder = _Builder(order, exact, rounds, plain)
    around = "" if plain else _SPACE
    return f"^{around}{builder.object(schema, '')}{around}$"


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
    def __init__(self, order: KeyOrder, exact: bool, rounds: bool, plain: bool) -> None:
        self._order = order
        self._exact = exact
        self._rounds = rounds
        self._string = _PLAIN_STRING if plain else _STRING
        self._scalar = _PLAIN_SCALAR if plain else _SCALAR
        self._space = " ?+" if plain else _SPACE
        # Where no writer puts a space.
        self._gap = "" if plain else _SPACE

    def object(self, schema: StructType, path: str) -> str:
        ranks = {key: rank for rank, key in enumerate(self._order.get(path, ()))}
        fields = sorted(schema.fields, key=lambda field: ranks.get(field.name, len(ranks)))
        pairs = []
        for field in fields:
            key = re.sub(r"([^\w])", r"\\\1", json.dumps(field.name, ensure_ascii=False)[1:-1])
            value = self._value(field.dataType, f"{path}/{field.name}")
            between = rf'(?:,{self._space}(?=")|(?=\}}))'
            pairs.append(f'(?:"{key}"{self._gap}:{self._space}{value}{self._gap}{between})?+')
        return rf"\{{{self._gap}{''.join(pairs)}\}}"

    def _value(self, data_type: DataType, path: str) -> str:
        if isinstance(data_type, StructType):
            return f"(?:{self.object(data_type, path)}|null)"
        if isinstance(data_type, ArrayType):
            return f"(?:{self._array(data_type.elementType, path)}|null)"
        if isinstance(data_type, MapType | VariantType):
            return _NOTHING
        if isinstance(data_type, StringType):
            return f"(?:{self._string}|{_EXACT if self._exact else self._scalar})"
        if isinstance(data_type, DecimalType) and not self._rounds:
            whole, scale = max(data_type.precision - data_type.scale, 1), data_type.scale
            fraction = rf"(?:\.\d{{1,{scale}}}+)?+" if scale else ""
            return rf"(?:-?+\d{{1,{whole}}}+{fraction}(?![\d.eE])|null)"
        return f"(?:{self._scalar}|{self._string})"

    def _array(self, element: DataType, path: str) -> str:
        if isinstance(element, MapType | VariantType):
            return _NOTHING
        space, gap = self._space, self._gap
        is_decimal = isinstance(element, DecimalType) and not self._rounds
        if isinstance(element, StructType | ArrayType) or is_decimal:
            inner = f"{self._value(element, path)}{gap}(?:,{space})?+"
            return rf"\[{gap}(?:{inner})*+\]"
        if isinstance(element, StringType) and self._exact:
            return rf"\[(?:{self._string}|{_EXACT}|[\s,]++)*+\]"
        return rf'\[(?:{self._string}|[^\[\]{{}}"]++)*+\]'


def _count(data_type: DataType) -> int:
    if isinstance(data_type, StructType):
        return sum(1 + _count(field.dataType) for field in data_type.fields)
    if isinstance(data_type, ArrayType):
        return _count(data_type.elementType)
    return 0


def json_rows(raw: DataFrame, schema: StructType, options: FileOptions, order: KeyOrder) -> Rows:
    """Parse text: column `value` with one line each, or one file where records may span lines."""
    parse = {k: v for k, v in options.parse.items() if k.lower() not in _READER_ONLY}
    parser_options = {**parse, "columnNameOfCorruptRecord": FLAW, "mode": "PERMISSIVE"}
    df = decoded(raw, options, whole=options.whole_files)
    records = _records(options, parse)
    if not options.whole_files:
        # Spark cannot compile some functions of `records`. In a step of their own, which most lines
        # pass by, they do not keep it from compiling the next one.
        is_object = "startswith(value, '{')"
        df = df.selectExpr("value", f"CASE WHEN NOT {is_object} THEN {records} END AS {_ITEMS}")
        records = f"CASE WHEN {is_object} THEN array(value) ELSE {_ITEMS} END"
    df = df.selectExpr(f"explode({records}) AS {_TEXT}")
    df = df.selectExpr(f"coalesce({_TEXT}, 'null') AS {_TEXT}")
    if not options.case_sensitive:
        df = df.withColumn(_TEXT, F.expr(_respelled(schema)))
    # 0: certainly complete; 1: as well, with its numbers in quotes; 2: to be compared.
    rank, source = "2", _TEXT
    is_widening = options.evolution is Evolution.WIDEN
    pattern = clean_line(schema, order, rounds=not is_widening)
    if pattern is not None:
        plain = clean_line(schema, order, rounds=not is_widening, plain=True)
        expressions = (plain or pattern, pattern)
        cases = [(f"{_TEXT} RLIKE {literal(expression)}", "0") for expression in expressions]
        if is_all_strings(schema):
            # Numbers that go into strings keep their digits: they are put into quotes first.
            loose = clean_line(schema, order, exact=False)
            cases.append((f"{_TEXT} RLIKE {literal(loose or '')}", "1"))
            number, replacement = quote_numbers()
            quoted = f"regexp_replace({_TEXT}, {literal(number)}, {literal(replacement)})"
            source = f"CASE WHEN {_RANK} = 1 THEN {quoted} ELSE {_TEXT} END"
        rank = case_chain(*cases, otherwise="2")
    df = df.selectExpr(_TEXT, f"{rank} AS {_RANK}")
    huge = huge_number(F.col(_TEXT), schema)
    if huge is not None:
        # Neither complete nor compared: it is left as a broken record.
        df = df.withColumn(_RANK, F.when(huge, _HUGE).otherwise(F.col(_RANK)))
        source = f"CASE WHEN {_RANK} <> {_HUGE} THEN {source} END"
    parsed = f"from_json({source}, {typed_columns(schema)}, {options_map(parser_options)})"
    df = df.selectExpr(_TEXT, f"{parsed} AS {TYPED}", _RANK)
    slow = _slow(schema, options, Comparison(parse, reserved=options.reserved), parser_options)
    clean = f"{_RANK} < 2 AND {TYPED}.{FLAW} IS NULL"
    df = df.selectExpr(_TEXT, TYPED, f"CASE WHEN NOT ({clean}) THEN {slow} END AS {LEFT}")
    return Rows(df, schema, _TEXT)


def _records(options: FileOptions, parse: dict[str, str]) -> str:
    shown_options = f", {options_map(parse)}" if parse else ""
    # As variants, because Spark shortens long fractions when it copies a value into a string; they
    # refuse repeated keys, which the other way keeps. No lambdas here: they would keep Spark from
    # compiling this step, which every line goes through.
    items = f"try_variant_get(from_json(value, 'variant'{shown_options}), '$', 'array<string>')"
    split = f"coalesce({items}, from_json(value, 'array<string>'{shown_options}))"
    # Trailing text after an array would be dropped: such a line is taken as one bad record.
    complete = "try_parse_json(concat('{\"r\":[', value, ']}')) IS NOT NULL"
    is_array = "substr(ltrim(' \\t\\r\\n', value), 1, 1) = '['"
    array = f"CASE WHEN {complete} THEN {split} END"
    if not options.whole_files:
        blank = "trim(' \\t\\r', value) = ''"
        return (
            f"CASE WHEN {is_array} THEN coalesce({array}, array(value)) "
            f"WHEN {blank} THEN {NO_TEXTS} ELSE array(value) END"
        )
    # A file of one record a line, read with multiLine, would lose all records but the first.
    lines = "filter(split(value, '\\\\r\\\\n|\\\\n|\\\\r'), x -> trim(x) <> '')"
    single = "try_parse_json(concat('[', value, ']')) IS NOT NULL"
    by_line = with_value(
        "ls",
        lines,
        "CASE WHEN size(ls) > 1 AND forall(ls, x -> try_parse_json(concat('[', x, ']')) "
        "IS NOT NULL) THEN ls ELSE array(value) END",
    )
    blank = "trim(' \\t\\r\\n', value) = ''"
    return (
        f"CASE WHEN {blank} THEN {NO_TEXTS} WHEN {is_array} THEN coalesce({array}, array(value)) "
        f"WHEN {single} THEN array(value) ELSE {by_line} END"
    )


def _slow(
    schema: StructType, options: FileOptions, comparison: Comparison, parser_options: dict[str, str]
) -> str:
    corrupt = f"array({text_fragment('_corrupt_record', _TEXT)})"
    # In an array and an object of our own, what follows the record makes the whole invalid.
    wrapped = (
        f"from_json(concat('[{{\"r\":', {_TEXT}, '}}]'), 'variant', {options_map(parser_options)})"
    )
    alone = (
        "size(try_variant_get(w, '$', 'array<variant>')) = 1 AND "
        "size(try_variant_get(w, '$[0]', 'map<string,variant>')) = 1"
        f" AND {_RANK} <> {_HUGE}"
    )
    record = with_value(
        "w",
        wrapped,
        f"CASE WHEN {alone} THEN try_variant_get(w, '$[0].r', 'map<string,variant>') END",
    )
    flawed = f"{TYPED}.{FLAW} IS NOT NULL OR {TYPED} IS NULL"
    broken = left_sql(fragments=corrupt, bad=flawed, broken=True)
    whole = comparison.left_of_record(schema, options)
    return with_value("f", record, f"CASE WHEN f IS NULL THEN {broken} ELSE {whole} END")


def _respelled(schema: StructType) -> str:
    """SQL: the text with the record's keys in the spelling of the schema, where one differs."""
    spelled = ", ".join(
        f"{literal(field.name.lower())}, {literal(field.name)}" for field in schema.fields
    )
    if not spelled:
        return _TEXT
    known = f"array({', '.join(literal(field.name) for field in schema.fields)})"
    keys = f"json_object_keys({_TEXT})"
    names = f"map({spelled})"
    differs = (
        f"size(filter({keys}, k -> NOT array_contains({known}, k) AND "
        f"map_contains_key({names}, lower(k)))) > 0 AND "
        f"size(array_distinct(transform({keys}, k -> lower(k)))) = size({keys})"
    )
    fields = f"try_variant_get(try_parse_json({_TEXT}), '$', 'map<string,variant>')"
    respelled = (
        f"to_json(transform_keys({fields}, "
        f"(k, v) -> coalesce(try_element_at({names}, lower(k)), k)))"
    )
    return f"CASE WHEN {differs} THEN coalesce({respelled}, {_TEXT}) ELSE {_TEXT} END"
