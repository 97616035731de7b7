"""Wider types for new files: the type that a value needs, and the schema that holds it.

Rows of text formats report columns that are too narrow as `path TYPE`, with the inferred type.
"""

from collections.abc import Iterable

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from penstock._formats.merging import RESCUED, split_path
from penstock._formats.options import TEXTUAL
from penstock._formats.sqltext import case_chain
from penstock._model.sql_text import literal
from penstock._tables.write.schema import map_leaves
from penstock._tables.write.widening import widen, widened

_MOST_DIGITS = 38
_RANGES: dict[type[DataType], tuple[int, int]] = {
    ByteType: (-(2**7), 2**7 - 1),
    ShortType: (-(2**15), 2**15 - 1),
    IntegerType: (-(2**31), 2**31 - 1),
}
_NUMBER = "^[+-]?(?:[0-9]+(?:[.][0-9]*)?|[.][0-9]+)(?:[eE][+-]?[0-9]+)?$"


def can_widen(kind: DataType) -> bool:
    """Whether a value in a text file can need a wider type than this."""
    return isinstance(kind, LongType | DecimalType) or type(kind) in _RANGES


def wider_for_variant(value: str, kind: DataType, *, prefers_decimal: bool) -> str:
    """SQL: the wider type that a column needs to hold a variant, otherwise NULL."""
    if isinstance(kind, DecimalType):
        return wider_for_text(f"to_json({value})", kind)
    seen = f"schema_of_variant({value})"
    number = f"try_variant_get({value}, '$', 'bigint')"
    precision = f"cast(regexp_extract({seen}, '([0-9]+),([0-9]+)', 1) AS int)"
    scale = f"cast(regexp_extract({seen}, '([0-9]+),([0-9]+)', 2) AS int)"
    whole = f"({precision} - {scale})"
    is_decimal = f"{seen} LIKE 'DECIMAL(%'"
    exact = "true" if prefers_decimal else f"{scale} = 0"
    large = (f"{is_decimal} AND {exact} AND {_grows(kind, whole, scale)}", seen)
    is_fraction = f"{is_decimal} OR {seen} IN ('DOUBLE', 'FLOAT')"
    return _wider_integer(kind, number, f"{seen} = 'BIGINT'", large, is_fraction)


def wider_for_text(text: str, kind: DataType) -> str:
    """As `wider_for_variant`, for a number as a string."""
    parts = f"regexp_extract({text}, '^[+-]?0*([0-9]*)(?:[.]([0-9]*?)0*)?$', %d)"
    whole, scale = f"length({parts % 1})", f"length({parts % 2})"
    is_whole = f"{text} RLIKE '^[+-]?[0-9]+$'"
    if isinstance(kind, DecimalType):
        is_plain = f"{text} RLIKE '^[+-]?(?:[0-9]+(?:[.][0-9]*)?|[.][0-9]+)$'"
        return case_chain(
            (f"{is_plain} AND {_grows(kind, whole, scale)}", _decimal_sql(whole, scale))
        )
    number = f"try_cast({text} AS bigint)"
    beyond = f"{is_whole} AND {number} IS NULL AND {_grows(kind, whole, '0')}"
    large = (beyond, _decimal_sql(whole, "0"))
    is_fraction = f"{text} RLIKE '{_NUMBER}' AND NOT {is_whole}"
    return _wider_integer(kind, number, is_whole, large, is_fraction)


def _wider_integer(
    kind: DataType, number: str, is_whole: str, large: tuple[str, str], is_fraction: str
) -> str:
    if isinstance(kind, LongType):
        return case_chain(large)
    low, high = _RANGES[type(kind)]
    is_long = f"{is_whole} AND NOT {number} BETWEEN {low} AND {high}"
    return case_chain((is_long, "'BIGINT'"), large, (is_fraction, "'DOUBLE'"))


def entry(path: str, wider: str) -> str:
    """SQL: `path TYPE` as a string, NULL without a type."""
    return f"concat({literal(path + ' ')}, {wider})"


