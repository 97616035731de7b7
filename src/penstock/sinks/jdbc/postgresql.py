"""Types of Spark and PostgreSQL: how columns are staged, converted and compared.

Rows reach the target in two steps. Spark writes them into a staging table with the few types that
the driver transfers exactly: timestamps are microseconds, dates and local timestamps ISO strings,
nested values JSON. One statement then converts them. Conversions that could shorten a value
silently are not used: strings go to `varchar(n)` by assignment, which refuses too long ones.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import types as T

from penstock.errors import ConnectorError
from penstock.sinks.jdbc.options import JdbcSinkOptions, WriteRows, quote

__all__ = ["SinkColumn", "TableColumn", "create_table", "fit_columns", "move_rows"]

PART = "penstock_part"
ATTEMPT = "penstock_attempt"

_INTEGERS = {"smallint": 5, "integer": 10, "bigint": 19}
_TEXTS = frozenset({"text", "character varying", "character", "citext"})
# Types that are given as text and converted by their own input function.
_FROM_TEXT = frozenset({"uuid", "json", "jsonb", "xml", "inet", "cidr", "macaddr", "macaddr8"})
_SECONDS = re.compile(r"\((\d)\)")
_SAME_TYPES: dict[type[T.DataType], str] = {
    T.ByteType: "smallint",
    T.ShortType: "smallint",
    T.IntegerType: "integer",
    T.LongType: "bigint",
    T.FloatType: "real",
    T.DoubleType: "double precision",
    T.BooleanType: "boolean",
    T.BinaryType: "bytea",
}
_STAGED_TYPES = {**_SAME_TYPES, T.DecimalType: "numeric", T.TimestampType: "bigint"}
_COLUMN_TYPES = {
    **_SAME_TYPES,
    T.StringType: "text",
    T.DateType: "date",
    T.TimestampType: "timestamp with time zone",
    T.TimestampNTZType: "timestamp without time zone",
    T.StructType: "jsonb",
    T.MapType: "jsonb",
    T.VariantType: "jsonb",
}


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of the target."""

    name: str
    type: str  # as PostgreSQL shows it: `numeric(10,2)`, `integer[]`
    not_null: bool = False
    has_default: bool = False
    generated: bool = False  # no value may be given
    is_enum: bool = False


@dataclass(frozen=True, kw_only=True)
class SinkColumn:
    """A column of the query, of the staging table and of the target."""

    source: str
    spark_type: T.DataType
    staged: str
    target: str
    target_type: str

    @property
    def staged_type(self) -> str:
        return _STAGED_TYPES.get(type(self.spark_type), "text")

    @property
    def value(self) -> str:
        """The SQL expression that converts the staged value to the type of the target."""
        staged, wanted = f"s.{quote(self.staged)}", self.target_type
        if isinstance(self.spark_type, T.TimestampType):
            # Days apart: an interval of microseconds alone is computed in floating point.
            local = (
                f"(timestamp 'epoch' + ({staged} / 86400000000)::integer * interval '1 day'"
                f" + ({staged} % 86400000000) * interval '1 microsecond')"
            )
            return f"({local} AT TIME ZONE 'UTC')" if "with time zone" in wanted else local
        if isinstance(self.spark_type, T.ArrayType) and wanted.endswith("[]"):
            return (
                f"CASE WHEN {staged} IS NOT NULL THEN ARRAY(SELECT e.v FROM "
                f"json_array_elements_text({staged}::json) WITH ORDINALITY AS e(v, o) "
                f"ORDER BY e.o)::{wanted} END"
            )
        return staged if _bare(wanted) in _TEXTS else f"{staged}::{wanted}"


def _bare(pg_type: str) -> str:
    """A type without its length or precision."""
    return re.sub(r"\(.*?\)", "", pg_type).strip()


# -- types of new tables ------------------------------------------------------------------------


def column_type(spark_type: T.DataType) -> str | None:
    """The type of a new column; `None` for an unsupported type."""
    if isinstance(spark_type, T.DecimalType):
        return f"numeric({spark_type.precision},{spark_type.scale})"
    if isinstance(spark_type, T.CharType | T.VarcharType):
        return f"character varying({spark_type.length})"
    if isinstance(spark_type, T.ArrayType):
        return _array_type(spark_type)
    return _COLUMN_TYPES.get(type(spark_type))


