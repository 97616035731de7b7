import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from writer_harness import Harness, rule

from penstock._tables.commits import RuleCounts
from penstock._tables.read.log_scan import read_commit_counts
from penstock._tables.write import row_files
from penstock._tables.write.schema import conform
from penstock._tables.write.table_spec import parse_schema
from penstock.errors import PlanError
from penstock.quality.split import parse_failure


def orders(spark: SparkSession, rows: int = 100) -> DataFrame:
    """Every 10th amount is NULL, ids 1-5 have no positive amount, every 20th text is no number."""
    return spark.range(rows, numPartitions=3).selectExpr(
        "id",
        "IF(id % 10 = 0, NULL, CAST(id - 5 AS DOUBLE)) AS amount",
        "IF(id % 20 = 3, 'abc', CAST(id AS STRING)) AS text",
        "concat('a b:c/%', id % 2, 'é') AS part",
    )


RULES = (
    rule("positive", "amount > 0"),
    rule("number", "CAST(text AS INT) >= 0"),
    rule("small number", "CAST(text AS INT) < 50", "warn"),
    rule("known id", "id < 1000", "fail"),
)


def expected_bad(rows: int = 100) -> set[int]:
    return {i for i in range(rows) if i % 10 == 0 or i <= 5 or i % 20 == 3}


GOOD, BAD = 100 - len(expected_bad()), len(expected_bad())


def test_append_writes_rows_and_counts_when_there_are_no_rules(
    spark: SparkSession, harness: Harness
) -> None:
    df = harness.prepare(orders(spark))
    result = harness.writer().write(df, 0)
    assert (result.rows_written, result.version, result.rules) == (100, 1, {})
    assert harness.rows().count() == 100


@pytest.fixture(params=["one job", "two jobs"])
def jobs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "two jobs":
        monkeypatch.setattr(row_files, "can_stage", lambda *_: False)


@pytest.mark.usefixtures("jobs")
def test_rows_are_in_exactly_one_table_when_rules_drop_them(
    spark: SparkSession, harness: Harness
) -> None:
    df = harness.prepare(orders(spark), RULES, partition_cols=("part",))
    result = harness.writer().write(df, 0)
    bad = expected_bad()
    assert {r.id for r in harness.bad().collect()} == bad
    assert {r.id for r in harness.rows().collect()} == set(range(100)) - bad
    assert harness.rows().columns == ["id", "amount", "text", "part"]
    assert (result.rows_written, result.rows_quarantined) == (100 - len(bad), len(bad))
    assert result.rules == {
        "positive": RuleCounts(85, 15),
        "number": RuleCounts(95, 5),
        "small number": RuleCounts(47, 53),
        "known id": RuleCounts(100, 0),
    }
    assert {r.part for r in harness.rows().collect()} == {"a b:c/%0é", "a b:c/%1é"}


def test_small_files_are_compacted_when_auto_compact_is_set(
    spark: SparkSession, harness: Harness
) -> None:
    minimum = "spark.databricks.delta.autoCompact.minNumFiles"
    df = harness.prepare(
        orders(spark), RULES, properties={"delta.autoOptimize.autoCompact": "true"}
    )
    writer = harness.writer()
    spark.conf.set(minimum, "4")
    try:
        results = [writer.write(df, batch_id) for batch_id in range(5)]
    finally:
        spark.conf.unset(minimum)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{harness.target.path}`").collect()
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{harness.target.path}`").head()
    assert detail is not None
    assert "OPTIMIZE" in [row.operation for row in history]
    assert len({result.version for result in results}) == 5
    assert detail["numFiles"] < 10
    assert harness.rows().count() == 5 * GOOD
    assert harness.writer().write(df, 4).replayed


def test_quarantined_row_has_its_rules_json_and_source_position(
    spark: SparkSession, harness: Harness
) -> None:
    df = orders(spark).selectExpr(
        "*", "'t' AS topic", "CAST(1 AS INT) AS partition", "id AS offset"
    )
    df = harness.prepare(df, RULES)
    harness.writer().write(df, 0)
    row = harness.bad().where("id = 3").first()
    assert row is not None
    assert row["_failed_rules"] == ["positive", "number"]
    assert json.loads(row["_source"]) == {"topic": "t", "partition": 1, "offset": 3}
    assert json.loads(harness.bad().where("id = 10").first()["_row"])["amount"] is None


