from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from writer_harness import rule

from penstock._spark.plans import is_deterministic
from penstock.errors import DefinitionError, DefinitionErrors
from penstock.quality.rules import check_expectations
from penstock.quality.split import filter_view, split_rows


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("amount >", "end of input"),
        ("amount > 0) OR (true", "syntax"),
        ("amont > 0", "amont"),
        ("amount", "not a BOOLEAN"),
        ("count(1) > 1", "aggregates"),
        ("row_number() OVER (ORDER BY id) > 1", "window"),
        ("(SELECT max(id) FROM range(3)) > 1", "subquery"),
        ("id IN (SELECT id FROM range(3))", "subquery"),
        ("EXISTS (SELECT 1)", "subquery"),
        ("reflect('java.lang.System', 'getProperty', 'a') = 'b'", "reflect"),
        ("`java_method`('java.lang.System', 'lineSeparator') = 'b'", "java_method"),
        ("try_reflect('java.lang.System', 'lineSeparator') = 'b'", "try_reflect"),
        (lambda: F.expr("reflect('java.lang.System', 'lineSeparator') = 'b'"), "reflection"),
        (lambda: F.col("nope") > 1, "nope"),
    ],
)
def test_expectation_is_refused_with_its_line_when_it_is_no_row_condition(
    spark: SparkSession, condition: object, message: str
) -> None:
    df = spark.range(1).selectExpr("id", "1D AS amount")
    expression = condition() if callable(condition) else condition
    with pytest.raises(DefinitionError) as caught:
        check_expectations(df, [rule("sound", "id >= 0"), rule("bad", expression)])
    assert caught.value.condition == "EXPECTATION_INVALID"
    assert message.lower() in caught.value.message.lower()
    assert str(caught.value.origin) == "pipeline.py:7"


def test_hint_names_the_nearest_column_when_a_column_is_unknown(spark: SparkSession) -> None:
    df = spark.range(1).selectExpr("id", "1D AS amount")
    with pytest.raises(DefinitionError) as caught:
        check_expectations(df, [rule("r", "amuont > 0")])
    assert caught.value.hint == "did you mean 'amount'?"


def test_all_invalid_expectations_are_reported(spark: SparkSession) -> None:
    df = spark.range(1)
    with pytest.raises(DefinitionErrors) as caught:
        check_expectations(df, [rule("a", "x > 0"), rule("b", "id > 0"), rule("c", "id")])
    assert len(caught.value.errors) == 2


@pytest.mark.parametrize(
    "condition",
    ["array_contains(array('from', 'select'), 'x') IS NOT NULL", "id BETWEEN 0 AND 3", "NULL"],
)
def test_expectation_is_accepted_when_it_only_resembles_an_invalid_one(
    spark: SparkSession, condition: str
) -> None:
    check_expectations(spark.range(1), [rule("r", condition)])


def test_view_keeps_only_passing_rows_when_it_has_drop_rules(spark: SparkSession) -> None:
    df = spark.sql("SELECT * FROM VALUES (1), (-1), (NULL) t(n)")
    view = filter_view(df, [rule("positive", "n > 0"), rule("w", "n > 5", "warn")])
    assert [r.n for r in view.collect()] == [1]
    assert view.columns == ["n"]
    with pytest.raises(Exception, match="PENSTOCK_EXPECTATION_FAILED"):
        filter_view(df, [rule("positive", "n > 0", "fail")]).collect()


def test_column_name_is_refused_when_the_quarantine_needs_it(spark: SparkSession) -> None:
    df = spark.range(1).withColumn("_row", F.lit(1))
    with pytest.raises(DefinitionError) as caught:
        split_rows(df, [rule("r", "id > 0")])
    assert caught.value.condition == "COLUMN_NAME_RESERVED"
    assert split_rows(df, [rule("r", "id > 0")], quarantine=False) is not None


def test_an_error_quarantines_only_its_row_when_no_column_can_be_hashed(
    spark: SparkSession,
) -> None:
    df = spark.sql("SELECT map('a', v) AS m FROM VALUES ('1'), ('x') t(v)")
    split = split_rows(df, [rule(f"r{i}", f"CAST(m['a'] AS INT) > {i}") for i in (-1, 0)])
    assert split is not None
    rows = split.df.selectExpr("m['a'] AS v", "penstock_dest").collect()
    assert {(r.v, r.penstock_dest) for r in rows} == {("1", "table"), ("x", "quarantine")}


def test_rules_apply_to_a_stream_without_hashable_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    lines = '{"m": {"a": "x"}}\n{"m": {}}\n'
    (tmp_path / "rows" / "1.json").write_text(lines, encoding="utf-8")
    stream = spark.readStream.schema("m MAP<STRING, STRING>").json(f"{tmp_path}/rows")
    split = split_rows(stream, [rule("r", "m['a'] IS NOT NULL")])
    assert split is not None
    query = split.df.writeStream.format("noop").trigger(availableNow=True)
    started = query.option("checkpointLocation", f"{tmp_path}/checkpoint").start()
    assert started.awaitTermination(60)
    assert [progress.numInputRows for progress in started.recentProgress] == [2]


def test_rules_can_use_columns_that_the_query_does_not_return(spark: SparkSession) -> None:
    orders = spark.sql("SELECT * FROM VALUES (1, 'a'), (2, 'b'), (3, 'x'), (NULL, 'a') t(n, key)")
    known = spark.sql("SELECT * FROM VALUES ('a'), ('b') u(key)").alias("known")
    df = orders.alias("o").join(known, "key", "left").withColumnRenamed("n", "number")
    rules = [
        rule("known", "known.key IS NOT NULL"),
        rule("numbered", "n IS NOT NULL"),
        rule("small", "CAST(concat(number, o.key) AS INT) IS NULL OR number < 3", "warn"),
    ]
    check_expectations(df, rules, finds_hidden=True)
    with pytest.raises(DefinitionErrors):
        check_expectations(df, rules)
    with pytest.raises(DefinitionError, match="nope"):
        check_expectations(df, [rule("bad", "nope > 0")], finds_hidden=True)
    with pytest.raises(DefinitionError, match="numbered") as refused:
        check_expectations(df, [rules[1]], are_stored=True)
    assert "add this one to the query" in str(refused.value.hint)
    split = split_rows(df, rules)
    assert split is not None
    assert split.data_columns == ("key", "number")
    assert is_deterministic(split.df)
    rows = split.df.select("key", "number", "penstock_dest", "_failed_rules").collect()
    assert {tuple(row)[:3]: row[3] for row in rows} == {
        ("a", 1, "table"): None,
        ("b", 2, "table"): None,
        ("x", 3, "quarantine"): ["known"],
        ("a", None, "quarantine"): ["numbered"],
    }
    assert filter_view(df, rules).columns == ["key", "number"]
    with pytest.raises(DefinitionError, match="nope"):
        split_rows(df, [*rules, rule("bad", "nope > 0")])


@pytest.mark.parametrize("condition", ["n > 1", "sum(n) > 1", "count(*) > 1"])
def test_rules_cannot_use_columns_that_an_aggregation_does_not_return(
    spark: SparkSession, condition: str
) -> None:
    orders = spark.sql("SELECT * FROM VALUES (1, 'a'), (2, 'a') t(n, key)")
    for df in (orders.select("key").distinct(), orders.groupBy("key").agg(F.max("n").alias("m"))):
        with pytest.raises(DefinitionError):
            check_expectations(df, [rule("r", condition)], finds_hidden=True)
