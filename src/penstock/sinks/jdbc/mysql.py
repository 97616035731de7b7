"""MariaDB and MySQL, through MariaDB's driver: types, catalog, ON DUPLICATE KEY UPDATE.

* Sessions use strict mode, so that the server rejects values that do not fit instead of changing
  them, except for excess trailing spaces of a `varchar(n)`, which it silently removes; and
  ANSI_QUOTES, so that names are quoted as in standard SQL.
* DDL commits implicitly: the transaction that moves the rows contains none.
* Staging tables are logged, and survive a crash. Their primary key, the number of the row in Spark,
  rejects the rows of a repeated task.
"""

import re
from collections.abc import Sequence

from pyspark.sql import functions as F
from pyspark.sql import types as T

from penstock.sinks.jdbc.dialect import PART, Dialect, SinkColumn, TableColumn, Unstorable
from penstock.sinks.jdbc.options import JdbcSinkOptions, TableName, WriteRows, quote
from penstock.sources.jdbc.database import Database, DatabaseError

_UTF8 = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_SESSION = {
    "sessionVariables": (
        "sql_mode='STRICT_ALL_TABLES,ANSI_QUOTES,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
        "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION',time_zone='+00:00'"
    ),
    # Otherwise, a server could request files from the driver.
    "allowLocalInfile": "false",
}
_JSON = T.ArrayType | T.StructType | T.MapType | T.VariantType
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum"})
# Types whose values are sent as strings and converted by the server.
_FROM_TEXT = frozenset({"uuid", "inet4", "inet6", "json"})
_WITHOUT_COLLATION = frozenset({"uuid", "inet4", "inet6"})
_SAME_TYPES: dict[type[T.DataType], str] = {
    T.ShortType: "smallint",
    T.IntegerType: "int",
    T.LongType: "bigint",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.BooleanType: "tinyint(1)",
    T.BinaryType: "longblob",
}
_STAGED_TYPES: dict[type[T.DataType], str] = {
    **_SAME_TYPES,
    T.ByteType: "smallint",
    T.FloatType: "double",
    T.TimestampType: "bigint",
}
_COLUMN_TYPES: dict[type[T.DataType], str] = {
    **_SAME_TYPES,
    T.ByteType: "tinyint",
    T.StringType: "longtext",
    T.DateType: "date",
    # The type `timestamp` ends in 2038.
    T.TimestampType: "datetime(6)",
    T.TimestampNTZType: "datetime(6)",
}
_LONGEST_VARCHAR = 16383
# 255 characters of 4 bytes: an index entry has at most 3072 bytes.
_KEY_LENGTH = 255