def _grows(kind: DataType, whole: str, scale: str) -> str:
    if isinstance(kind, DecimalType):
        have, finer = max(kind.precision - kind.scale, 1), kind.scale
        # Parsers silently round a number with more decimal digits.
        more = f"({whole} > {have} OR {scale} > {finer}) AND "
    else:
        have, finer, more = (20 if isinstance(kind, LongType) else 10), 0, ""
    return f"{more}greatest({have}, {whole}) + greatest({finer}, {scale}) <= {_MOST_DIGITS}"


def _decimal_sql(whole: str, scale: str) -> str:
    return f"concat('DECIMAL(', greatest(1, {whole} + {scale}), ',', {scale}, ')')"


def widen_columns(known: StructType, seen: StructType, file_format: str) -> StructType:
    """The known schema, widened for files of a format; names and fields do not change."""

    def supported(known: DataType, seen: DataType, _: tuple[str, ...]) -> DataType:
        if isinstance(known, DateType):
            # A string with a time is rescued, as on Databricks.
            return seen if file_format == "parquet" else known
        if isinstance(known, FloatType) and file_format in TEXTUAL:
            return known  # the text of a number does not show its precision
        # The readers of Avro and ORC do not convert integers to decimals.
        mixed = isinstance(seen, DecimalType) is not isinstance(known, DecimalType)
        return known if mixed and file_format in ("avro", "orc") else seen

    own = StructType([field for field in known.fields if not field.metadata.get(RESCUED)])
    columns = map_leaves(own, seen, supported)
    assert isinstance(columns, StructType)
    wide, changes = widen(known, columns)
    return wide if changes else known


def widen_paths(known: StructType, entries: Iterable[str]) -> StructType:
    """The known schema, widened by the entries that rows report."""
    for entry in entries:
        path, _, name = entry.rpartition(" ")
        known = _struct_at(known, split_path(path), _reported_type(name))
    return known


def _reported_type(name: str) -> DataType:
    if name == "BIGINT":
        return LongType()
    if name == "DOUBLE":
        return DoubleType()
    precision, scale = name.removeprefix("DECIMAL(").removesuffix(")").split(",")
    return DecimalType(int(precision), int(scale))


def named_columns(entries: Iterable[str]) -> set[str]:
    """The top-level columns (lower case) of the reported entries."""
    return {split_path(entry.rpartition(" ")[0])[0].lower() for entry in entries}


def changed_types(before: StructType, after: StructType) -> list[str]:
    """The changes of `widen_columns` and `widen_paths`, for messages: `'id' BIGINT`."""
    _, changes = widen(before, after)
    return [
        f"{'.'.join(change.path)!r} {change.after.simpleString().upper()}" for change in changes
    ]


def keep_wider(hinted: StructType, known: StructType) -> StructType:
    """A schema with the types of hints, except for columns that have become wider since."""
    before = {field.name.lower(): field for field in known.fields}
    return StructType([_kept(f, before.get(f.name.lower())) for f in hinted.fields])


def _kept(hinted: StructField, known: StructField | None) -> StructField:
    if known is None:
        return hinted
    wide, changes = widen(StructType([hinted]), StructType([known]))
    # A changed hint wins unless it is narrower than the known type.
    return wide[0] if changes and not widen(StructType([known]), wide)[1] else hinted


def _struct_at(base: StructType, path: list[str], seen: DataType) -> StructType:
    fields = [
        StructField(f.name, _type_at(f.dataType, path[1:], seen), f.nullable, f.metadata)
        if f.name.lower() == path[0].lower()
        else f
        for f in base.fields
    ]
    return StructType(fields)


def _type_at(base: DataType, path: list[str], seen: DataType) -> DataType:
    if isinstance(base, ArrayType):
        return ArrayType(_type_at(base.elementType, path, seen), base.containsNull)
    if path:
        return _struct_at(base, path, seen) if isinstance(base, StructType) else base
    return widened(base, seen) or base
