import pytest
from pyspark.sql import types as T

from penstock.errors import ConnectorError
from penstock.sinks.jdbc.options import TableName, WriteRows, jdbc_sink_options, table_name
from penstock.sinks.jdbc.postgresql import (
    TableColumn,
    create_table,
    fit_columns,
    misfit,
    move_rows,
)

GIVEN = {"url": "jdbc:postgresql://db:5432/shop", "dbtable": "sales.orders"}


def condition(**options: str) -> str:
    with pytest.raises(ConnectorError) as caught:
        jdbc_sink_options({**GIVEN, **options})
    return caught.value.condition


def test_defaults_are_filled_in_when_only_the_place_is_given():
    options = jdbc_sink_options({**GIVEN, "URL".lower(): GIVEN["url"] + "?sslmode=require"})
    assert options.table == TableName("sales", "orders")
    assert options.fence == TableName("sales", "penstock_fence")
    assert options.staging_schema == "sales"
    assert (options.mode, options.keys, options.create_table) == (WriteRows.APPEND, (), True)
    assert options.connection == {"sslmode": "require"}
    assert options.url == GIVEN["url"]
    assert options.place == "db:5432/shop"


def test_secrets_are_not_shown_when_options_are_printed():
    options = jdbc_sink_options({**GIVEN, "user": "me", "password": "pssst"})
    assert options.connection["password"] == "pssst"
    assert "pssst" not in repr(options)
    assert "db:5432" not in repr(options)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Orders", TableName(None, "orders")),
        ('"Or""ders"', TableName(None, 'Or"ders')),
        ('s . "a.b"', TableName("s", "a.b")),
    ],
)
def test_names_of_tables_are_read_as_in_sql(text, name):
    assert table_name(text) == name
    assert table_name(str(name)) == name


@pytest.mark.parametrize("text", ["", "a.b.c", "a b", "a;drop", "(select 1)", "a.", '"', "x" * 64])
def test_other_texts_than_names_are_refused(text):
    with pytest.raises(ConnectorError):
        table_name(text)


def test_wrong_options_are_refused_without_showing_them():
    assert condition(url="") == "JDBC_OPTION_INVALID"
    assert condition(dbtable=" ") == "JDBC_OPTION_INVALID"
    assert condition(url="jdbc:mysql://h/d") == "JDBC_DATABASE_NOT_SUPPORTED"
    assert condition(driver="com.mysql.Driver") == "JDBC_DATABASE_NOT_SUPPORTED"
    assert condition(mode="merge") == "JDBC_OPTION_INVALID"
    assert condition(mode="upsert") == "JDBC_OPTION_INVALID"
    assert condition(keys="id") == "JDBC_OPTION_INVALID"
    assert condition(numPartitions="0") == "JDBC_OPTION_INVALID"
    assert condition(keyz="id") == "JDBC_OPTION_UNKNOWN"
    assert condition(stagingSchema="a.b") == "JDBC_OPTION_INVALID"
    for unsafe in ("socketFactory=x", "loggerFile=/etc/x", "password=a", "user=b"):
        assert condition(url=f"{GIVEN['url']}?{unsafe}") == "JDBC_OPTION_UNSAFE"
    assert condition(url="jdbc:postgresql://me:pw@db/shop") == "JDBC_OPTION_UNSAFE"
    with pytest.raises(ConnectorError) as caught:
        jdbc_sink_options({**GIVEN, "pasword": "pssst"})
    assert "did you mean `password`" in str(caught.value)
    assert "pssst" not in str(caught.value)


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
    (T.LongType(), "integer", "double precision", "numeric(18,0)", "text"),
    (T.DecimalType(10, 2), "numeric(10,1)", "numeric(9,2)", "bigint", "double precision"),
    (T.DecimalType(10, 0), "integer"),
    (T.DoubleType(), "real", "numeric"),
    (T.TimestampType(), "timestamp(3) with time zone", "date"),
    (T.TimestampNTZType(), "timestamp with time zone"),
    (T.ArrayType(T.StringType()), "character varying(5)[]", "integer[]"),
    (T.ArrayType(T.ArrayType(T.IntegerType())), "integer[]"),
    (T.DayTimeIntervalType(), "interval"),
]


@pytest.mark.parametrize(("kind", "types"), [(row[0], row[1:]) for row in FITS])
def test_a_column_fits_when_it_can_hold_every_value(kind, types):
    assert [t for t in types if misfit(kind, TableColumn(name="c", type=t)) is not None] == []


@pytest.mark.parametrize(("kind", "types"), [(row[0], row[1:]) for row in MISFITS])
def test_a_column_does_not_fit_when_a_value_could_change(kind, types):
    assert [t for t in types if misfit(kind, TableColumn(name="c", type=t)) is None] == []


def test_everything_that_does_not_fit_is_reported_at_once():
    columns = {"id": T.LongType(), "Name": T.StringType(), "made": T.StringType()}
    schema = T.StructType([T.StructField(name, kind) for name, kind in columns.items()])
    table = [
        TableColumn(name="id", type="bigint", generated=True, has_default=True),
        TableColumn(name="name", type="text"),
        TableColumn(name="NAME", type="text"),
        TableColumn(name="must", type="text", not_null=True),
        TableColumn(name="may", type="text", not_null=True, has_default=True),
    ]
    options = jdbc_sink_options({**GIVEN, "mode": "upsert", "keys": "key"})
    with pytest.raises(ConnectorError) as caught:
        fit_columns(schema, table, options)
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


def test_names_are_quoted_when_statements_are_made():
    evil = 'id"; DROP TABLE x; --'
    schema = T.StructType([T.StructField(evil, T.IntegerType()), T.StructField("v", T.DateType())])
    options = jdbc_sink_options({**GIVEN, "mode": "upsert", "keys": evil})
    made = create_table(schema, options)
    assert '"id""; DROP TABLE x; --" integer NOT NULL' in made
    assert 'PRIMARY KEY ("id""; DROP TABLE x; --")' in made
    table = [TableColumn(name=evil, type="integer"), TableColumn(name="v", type="date")]
    moved = move_rows('"st"', fit_columns(schema, table, options), options, [(0, 7), (1, 9)])
    assert moved == (
        'INSERT INTO "sales"."orders" AS t ("id""; DROP TABLE x; --", "v") '
        'SELECT s."c0"::integer, s."c1"::date FROM "st" AS s WHERE s."penstock_part" >= 0 '
        'AND (s."penstock_part", s."penstock_attempt") IN ((0, 7), (1, 9)) '
        'ON CONFLICT ("id""; DROP TABLE x; --") DO UPDATE SET "v" = EXCLUDED."v"'
    )
