"""PostgreSQL: types, catalog, unlogged staging tables, ON CONFLICT.

Strings are written to `varchar(n)` by assignment, which rejects strings that are too long, but
silently removes excess trailing spaces; a cast would truncate any string.
"""

import re
from collections.abc import Sequence

from pyspark.sql import types as T

from penstock.sinks.jdbc.dialect import (
    PART,
    Dialect,
    SinkColumn,
    TableColumn,
    Unstorable,
    bare_type,
)
from penstock.sinks.jdbc.options import JdbcSinkOptions, TableName, WriteRows, quote
from penstock.sources.jdbc.database import Database, DatabaseError

ATTEMPT = "penstock_attempt"

_TEXTS = frozenset({"text", "character varying", "character", "citext"})
# Types whose values are sent as strings and converted by the input function of the type.
_FROM_TEXT = frozenset({"uuid", "json", "jsonb", "xml", "inet", "cidr", "macaddr", "macaddr8"})
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


class PostgreSqlDialect(Dialect):
    """See `Dialect`."""

    # A frozen writer must not hold its locks, and no writer waits for a lock forever.
    session = (
        "SET TIME ZONE 'UTC'",
        "SET lock_timeout = '60s'",
        "SET idle_in_transaction_session_timeout = '5min'",
    )
    defaults = {  # noqa: RUF012
        "ApplicationName": "penstock",
        "connectTimeout": "10",
        "tcpKeepAlive": "true",
        # One round trip per statement: a prepared statement would not be reused.
        "prepareThreshold": "0",
    }
    text_type = "text"
    part_function = "spark_partition_id()"
    unstorable = (
        Unstorable(
            # In nested values, which are JSON, the character is an escape sequence.
            message=re.compile("invalid byte sequence for encoding|unsupported Unicode escape"),
            types=(T.StringType,),
            is_in=lambda value: value.contains("\0"),
            name="the character U+0000",
            hint='set {"nulCharacters": "replace"} on the sink to store U+FFFD instead, or keep '
            "such rows apart with an expectation of the table that the flow reads",
        ),
    )
    fence_text = "text"
    fence_time = "timestamptz NOT NULL DEFAULT now()"
    table_kind = "a table"
    upsert_reports_duplicates = True
    integers = {"smallint": 5, "integer": 10, "bigint": 19}  # noqa: RUF012
    floats = {"real": 5, "double precision": 10}  # noqa: RUF012
    decimal = "numeric"
    same_types = {  # noqa: RUF012
        T.FloatType: ("real", "double precision"),
        T.DoubleType: ("double precision",),
        T.BooleanType: ("boolean",),
        T.BinaryType: ("bytea",),
        T.DateType: ("date",),
    }

    # -- types ---------------------------------------------------------------------------------

    def column_type(self, spark_type: T.DataType) -> str | None:
        if isinstance(spark_type, T.DecimalType):
            return f"numeric({spark_type.precision},{spark_type.scale})"
        if isinstance(spark_type, T.CharType | T.VarcharType):
            return f"character varying({spark_type.length})"
        if isinstance(spark_type, T.ArrayType):
            return self._array_type(spark_type)
        return _COLUMN_TYPES.get(type(spark_type))

    def _array_type(self, spark_type: T.ArrayType) -> str | None:
        element = self.column_type(spark_type.elementType)
        if element is None:
            return None
        plain = not isinstance(
            spark_type.elementType,
            T.ArrayType | T.StructType | T.MapType | T.VariantType | T.BinaryType,
        )
        return f"{element}[]" if plain else "jsonb"

    def staged_type(self, spark_type: T.DataType) -> str:
        return _STAGED_TYPES.get(type(spark_type), self.text_type)

    def fits(self, spark_type: T.DataType, column: TableColumn) -> bool:
        wanted, bare = column.type, bare_type(column.type)
        if isinstance(spark_type, T.StringType | T.CharType | T.VarcharType):
            return bare in _TEXTS or bare in _FROM_TEXT or column.is_enum
        if isinstance(spark_type, T.ArrayType) and wanted.endswith("[]"):
            element = TableColumn(name="", type=wanted.removesuffix("[]"))
            # A cast of an array truncates its strings.
            return (
                (self._array_type(spark_type) or "").endswith("[]")
                and not (bare_type(element.type) in _TEXTS and "(" in element.type)
                and self.fits(spark_type.elementType, element)
            )
        if isinstance(spark_type, T.ArrayType | T.StructType | T.MapType | T.VariantType):
            return bare in ("json", "jsonb", "text")
        if isinstance(spark_type, T.TimestampType | T.TimestampNTZType):
            zones = ("with", "without") if isinstance(spark_type, T.TimestampType) else ("without",)
            return wanted in [
                f"timestamp{n} {zone} time zone" for n in ("", "(6)") for zone in zones
            ]
        return self.number_fits(spark_type, wanted, bare)

    def value(self, column: SinkColumn) -> str:
        staged, wanted = f"s.{quote(column.staged)}", column.target_type
        if isinstance(column.spark_type, T.TimestampType):
            # Days separately: the product of a number and an interval is computed as a double.
            local = (
                f"(timestamp 'epoch' + ({staged} / 86400000000)::integer * interval '1 day'"
                f" + ({staged} % 86400000000) * interval '1 microsecond')"
            )
            return f"({local} AT TIME ZONE 'UTC')" if "with time zone" in wanted else local
        if bare_type(wanted).startswith(("date", "timestamp")):
            # Spark writes a plus before a year after 9999, which PostgreSQL reads as a time zone.
            staged = f"""regexp_replace({staged}, '(?<![^"])[+]', '', 'g')"""
        if isinstance(column.spark_type, T.ArrayType) and wanted.endswith("[]"):
            return (
                f"CASE WHEN {staged} IS NOT NULL THEN ARRAY(SELECT e.v FROM "
                f"json_array_elements_text({staged}::json) WITH ORDINALITY AS e(v, o) "
                f"ORDER BY e.o)::{wanted} END"
            )
        return staged if bare_type(wanted) in _TEXTS else f"{staged}::{wanted}"

    def key_value(self, column: SinkColumn) -> str:
        # These types ignore case or trailing spaces.
        compared = {"citext": "citext", "character": "bpchar"}.get(bare_type(column.target_type))
        value = self.value(column) + ("" if compared is None else f"::{compared}")
        return f"{value} COLLATE {column.collation}" if column.collation else value

    # -- statements ----------------------------------------------------------------------------

    def lock(self, database: Database) -> None:
        database.query("SELECT pg_advisory_xact_lock(hashtext('penstock sinks'))")

    def is_table(self, database: Database, table: TableName) -> bool | None:
        rows = database.query("SELECT relkind FROM pg_class WHERE oid = to_regclass(?)", str(table))
        return rows[0][0] in ("r", "p") if rows else None

    def columns(self, database: Database, table: TableName) -> list[TableColumn]:
        rows = database.query(
            # A domain is handled as its base type.
            "SELECT a.attname, CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod)"
            " ELSE format_type(a.atttypid, a.atttypmod) END, a.attnotnull OR t.typnotnull, "
            "a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a', "
            "t.typtype = 'e', "
            "coalesce(c.collnamespace::regnamespace || '.' || quote_ident(c.collname), '') "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "LEFT JOIN pg_collation c ON c.oid = a.attcollation AND NOT c.collisdeterministic "
            "WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped "
            "ORDER BY a.attnum",
            str(table),
        )
        return [
            TableColumn(
                name=str(name),
                type=str(shown),
                not_null=not_null == "t",
                has_default=default == "t",
                generated=generated == "t",
                is_enum=enum == "t",
                collation=str(collation),
            )
            for name, shown, not_null, default, generated, enum, collation in rows
        ]

    def keys_problem(
        self,
        database: Database,
        table: TableName,
        keys: Sequence[str],
        columns: Sequence[SinkColumn],
    ) -> str | None:
        # ON CONFLICT requires a unique index on exactly these columns.
        rows = database.query(
            "SELECT string_agg(a.attname, chr(1) ORDER BY a.attname) "
            "FROM pg_index i JOIN pg_attribute a "
            "ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1]) "
            "WHERE i.indrelid = to_regclass(?) AND i.indisunique AND i.indpred IS NULL "
            "AND i.indexprs IS NULL AND i.indimmediate AND i.indisvalid GROUP BY i.indexrelid",
            str(table),
        )
        wanted = sorted(keys)
        if any(sorted(str(names).split("\1")) == wanted for (names,) in rows):
            return None
        return f"has no primary key or unique index on exactly {', '.join(keys)}"

    def leftovers(self, database: Database, schema: str | None, prefix: str) -> list[TableName]:
        rows = database.query(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND c.relpersistence = 'u' "
            "AND n.nspname = coalesce(nullif(?, ''), current_schema()) "
            "AND starts_with(c.relname, ?)",
            schema or "",
            prefix,
        )
        return [TableName(str(namespace), str(table)) for namespace, table in rows]

    def staging_options(self, database: Database) -> dict[str, str]:
        return {"reWriteBatchedInserts": "true"}

    def make_staging(
        self, database: Database, staging: TableName, columns: Sequence[SinkColumn]
    ) -> None:
        listed = ", ".join(f"{quote(c.staged)} {c.staged_type}" for c in columns)
        with database.transaction():
            database.execute(
                f"CREATE UNLOGGED TABLE {staging} ({listed}, {quote(PART)} integer NOT NULL, "
                f"{quote(ATTEMPT)} bigint NOT NULL DEFAULT txid_current())"
            )
            database.execute(f"INSERT INTO {staging} ({quote(PART)}) VALUES (-1)")

    def count_staged(
        self, database: Database, staging: TableName
    ) -> tuple[int, list[tuple[int, int]]]:
        rows = database.query(
            f"SELECT {quote(PART)}, {quote(ATTEMPT)}, count(*) FROM {staging} GROUP BY 1, 2 "
            "ORDER BY 1, 2"
        )
        counts = [tuple(int(str(value)) for value in row) for row in rows]
        if not any(part == -1 for part, _, _ in counts):
            raise DatabaseError("08000", "the server lost the staging table in a crash")
        chosen: dict[int, tuple[int, int]] = {}
        for part, attempt, count in counts:
            if part >= 0:
                chosen.setdefault(part, (attempt, count))
        # Not empty without repeated tasks: one may commit between this statement and the next.
        attempts = [(part, attempt) for part, (attempt, _) in chosen.items()]
        return sum(count for _, count in chosen.values()), attempts

    def move_rows(
        self,
        staging: TableName,
        columns: Sequence[SinkColumn],
        options: JdbcSinkOptions,
        attempts: Sequence[tuple[int, int]],
    ) -> str:
        by_name = {column.source.lower(): column for column in columns}
        names = ", ".join(quote(column.target) for column in columns)
        values = ", ".join(self.value(column) for column in columns)
        distinct = order = ""
        keys = [by_name[key.lower()] for key in options.keys]
        if options.sequence_by is not None:
            key_values = ", ".join(self.key_value(key) for key in keys)
            newest = self.value(by_name[options.sequence_by.lower()])
            # Rows with the same key and sequence are ordered as text: a deterministic choice.
            distinct = f"DISTINCT ON ({key_values}) "
            text = ", ".join(f"s.{quote(column.staged)}::text" for column in columns)
            order = f" ORDER BY {key_values}, {newest} DESC NULLS LAST, ROW({text})::text DESC"
        where = f"s.{quote(PART)} >= 0"
        if attempts:  # empty without rows
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