class MySqlDialect(Dialect):
    """MariaDB 10.2 or later, MySQL 8.0.17 or later: window functions, NO PAD collations."""

    session = (
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        # A frozen writer must not hold its locks, and no writer waits for a lock forever.
        "SET innodb_lock_wait_timeout = 60, lock_wait_timeout = 60, wait_timeout = 300",
    )
    defaults = {"connectTimeout": "10000", "tcpKeepAlive": "true", **_SESSION}  # noqa: RUF012
    text_type = "longtext"
    part_function = "monotonically_increasing_id()"
    unstorable = (
        Unstorable(
            # Staged numbers have Spark's types: no other values are out of range.
            message=re.compile(
                r"Out of range value for column \S*\bc\d+\b|Unknown column '(NaN|Infinity)'"
            ),
            types=(T.FloatType, T.DoubleType),
            is_in=lambda value: F.isnan(value) | (F.abs(value) == float("inf")),
            name="NaN or Infinity",
            hint="replace it by NULL in the query",
        ),
        Unstorable(
            message=re.compile("max_allowed_packet"),
            types=(T.StringType, T.BinaryType),
            is_in=lambda value: F.octet_length(value) > 1_000_000,
            name="a row longer than max_allowed_packet",
            hint="increase max_allowed_packet of the server",
        ),
    )
    fence_text = f"varchar({_KEY_LENGTH})"
    table_kind = "a table of the engine InnoDB"
    # Each server ignores the other's comment. In these collations, 'a' does not equal 'a '.
    table_options = (
        " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE "
        "/*M!100200 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */"
    )
    upsert_reports_duplicates = False
    integers = dict(tinyint=3, smallint=5, mediumint=7, int=10, bigint=19)  # noqa: RUF012, C408
    floats = {"float": 5, "double": 10}  # noqa: RUF012
    decimal = "decimal"
    same_types = {  # noqa: RUF012
        T.FloatType: ("float", "double"),
        T.DoubleType: ("double",),
        T.BinaryType: ("longblob", "mediumblob", "blob", "tinyblob", "varbinary"),
        T.DateType: ("date",),
    }

    # -- types ---------------------------------------------------------------------------------

    def column_type(self, spark_type: T.DataType) -> str | None:
        if isinstance(spark_type, T.DecimalType):
            return f"decimal({spark_type.precision},{spark_type.scale})"
        if isinstance(spark_type, T.CharType | T.VarcharType):
            is_short = spark_type.length <= _LONGEST_VARCHAR
            return f"varchar({spark_type.length})" if is_short else "longtext"
        if isinstance(spark_type, _JSON):
            return "json"
        return _COLUMN_TYPES.get(type(spark_type))

    def key_type(self, spark_type: T.DataType) -> str | None:
        is_string = isinstance(spark_type, T.StringType)
        return f"varchar({_KEY_LENGTH})" if is_string else self.column_type(spark_type)

    def staged_type(self, spark_type: T.DataType) -> str:
        if isinstance(spark_type, T.DecimalType):
            return f"decimal({spark_type.precision},{spark_type.scale})"
        return _STAGED_TYPES.get(type(spark_type), self.text_type)

    def fits(self, spark_type: T.DataType, column: TableColumn) -> bool:
        # Negative numbers are refused by unsigned types.
        wanted = re.sub(r" (unsigned|zerofill)", "", column.type)
        bare = wanted.partition("(")[0]
        if isinstance(spark_type, T.StringType | T.CharType | T.VarcharType):
            return bare in _TEXTS or bare in _FROM_TEXT
        if isinstance(spark_type, _JSON):
            return bare in ("json", "longtext", "mediumtext", "text")
        if isinstance(spark_type, T.TimestampType):
            return wanted in ("datetime(6)", "timestamp(6)")
        if isinstance(spark_type, T.TimestampNTZType):
            return wanted == "datetime(6)"
        if isinstance(spark_type, T.BooleanType):
            return wanted in ("tinyint(1)", "bit(1)")
        # float(7,2) rounds.
        is_rounded = bare in self.floats and "(" in wanted
        return not is_rounded and self.number_fits(spark_type, wanted, bare)

    def value(self, column: SinkColumn) -> str:
        staged = f"s.{quote(column.staged)}"
        if isinstance(column.spark_type, T.TimestampType):
            return f"TIMESTAMP '1970-01-01 00:00:00' + INTERVAL {staged} MICROSECOND"
        return staged

    def key_value(self, column: SinkColumn) -> str:
        value, bare = self.value(column), column.target_type.partition("(")[0]
        if bare in _WITHOUT_COLLATION:
            return f"CAST({value} AS {bare})"
        if not column.collation:
            return value
        charset = column.collation.partition("_")[0]
        return f"CONVERT({value} USING {charset}) COLLATE {column.collation}"

    # -- statements ----------------------------------------------------------------------------

    def lock(self, database: Database) -> None:
        if database.query("SELECT GET_LOCK('penstock sinks', 60)") != [("1",)]:
            raise DatabaseError("40001", "another flow has been making its tables for 60 seconds")

    def is_table(self, database: Database, table: TableName) -> bool | None:
        where, names = _named(table)
        rows = database.query(f"SELECT ENGINE FROM information_schema.TABLES WHERE {where}", *names)
        return rows[0][0] == "InnoDB" if rows else None

    def columns(self, database: Database, table: TableName) -> list[TableColumn]:
        where, names = _named(table)
        rows = database.query(
            "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT IS NOT NULL "
            "OR EXTRA LIKE '%auto_increment%', EXTRA LIKE '%VIRTUAL%' OR EXTRA LIKE '%STORED%', "
            "COALESCE(COLLATION_NAME, '') FROM information_schema.COLUMNS "
            f"WHERE {where} ORDER BY ORDINAL_POSITION",
            *names,
        )
        return [
            TableColumn(
                name=str(name),
                type=str(shown),
                not_null=nullable == "NO",
                has_default=default == "1",
                generated=generated == "1",
                collation=str(collation),
            )
            for name, shown, nullable, default, generated, collation in rows
        ]

    def keys_problem(
        self,
        database: Database,
        table: TableName,
        keys: Sequence[str],
        columns: Sequence[SinkColumn],
    ) -> str | None:
        # ON DUPLICATE KEY UPDATE cannot name an index: it applies to matches of any index.
        where, names = _named(table)
        automatic = {
            str(name)
            for (name,) in database.query(
                "SELECT COLUMN_NAME FROM information_schema.COLUMNS "
                f"WHERE {where} AND EXTRA LIKE '%auto_increment%'",
                *names,
            )
        } - {column.target for column in columns}
        indexes: dict[str, list[str]] = {}
        for index, name, prefix in database.query(
            "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS "
            f"WHERE {where} AND NON_UNIQUE = 0",
            *names,
        ):
            indexes.setdefault(str(index), []).append(str(name) if prefix is None else "")
        if not any(set(listed) == set(keys) for listed in indexes.values()):
            return f"has no primary key or unique index on exactly {', '.join(keys)}"
        for index, listed in indexes.items():
            if not set(keys) <= set(listed) and not automatic & set(listed):
                return (
                    f"has another unique index, {index}: an upsert would update the row that has "
                    f"the same values there, regardless of its {', '.join(keys)}"
                )
        return None

    def leftovers(self, database: Database, schema: str | None, prefix: str) -> list[TableName]:
        where, names = _named(TableName(schema, f"{prefix}%"))
        rows = database.query(
            "SELECT TABLE_NAME FROM information_schema.TABLES "
            f"WHERE {where.replace('NAME =', 'NAME LIKE')}",
            *names,
        )
        return [TableName(schema, str(table)) for (table,) in rows]

    def staging_options(self, database: Database) -> dict[str, str]:
        # Otherwise, the server closes a connection that sends a longer row.
        ((packet,),) = database.query("SELECT @@max_allowed_packet")
        return {**_SESSION, "maxAllowedPacket": str(packet)}

    def make_staging(
        self, database: Database, staging: TableName, columns: Sequence[SinkColumn]
    ) -> None:
        listed = ", ".join(f"{quote(c.staged)} {c.staged_type}" for c in columns)
        database.execute(
            f"CREATE TABLE {staging} ({listed}, {quote(PART)} bigint NOT NULL PRIMARY KEY) "
            f"ENGINE=InnoDB DEFAULT {_UTF8}"
        )

    def count_staged(
        self, database: Database, staging: TableName
    ) -> tuple[int, list[tuple[int, int]]]:
        ((rows,),) = database.query(f"SELECT COUNT(*) FROM {staging}")
        return int(rows or 0), []

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
        source = f"{staging} AS s"
        if options.sequence_by is not None:
            keys = ", ".join(self.key_value(by_name[key.lower()]) for key in options.keys)
            newest = self.key_value(by_name[options.sequence_by.lower()])
            # NULL sorts lowest. Rows with the same key and sequence are ordered by all values, so
            # that the choice is deterministic.
            order = ", ".join(f"s.{quote(column.staged)} DESC" for column in columns)
            source = (
                f"(SELECT s.*, ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY {newest} DESC, "
                f"{order}) AS penstock_rank FROM {source}) AS s WHERE s.penstock_rank = 1"
            )
        insert = f"INSERT INTO {options.table} ({names}) SELECT {values} FROM {source}"
        if options.mode is WriteRows.APPEND:
            return insert
        keyed = {by_name[key.lower()] for key in options.keys}
        # If all columns are keys, the first one is set to its current value.
        others = [column for column in columns if column not in keyed]
        changes = []
        for column in others or columns[:1]:
            old, new = f"{options.table}.{quote(column.target)}", f"VALUES({quote(column.target)})"
            if not others:
                new = old
            elif options.sequence_by is not None:
                sequence = quote(by_name[options.sequence_by.lower()].target)
                known = f"{options.table}.{sequence}"
                is_newer = f"{known} IS NULL OR {known} <= VALUES({sequence})"
                new = f"IF({is_newer}, {new}, {old})"
            changes.append(f"{old} = {new}")
        return f"{insert} ON DUPLICATE KEY UPDATE {', '.join(changes)}"


def _named(table: TableName) -> tuple[str, list[str]]:
    """A condition that selects a table in the catalog, and its values."""
    if table.schema is None:
        return "TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?", [table.table]
    return "TABLE_SCHEMA = ? AND TABLE_NAME = ?", [table.schema, table.table]
