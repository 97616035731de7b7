"""Columns out of a file's path: `.../date=2026-01-01/...`."""

import re
from collections.abc import Sequence
from datetime import date

from pyspark.sql.types import (
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from penstock.sources.files.listing import FileRoots, FoundFile
from penstock.sources.files.options import FileOptions
from penstock.sources.files.sqltext import PATH, literal, type_sql

_PART = re.compile(r"(?<=/)([^/=]+)=([^/]*)(?=/)")
_NONE = "__HIVE_DEFAULT_PARTITION__"


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


def partition_sql(field: StructField) -> str:
    """SQL of a partition column."""
    pattern = rf"/{re.escape(field.name)}=([^/]*)/"
    # Once for the URI that the path is, once for Hive's own escapes; a plus means itself.
    text = f"regexp_extract({PATH}, {literal('.*' + pattern)}, 1)"
    for _ in range(2):
        text = f"try_url_decode(replace({text}, '+', '%2B'))"
    value = f"nullif(nullif({text}, ''), {literal(_NONE)})"
    if isinstance(field.dataType, StringType):
        return value
    return f"try_cast({value} AS {type_sql(field.dataType)})"


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
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
