"""Parsed rows: typed columns and what did not fit, the same for every text format."""

import json
from typing import Any

from py4j.java_gateway import JavaPackage
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._formats.options import Evolution, FileOptions, ParseMode
from penstock._formats.sqltext import FILE, NO_TEXTS, PATH, rescued_json, text_fragment
from penstock._model.sql_text import literal, quoted

TEXT = "__files_text"
"""The record."""

TYPED = "__files_typed"
"""Struct of the typed columns."""

LEFT = "__files_left"
"""NULL for a row that fits, otherwise a struct: `malformed` (not a record), `bad` (invalid typed
columns), `fragments` (JSON of values without a column), `new` (fields that the schema lacks) and
`wide` (columns that are too narrow, as `path TYPE`)."""

UNKNOWN_FIELD = "UNKNOWN_FIELD_EXCEPTION"
MALFORMED = "MALFORMED_RECORD_IN_FILE"


def own_class(spark: SparkSession, name: str) -> Any:
    """A Penstock class in the JVM that parses rows; `None` if the session lacks Penstock's jar."""
    jvm: Any = spark._jvm
    java_class = getattr(jvm.penstock.formats, name)
    return None if isinstance(java_class, JavaPackage) else java_class


def interpreted(df: DataFrame, sql: str, *columns: str) -> Column:
    """SQL over some columns that few rows need; Spark still generates code for its operator."""
    java_class: Any = own_class(df.sparkSession, "Interpreted")
    if java_class is None:
        return F.expr(sql)
    return Column(java_class.column(df._jdf, sql, list(columns)))


def left_sql(
    *,
    fragments: str,
    new: str = NO_TEXTS,
    wide: str = NO_TEXTS,
    bad: str = "false",
    malformed: str = "false",
) -> str:
    """SQL of a value of `LEFT`."""
    return (
        f"named_struct('malformed', {malformed}, 'bad', {bad}, 'fragments', {fragments}, "
        f"'new', {new}, 'wide', {wide})"
    )


def broken_sql(text: str, bad: str = "true") -> str:
    """SQL of a value of `LEFT` for text that is not a record."""
    corrupt = f"array({text_fragment('_corrupt_record', text)})"
    return left_sql(fragments=corrupt, bad=bad, malformed="true")


def decoded(raw: DataFrame, options: FileOptions, *, whole: bool) -> DataFrame:
    """`FILE` and text in the user's encoding; for lines, Hadoop removes the byte order mark."""
    text = text_sql(options)
    text = f"ltrim('\\uFEFF', {text})" if whole else text
    # Not all of `_metadata`, which would be copied by each operator.
    return raw.selectExpr(f"{PATH} AS {FILE}", f"{text} AS value")


def text_sql(options: FileOptions) -> str:
    """SQL of the column `value` in the user's encoding."""
    encoding = options.parser_option("encoding", "charset", default="UTF-8")
    if encoding.upper().replace("-", "") == "UTF8":
        return "value"
    return f"decode(cast(value AS binary), {literal(encoding)})"


def finished(df: DataFrame, schema: StructType, options: FileOptions, source: str) -> DataFrame:
    """The columns that the user sees; a row that needs new or wider columns fails the query.

    `df` has the columns `FILE`, `TEXT`, `TYPED` (of `schema`) and `LEFT`.
    """
    if options.evolution.adds_columns or options.evolution is Evolution.FAIL:
        # A filter, because a column that the query does not use would never be computed.
        raising = f"cast(raise_error({failure_text(source)}) AS boolean)"
        grows = f"size({LEFT}.new) > 0 OR size({LEFT}.wide) > 0"
        df = df.filter(F.expr(f"CASE WHEN {grows} THEN {raising} ELSE true END"))
    if options.mode is ParseMode.FAIL:
        message = f"concat({literal(MALFORMED + ' ')}, {FILE}, ': ', substr({TEXT}, 1, 200))"
        raising = f"cast(raise_error({message}) AS boolean)"
        df = df.filter(F.expr(f"CASE WHEN {LEFT}.malformed THEN {raising} ELSE true END"))
    elif options.mode is ParseMode.DROP:
        df = df.filter(F.expr(f"{LEFT} IS NULL OR NOT {LEFT}.bad"))
    columns = []
    # The rescued data is not requested, so it is not computed.
    typed_only = (
        options.evolution in (Evolution.NONE, Evolution.RESCUE)
        and options.mode is ParseMode.PERMISSIVE
        and not options.reserved
    )
    for field in schema.fields:
        cell = f"{TYPED}.{quoted(field.name)}"
        value = cell if typed_only else f"CASE WHEN {LEFT}.bad THEN NULL ELSE {cell} END"
        columns.append(F.expr(value).alias(field.name))
    if options.corrupt:
        shown = F.expr(f"CASE WHEN {LEFT}.malformed THEN {TEXT} END")
        columns.append(shown.alias(options.corrupt))
    if options.rescued:
        columns.append(F.expr(rescued_json(f"{LEFT}.fragments")).alias(options.rescued))
    return df.select(*columns)


def failure_text(source: str) -> str:
    """SQL: the error message for new fields and wider types, which `recovery` parses."""
    start = literal(f"{UNKNOWN_FIELD} " + json.dumps({"source": source})[:-1] + ', "fields": ')
    details = f"to_json({LEFT}.new), ', \"wide\": ', to_json({LEFT}.wide)"
    return f"concat({start}, {details}, ', \"file\": ', to_json(array({FILE})), '}}')"
