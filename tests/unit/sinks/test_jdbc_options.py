import pytest
from pyspark.sql import types as T

from penstock.errors import ConnectorError
from penstock.sinks.jdbc.connection import dialect_of
from penstock.sinks.jdbc.dialect import TableColumn
from penstock.sinks.jdbc.options import (
    MYSQL,
    POSTGRESQL,
    TableName,
    WriteRows,
    jdbc_sink_options,
    table_name,
)

ON_POSTGRESQL = {"url": "jdbc:postgresql://db:5432/shop", "dbtable": "sales.orders"}
ON_MYSQL = {"url": "jdbc:mysql://db:3306/shop?sslMode=verify-full", "dbtable": "Orders"}


def condition(**options: str) -> str:
    with pytest.raises(ConnectorError) as caught:
        jdbc_sink_options({**ON_POSTGRESQL, **options})
    return caught.value.condition


def test_defaults_apply_when_only_url_and_table_are_set():
    options = jdbc_sink_options({**ON_POSTGRESQL, "url": ON_POSTGRESQL["url"] + "?sslmode=require"})
    assert options.table == TableName("sales", "orders")
    assert options.fence == TableName("sales", "penstock_fence")
    assert options.staging_schema == "sales"
    assert (options.mode, options.keys, options.create_table) == (WriteRows.APPEND, (), True)
    assert options.connection == {"sslmode": "require"}
    assert options.url == ON_POSTGRESQL["url"]
    assert options.place == "db:5432/shop"


def test_secrets_are_not_in_the_repr_of_options():
    options = jdbc_sink_options({**ON_POSTGRESQL, "user": "me", "password": "pssst"})
    assert options.connection["password"] == "pssst"
    assert "pssst" not in repr(options)
    assert "db:5432" not in repr(options)


@pytest.mark.parametrize(
    ("text", "name", "system"),
    [
        ("Orders", TableName(None, "orders"), POSTGRESQL),
        ('"Or""ders"', TableName(None, 'Or"ders'), POSTGRESQL),
        ('s . "a.b"', TableName("s", "a.b"), POSTGRESQL),
        ("Orders", TableName(None, "Orders"), MYSQL),
        ("Shop.`a``b`", TableName("Shop", "a`b"), MYSQL),
        ("x" * 64, TableName(None, "x" * 64), MYSQL),
    ],
)
def test_table_names_are_parsed_as_in_sql(text, name, system):
    assert table_name(text, system) == name
    assert table_name(str(name), system) == name


@pytest.mark.parametrize("text", ["", "a.b.c", "a b", "a;drop", "(select 1)", "a.", '"', "x" * 64])
def test_invalid_table_names_are_refused(text):
    with pytest.raises(ConnectorError):
        table_name(text)


def test_invalid_options_are_refused_without_showing_secrets():
    assert condition(url="") == "JDBC_OPTION_INVALID"
    assert condition(dbtable=" ") == "JDBC_OPTION_INVALID"
    assert condition(url="jdbc:sqlserver://h;database=d") == "JDBC_DATABASE_NOT_SUPPORTED"
    assert condition(driver="com.mysql.Driver") == "JDBC_DATABASE_NOT_SUPPORTED"
    assert condition(mode="merge") == "JDBC_OPTION_INVALID"
    assert condition(mode="upsert") == "JDBC_OPTION_INVALID"
    assert condition(keys="id") == "JDBC_OPTION_INVALID"
    assert condition(numPartitions="0") == "JDBC_OPTION_INVALID"
    assert condition(keyz="id") == "JDBC_OPTION_UNKNOWN"
    assert condition(stagingSchema="a.b") == "JDBC_OPTION_INVALID"
    for unsafe in ("socketFactory=x", "loggerFile=/etc/x", "password=a", "user=b"):
        assert condition(url=f"{ON_POSTGRESQL['url']}?{unsafe}") == "JDBC_OPTION_UNSAFE"
    assert condition(url="jdbc:postgresql://me:pw@db/shop") == "JDBC_OPTION_UNSAFE"
    for unsafe in ("allowLocalInfile=true", "sessionVariables=sql_mode=''", "socketFactory=x"):
        assert condition(url=f"jdbc:mariadb://h/d?{unsafe}") == "JDBC_OPTION_UNSAFE"
    with pytest.raises(ConnectorError) as caught:
        jdbc_sink_options({**ON_POSTGRESQL, "pasword": "pssst"})
    assert "did you mean `password`" in str(caught.value)
    assert "pssst" not in str(caught.value)


def test_mysql_url_is_changed_to_the_mariadb_driver():
    options = jdbc_sink_options({**ON_MYSQL, "stagingSchema": "Scratch"})
    assert (options.url, options.place) == ("jdbc:mariadb://db:3306/shop", "db:3306/shop")
    assert options.connection == {"sslMode": "verify-full"}
    assert (options.table, options.fence) == (
        TableName(None, "Orders"),
        TableName(None, "penstock_fence"),
    )
    assert options.staging_schema == "Scratch"


