"""Partition columns: folders named `key=value`, their types, and their columns in rows."""

import re
from collections.abc import Sequence
from datetime import date

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from penstock._formats.options import FileOptions
from penstock._formats.rows import interpreted
from penstock._formats.sqltext import FILE, PATH, rescued_json, text_fragment, type_sql, with_value
from penstock._model.sql_text import literal, quoted
from penstock.sources.files.listing import FileRoots, FoundFile, decoded

_PART = re.compile(r"(?<=/)([^/=]+)=([^/]*)(?=/)")
_NONE = "__HIVE_DEFAULT_PARTITION__"
_VALUES = "__files_partitions"


def partition_schema(
    files: Sequence[FoundFile], roots: FileRoots, options: FileOptions
) -> StructType:
    """The partition columns of a sample of files, in the order of the path below the roots."""
    values: dict[str, list[str]] = {}
    for file in files:
        for key, value in _PART.findall(roots.below(file.path)):
            values.setdefault(key, []).append(value)
    if options.partition_columns is not None:
        values = {key: values.get(key, []) for key in options.partition_columns}
    typed = options.infer_types
    return StructType(
        [StructField(k, _kind(v) if typed else StringType(), True) for k, v in values.items()]
    )


def split_schema(schema: StructType, partitions: Sequence[str]) -> tuple[StructType, StructType]:
    """The fields that are not in the path, and those that are."""
    folded = {name.lower() for name in partitions}  # a hint may have another spelling
    by_path = [field for field in schema.fields if field.name.lower() in folded]
    return StructType([f for f in schema.fields if f not in by_path]), StructType(by_path)


def with_partitions(df: DataFrame, partitions: StructType, options: FileOptions) -> DataFrame:
    """Rows with the columns of their folders; values of other types are rescued."""
    kept = [quoted(column) for column in df.columns if column != options.rescued]
    df = df.withColumn(FILE, F.expr(PATH))
    # Successive rows have the same path: one value, which is computed once for each file.
    df = df.withColumn(_VALUES, interpreted(df, _values(partitions, options), FILE))
    values = F.col(_VALUES)
    columns = [
        values.getField(f"p{n}").alias(field.name) for n, field in enumerate(partitions.fields)
    ]
    if options.rescued:
        # The rescued data of the record already has the path.
        rescued = F.coalesce(F.col(quoted(options.rescued)), values.getField("rescued"))
        columns.append(rescued.alias(options.rescued))
    return df.select(*kept, *columns)


def _values(partitions: StructType, options: FileOptions) -> str:
    """SQL: a struct of the partition columns of `FILE` and their rescued values."""
    texts, typed, misfits = [], [], []
    for n, field in enumerate(partitions.fields):
        text, value = f"t.p{n}", f"try_cast(t.p{n} AS {type_sql(field.dataType)})"
        texts.append(f"{with_value('v', _text(field), _unescaped('v'))} AS p{n}")
        typed.append(f"{value} AS p{n}")
        entry = text_fragment(field.name, text)
        misfits.append(f"CASE WHEN {text} IS NOT NULL AND {value} IS NULL THEN {entry} END")
    fragments = f"filter(array({', '.join(misfits)}), x -> x IS NOT NULL)"
    rescued = with_value("r", fragments, rescued_json("r")) if options.rescued else "NULL"
    whole = f"struct({', '.join(typed)}, {rescued} AS rescued)"
    return with_value("t", f"struct({', '.join(texts)})", whole)


def _text(field: StructField) -> str:
    """SQL: the value of a partition column as the path has it; empty if it has none."""
    # The path is a URI: characters of a name may be escaped in it.
    name = "".join(c if c.isalnum() else f"(?:{re.escape(c)}|%{ord(c):02X})" for c in field.name)
    return f"regexp_extract({FILE}, {literal(f'(?is).*/{name}=([^/]*)/')}, 1)"


def _unescaped(text: str) -> str:
    """SQL: the value without escapes of what `_text` returns."""
    # Hive's escapes, too; a percent sign that begins none is kept, and so is a plus sign.
    plain = decoded(text)
    return (
        f"CASE WHEN {text} NOT IN ('', {literal(_NONE)}) THEN coalesce({decoded(plain)}, {plain}) "
        "END"
    )


def _kind(values: Sequence[str]) -> DataType:
    present = [value for value in values if value and value != _NONE]
    if not present:
        return StringType()
    if all(re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", value) for value in present):
        fits = all(-(2**31) <= int(value) < 2**31 for value in present)
        return IntegerType() if fits else LongType()
    if all(_is_date(value) for value in present):
        return DateType()
    return StringType()


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text  # other forms do not count as dates
    except ValueError:
        return False