def test_null_and_error_violate_a_rule_when_they_share_a_subexpression(
    spark: SparkSession, harness: Harness
) -> None:
    df = spark.createDataFrame([("1",), ("abc",), (None,), ("300",)], "s string").repartition(2)
    rules = [rule(f"r{i}", f"CAST(s AS INT) {c}") for i, c in enumerate((">0", "<100", "<>7"))]
    rules.append(rule("column", F.col("s").cast("int") + 1 > 1))
    df = harness.prepare(df, rules)
    result = harness.writer().write(df, 0)
    assert [r.s for r in harness.rows().collect()] == ["1"]
    assert {n: c.failed for n, c in result.rules.items()} == {
        "r0": 2,
        "r1": 3,
        "r2": 2,
        "column": 2,
    }


def test_more_than_63_rules_are_counted_exactly(spark: SparkSession, harness: Harness) -> None:
    rules = [rule(f"not {i}", f"id <> {i}", "warn" if i % 2 else "drop") for i in range(130)]
    df = harness.prepare(spark.range(200).coalesce(2), rules)
    result = harness.writer().write(df, 0)
    assert all(c == RuleCounts(199, 1) for c in result.rules.values())
    assert len(result.rules) == 130
    assert (harness.rows().count(), harness.bad().count()) == (135, 65)
    assert harness.bad().where("id = 64").first()["_failed_rules"] == ["not 64"]


def test_dropped_rows_leave_no_files_when_quarantine_is_off(
    spark: SparkSession, harness: Harness
) -> None:
    df = harness.prepare(orders(spark), RULES, quarantine=False)
    result = harness.writer().write(df, 0)
    assert (result.rows_written, result.rows_quarantined, result.rows_dropped) == (GOOD, 0, BAD)
    assert not Path(harness.quarantine.path).exists()
    files = list(Path(harness.target.path).rglob("*.parquet"))
    assert len([f for f in files if "_delta_log" not in f.parts]) == len(
        harness.rows().inputFiles()
    )


def test_nothing_is_written_when_a_fail_rule_is_violated(
    spark: SparkSession, harness: Harness
) -> None:
    df = harness.prepare(orders(spark, 1010), RULES)
    with pytest.raises(Exception, match="PENSTOCK_EXPECTATION_FAILED") as caught:
        harness.writer().write(df, 0)
    failure = parse_failure(str(caught.value))
    assert failure is not None
    assert failure.rules == ("known id",)
    assert json.loads(failure.row)["id"] >= 1000
    assert harness.rows().count() == harness.bad().count() == 0


def test_counts_can_be_read_from_the_commits(spark: SparkSession, harness: Harness) -> None:
    df = harness.prepare(orders(spark), RULES)
    writer = harness.writer()
    written = [writer.write(df, batch) for batch in range(3)]
    read = read_commit_counts(spark, harness.target.path, since_version=1)
    assert [(r.batch_id, r.version, r.rules, r.rows_written) for r in read] == [
        (w.batch_id, w.version, w.rules, w.rows_written) for w in written[1:]
    ]
    assert all(r.timestamp_ms for r in read)


def test_statistics_of_the_target_have_no_helper_columns_when_rows_are_split(
    spark: SparkSession, harness: Harness
) -> None:
    df = orders(spark).withColumn("text", F.lit('"penstock_dq_0":5,}'))
    df = harness.prepare(df.drop("part"), [rule("positive", "amount > 0")])
    harness.writer().write(df, 0)
    log = Path(harness.target.path, "_delta_log", f"{1:020d}.json").read_text()
    stats = [json.loads(json.loads(x)["add"]["stats"]) for x in log.splitlines() if '"add"' in x]
    assert sum(s["numRecords"] for s in stats) == 85
    assert all(set(s["nullCount"]) == {"id", "amount", "text"} for s in stats)
    assert all(s["minValues"]["text"] == '"penstock_dq_0":5,}' for s in stats)


POSITIVE = rule("positive", "amount > 0")
HELPERS = ["penstock_dq_0", "_failed_rules", "_row", "_source"]


@pytest.fixture
def shredding(spark: SparkSession) -> Iterator[None]:
    """Let Spark shred variants when it writes files."""
    names = "writeShredding.enabled", "inferShreddingSchema"
    for name in names:
        spark.conf.set(f"spark.sql.variant.{name}", "true")
    yield
    for name in names:
        spark.conf.unset(f"spark.sql.variant.{name}")


