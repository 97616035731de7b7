"""Parquet, ORC and Avro: Spark reads only columns of the schema, so files' schemas are compared."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock._formats.merging import RESCUED, visible
from penstock._formats.options import FileOptions
from penstock._formats.sqltext import PATH, json_text, rescued_json, with_value
from penstock._model.sql_text import literal, quoted
from penstock._tables.write.schema import DIGITS, INTEGERS
from penstock.errors import ConnectorError, SetupError

_READERS = 4
_SPARK_ERRORS = (PySparkException, Py4JJavaError)
_WIDER: dict[type[DataType], tuple[type[DataType], ...]] = {
    ByteType: (BooleanType,),
    ShortType: (BooleanType, ByteType),
    IntegerType: (BooleanType, ByteType, ShortType),
    LongType: (BooleanType, ByteType, ShortType, IntegerType),
    FloatType: (ByteType, ShortType),
    DoubleType: (FloatType, ByteType, ShortType, IntegerType),
    StringType: (BooleanType, ByteType, ShortType, IntegerType, LongType, DateType),
    TimestampType: (DateType,),
}
"""For each type, the other types whose values ORC's reader converts to it without loss."""


def columnar_rows(raw: DataFrame, schema: StructType, options: FileOptions) -> DataFrame:
    """The columns that the user sees; in `schema`, the fields of the rescued data are marked."""
    columns = [
        F.expr(_without_rescued(quoted(field.name), field.dataType)).alias(field.name)
        for field in schema.fields
        if not field.metadata.get(RESCUED)
    ]
    if options.rescued:
        parts = _fragments("", schema)
        fragments = f"filter(array({', '.join(parts)}), x -> x IS NOT NULL)" if parts else ""
        rescued = rescued_json(fragments, PATH) if fragments else "cast(NULL AS string)"
        columns.append(F.expr(rescued).alias(options.rescued))
    return raw.select(*columns)


def distinct_schemas(
    spark: SparkSession, options: FileOptions, paths: Sequence[str]
) -> list[StructType]:
    """The merged schema of some files, or the schema of each file if types differ."""
    if not paths:
        return []
    reader = spark.read.format(options.format).option("ignoreCorruptFiles", "true")
    reader = reader.options(**dict(options.parse))
    if options.format != "avro":
        try:
            return [reader.option("mergeSchema", "true").load(list(paths)).schema]
        except _SPARK_ERRORS:
            # The types cannot be merged: return the schema of each file.
            pass
    seen = schema_by_file(spark, options, paths).values()
    return [StructType() if isinstance(each, str) else each for each in seen]


def schema_by_file(
    spark: SparkSession, options: FileOptions, paths: Sequence[str]
) -> dict[str, StructType | str]:
    """The schema of each file, or why no schema can have its columns; omits unreadable files."""

    def schema_of(path: str) -> StructType | str | None:
        try:
            df = spark.read.format(options.format).options(**dict(options.parse)).load(path)
        except _SPARK_ERRORS as error:
            if "DATA_SOURCE_NOT_FOUND" in str(error) or "deployed" in str(error):
                raise avro_missing() from error
            twice = re.search(r"\[COLUMN_ALREADY_EXISTS\] The column `(.*?)` already", str(error))
            return f"several of its columns are named {twice[1]!r}, in any case" if twice else None
        return df.schema

    with ThreadPoolExecutor(_READERS, thread_name_prefix="file-schemas") as pool:
        schemas = zip(paths, pool.map(schema_of, paths), strict=True)
        return {path: schema for path, schema in schemas if schema is not None}


def misfits(
    spark: SparkSession,
    options: FileOptions,
    schema: StructType,
    paths: Sequence[str],
    merged: Sequence[StructType],
) -> dict[str, str]:
    """The reason for each file that does not fit the schema.

    `merged` are the `distinct_schemas` of all files.

    Raises:
        ConnectorError: `FILE_TYPES_UNFIT` if there are such files and they are not set aside.
    """
    reason = partial(misfit, schema, file_format=options.format)
    if all(seen.fields and reason(seen) is None for seen in merged):
        return {}
    schemas = schema_by_file(spark, options, paths).items()
    reasons = {path: seen if isinstance(seen, str) else reason(seen) for path, seen in schemas}
    unfit = {path: why for path, why in reasons.items() if why is not None}
    if unfit and not options.quarantine_corrupt:
        path, why = next(iter(unfit.items()))
        raise ConnectorError(
            "FILE_TYPES_UNFIT",
            f"{path} cannot be read: {why}",
            hint="correct the schema or its hints, remove the file, or leave option "
            "ignoreCorruptFiles at true to set such files aside",
        )
    return unfit