FITS = [
    (T.StringType(), "text", "character varying(5)", "uuid", "jsonb", "citext"),
    (T.ShortType(), "smallint", "integer", "bigint", "real", "numeric(5,0)"),
    (T.LongType(), "bigint", "numeric(19,0)", "numeric"),
    (T.DecimalType(10, 2), "numeric(10,2)", "numeric(12,4)", "numeric"),
    (T.DecimalType(9, 0), "integer", "bigint"),
    (T.FloatType(), "real", "double precision"),
    (T.TimestampType(), "timestamp with time zone", "timestamp(6) without time zone"),
    (T.TimestampNTZType(), "timestamp without time zone"),
    (T.ArrayType(T.IntegerType()), "bigint[]", "json", "text"),
    (T.ArrayType(T.ArrayType(T.IntegerType())), "jsonb"),
    (T.MapType(T.StringType(), T.StringType()), "json", "jsonb", "text"),
]
MISFITS = [
    (T.StringType(), "integer", "date", "text[]"),
    (T.LongType(), "integer", "double precision", "numeric(18,0)", "numeric(20,-2)", "text"),
    (T.DecimalType(10, 2), "numeric(10,1)", "numeric(9,2)", "bigint", "double precision"),
    (T.DecimalType(10, 0), "integer"),
    (T.DoubleType(), "real", "numeric"),
    (T.TimestampType(), "timestamp(3) with time zone", "date"),
    (T.TimestampNTZType(), "timestamp with time zone"),
    (T.ArrayType(T.StringType()), "character varying(5)[]", "integer[]"),
    (T.ArrayType(T.ArrayType(T.IntegerType())), "integer[]"),
    (T.DayTimeIntervalType(), "interval"),
]


MYSQL_FITS = [
    (T.StringType(), "varchar(5)", "longtext", "enum('a)','b')", "json", "uuid"),
    (T.ByteType(), "tinyint", "tinyint(4)", "smallint(6)", "decimal(3,0)"),
    (T.IntegerType(), "int(11)", "int(10) unsigned", "bigint(20) unsigned zerofill", "double"),
    (T.DecimalType(10, 2), "decimal(10,2)", "decimal(12,2) unsigned"),
    (T.DecimalType(6, 0), "mediumint(8)"),
    (T.FloatType(), "float", "double"),
    (T.BooleanType(), "tinyint(1)", "bit(1)"),
    (T.BinaryType(), "longblob", "varbinary(8)"),
    (T.TimestampType(), "datetime(6)", "timestamp(6)"),
    (T.TimestampNTZType(), "datetime(6)"),
    (T.ArrayType(T.IntegerType()), "json", "longtext"),
]
MYSQL_MISFITS = [
    (T.StringType(), "int", "date", "set('a')", "varbinary(5)"),
    (T.LongType(), "int(11)", "double", "decimal(18,0)"),
    (T.DecimalType(7, 0), "mediumint"),
    (T.DecimalType(10, 2), "decimal(10,1)", "double", "float"),
    (T.DoubleType(), "float", "double(10,2)", "decimal(38,10)"),
    (T.FloatType(), "float(7,2)"),
    (T.BooleanType(), "tinyint(4)", "bit(2)"),
    # MySQL pads BINARY(n) with zeros.
    (T.BinaryType(), "binary(8)"),
    (T.TimestampType(), "datetime", "datetime(3)", "timestamp", "date"),
    (T.TimestampNTZType(), "timestamp(6)"),
    (T.DayTimeIntervalType(), "time(6)"),
]
TYPES_THAT_FIT = [
    *((ON_POSTGRESQL, row[0], row[1:]) for row in FITS),
    *((ON_MYSQL, row[0], row[1:]) for row in MYSQL_FITS),
]
TYPES_THAT_DO_NOT = [
    *((ON_POSTGRESQL, row[0], row[1:]) for row in MISFITS),
    *((ON_MYSQL, row[0], row[1:]) for row in MYSQL_MISFITS),
]


def misfits(arguments, kind, types):
    options = jdbc_sink_options(arguments)
    dialect = dialect_of(options.system)
    columns = [TableColumn(name="c", type=shown) for shown in types]
    return [c.type for c in columns if dialect.misfit(kind, c, options) is not None]


@pytest.mark.parametrize(("arguments", "kind", "types"), TYPES_THAT_FIT)
def test_a_column_fits_when_it_can_hold_every_value(arguments, kind, types):
    assert misfits(arguments, kind, types) == []


@pytest.mark.parametrize(("arguments", "kind", "types"), TYPES_THAT_DO_NOT)
def test_a_column_does_not_fit_when_a_value_could_change(arguments, kind, types):
    assert misfits(arguments, kind, types) == list(types)