def _array_type(spark_type: T.ArrayType) -> str | None:
    element = column_type(spark_type.elementType)
    if element is None:
        return None
    plain = not isinstance(
        spark_type.elementType,
        T.ArrayType | T.StructType | T.MapType | T.VariantType | T.BinaryType,
    )
    return f"{element}[]" if plain else "jsonb"


def create_table(schema: T.StructType, options: JdbcSinkOptions) -> str:
    """The CREATE TABLE statement of the target of a query."""
    keys = {key.lower() for key in options.keys}
    lines = []
    for field in schema.fields:
        wanted = column_type(field.dataType)
        if wanted is None:
            raise _incompatible(options, [f"column {field.name}: {_no_type(field.dataType)}"])
        null = " NOT NULL" if field.name.lower() in keys else ""
        lines.append(f"{quote(field.name)} {wanted}{null}")
    if options.mode is WriteRows.UPSERT:
        named = {field.name.lower(): field.name for field in schema.fields}
        columns = ", ".join(quote(named.get(key.lower(), key)) for key in options.keys)
        lines.append(f"PRIMARY KEY ({columns})")
    return f"CREATE TABLE {options.table} (\n  " + ",\n  ".join(lines) + "\n)"


# -- a table that is there ----------------------------------------------------------------------


def fit_columns(
    schema: T.StructType, table: Sequence[TableColumn], options: JdbcSinkOptions
) -> tuple[SinkColumn, ...]:
    """Match the columns of a query with those of the target; the error lists all problems."""
    exact = {column.name: column for column in table}
    folded: dict[str, list[TableColumn]] = {}
    for column in table:
        folded.setdefault(column.name.lower(), []).append(column)
    columns: list[SinkColumn] = []
    problems: list[str] = []
    taken: set[str] = set()
    for at, field in enumerate(schema.fields):
        alike = folded.get(field.name.lower(), [])
        target = exact.get(field.name) or (alike[0] if len(alike) == 1 else None)
        if target is None:
            near = difflib.get_close_matches(field.name.lower(), folded, n=1)
            also = f" (did you mean {near[0]}?)" if near else ""
            problems.append(f"the table has no column {field.name}{also}")
            continue
        taken.add(target.name)
        reason = misfit(field.dataType, target)
        if reason is not None:
            problems.append(f"column {field.name}: {reason}")
            continue
        columns.append(
            SinkColumn(
                source=field.name,
                spark_type=field.dataType,
                staged=f"c{at}",
                target=target.name,
                target_type=target.type,
            )
        )
    problems += [
        f"the table's column {column.name} is NOT NULL without a default, and the query lacks it"
        for column in table
        if column.name not in taken and column.not_null and not column.has_default
    ]
    names = {field.name.lower() for field in schema.fields}
    named = [*options.keys, *([options.sequence_by] if options.sequence_by else [])]
    problems += [f"the query has no column {name}" for name in named if name.lower() not in names]
    if problems:
        raise _incompatible(options, problems)
    return tuple(columns)


def misfit(spark_type: T.DataType, column: TableColumn) -> str | None:
    """Why values of a type cannot be stored in a column; `None` if all of them can."""
    if column.generated:
        return "the table computes it by itself"
    if column_type(spark_type) is None:
        return _no_type(spark_type)
    if _fits(spark_type, column):
        return None
    return f"{spark_type.simpleString()} does not fit into {column.type}"


def _fits(spark_type: T.DataType, column: TableColumn) -> bool:
    wanted, bare = column.type, _bare(column.type)
    if isinstance(spark_type, T.StringType | T.CharType | T.VarcharType):
        return bare in _TEXTS or bare in _FROM_TEXT or column.is_enum
    if isinstance(spark_type, T.ArrayType) and wanted.endswith("[]"):
        element = TableColumn(name="", type=wanted.removesuffix("[]"))
        # A cast of an array shortens its strings.
        return (
            (_array_type(spark_type) or "").endswith("[]")
            and not (_bare(element.type) in _TEXTS and "(" in element.type)
            and _fits(spark_type.elementType, element)
        )
    if isinstance(spark_type, T.ArrayType | T.StructType | T.MapType | T.VariantType):
        return bare in ("json", "jsonb", "text")
    if isinstance(spark_type, T.TimestampType):
        return _timestamp_fits(wanted, bare, ("with", "without"))
    if isinstance(spark_type, T.TimestampNTZType):
        return _timestamp_fits(wanted, bare, ("without",))
    return _number_fits(spark_type, wanted, bare)


