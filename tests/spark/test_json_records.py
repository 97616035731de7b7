"""Spark's JSON parser, which also reports whether the columns have all values of a record."""

import pytest
from pyspark.sql import Column, Row, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = (
    "id: BIGINT, `n.a-me`: STRING, o: STRUCT<p: DOUBLE, q: STRING>, l: ARRAY<BIGINT>, "
    "items: ARRAY<STRUCT<k: STRING>>, m: MAP<STRING, BIGINT>, v: VARIANT"
)


def parsed(
    spark: SparkSession, texts: list[str], columns: str = COLUMNS, *, checks_decimals: bool = False
) -> list[Row]:
    df = spark.createDataFrame([(text,) for text in texts], "text STRING").coalesce(1)
    records = spark._jvm.penstock.formats.JsonRecords
    options = {"columnNameOfCorruptRecord": "flaw", "mode": "PERMISSIVE"}
    java = records.parsed(spark._jsparkSession, df["text"]._jc, columns, options, checks_decimals)
    return df.select(Column(java).alias("r")).select("r.*").collect()


def test_a_record_is_complete_when_the_columns_have_all_its_values(spark):
    long_list = '{"l":[' + ",".join(["123"] * 50_000) + "]}"
    texts = [
        "{}",
        '{"id":1}',
        ' {"n.a-me" : "x" , "id" : 1 } ',
        '{"id":1,"n.a-me":"a \\"q\\" } , {","o":{"p":1.5,"q":null},"l":[1, 2],"items":[]}',
        '{"o":null,"l":null,"items":[{"k":"a"},{"k":null}, null]}',
        '{"n.a-me":12.50,"l":[]}',
        '{"n.a-me":{"x": [1, {"y":2}]},"id":2}',
        '{"m":{"a":1,"b":2},"v":{"a":[1,{"b":2}]}}',
        long_list,
    ]
    rows = parsed(spark, texts)
    assert [(row.is_complete, row.is_flawed) for row in rows] == [(True, False)] * len(texts)
    assert rows[5].typed["n.a-me"] == "12.50"
    assert rows[6].typed["n.a-me"] == '{"x": [1, {"y":2}]}'
    assert len(rows[8].typed["l"]) == 50_000


def test_a_record_is_incomplete_when_values_are_unknown_repeated_or_trailing(spark):
    unknown = [
        '{"ID":1}',
        '{"id":1,"new":2}',
        '{"id":1,"new":{"id":1}}',
        '{"id":1,"new":null}',
        '{"o":{"p":1,"z":2}}',
        '{"items":[{"k":"a","z":1}]}',
        '{"items":[{"k":"a"},{"z":1}]}',
    ]
    repeated = ['{"id":1,"id":2}', '{"o":{"p":1,"p":2}}', '{"m":{"a":1,"a":2}}']
    trailing = ['{"id":1} {"id":2}', '{"id":1}x', '{"id":1}}', '{"id":1}]']
    texts = [*unknown, *repeated, *trailing]
    rows = parsed(spark, texts)
    assert [text for text, row in zip(texts, rows, strict=True) if row.is_complete] == []
    assert [text for text, row in zip(texts, rows, strict=True) if row.is_flawed] == []


def test_a_record_is_flawed_when_it_is_no_object_or_a_value_has_another_type(spark):
    texts = ['{"id":1,}', '{"id":1', "[]", '{"id":{"a":1}}', '{"l":[{"a":1}]}', '{"l":[[1]]}']
    texts += ['{"id":"x","n.a-me":"y"}', '{"v":{"a":1,"a":2}}', "7", "null", "", "no json", "{]"]
    rows = parsed(spark, texts)
    assert [text for text, row in zip(texts, rows, strict=True) if not row.is_flawed] == []
    assert [text for text, row in zip(texts, rows, strict=True) if row.is_complete] == []
    assert rows[6].typed["n.a-me"] == "y"


def test_repeated_keys_of_wide_records_are_detected(spark):
    names = [f"c{number}" for number in range(50)]
    columns = ", ".join(f"{name}: BIGINT" for name in names)
    whole = ",".join(f'"{name}":1' for name in names)
    texts = [f"{{{whole}}}", f'{{{whole},"c49":2}}', f'{{{whole},"c1":2}}', f"{{{whole}}}"]
    rows = parsed(spark, texts, columns)
    assert [row.is_complete for row in rows] == [True, False, False, True]


def test_invalid_utf_8_bytes_are_replaced(spark):
    raw = spark.sql("SELECT CAST(X'7B226964223A312C226E223A22C328227D' AS STRING) AS text")
    records = spark._jvm.penstock.formats.JsonRecords
    session = spark._jsparkSession
    java = records.parsed(session, raw["text"]._jc, "id: BIGINT, n: STRING", {}, False)
    row = raw.select(Column(java).alias("r")).select("r.*").first()
    assert (row.typed.id, row.typed.n, row.is_complete) == (1, "\ufffd(", True)


def test_decimals_are_not_complete_when_they_may_be_rounded(spark):
    values = [
        "123.45",
        "-0.5",
        "null",
        "1234",
        "1.234",
        "1.2e1",
        '"1.5"',
        "[1.5, 2]",
        "[1.5, 2.345]",
    ]
    columns = "d: DECIMAL(5, 2), a: ARRAY<DECIMAL(5, 2)>, s: STRING"
    texts = [f'{{"{"a" if "[" in value else "d"}":{value},"s":"x"}}' for value in values]
    checked = parsed(spark, texts, columns, checks_decimals=True)
    complete = [value for value, row in zip(values, checked, strict=True) if row.is_complete]
    assert complete == ["123.45", "-0.5", "null", "1.2e1", "[1.5, 2]"]
    rows = parsed(spark, texts, columns)
    assert [row.is_complete for row in rows] == [value != "1234" for value in values]
