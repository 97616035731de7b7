import threading

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from writer_harness import Harness, rule

from penstock._tables.write.keyed import Way
from penstock.errors import FlowError

RULES = (rule("positive", "n > 0"), rule("small", "n < 5", "warn"))


def test_rows_and_quarantine_are_replaced_when_the_mode_is_complete(
    spark: SparkSession, harness: Harness
) -> None:
    df = spark.range(10).selectExpr("id", "id AS n").coalesce(1)
    split = harness.prepare(df, RULES)
    writer = harness.writer(replaces=True)
    for batch in range(3):
        result = writer.write(split, batch)
    assert (harness.rows().count(), harness.bad().count()) == (9, 1)
    assert result.rules["small"].failed == 5
    assert writer.write(split, 2).replayed
    empty = writer.write(split.where("false"), 3)
    assert (empty.rows_written, harness.rows().count(), harness.bad().count()) == (0, 0, 0)


def test_reader_sees_old_or_new_rows_when_a_view_is_replaced(
    spark: SparkSession, harness: Harness
) -> None:
    df = harness.prepare(spark.range(1000).selectExpr("id", "1L AS n").coalesce(2))
    writer = harness.writer(replaces=True)
    writer.write_batch(df, fingerprint="one")
    done = threading.Event()
    snapshots: list[tuple[int, int]] = []

    def poll() -> None:
        while not done.is_set():
            row = harness.rows().agg(F.count("*"), F.sum("n")).first()
            snapshots.append((row[0], row[1]))

    reader = threading.Thread(target=poll)
    reader.start()
    for n in range(2, 7):
        result = writer.write_batch(df.withColumn("n", F.lit(n).cast("long")), fingerprint=f"{n}")
    done.set()
    reader.join()
    assert snapshots
    assert {count for count, _ in snapshots} == {1000}
    assert {total % 1000 for _, total in snapshots} == {0}
    assert (result.fingerprint, result.rows_written) == ("6", 1000)


def test_schema_follows_the_query_when_a_view_is_replaced(
    spark: SparkSession, harness: Harness
) -> None:
    df = harness.prepare(spark.range(3).selectExpr("id", "1L AS n"), RULES)
    harness.writer(replaces=True).write_batch(df)
    changed = spark.range(3).selectExpr("CAST(id AS STRING) AS id", "1L AS n", "2 AS more")
    split = harness.prepare(changed, RULES, replace_schema=True)
    harness.writer(replaces=True).write_batch(split)
    assert harness.rows().schema.simpleString() == "struct<id:string,n:bigint,more:int>"
    assert harness.rows().count() == 3
    assert "id:string" in harness.bad().schema.simpleString()


@pytest.mark.parametrize("way", Way)
def test_rows_with_the_same_keys_are_replaced_when_the_mode_is_update(
    spark: SparkSession, harness: Harness, way: Way
) -> None:
    first = spark.sql(
        "SELECT * FROM VALUES (1L, 'a', 1), (2L, NULL, 2), (NULL, NULL, 3) t(k, l, n)"
    )
    split = harness.prepare(first, RULES)
    assert harness.upserter(["k", "l"], way=way).write(split, 0).rows_written == 3
    second = spark.sql(
        "SELECT * FROM VALUES (2L, NULL, 20), (NULL, NULL, 30), (4L, 'd', 40), (1L, 'a', -1)"
        " t(k, l, n)"
    )
    split = harness.prepare(second, RULES)
    writer = harness.upserter(["k", "l"], way=way)
    result = writer.write(split, 1)
    assert sorted(r.n for r in harness.rows().collect()) == [1, 20, 30, 40]
    assert (result.rows_written, result.rows_quarantined) == (3, 1)
    assert result.rules["small"].failed == 3
    version = 3 if way is Way.VECTORS else 2  # includes a commit for the property
    assert result.version == version
    again = writer.write(split, 1)
    assert (again.replayed, again.rules, again.version) == (True, result.rules, version)
    assert harness.upserter(["k", "l"], way=way).write(split, 1).replayed
    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None
    assert [r.n for r in harness.bad().collect()] == [-1]


@pytest.mark.parametrize(
    "way",
    [
        Way.TABLE,
        Way.VECTORS,
        *[pytest.param(w, marks=pytest.mark.long) for w in (Way.FILES, Way.MERGE)],
    ],
)
def test_new_column_is_added_when_an_update_mode_query_has_more(
    spark: SparkSession, harness: Harness, way: Way
) -> None:
    df = harness.prepare(spark.range(3).selectExpr("id", "1 AS n"))
    harness.upserter(["id"], way=way).write(df, 0)
    wider = spark.range(2, 4).selectExpr("id", "2 AS n", "'x' AS more")
    harness.upserter(["id"], way=way).write(wider, 1)
    assert sorted((r.id, r.n, r.more) for r in harness.rows().collect()) == [
        (0, 1, None),
        (1, 1, None),
        (2, 2, "x"),
        (3, 2, "x"),
    ]


@pytest.mark.parametrize("way", [Way.TABLE, pytest.param(Way.FILES, marks=pytest.mark.long)])
def test_fields_in_maps_are_matched_by_name_in_update_mode(
    spark: SparkSession, harness: Harness, way: Way
) -> None:
    first = spark.range(2).selectExpr("id", "map('k', named_struct('a', 'A', 'c', 'C')) AS m")
    harness.upserter(["id"], way=way).write(harness.prepare(first), 0)
    other = spark.range(1, 3).selectExpr("id", "map('k', named_struct('c', 'C', 'a', 'A')) AS m")
    harness.upserter(["id"], way=way).write(other, 1)
    rows = harness.rows().selectExpr("id", "m['k'].a", "m['k'].c")
    assert sorted(map(tuple, rows.collect())) == [(id_, "A", "C") for id_ in range(3)]


@pytest.mark.parametrize(
    "way", [Way.TABLE, Way.VECTORS, pytest.param(Way.MERGE, marks=pytest.mark.long)]
)
def test_empty_string_in_a_partition_column_matches_its_key(
    spark: SparkSession, harness: Harness, way: Way
) -> None:
    rows = spark.range(3).selectExpr("id", "IF(id = 1, 'x', '') AS p", "1 AS n")
    df = harness.prepare(rows, partition_cols=("p",))
    harness.upserter(["p", "id"], way=way).write(df, 0)
    harness.upserter(["p", "id"], way=way).write(df.withColumn("n", F.lit(2)), 1)
    assert sorted(map(tuple, harness.rows().select("id", "p", "n").collect())) == [
        (0, None, 2),
        (1, "x", 2),
        (2, None, 2),
    ]


def test_batch_is_refused_when_two_of_its_rows_share_a_key(
    spark: SparkSession, harness: Harness
) -> None:
    df = harness.prepare(spark.range(4).selectExpr("id % 2 AS k", "id"))
    with pytest.raises(FlowError) as caught:
        harness.upserter(["k"]).write(df, 0)
    assert caught.value.condition == "MERGE_KEYS_NOT_UNIQUE"
    assert harness.rows().count() == 0