def _timestamp_fits(wanted: str, bare: str, zones: tuple[str, ...]) -> bool:
    digits = _SECONDS.search(wanted)
    names = {re.sub(r"\s+", " ", f"timestamp {zone} time zone") for zone in zones}
    return re.sub(r"\s+", " ", bare) in names and (digits is None or digits[1] == "6")


def _number_fits(spark_type: T.DataType, wanted: str, bare: str) -> bool:
    digits: dict[type[T.DataType], int] = {
        T.ByteType: 5,
        T.ShortType: 5,
        T.IntegerType: 10,
        T.LongType: 19,
    }
    whole = digits.get(type(spark_type))
    if whole is not None:
        if bare in _INTEGERS:
            return _INTEGERS[bare] >= whole
        exact = {"real": 5, "double precision": 10}.get(bare, 0) >= whole
        return exact or (bare == "numeric" and _digits(wanted) >= (whole, 0))
    if isinstance(spark_type, T.DecimalType):
        before, after = spark_type.precision - spark_type.scale, spark_type.scale
        if bare == "numeric":
            whole_digits, fraction = _digits(wanted)
            return whole_digits >= before and fraction >= after
        # The largest numbers of a type are not all nines.
        return after == 0 and _INTEGERS.get(bare, 0) > before
    same: dict[type[T.DataType], tuple[str, ...]] = {
        T.FloatType: ("real", "double precision"),
        T.DoubleType: ("double precision",),
        T.BooleanType: ("boolean",),
        T.BinaryType: ("bytea",),
        T.DateType: ("date",),
    }
    return bare in same.get(type(spark_type), ())


def _digits(numeric: str) -> tuple[int, int]:
    """Digits before and after the point that a numeric type holds."""
    match = re.search(r"\((\d+),(-?\d+)\)", numeric)
    if match is None:
        return 131072, 16383
    precision, scale = int(match[1]), int(match[2])
    return precision - scale, scale


def _no_type(kind: T.DataType) -> str:
    return f"PostgreSQL has no type for {kind.simpleString()}; cast it"


def _incompatible(options: JdbcSinkOptions, problems: Sequence[str]) -> ConnectorError:
    return ConnectorError(
        "SINK_SCHEMA_INCOMPATIBLE",
        f"the query does not fit into table {options.table}: {'; '.join(problems)}",
        hint="select and cast in the query, or alter the table; nothing was read or written",
    )


# -- from staging to the target -----------------------------------------------------------------


def move_rows(
    staging: str,
    columns: Sequence[SinkColumn],
    options: JdbcSinkOptions,
    attempts: Sequence[tuple[int, int]],
) -> str:
    """The statement that adds the staged rows to the target.

    `attempts` are partition and attempt of the rows that count, if some do not.
    """
    by_name = {column.source.lower(): column for column in columns}
    names = ", ".join(quote(column.target) for column in columns)
    values = ", ".join(column.value for column in columns)
    distinct = order = ""
    keys = [by_name[key.lower()] for key in options.keys]
    if options.sequence_by is not None:
        key_values = ", ".join(key.value for key in keys)
        newest = by_name[options.sequence_by.lower()].value
        # Rows alike in key and sequence are ordered by their text, so that the choice is stable.
        distinct = f"DISTINCT ON ({key_values}) "
        text = ", ".join(f"s.{quote(column.staged)}::text" for column in columns)
        order = f" ORDER BY {key_values}, {newest} DESC NULLS LAST, ROW({text})::text DESC"
    where = f"s.{quote(PART)} >= 0"
    if attempts:
        pairs = ", ".join(f"({part}, {attempt})" for part, attempt in attempts)
        where += f" AND (s.{quote(PART)}, s.{quote(ATTEMPT)}) IN ({pairs})"
    insert = f"INSERT INTO {options.table} AS t ({names}) SELECT {distinct}{values} "
    insert += f"FROM {staging} AS s WHERE {where}{order}"
    if options.mode is WriteRows.APPEND:
        return insert
    conflict = ", ".join(quote(key.target) for key in keys)
    others = [column for column in columns if column not in keys]
    if not others:
        return f"{insert} ON CONFLICT ({conflict}) DO NOTHING"
    changes = ", ".join(f"{quote(c.target)} = EXCLUDED.{quote(c.target)}" for c in others)
    upsert = f"{insert} ON CONFLICT ({conflict}) DO UPDATE SET {changes}"
    if options.sequence_by is not None:
        sequence = quote(by_name[options.sequence_by.lower()].target)
        upsert += f" WHERE t.{sequence} IS NULL OR t.{sequence} <= EXCLUDED.{sequence}"
    return upsert