@pytest.mark.usefixtures("shredding")
@pytest.mark.parametrize(
    ("rules", "ddl", "value", "columns"),
    [
        ([POSITIVE], "", "id", ["id", "amount", "v"]),
        ([POSITIVE, rule("small", "id < 9", "warn")], "", "id", [HELPERS[0], "id", "amount", "v"]),
        (
            [POSITIVE],
            "id BIGINT, amount DOUBLE, v BIGINT, next BIGINT GENERATED ALWAYS AS (id + 1)",
            "id",
            [HELPERS[0], "id", "amount", "v", "next"],
        ),
        (
            [POSITIVE],
            "",
            "parse_json(concat('{\"a\":', id, '}'))",
            ["id", "amount", "v", *HELPERS],
        ),
    ],
    ids=["drop", "warn", "generated column", "variant"],
)
def test_files_of_the_target_have_no_column_that_is_null_in_valid_rows(
    spark: SparkSession,
    harness: Harness,
    rules: list[Any],
    ddl: str,
    value: str,
    columns: list[str],
) -> None:
    df = orders(spark).select("id", "amount", F.expr(value).alias("v"))
    table = {"schema": parse_schema(spark, ddl), "declared": True} if ddl else {}
    df = harness.prepare(df, rules, **table)
    assert harness.writer().write(df, 0).rows_quarantined == 15
    good = {row.id for row in harness.rows().where("v IS NOT NULL").collect()}
    assert good == {i for i in range(100) if i % 10 and i > 5}
    bad = harness.bad().selectExpr("id", "CAST(v AS STRING) v", "_failed_rules").collect()
    assert len({row.id for row in bad}) == 15
    assert all(row.v and row._failed_rules == ["positive"] for row in bad)
    files = Path(harness.target.path).rglob("*.parquet")
    assert {tuple(pq.ParquetFile(file).schema_arrow.names) for file in files} == {tuple(columns)}


def test_empty_batch_creates_no_commit(spark: SparkSession, harness: Harness) -> None:
    df = harness.prepare(orders(spark), RULES)
    result = harness.writer().write(df.where("false"), 0)
    assert (result.version, result.rows_written) == (None, 0)
    assert harness.writer().write(df, 1).version == 1


# -- schema --------------------------------------------------------------------------------------


def test_type_change_of_a_column_is_refused(spark: SparkSession, harness: Harness) -> None:
    df = harness.prepare(orders(spark), RULES)
    harness.writer().write(df, 0)
    changed = df.withColumn("amount", F.col("amount").cast("string"))
    with pytest.raises(PlanError) as caught:
        harness.writer().write(changed, 1)
    assert caught.value.condition == "SCHEMA_INCOMPATIBLE"
    assert "'amount'" in caught.value.message
    assert "DOUBLE" in caught.value.message and "STRING" in caught.value.message
    assert "--full-refresh" in (caught.value.hint or "")
    assert harness.rows().count() == GOOD


def test_missing_column_is_refused_unless_allowed(spark: SparkSession, harness: Harness) -> None:
    df = harness.prepare(orders(spark))
    with pytest.raises(PlanError, match="no column 'text'"):
        harness.writer().write(df.drop("text"), 0)
    harness.writer(allow_missing=True).write(df.drop("text"), 0)
    assert harness.rows().where("text IS NULL").count() == 100


@pytest.mark.usefixtures("jobs")
def test_new_columns_appear_in_both_tables_when_the_query_has_more(
    spark: SparkSession, harness: Harness
) -> None:
    df = harness.prepare(orders(spark), RULES)
    harness.writer().write(df, 0)
    more = orders(spark).selectExpr(
        "named_struct('x', id) AS nested", "text", "id AS ID", "amount", "part"
    )
    wider = harness.prepare(more, RULES, schema=orders(spark).schema)
    writer = harness.writer()
    writer.write(wider, 1)
    again = writer.write(wider, 2)
    assert harness.rows().schema.simpleString().endswith("nested:struct<x:bigint>>")
    assert harness.rows().where("nested.x = id").count() == 2 * GOOD
    assert harness.bad().where("nested IS NOT NULL").count() == 2 * BAD
    assert again.rows_written == GOOD


