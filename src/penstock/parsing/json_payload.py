"""JSON payloads to columns, strictly: invalid JSON that Spark silently accepts is an error.

Spark's `from_json` stops after the first value, so `{"id": 1}{"id": 2}` and `{"id": 1} rubbish`
would lose what follows. It replaces bytes that are not UTF-8, and reports no error for a NULL or
empty payload.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from penstock._model.origin import capture_origin
from penstock._model.sql_text import quoted
from penstock.errors import DefinitionError
from penstock.parsing.exponents import REASON, huge_number
from penstock.parsing.outcome import require_column, spread
from penstock.parsing.schema import to_struct

_CORRUPT = "__penstock_corrupt"
_PARSED = "__penstock_parsed"
# The element after the payload in an array of both; it is assumed not to occur in payloads.
_END = "penstock:end-of-payload"
_BLANKS = " \t\r\n"
_SHOWN_FIELDS = 20
_LONGEST_NAMED = 100_000


def parse_json(
    df: DataFrame,
    column: str = "value",
    *,
    schema: StructType | str,
    into: str | None = None,
    extra_fields: Literal["ignore", "error", "keep"] = "ignore",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Parse a column of JSON objects into columns.

    The payload's column is replaced by those of the schema, and `_parse_error` and `_raw_payload`
    are added, both NULL if there is no error. A row has an error if its payload is NULL, empty, not
    UTF-8, not exactly one JSON object, has a value of the wrong type, or lacks a `NOT NULL` field.
    The columns still have the values that could be parsed. Missing fields are NULL.

    Args:
        df: Streaming or batch DataFrame.
        column: STRING or BINARY.
        schema: Struct or DDL; see also `schema_from_file` and `schema_from_sample`.
        into: Name of a struct that holds the columns together; separate columns by default.
        extra_fields: Top-level fields that the schema does not have are ignored, an error, or kept
            in the map `_extra_fields`.
        options: Options of Spark's JSON source, such as `timestampFormat`.

    Raises:
        DefinitionError: `PAYLOAD_COLUMN_INVALID`, `PAYLOAD_SCHEMA_INVALID`, `PARSED_COLUMN_EXISTS`
            or `INVALID_PARAMETER`.
    """
    if extra_fields not in ("ignore", "error", "keep"):
        raise DefinitionError(
            "INVALID_PARAMETER",
            f"extra_fields is {extra_fields!r}",
            origin=capture_origin(),
            hint="it must be `ignore`, `error` or `keep`",
        )
    name = require_column(df, column)
    struct = to_struct(schema)
    text = F.col(quoted(name)).cast("string")
    with_corrupt = StructType([*struct.fields, StructField(_CORRUPT, StringType())])
    settings = {**(options or {}), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    huge = huge_number(text, struct)
    safe = text if huge is None else F.when(~huge, text)
    prepared = df.withColumn(_PARSED, F.from_json(safe, with_corrupt, settings))
    parsed = F.col(_PARSED)
    return spread(
        prepared,
        name,
        schema=struct,
        parsed=F.struct(*[parsed.getField(f.name).alias(f.name) for f in struct])
        if into
        else parsed,
        error=_error(text, parsed, struct, extra_fields, huge),
        into=into,
        extra=_extra(text, struct) if extra_fields == "keep" else None,
    )


def _error(
    text: Column, parsed: Column, struct: StructType, extra_fields: str, huge: Column | None
) -> Column:
    whole = F.get_json_object(F.concat(F.lit("["), text, F.lit(f',"{_END}"]')), "$[1]") == _END
    bare = F.btrim(text, F.lit(_BLANKS))
    first = F.substring(bare, 1, 1)
    outcome = (
        F.when(text.isNull(), "the payload is NULL")
        .when(~F.is_valid_utf8(text), "the payload is not UTF-8")
        .when(bare == "", "the payload is empty")
        # Evaluated again only if nothing was parsed.
        .when(F.lit(False) if huge is None else parsed.isNull() & huge, REASON)
        .when(~F.coalesce(whole, F.lit(False)), "the payload is not one JSON value")
        .when(first == "[", "the payload is a JSON array, not an object")
        .when(first != "{", "the payload is a JSON value, not an object")
    )
    wrong = F.when(parsed.getField(_CORRUPT).isNotNull(), _wrong_types(text, parsed, struct))
    reasons = [wrong, _missing(parsed, struct)]
    if extra_fields == "error":
        unknown = F.array_except(F.json_object_keys(text), _names(struct))
        reasons.append(
            F.when(F.size(unknown) > 0, F.concat(F.lit("unknown fields: "), _listed(unknown)))
        )
    return outcome.otherwise(F.nullif(F.concat_ws("; ", *reasons), F.lit("")))


def _wrong_types(text: Column, parsed: Column, struct: StructType) -> Column:
    """A message with the fields that are present, but could not be parsed."""
    reasons = [
        F.when(
            F.get_json_object(text, path).isNotNull() & value.isNull(),
            f"{label} {data_type.upper()}",
        )
        for path, label, value, data_type in _leaves(struct, parsed, "$", "")
    ]
    fields = F.array_compact(F.array(*reasons))
    named = F.when(F.size(fields) > 0, F.concat(F.lit("values do not fit: "), _listed(fields)))
    # Each field is extracted from the text again: too much memory for a huge text.
    is_short = F.length(text) <= _LONGEST_NAMED
    return F.coalesce(F.when(is_short, named), F.lit("a value does not fit the schema"))


def _leaves(
    struct: StructType, value: Column, path: str, prefix: str
) -> Iterator[tuple[str, str, Column, str]]:
    for field in struct:
        if "'" in field.name:
            continue  # a JSON path cannot name such a field
        inner_path, label = f"{path}['{field.name}']", f"{prefix}{field.name}"
        inner = value.getField(field.name)
        yield inner_path, label, inner, field.dataType.simpleString()
        if isinstance(field.dataType, StructType):
            yield from _leaves(field.dataType, inner, inner_path, f"{label}.")


def _missing(parsed: Column, struct: StructType) -> Column:
    reasons = [*_absent(struct, parsed, "")]
    if not reasons:
        return F.lit(None).cast("string")
    fields = F.array_compact(F.array(*reasons))
    return F.when(F.size(fields) > 0, F.concat(F.lit("NULL or missing: "), _listed(fields)))


def _absent(struct: StructType, value: Column, prefix: str) -> Iterator[Column]:
    for field in struct:
        inner, label = value.getField(field.name), f"{prefix}{field.name}"
        if not field.nullable:
            yield F.when(value.isNotNull() & inner.isNull(), label)
        if isinstance(field.dataType, StructType):
            yield from _absent(field.dataType, inner, f"{label}.")


def _extra(text: Column, struct: StructType) -> Column:
    """The fields that are not in the schema, as strings."""
    fields = F.from_json(text, "MAP<STRING, STRING>")
    kept = F.map_filter(fields, lambda key, _: ~F.array_contains(_names(struct), key))
    return F.when(F.size(kept) > 0, kept)


def _names(struct: StructType) -> Column:
    return F.array(*[F.lit(field.name) for field in struct])


def _listed(names: Column) -> Column:
    return F.array_join(F.slice(names, 1, _SHOWN_FIELDS), ", ")