def test_all_column_mismatches_are_reported_together():
    columns = {"id": T.LongType(), "Name": T.StringType(), "made": T.StringType()}
    schema = T.StructType([T.StructField(name, kind) for name, kind in columns.items()])
    table = [
        TableColumn(name="id", type="bigint", generated=True, has_default=True),
        TableColumn(name="name", type="text"),
        TableColumn(name="NAME", type="text"),
        TableColumn(name="must", type="text", not_null=True),
        TableColumn(name="may", type="text", not_null=True, has_default=True),
    ]
    options = jdbc_sink_options({**ON_POSTGRESQL, "mode": "upsert", "keys": "key"})
    with pytest.raises(ConnectorError) as caught:
        dialect_of(options.system).fit_columns(schema, table, options)
    text = str(caught.value)
    for problem in (
        "id: the table computes it",
        "no column Name",
        "no column made",
        "column must is NOT NULL",
        "the query has no column key",
    ):
        assert problem in text
    assert "column may" not in text


def test_names_are_quoted_in_statements():
    evil = 'id"; DROP TABLE x; --'
    schema = T.StructType([T.StructField(evil, T.IntegerType()), T.StructField("v", T.DateType())])
    options = jdbc_sink_options({**ON_POSTGRESQL, "mode": "upsert", "keys": evil})
    dialect = dialect_of(options.system)
    statement = dialect.create_table(schema, options)
    assert '"id""; DROP TABLE x; --" integer NOT NULL' in statement
    assert 'PRIMARY KEY ("id""; DROP TABLE x; --")' in statement
    table = [TableColumn(name=evil, type="integer"), TableColumn(name="v", type="date")]
    columns = dialect.fit_columns(schema, table, options)
    moved = dialect.move_rows(TableName(None, "st"), columns, options, [(0, 7), (1, 9)])
    assert moved == (
        'INSERT INTO "sales"."orders" AS t ("id""; DROP TABLE x; --", "v") '
        "SELECT s.\"c0\"::integer, regexp_replace(s.\"c1\", '(?<![^\"])[+]', '', 'g')::date "
        'FROM "st" AS s '
        'WHERE s."penstock_part" >= 0 '
        'AND (s."penstock_part", s."penstock_attempt") IN ((0, 7), (1, 9)) '
        'ON CONFLICT ("id""; DROP TABLE x; --") DO UPDATE SET "v" = EXCLUDED."v"'
    )


def test_mysql_upsert_keeps_the_newest_row_per_key_in_the_collation_of_the_table():
    options = jdbc_sink_options(
        {**ON_MYSQL, "mode": "upsert", "keys": "who", "sequenceBy": "at", "createTable": "false"}
    )
    dialect = dialect_of(options.system)
    schema = T.StructType().add("who", "string").add("at", "timestamp").add("c0", "integer")
    statement = dialect.create_table(schema, options)
    assert '"who" varchar(255) NOT NULL' in statement
    assert '"at" datetime(6)' in statement
    assert " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4" in statement
    table = [
        TableColumn(name="Who", type="varchar(9)", collation="latin1_swedish_ci"),
        TableColumn(name="at", type="datetime(6)"),
        TableColumn(name="c0", type="int(11)"),
    ]
    columns = dialect.fit_columns(schema, table, options)
    newer = '"Orders"."at" IS NULL OR "Orders"."at" <= VALUES("at")'
    at = """TIMESTAMP '1970-01-01 00:00:00' + INTERVAL s."c1" MICROSECOND"""
    assert dialect.move_rows(TableName(None, "st"), columns, options, []) == (
        f'INSERT INTO "Orders" ("Who", "at", "c0") SELECT s."c0", {at}, s."c2" FROM (SELECT s.*, '
        'ROW_NUMBER() OVER (PARTITION BY CONVERT(s."c0" USING latin1) COLLATE latin1_swedish_ci '
        f'ORDER BY {at} DESC, s."c0" DESC, s."c1" DESC, s."c2" DESC) AS penstock_rank '
        'FROM "st" AS s) AS s WHERE s.penstock_rank = 1 ON DUPLICATE KEY UPDATE '
        f'"Orders"."at" = IF({newer}, VALUES("at"), "Orders"."at"), '
        f'"Orders"."c0" = IF({newer}, VALUES("c0"), "Orders"."c0")'
    )


class Staged:
    """A database whose staging table has these rows of partition, attempt and count."""

    def __init__(self, *rows):
        self.rows = [tuple(map(str, row)) for row in rows]

    def query(self, sql):
        return self.rows


@pytest.mark.parametrize(
    ("rows", "count", "attempts"),
    [
        ([(-1, 7, 1), (0, 8, 3), (0, 9, 3), (1, 10, 2)], 5, [(0, 8), (1, 10)]),
        # A second attempt may end after the count, so there is always a condition.
        ([(-1, 7, 1), (0, 8, 3)], 3, [(0, 8)]),
        ([(-1, 7, 1)], 0, []),
    ],
)
def test_only_one_attempt_per_partition_is_counted_in_postgresql(rows, count, attempts):
    database, staging = Staged(*rows), TableName(None, "stage")
    dialect = dialect_of(POSTGRESQL)
    assert dialect.count_staged(database, staging) == (count, attempts)
    moved = dialect.move_rows(staging, (), jdbc_sink_options(ON_POSTGRESQL), attempts)
    assert ("IN (" in moved) == bool(attempts)