def test_quarantine_keeps_the_values_of_new_columns_when_names_are_mapped(
    spark: SparkSession, harness: Harness
) -> None:
    rules, properties = [rule("small", "id < 5")], {"delta.columnMapping.mode": "name"}
    first = spark.createDataFrame([(9, 1)], "id INT, `a b` INT")
    df = harness.prepare(first, rules, properties=properties)
    harness.writer().write(df, 0)
    more = first.withColumn("new", F.lit("x"))
    wider = harness.prepare(more, rules, properties=properties, schema=first.schema)
    harness.writer().write(wider, 1)
    bad = harness.bad().select("new").collect()
    assert sorted(row[0] or "" for row in bad) == ["", "x"]


def test_narrow_types_are_widened_when_no_value_can_change(spark: SparkSession) -> None:
    df = spark.range(1).selectExpr("CAST(1 AS INT) a", "CAST(1 AS DECIMAL(5,2)) b", "1.5D c")
    target_schema = spark.range(0).selectExpr("1L a", "CAST(1 AS DECIMAL(10,3)) b", "'x' c").schema
    assert (
        conform(df, target_schema).schema.simpleString()
        == "struct<a:bigint,b:decimal(10,3),c:double>"
    )


# -- constraints of the table --------------------------------------------------------------------


def test_constraints_apply_only_to_clean_rows(spark: SparkSession, harness: Harness) -> None:
    schema = "id BIGINT NOT NULL, amount DOUBLE, s STRUCT<a: BIGINT NOT NULL>"
    df = spark.range(100).selectExpr(
        "IF(id = 7, NULL, id) AS id",
        "CAST(id - 5 AS DOUBLE) AS amount",
        "named_struct('a', IF(id = 7, NULL, id)) AS s",
    )
    rules = [rule("has id", "id IS NOT NULL"), rule("positive", "amount >= 0")]
    df = harness.prepare(df, rules, schema=parse_schema(spark, schema), declared=True)
    spark.sql(f"ALTER TABLE delta.`{harness.target.path}` ADD CONSTRAINT pos CHECK (amount >= 0)")
    result = harness.writer().write(df, 0)
    assert (result.rows_written, result.rows_quarantined) == (94, 6)


@pytest.mark.parametrize(
    "broken",
    [
        "CAST(NULL AS BIGINT) AS id, 1D AS amount, named_struct('a', 1L) AS s",
        "id, -1D AS amount, named_struct('a', 1L) AS s",
        "id, 1D AS amount, named_struct('a', CAST(NULL AS BIGINT)) AS s",
    ],
)
def test_batch_fails_when_a_clean_row_violates_a_constraint(
    spark: SparkSession, harness: Harness, broken: str
) -> None:
    df = spark.sql(f"SELECT {broken} FROM range(10)")
    columns = "id BIGINT NOT NULL, amount DOUBLE, s STRUCT<a: BIGINT NOT NULL>"
    schema = parse_schema(spark, columns)
    df = harness.prepare(df, [rule("r", "amount < 100")], schema=schema, declared=True)
    spark.sql(f"ALTER TABLE delta.`{harness.target.path}` ADD CONSTRAINT pos CHECK (amount >= 0)")
    with pytest.raises(Exception, match=r"(?i)constraint|not null"):
        harness.writer().write(df, 0)
    assert harness.rows().count() == 0


@pytest.mark.long
def test_optimize_and_vacuum_keep_every_row(spark: SparkSession, harness: Harness) -> None:
    df = harness.prepare(orders(spark), RULES, partition_cols=("part",))
    writer = harness.writer()
    for batch in range(3):
        writer.write(df, batch)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        for table in (harness.target.path, harness.quarantine.path):
            spark.sql(f"OPTIMIZE delta.`{table}`")
            spark.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")
        spark.sql(f"DELETE FROM delta.`{harness.target.path}` WHERE id = 99")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert writer.write(df, 2).replayed
    writer.write(df, 3)
    assert (harness.rows().count(), harness.bad().count()) == (4 * GOOD - 3, 4 * BAD)
    clean = sum(i - 5 for i in range(100) if i not in expected_bad())
    assert harness.rows().selectExpr("sum(amount)").first()[0] == 4 * clean - 3 * 94