def misfit(
    known: StructType, seen: StructType, *, file_format: str, prefix: str = ""
) -> str | None:
    """Describe the first column whose type in a file does not fit the schema; `None` if all fit."""
    types = {field.name.lower(): field.dataType for field in known.fields}
    for field in seen.fields:
        wanted = types.get(field.name.lower())
        if wanted is None:
            continue
        name_ = prefix + field.name
        if isinstance(wanted, StructType) and isinstance(field.dataType, StructType):
            inner = misfit(wanted, field.dataType, file_format=file_format, prefix=f"{name_}.")
            if inner is not None:
                return inner
        elif not _holds(wanted, field.dataType, file_format):
            have, want = field.dataType.simpleString(), wanted.simpleString()
            return (
                f"column {name_!r} is {have.upper()} in the file and {want.upper()} in the schema"
            )
    return None


def _holds(wanted: DataType, seen: DataType, file_format: str) -> bool:
    if isinstance(wanted, ArrayType) and isinstance(seen, ArrayType):
        if isinstance(wanted.elementType, StructType) and isinstance(seen.elementType, StructType):
            return misfit(wanted.elementType, seen.elementType, file_format=file_format) is None
        return _holds(wanted.elementType, seen.elementType, file_format)
    if file_format != "orc":
        return not _is_misread(wanted, seen)
    if type(wanted) in _WIDER:
        return type(seen) is type(wanted) or type(seen) in _WIDER[type(wanted)]
    if isinstance(wanted, DecimalType):
        whole = wanted.precision - wanted.scale
        if isinstance(seen, DecimalType):
            return whole >= seen.precision - seen.scale and wanted.scale >= seen.scale
        return whole >= DIGITS.get(type(seen), whole + 1)
    return type(wanted) is type(seen)


def _is_misread(wanted: DataType, seen: DataType) -> bool:
    """Whether the readers of Parquet and Avro silently misread the stored values.

    A decimal 12.50 becomes 1250. The readers reject other types that do not fit.
    """
    if not isinstance(wanted, (DateType, DoubleType, *INTEGERS)):
        return False
    if isinstance(seen, DecimalType):
        return seen.scale > 0
    is_time = isinstance(seen, DateType | TimestampType | TimestampNTZType)
    return is_time and type(seen) is not type(wanted)


def avro_missing() -> SetupError:
    """The error for Avro files without Spark's Avro module."""
    return SetupError(
        "JARS_MISSING",
        "Avro files need Spark's Avro module, whose jar is not on the class path",
        hint="run `penstock jars sync --set avro`",
    )


def _without_rescued(cell: str, kind: DataType) -> str:
    if not isinstance(kind, StructType) or visible(kind) == kind:
        return cell
    fields = ", ".join(
        f"{literal(f.name)}, {_without_rescued(f'{cell}.{quoted(f.name)}', f.dataType)}"
        for f in kind.fields
        if not f.metadata.get(RESCUED)
    )
    return f"CASE WHEN {cell} IS NOT NULL THEN named_struct({fields}) END"


def _fragments(cell: str, schema: StructType) -> list[str]:
    fragments = []
    for field in schema.fields:
        value = f"{cell}.{quoted(field.name)}" if cell else quoted(field.name)
        if field.metadata.get(RESCUED):
            is_nested = isinstance(field.dataType, StructType | ArrayType)
            text = f"to_json({value})" if is_nested else json_text(value)
            fragments.append(
                f"CASE WHEN {value} IS NOT NULL THEN "
                f"concat({json_text(literal(field.name))}, ':', {text}) END"
            )
        elif isinstance(field.dataType, StructType):
            inner = _fragments(value, field.dataType)
            if inner:
                parts = f"filter(array({', '.join(inner)}), x -> x IS NOT NULL)"
                joined = (
                    f"CASE WHEN size(fs) > 0 THEN concat({json_text(literal(field.name))}, "
                    "':{', array_join(fs, ','), '}') END"
                )
                fragments.append(with_value("fs", parts, joined))
    return fragments
