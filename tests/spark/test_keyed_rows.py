"""Rows are replaced by key like in a dictionary, for every way and shape of a table."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from stored_rows import merge_files
from writer_harness import Harness

from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.jvm import iterate
from penstock._tables.read.live_files import LiveFiles
from penstock._tables.write.fenced import FencedTable
from penstock._tables.write.keyed import KeyedTable, Way

APP = "p/keyed/writer/1"
KEYS = 40


@dataclass(frozen=True)
class Shape:
    """A table: its key columns, with the SQL that computes their values from a number."""

    keys: dict[str, str]
    partitions: tuple[str, ...] = ()
    properties: dict[str, str] | None = None


SHAPES = {
    "bigint": Shape({"id": "n"}),
    "null and string": Shape({"a": "IF(n % 7 = 0, NULL, n)", "b": "CONCAT('k-', n)"}),
    "partitioned": Shape({"day": "DATE '2026-01-01' + CAST(n % 3 AS INT)", "id": "n"}, ("day",)),
    "mapped names": Shape({"my key": "CONCAT('k ', n)"}, (), {"delta.columnMapping.mode": "name"}),
    "window": Shape(
        {
            "w": "named_struct('start', timestamp_seconds(n), "
            "'end', IF(n % 3 = 0, NULL, timestamp_seconds(n + 10)))",
            "s": "CONCAT('s', n)",
        }
    ),
    "vectors": Shape({"id": "n"}, (), {"delta.enableDeletionVectors": "true"}),
    "mixed": Shape(
        {
            "t": "timestamp_micros(n * 1000003)",
            "d": "CAST(n AS DECIMAL(30, 3))",
            "s": "CAST(n AS SMALLINT)",
            "b": "CAST(CAST(n AS STRING) AS BINARY)",
            "p": "IF(n % 5 = 0, NULL, CONCAT('x y/', n % 2))",
        },
        ("p",),
    ),
}
QUICK = (
    ("mixed", Way.VECTORS),
    ("mapped names", Way.VECTORS),
    ("partitioned", Way.FILES),
    ("window", Way.VECTORS),
    ("vectors", Way.TABLE),
)


class Keyed:
    def __init__(self, spark: SparkSession, harness: Harness, shape: Shape, way: Way) -> None:
        self.spark, self.shape, self.harness = spark, shape, harness
        harness.prepare(
            self.rows([]), partition_cols=shape.partitions, properties=shape.properties or {}
        )
        self.delta = DeltaJvm(spark)
        self.live_files = LiveFiles(self.delta, harness.target.path)
        self.batch = -1
        self.table = self.new_table(way)

    def new_table(self, way: Way | None, **options: Any) -> KeyedTable:
        fenced = FencedTable(self.delta, self.harness.target, APP)
        return KeyedTable(fenced, way, **options)

    def rows(self, values: list[tuple[int, int]]) -> DataFrame:
        numbers = self.spark.createDataFrame(values, "n BIGINT, value BIGINT").coalesce(1)
        keys = [F.expr(sql).alias(name) for name, sql in self.shape.keys.items()]
        return numbers.select(*keys, "value", F.col("n").alias("number"))

    def replace(self, upserts: dict[int, int], deletes: set[int]) -> int | None:
        self.batch += 1
        txn = self.table.table.begin(self.batch)
        assert not txn.is_committed
        rows = self.rows(list(upserts.items()))
        all_keys = self.rows([(n, 0) for n in {*upserts, *deletes}])
        touched = all_keys.select(F.struct(*[F.col(f"`{k}`") for k in self.shape.keys]).alias("k"))
        result = CommitResult(flow="keyed", app_id=APP, batch_id=self.batch, version=None)
        is_rewrite = self.table.way is Way.TABLE
        keys = self.table.collected(txn, touched) if is_rewrite else None
        count = len(upserts) + len(deletes)
        return self.table.replace(txn, touched, rows, result, count=count, keys=keys)

    def content(self) -> dict[int, int]:
        rows = self.harness.rows().collect()
        content = {row.number: row.value for row in rows}
        assert len(content) == len(rows)
        return content

    def files(self) -> list[dict[str, Any]]:
        snapshot = self.delta.snapshot(self.harness.target.path)
        return self.delta.file_contents(self.live_files.all(snapshot))


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "way"),
    [
        (name, way) if (name, way) in QUICK else pytest.param(name, way, marks=LONG)
        for name in SHAPES
        for way in (Way.VECTORS, Way.FILES, Way.TABLE)
    ],
)
def test_table_equals_a_dictionary_after_random_batches(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch, name: str, way: Way
) -> None:
    if not SHAPES[name].partitions:  # must not read all rows for a join
        monkeypatch.setattr(FencedTable, "rows", None)
    draw = random.Random(f"{name} {way}")
    keyed, expected = Keyed(spark, harness, SHAPES[name], way), {}
    for batch in range(5):
        chosen = draw.sample(range(KEYS), draw.choice([1, 5, 20]))
        deletes = {n for n in chosen if draw.random() < 0.3}
        upserts = {n: batch * 1000 + n for n in chosen if n not in deletes}
        keyed.replace(upserts, deletes)
        expected = {n: v for n, v in {**expected, **upserts}.items() if n not in deletes}
        if batch == 3:  # another writer has changed the table
            spark.sql(f"DELETE FROM delta.`{harness.target.path}` WHERE number = {max(expected)}")
            expected.pop(max(expected))
            if way is not Way.TABLE:
                merge_files(spark, harness.target.path)
            keyed.table = keyed.new_table(way)
    assert keyed.content() == expected


def test_small_files_are_merged_after_many_batches(spark: SparkSession, harness: Harness) -> None:
    keyed = Keyed(spark, harness, SHAPES["bigint"], Way.VECTORS)

    def add_files(numbers: range) -> None:
        rows = keyed.rows([(n, n) for n in numbers]).repartitionByRange(len(numbers), "number")
        rows.write.format("delta").mode("append").save(harness.target.path)

    keyed.replace({0: 0}, set())
    add_files(range(1, 12))
    assert len(keyed.files()) == 12
    expected, counts = {n: n for n in range(12)}, []
    for batch in range(8):
        upserts = {batch % 3: 10 + batch, 100 + batch: batch}
        keyed.replace(upserts, set())
        expected |= upserts
        counts.append(len(keyed.files()))
    assert max(counts) < 17
    assert min(counts) < 4
    assert keyed.content() == expected
    streamed = keyed.table = keyed.new_table(Way.VECTORS, is_streamed=True)
    before = len(keyed.files())
    add_files(range(1000, 1016))
    for batch in range(2):
        keyed.replace({2000 + batch: batch}, set())
    assert len(keyed.files()) == before + 18
    assert streamed.table.live_files.size(keyed.delta.snapshot(harness.target.path)) == sum(
        file["size"] for file in keyed.files()
    )


def test_commit_conflicts_when_the_table_changes_after_the_search(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = Keyed(spark, harness, SHAPES["bigint"], Way.VECTORS)
    expected = {1: 1, 2: 2}
    keyed.replace(expected, set())
    commit: Callable[..., int] = FencedTable.commit
    for number, (change, effect) in enumerate(
        (
            ("INSERT INTO {t} SELECT 50, 5, 50", {50: 5}),
            ("DELETE FROM {t} WHERE id = 2", {2: None}),
            ("OPTIMIZE {t}", {}),
        )
    ):
        keyed.replace({3: number}, set())

        def interrupted(*args: Any, change: str = change, **options: Any) -> int:
            monkeypatch.setattr(FencedTable, "commit", commit)
            spark.sql(change.format(t=f"delta.`{harness.target.path}`"))
            return commit(*args, **options)

        monkeypatch.setattr(FencedTable, "commit", interrupted)
        upserts = {1: 10 + number, 3: 30 + number}
        with pytest.raises(Exception, match="DELTA_CONCURRENT"):
            keyed.replace(upserts, set())
        keyed.batch -= 1
        keyed.replace(upserts, set())
        changed = {**expected, **effect, **upserts}
        expected = {n: value for n, value in changed.items() if value is not None}
        assert keyed.content() == expected


def test_only_a_few_files_are_read_when_statistics_exclude_the_others(
    spark: SparkSession, harness: Harness
) -> None:
    keyed = Keyed(spark, harness, SHAPES["bigint"], Way.FILES)
    for part in range(4):
        keyed.replace({part * 100 + n: 0 for n in range(10)}, set())
    keys = keyed.rows([(105, 0), (-7, 0), (250, 0)]).select(F.struct("id").alias("k"))
    txn = keyed.table.table.begin(100)
    search = keyed.table.search(txn, keyed.table.collected(txn, keys))
    assert search.files().size() == 1
    (file,) = iterate(search.files())
    assert '"minValues":{"id":100' in file.stats()


def test_files_without_statistics_are_rewritten_without_deletion_vectors(
    spark: SparkSession, harness: Harness
) -> None:
    keyed = Keyed(spark, harness, SHAPES["bigint"], Way.VECTORS)
    spark.conf.set("spark.databricks.delta.stats.collect", "false")
    try:
        spark.sql(f"INSERT INTO delta.`{harness.target.path}` SELECT 1, 1, 1 UNION SELECT 2, 2, 2")
    finally:
        spark.conf.unset("spark.databricks.delta.stats.collect")
    keyed.replace({1: 10, 3: 30}, set())
    assert keyed.content() == {1: 10, 2: 2, 3: 30}
    assert not any(file.get("deletionVector") for file in keyed.files())
    keyed.replace({1: 11}, set())
    assert keyed.content() == {1: 11, 2: 2, 3: 30}
    assert any(file.get("deletionVector") for file in keyed.files())


def test_names_of_key_columns_may_have_another_case(spark: SparkSession, harness: Harness) -> None:
    df = harness.prepare(
        spark.sql("SELECT -1 AS id, 'a' AS part, 1 AS n"), partition_cols=("part",)
    )
    harness.upserter(["ID", "PART"], way=Way.VECTORS).write(df, 0)
    changed = spark.sql("SELECT -1 AS id, 'a' AS part, 2 AS n")
    harness.upserter(["ID", "PART"], way=Way.VECTORS).write(changed, 1)
    assert [tuple(row) for row in harness.rows().collect()] == [(-1, "a", 2)]


def test_files_may_be_older_than_the_column_mapping_of_their_table(
    spark: SparkSession, harness: Harness
) -> None:
    keyed = Keyed(spark, harness, SHAPES["bigint"], Way.VECTORS)
    keyed.replace({1: 1, 2: 2}, set())
    spark.sql(
        f"ALTER TABLE delta.`{harness.target.path}` SET TBLPROPERTIES"
        " (delta.columnMapping.mode = 'name')"
    )
    keyed.replace({1: 10, 3: 30}, set())
    assert keyed.content() == {1: 10, 2: 2, 3: 30}


def test_no_file_is_rewritten_when_all_keys_are_new(spark: SparkSession, harness: Harness) -> None:
    keyed = Keyed(spark, harness, SHAPES["partitioned"], Way.FILES)
    keyed.replace(dict.fromkeys(range(10), 0), set())
    before = {file["path"] for file in keyed.files()}
    keyed.replace(dict.fromkeys(range(10, 20), 1), {30})
    assert before < {file["path"] for file in keyed.files()}
    assert len(keyed.content()) == 20


def test_way_depends_on_the_table_the_keys_and_the_number_of_rows(
    spark: SparkSession, harness: Harness
) -> None:
    keyed = Keyed(spark, harness, SHAPES["bigint"], Way.VECTORS)
    keyed.replace({1: 1}, set())
    txn = keyed.table.table.begin(50)
    touched = keyed.rows([(1, 0)]).select(F.struct("id").alias("k"))
    chosen, streamed = keyed.new_table(None), keyed.new_table(None, is_streamed=True)
    assert chosen.way_for(txn, touched, 1) is Way.TABLE
    assert streamed.way_for(txn, touched, 1) is Way.VECTORS
    assert streamed.way_for(txn, touched, 1_000_000) is Way.MERGE
    narrow = touched.select(F.struct(F.expr("CAST(k.id AS INT)").alias("id")).alias("k"))
    assert streamed.way_for(txn, narrow, 1) is Way.MERGE
    unknown = touched.select(F.struct(F.expr("k.id").alias("more")).alias("k"))
    assert streamed.way_for(txn, unknown, 1) is Way.MERGE
    doubles = touched.select(F.struct(F.expr("CAST(k.id AS DOUBLE)").alias("id")).alias("k"))
    assert streamed.way_for(txn, doubles, 1) is Way.MERGE
    spark.sql(
        f"ALTER TABLE delta.`{harness.target.path}` SET TBLPROPERTIES"
        " (delta.enableDeletionVectors = false)"
    )
    txn = keyed.table.table.begin(50)
    assert streamed.way_for(txn, touched, 1) is Way.FILES
