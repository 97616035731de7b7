"""XML: from files to typed columns and what did not fit."""

import re

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock._formats.options import FileOptions
from penstock._formats.rescue import FLAW, Comparison, typed_columns
from penstock._formats.rows import LEFT, TYPED, Rows, decoded, left_sql
from penstock._formats.sqltext import literal, options_map, text_fragment, with_value
from penstock.errors import ConnectorError

_TEXT = "__files_text"
_READER_ONLY = frozenset(
    {"mode", "columnnameofcorruptrecord", "encoding", "charset", "inferschema", "samplingratio"}
    | {"compression", "rowtag", "multiline", "roottag"}
)


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


def xml_rows(raw: DataFrame, schema: StructType, options: FileOptions) -> Rows:
    """Parse text: column `value` with one file each."""
    parse = {k: v for k, v in options.parse.items() if k.lower() not in _READER_ONLY}
    parser_options = {**parse, "columnNameOfCorruptRecord": FLAW, "mode": "PERMISSIVE"}
    df = decoded(raw, options, whole=True).selectExpr(f"{_elements(row_tag(options))} AS {_TEXT}")
    parsed = f"from_xml({_TEXT}, {typed_columns(schema)}, {options_map(parser_options)})"
    df = df.selectExpr(_TEXT, f"{parsed} AS {TYPED}")
    comparison = Comparison(parse, parser="from_xml", reserved=options.reserved)
    variant = f"from_xml({_TEXT}, 'variant', {options_map(parse)})" if parse else ""
    variant = variant or f"from_xml({_TEXT}, 'variant')"
    record = f"try_variant_get({variant}, '$', 'map<string,variant>')"
    corrupt = f"array({text_fragment('_corrupt_record', _TEXT)})"
    broken = left_sql(fragments=corrupt, bad="true", broken=True)
    whole = comparison.left_of_record(schema, options)
    # A text that is no complete element cannot be made a variant: Spark would fail the batch.
    complete = literal(rf"(?:/>|</{re.escape(row_tag(options))}\s*>)\z")
    slow = (
        f"CASE WHEN {_TEXT} NOT RLIKE {complete} THEN {broken} ELSE "
        + with_value("f", record, f"CASE WHEN f IS NULL THEN {broken} ELSE {whole} END")
        + " END"
    )
    df = df.selectExpr(_TEXT, TYPED, f"{slow} AS {LEFT}")
    return Rows(df, schema, _TEXT)


def _elements(tag: str) -> str:
    """SQL: the row elements of a file, one a row; what is cut off at the end is a row as well."""
    name = re.escape(tag)
    whole = rf"<{name}(?:\s[^>]*+)?/>|<{name}(?:\s[^>]*+)?>[\s\S]*?(?:</{name}\s*>|\z)"
    return f"explode(regexp_extract_all(value, {literal(whole)}, 0))"
