"""JSON: from text to typed columns and what did not fit.

`JsonRecords`, a JVM class, parses each line once with Spark's parser and reports whether the
columns hold all of it. Only a line that they do not hold completely is compared, which is slow.
"""

from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from penstock._formats.options import Evolution, FileOptions
from penstock._formats.rescue import FLAW, INTO_FLAW, Comparison
from penstock._formats.rows import LEFT, TEXT, TYPED, broken_sql, decoded, interpreted, own_class
from penstock._formats.sqltext import FILE, NO_TEXTS, columns_sql, literals, options_map, with_value
from penstock._model.sql_text import literal
from penstock.parsing.exponents import huge_number

_ITEMS = "__files_items"
_PARSED = "__files_parsed"


def json_rows(raw: DataFrame, schema: StructType, options: FileOptions) -> DataFrame:
    """Parse text: column `value` with one line each, or one file where records may span lines."""
    parse = options.record_options
    parser_options = parse | INTO_FLAW
    df = decoded(raw, options, whole=options.whole_files)
    records = _records(options, parse)
    if options.whole_files:
        df = df.selectExpr(FILE, f"explode({records}) AS {TEXT}")
        df = df.selectExpr(FILE, f"coalesce({TEXT}, 'null') AS {TEXT}")
    else:
        # Most lines are objects, which need no array. The array of a blank line is empty.
        items = F.when(F.expr("NOT startswith(value, '{')"), interpreted(df, records, "value"))
        df = df.select(FILE, "value", items.alias(_ITEMS))
        df = df.filter(f"{_ITEMS} IS NULL OR size({_ITEMS}) > 0")
        df = df.selectExpr(FILE, "value", _ITEMS, f"explode_outer({_ITEMS}) AS {TEXT}")
        text = f"CASE WHEN {_ITEMS} IS NULL THEN value ELSE coalesce({TEXT}, 'null') END"
        df = df.selectExpr(FILE, f"{text} AS {TEXT}")
    if not options.case_sensitive:
        df = df.withColumn(TEXT, F.expr(_respelled(schema)))
    huge = huge_number(F.col(TEXT), schema)
    # A record with a huge number is neither parsed nor compared: it is a broken record.
    source = F.col(TEXT) if huge is None else F.when(~huge, F.col(TEXT))
    java_class = own_class(df.sparkSession, "JsonRecords")
    if java_class is None:
        parsed = _parsed_in_sql(source, schema, parser_options)
    else:
        is_widening = options.evolution is Evolution.WIDEN
        session, java = df.sparkSession._jsparkSession, cast(Any, source)._jc
        ddl = columns_sql(schema, colon=True)
        parsed = Column(java_class.parsed(session, java, ddl, parser_options, is_widening))
    df = df.select(FILE, TEXT, parsed.alias(_PARSED))
    df = df.selectExpr(FILE, TEXT, _PARSED, f"{_PARSED}.typed AS {TYPED}")
    comparison = Comparison(options, has_exact_strings=java_class is not None)
    slow = _slow(schema, comparison, parser_options)
    is_complete = F.coalesce(F.col(_PARSED).getField("is_complete"), F.lit(False))
    left = F.when(~is_complete, interpreted(df, slow, TEXT, TYPED, _PARSED))
    return df.select(FILE, TEXT, TYPED, left.alias(LEFT))


def _parsed_in_sql(source: Column, schema: StructType, options: dict[str, str]) -> Column:
    """As `JsonRecords`, for a session without it: each line is compared."""
    flawed = StructType([*schema.fields, StructField(FLAW, StringType())])
    typed = F.from_json(source, f"struct<{columns_sql(flawed, colon=True)}>", options)
    is_flawed = typed.isNull() | typed.getField(FLAW).isNotNull()
    return F.struct(
        typed.alias("typed"), F.lit(False).alias("is_complete"), is_flawed.alias("is_flawed")
    )


def _records(options: FileOptions, parse: dict[str, str]) -> str:
    shown_options = f", {options_map(parse)}" if parse else ""
    # Parsed as variants, because Spark shortens long fractions when it copies a value into a
    # string; variants reject duplicate keys, which the fallback keeps. No lambdas here: Spark
    # would generate no code for this projection, which processes every line.
    items = f"try_variant_get(from_json(value, 'variant'{shown_options}), '$', 'array<string>')"
    split = f"coalesce({items}, from_json(value, 'array<string>'{shown_options}))"
    # Trailing text after an array would be dropped: such a line is treated as one bad record.
    complete = "try_parse_json(concat('{\"r\":[', value, ']}')) IS NOT NULL"
    is_array = "substr(ltrim(' \\t\\r\\n', value), 1, 1) = '['"
    array = f"CASE WHEN {complete} THEN {split} END"
    if not options.whole_files:
        blank = "trim(' \\t\\r', value) = ''"
        return (
            f"CASE WHEN {is_array} THEN coalesce({array}, array(value)) "
            f"WHEN {blank} THEN {NO_TEXTS} ELSE array(value) END"
        )
    # With multiLine, a file with one record per line would lose all records but the first.
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


def _slow(schema: StructType, comparison: Comparison, parser_options: dict[str, str]) -> str:
    # Wrapped in an array and an object, so that text after the record makes the whole invalid.
    wrapped = (
        f"from_json(concat('[{{\"r\":', {TEXT}, '}}]'), 'variant', {options_map(parser_options)})"
    )
    alone = (
        "size(try_variant_get(w, '$', 'array<variant>')) = 1 AND "
        "size(try_variant_get(w, '$[0]', 'map<string,variant>')) = 1"
        f" AND {TYPED} IS NOT NULL"
    )
    record = with_value(
        "w",
        wrapped,
        f"CASE WHEN {alone} THEN try_variant_get(w, '$[0].r', 'map<string,variant>') END",
    )
    broken = broken_sql(TEXT, bad=f"coalesce({_PARSED}.is_flawed, true)")
    whole = comparison.left_of_record(schema)
    return with_value("f", record, f"CASE WHEN f IS NULL THEN {broken} ELSE {whole} END")


def _respelled(schema: StructType) -> str:
    """SQL: the text with the record's keys in the spelling of the schema, where one differs."""
    spelled = ", ".join(
        f"{literal(field.name.lower())}, {literal(field.name)}" for field in schema.fields
    )
    if not spelled:
        return TEXT
    known = literals(schema.names)
    keys = f"json_object_keys({TEXT})"
    names = f"map({spelled})"
    differs = (
        f"size(filter({keys}, k -> NOT array_contains({known}, k) AND "
        f"map_contains_key({names}, lower(k)))) > 0 AND "
        f"size(array_distinct(transform({keys}, k -> lower(k)))) = size({keys})"
    )
    fields = f"try_variant_get(try_parse_json({TEXT}), '$', 'map<string,variant>')"
    respelled = (
        f"to_json(transform_keys({fields}, "
        f"(k, v) -> coalesce(try_element_at({names}, lower(k)), k)))"
    )
    return f"CASE WHEN {differs} THEN coalesce({respelled}, {TEXT}) ELSE {TEXT} END"
