"""XML: from files to typed columns and what did not fit."""

import re
from collections.abc import Iterable

from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from penstock._formats.options import Evolution, FileOptions
from penstock._formats.rescue import FLAW, INTO_FLAW, Comparison, typed_columns
from penstock._formats.rows import LEFT, TEXT, TYPED, broken_sql, decoded
from penstock._formats.sqltext import FILE, options_map, with_value
from penstock._model.sql_text import literal
from penstock.errors import ConnectorError
from penstock.parsing.exponents import LARGE_EXPONENT, decimal_fields


def row_tag(options: FileOptions) -> str:
    """The element that is a row."""
    tag = options.parser_option("rowTag").strip()
    if not tag:
        raise ConnectorError(
            "AUTOLOADER_OPTION_INVALID",
            "XML files need the option 'rowTag': the name of the element that is a row",
            hint='.option("rowTag", "order")',
        )
    return tag


def xml_rows(raw: DataFrame, schema: StructType, options: FileOptions) -> DataFrame:
    """Parse text: column `value` with one file each."""
    parse = options.record_options
    elements = f"{elements_sql(row_tag(options))} AS {TEXT}"
    df = decoded(raw, options, whole=True).selectExpr(FILE, elements)
    huge = _huge_number(schema, options)
    source = f"CASE WHEN NOT ({huge}) THEN {TEXT} END" if huge else TEXT
    parsed = f"from_xml({source}, {typed_columns(schema)}, {options_map(parse | INTO_FLAW)})"
    df = df.selectExpr(FILE, TEXT, f"{parsed} AS {TYPED}")
    # As strings, so that `007` is rescued as written. Widening needs the inferred types.
    types = {"inferSchema": str(options.evolution is Evolution.WIDEN).lower()}
    variant = f"from_xml({TEXT}, 'variant', {options_map(parse | types)})"
    record = f"try_variant_get({variant}, '$', 'map<string,variant>')"
    broken = broken_sql(TEXT)
    whole = Comparison(options, parser="from_xml").left_of_record(schema)
    # Text that is not well-formed cannot be parsed as a variant: Spark would fail the batch. Values
    # of other types cause a flaw as well, but not if no column is parsed.
    nothing = typed_columns(StructType([StructField("__files_nothing", StringType())]))
    flaw = f"from_xml({TEXT}, {nothing}, {options_map(parse | INTO_FLAW)}).{FLAW}"
    tag = re.escape(row_tag(options))
    complete = literal(rf"\A<{tag}(?=[\s/>])[\s\S]*(?:/>|</{tag}\s*>)\z")
    is_broken = f"{TEXT} NOT RLIKE {complete}" + (f" OR {huge}" if huge else "")
    is_broken += f" OR ({TYPED}.{FLAW} IS NOT NULL AND {flaw} IS NOT NULL)"
    slow = (
        f"CASE WHEN {is_broken} THEN {broken} ELSE "
        + with_value("f", record, f"CASE WHEN f IS NULL THEN {broken} ELSE {whole} END")
        + " END"
    )
    return df.selectExpr(FILE, TEXT, TYPED, f"{slow} AS {LEFT}")


def _huge_number(schema: StructType, options: FileOptions) -> str:
    """SQL: whether a DECIMAL has a number that Spark must not parse; empty without a DECIMAL."""
    text_field = options.parser_option("valueTag", default="_VALUE")
    names = set(decimal_fields(schema, row_tag(options), text_field=text_field))
    if not names:
        return ""
    prefix = options.parser_option("attributePrefix", default="_")
    attributes = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    begins = rf"<(?:[^\s>/:]++:)?(?:{_any_of(names)})(?:\s[^>]*+)?>(?:\s*<!\[CDATA\[)?"
    if attributes:
        begins += rf"|\s(?:[^\s=:]++:)?(?:{_any_of(attributes)})\s*=\s*[\"']"
    number = rf"(?:{begins})\s*[+-]?[0-9.]+[eE][+-]?[0-9]{{4}}"
    # The first, cheap condition is false for most records.
    return f"{TEXT} RLIKE {literal(LARGE_EXPONENT)} AND {TEXT} RLIKE {literal(number)}"


def _any_of(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names))


def elements_sql(tag: str) -> str:
    """SQL: the row elements of a file, one per row.

    Also rows: an element that is cut off at the end, text after an element up to a closing tag
    without an opening tag, and text at the start of a file that is not XML.
    """
    name = re.escape(tag)
    attributes = r"""(?:\s(?:[^"'>/]++|/(?!>)|"[^"]*+"|'[^']*+')*+)?"""
    comment = r"<!--[\s\S]*?-->"
    inside = rf"(?:[^<]++|<!\[CDATA\[[\s\S]*?\]\]>|{comment}|<(?!/{name}\s*>))*+"
    closed = rf"<{name}(?:\s[^>]*+)?(?:>{inside}(?:</{name}\s*>|\z)|\z)"
    rest = rf"(?<=</{name}>)(?:[^<]++|<(?!!|/?{name}[\s/>]))*+</{name}\s*>"
    text = r"\A\s*+[^<\s][^<]*+"
    # Elements in comments are not rows.
    pattern = literal(rf"{comment}|<{name}{attributes}/>|{closed}|{rest}|{text}")
    matches = f"regexp_extract_all(value, {pattern}, 0)"
    return f"explode(filter({matches}, x -> NOT startswith(x, '<!--')))"
