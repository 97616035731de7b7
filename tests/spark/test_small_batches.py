"""Optimizations of small batches change neither their rows nor the statistics of their files."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from writer_harness import Harness, rule

from penstock._execution.storage_lease import StorageLease
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.jvm import iterate
from penstock._tables.write import kept
from penstock.quality.split import MASK_PREFIX, split_rows

TIME_ZONE = "spark.sql.session.timeZone"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("id < 4", {0, 1, 2, 3}),
        ("part = 2 and id > 5", {8, 11, 14, 17}),
    ],
)
def test_files_of_a_batch_are_listed_without_a_query(
    spark: SparkSession, tmp_path: Path, condition: str, expected: set[int]
) -> None:
    source = str(tmp_path / "source")
    for start in (0, 10):
        rows = spark.range(start, start + 10).withColumn("part", F.col("id") % 3)
        rows.write.format("delta").mode("append").partitionBy("part").save(source)
    ids: list[int] = []
    stream = spark.readStream.format("delta").load(source).where(condition).writeStream
    stream = stream.foreachBatch(lambda df, _: ids.extend(row.id for row in df.collect()))
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query: Any = stream.trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(ids) == sorted(expected)
    plan = query._jsq.streamingQuery().lastExecution().optimizedPlan()
    files = plan.collectLeaves().head().relation().location()
    assert files.getClass().getName() == "penstock.delta.BatchFiles$Index"


def test_files_of_a_small_table_are_listed_without_a_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = {name: f"delta.`{tmp_path / name}`" for name in ("small", "other", "many")}
    part = "IF(id % 3 = 2, NULL, id % 3) AS part"
    day = "DATE'2026-01-01' + CAST(id % 3 AS INT) AS day"
    rows = spark.range(20).selectExpr("id", part, "'a b' AS text", day)
    writer = rows.repartition(2, "id").write.format("delta").partitionBy("part", "text", "day")
    writer.option("delta.enableDeletionVectors", "true").save(str(tmp_path / "small"))
    spark.sql(f"DELETE FROM {tables['small']} WHERE id IN (3, 4, 5)")
    spark.range(4).coalesce(1).write.format("delta").save(str(tmp_path / "other"))
    spark.range(0, 65, 1, 65).write.format("delta").save(str(tmp_path / "many"))
    DeltaJvm(spark).jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    queries = {
        "SELECT sum(id), count(part) FROM {small}": [(178, 12)],
        "SELECT count(*) FROM {small} WHERE part IS NULL AND text = 'a b'": [(5,)],
        "SELECT count(*) FROM {small} WHERE PART + 1 > 1 AND upper(Text) LIKE 'A%'": [(6,)],
        "SELECT count(*) FROM {small} WHERE day = '2026-01-03' OR part = 1 AND id < 9": [(7,)],
        "SELECT count(*) FROM {small} WHERE day > DATE'2026-01-01' AND day < '2026-01-03'": [(6,)],
        "SELECT count(*) FROM {small} VERSION AS OF 0": [(20,)],
        "SELECT max(a.id) FROM {small} a JOIN {other} b ON a.part = b.id": [(19,)],
        "SELECT count(*) FROM {small} WHERE part = (SELECT min(part) + 1 FROM {small})": [(6,)],
        "SELECT count(*) FROM {small} WHERE id IN (SELECT id FROM {other})": [(3,)],
        "SELECT DISTINCT input_file_name() LIKE 'file:%/small/%.parquet' FROM {small}": [(True,)],
        "SELECT count(DISTINCT _metadata.file_path) FROM {small}": [(6,)],
    }
    for query, expected in queries.items():
        df = spark.sql(query.format(**tables))
        assert list(map(tuple, df.collect())) == expected, query
        assert _indexes(df) == {"BatchFiles$Index"}, query
    snapshots: list[Any] = [DeltaJvm(spark).snapshot(str(tmp_path / n)) for n in ("small", "other")]
    assert not any(snapshot.stateReconstructionTriggered() for snapshot in snapshots)

    both = spark.sql("SELECT count(*) FROM {other} a JOIN {many} b ON a.id = b.id".format(**tables))
    assert both.first() == (4,)
    assert _indexes(both) == {"BatchFiles$Index", "PreparedDeltaFileIndex"}
    # Another writer commits; the query reads the version at its start.
    later = spark.sql(f"SELECT sum(id) FROM {tables['other']}")
    write_deltalake(tmp_path / "other", pa.table({"id": [7]}), mode="append")
    assert later.first() == (13,)
    assert _indexes(later) == {"PreparedDeltaFileIndex"}  # the other writer does not count files
    spark.sql("INSERT INTO {other} SELECT id FROM {other}".format(**tables))
    commit = tmp_path / "small" / "_delta_log" / f"{1:020}.json"
    content = commit.read_bytes()
    commit.write_bytes(b"{")
    (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
    DeltaJvm(spark).jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(Exception, match="MALFORMED"):
        spark.sql("SELECT * FROM {small}".format(**tables)).collect()
    commit.write_bytes(content)
    DeltaJvm(spark).jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    merge = "MERGE INTO {other} t USING {small} s ON t.id = s.id WHEN MATCHED THEN DELETE"
    spark.sql("DELETE FROM {other} WHERE id = 0".format(**tables))
    spark.sql(merge.format(**tables))
    remaining = spark.sql("SELECT id FROM {other} ORDER BY id".format(**tables))
    assert [row.id for row in remaining.collect()] == [3, 3]


def _indexes(df: DataFrame) -> set[str]:
    leaves = iterate(df._jdf.queryExecution().optimizedPlan().collectLeaves())
    names = [leaf.relation().location().getClass().getName() for leaf in leaves]
    return {name.rpartition(".")[2] for name in names}


def _read(spark: SparkSession, source: str, folder: Path, *columns: str) -> tuple[list[Any], Any]:
    """Run a stream of these columns; returns its rows and Spark's query after the last batch."""
    rows: list[Any] = []
    stream = spark.readStream.format("delta").load(source)
    if columns:
        stream = stream.selectExpr(*columns)
    writer = stream.writeStream.foreachBatch(lambda df, _: rows.extend(map(tuple, df.collect())))
    writer = writer.option("checkpointLocation", str(folder))
    query: Any = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return rows, query


def _leaf(query: Any) -> str:
    plan = query._jsq.streamingQuery().lastExecution().optimizedPlan()
    return str(plan.collectLeaves().head().getClass().getSimpleName())


def test_streams_share_the_rows_of_small_files(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    table = f"delta.`{source}`"
    timestamp = "TIMESTAMP'1899-12-31 23:59:59' AS at"
    values = "id", "named_struct('a', id, 'b', array('x', NULL)) AS s", timestamp, "1.50BD AS d"
    spark.range(3).selectExpr(*values, "CAST(NULL AS STRING) AS text").coalesce(1).write.format(
        "delta"
    ).save(source)
    expected = sorted(map(tuple, spark.table(table).collect()))
    first, query = _read(spark, source, tmp_path / "first")
    assert (sorted(first), _leaf(query)) == (expected, "LogicalRDD")
    assert query.lastProgress["numInputRows"] == 3
    # The second stream does not read the file.
    (file,) = Path(source).glob("*.parquet")
    file.write_bytes(b"")
    second, query = _read(spark, source, tmp_path / "second", "d", "id + 1 AS n")
    assert sorted(second) == [(row[3], row[0] + 1) for row in expected]
    assert query.lastProgress["numInputRows"] == 3


def test_shared_rows_have_the_columns_and_types_of_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = str(tmp_path / "source")
    table = f"delta.`{source}`"
    properties = "'delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = 'true'"
    spark.sql(f"CREATE TABLE {table} (id INT) USING delta TBLPROPERTIES ({properties})")
    spark.sql(f"INSERT INTO {table} VALUES (1)")
    assert _read(spark, source, tmp_path / "first")[0] == [(1,)]
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN id TYPE BIGINT")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN name STRING")
    spark.sql(f"INSERT INTO {table} VALUES (5000000000, 'x')")
    rows, query = _read(spark, source, tmp_path / "second")
    assert sorted(rows) == [(1, None), (5_000_000_000, "x")]
    assert _leaf(query) == "LogicalRDD"


def test_rows_of_strongly_compressed_files_are_scanned(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    alike = spark.range(200).selectExpr("0 AS id", "repeat('x', 10000) AS text")
    alike.coalesce(1).write.format("delta").save(source)
    (file,) = Path(source).glob("*.parquet")
    assert file.stat().st_size < 200_000
    rows, query = _read(spark, source, tmp_path / "first")
    assert (len(rows), _leaf(query)) == (200, "LogicalRelation")
    jvm: Any = spark._jvm
    descriptors = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/fd")
    if descriptors.exists():  # on Linux
        assert file.resolve() not in {entry.resolve() for entry in descriptors.iterdir()}


def test_files_are_scanned_when_a_query_needs_the_name_of_the_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = str(tmp_path / "source")
    spark.range(2).coalesce(1).write.format("delta").save(source)
    (file,) = (path.name for path in Path(source).glob("*.parquet"))
    rows, query = _read(spark, source, tmp_path / "first", "input_file_name() AS f")
    assert [row[0].endswith(file) for row in rows] == [True, True]
    assert _leaf(query) == "LogicalRelation"


def test_missing_small_file_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    spark.range(2).coalesce(1).write.format("delta").save(source)
    (file,) = Path(source).glob("*.parquet")
    file.unlink()
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist"):
        _read(spark, source, tmp_path / "first")


@pytest.mark.parametrize("rules", [False, True], ids=["one table", "quarantine"])
def test_statistics_are_those_of_the_batch_that_was_written(
    spark: SparkSession, harness: Harness, rules: bool
) -> None:
    def batch(number: int) -> DataFrame:
        timestamp = F.lit("2026-11-01T00:00:00Z").cast("timestamp")
        return spark.range(number, number + 3).select("id", timestamp.alias("at")).coalesce(1)

    applied = [rule("small", "id < 100")] if rules else []
    writer_of = harness.prepare(batch(0), applied)
    writer = harness.writer()
    writer.write(writer_of, 0)
    writer.write(harness.prepare(batch(10), applied), 1)
    before = spark.conf.get(TIME_ZONE)
    spark.conf.set(TIME_ZONE, "Asia/Tokyo")
    try:
        writer.write(harness.prepare(batch(20), applied), 2)
    finally:
        spark.conf.set(TIME_ZONE, before)
    grown = harness.prepare(batch(30).withColumn("text", F.lit("x")), applied)
    # With rules, a new writer has the columns of the new split.
    (harness.writer() if rules else writer).write(grown, 3)
    log = Path(harness.target.path) / "_delta_log"
    lines = [line for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines()]
    added = [json.loads(line)["add"] for line in lines if '"add"' in line]
    stats = [json.loads(file["stats"]) for file in added]
    assert [(s["minValues"]["id"], s["maxValues"]["id"]) for s in stats] == [
        (0, 2),
        (10, 12),
        (20, 22),
        (30, 32),
    ]
    assert ["text" in s["minValues"] for s in stats] == [False, False, False, True]
    at = F.col("at") == F.lit("2026-11-01T00:00:00Z").cast("timestamp")
    assert harness.rows().where(at).count() == 12


def test_tables_with_equal_columns_have_statistics_by_their_own_settings(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(1).selectExpr("id AS a", "id AS b").coalesce(1)
    columns = []
    for number, wanted in enumerate(("a", "b", "a")):
        harness = Harness(spark, tmp_path, f"t{number}")
        harness.prepare(rows, properties={"delta.dataSkippingStatsColumns": wanted})
        harness.writer().write(rows, 0)
        lines = Path(harness.target.path, "_delta_log", f"{1:020d}.json").read_text().splitlines()
        (added,) = (json.loads(line)["add"] for line in lines if '"add"' in line)
        columns.append(list(json.loads(added["stats"])["minValues"]))
    assert columns == [["a"], ["b"], ["a"]]


def test_the_expression_of_the_statistics_is_kept_between_commits(
    spark: SparkSession, harness: Harness
) -> None:
    rows = spark.range(3)
    harness.prepare(rows)
    delta, jvm = DeltaJvm(spark), spark._jvm
    assert jvm is not None
    columns = rows._jdf.queryExecution().analyzed().output()
    kept_expressions = set()
    for number in range(3):
        harness.writer().write(rows, number)
        transaction = delta.begin(harness.target.path, writes=True)
        expression = transaction.getStatsColExpr(columns, transaction.snapshot())
        kept_expressions.add(jvm.System.identityHashCode(expression))
    assert len(kept_expressions) == 1


def test_checkpoints_of_many_tables_are_not_due_at_the_same_time(
    spark: SparkSession, harness: Harness
) -> None:
    jvm: Any = spark._jvm
    shift = jvm.penstock.delta.Checkpoints.shift
    assert len({shift(f"table {number}", 50) for number in range(200)}) > 40
    assert {shift(f"table {number}", 49) for number in range(200)} == {0}
    harness.prepare(spark.range(1), properties={"delta.checkpointInterval": "50"})
    delta, path = DeltaJvm(spark), harness.target.path
    spark.sparkContext.setJobGroup("commits", "commits of this test")
    try:
        for _ in range(76):
            transaction = delta.begin(path, writes=True)
            delta.commit(transaction, [], delta.properties_operation({}))
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    delta.await_checkpoints(60)
    table = delta.metadata(delta.begin(path)).id
    files = Path(path, "_delta_log").glob("0*.checkpoint.parquet")
    written = sorted(int(file.name[:20]) for file in files)
    # A table with few commits needs no checkpoint yet.
    (due,) = (version for version in range(26, 76) if (version + shift(table, 50)) % 50 == 0)
    assert written == [version for version in (due, due + 50) if version <= 76]
    # Delta computes the state of the table in the commit for which a checkpoint is due.
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("commits")) == []


def test_takeover_of_a_lease_does_not_compute_the_state_of_tables(
    spark: SparkSession, harness: Harness
) -> None:
    harness.prepare(spark.range(1))
    delta, path = DeltaJvm(spark), harness.target.path
    version, tracker = delta.version(path), spark.sparkContext.statusTracker()
    lease = StorageLease(spark, str(harness.target.path), {}, 1.0, is_borrowed=True)
    lease._tables = {path}
    before = set(tracker.getJobIdsForGroup())
    lease._fence()
    assert delta.version(path) == version + 1
    assert set(tracker.getJobIdsForGroup()) == before


def test_checkpoints_have_the_files_of_their_version(spark: SparkSession, harness: Harness) -> None:
    harness.prepare(spark.range(1), properties={"delta.checkpointInterval": "4"})
    delta, path = DeltaJvm(spark), harness.target.path
    writer = harness.writer()
    for number in range(9):
        writer.write(spark.range(number, number + 1).coalesce(1), number)
    delta.await_checkpoints(60)
    log = Path(path, "_delta_log")
    for version in (4, 8):  # the second checkpoint is computed from the first
        checkpoint = spark.read.parquet(str(log / f"{version:020d}.checkpoint.parquet"))
        actions = [checkpoint.where(f"{a} IS NOT NULL") for a in ("add", "metaData", "protocol")]
        assert [rows.count() for rows in actions] == [version, 1, 1]
        expected = spark.read.format("delta").option("versionAsOf", version).load(path)
        stored = {row[0] for row in actions[0].select("add.path").collect()}
        assert stored == {file.rpartition("/")[2] for file in expected.inputFiles()}


@pytest.mark.parametrize("rows", [0, 7, 2_000])
def test_few_rows_are_computed_once_and_kept_on_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(kept, "_DRIVER_BYTES", 4_000_000)
    columns = {
        "w": "IF(id = 3, NULL, named_struct('start', timestamp_seconds(id), 'id', id))",
        "a": "IF(id = 2, NULL, array(id, NULL))",
        "m": "map('k', rand())",
        "d": "CAST(id AS DECIMAL(30, 2))",
        "t": "IF(id = 1, NULL, repeat('é', CAST(IF(id = 999, 700000, id % 200) AS INT)))",
    }
    batch = spark.range(rows).selectExpr(*[f"{sql} AS `{name}`" for name, sql in columns.items()])
    frame, counts = kept.keep_and_count(DeltaJvm(spark), batch, None)
    assert counts.clean_rows == rows
    assert frame.schema == batch.schema
    assert not frame.storageLevel.useMemory
    first = frame.collect()
    assert first == frame.collect(), "random values were computed again"
    expected = batch.drop("m").collect()
    assert [tuple(row)[:2] + tuple(row)[3:] for row in first] == [tuple(row) for row in expected]


def test_many_rows_are_persisted_by_the_tasks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_DRIVER_BYTES", 4_000)
    batch = spark.range(0, 1_000, 1, 4).selectExpr("id", "rand() AS r")
    frame, counts = kept.keep_and_count(DeltaJvm(spark), batch, None)
    try:
        assert counts.clean_rows == 1_000
        assert frame.storageLevel.useMemory
        assert sorted(frame.collect()) == sorted(frame.collect())
    finally:
        frame.unpersist()


@pytest.mark.parametrize(
    ("most_bytes", "has_classes"), [(1_000_000, True), (4_000, True), (1_000_000, False)]
)
def test_rows_are_counted_by_rule_and_destination(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most_bytes: int, has_classes: bool
) -> None:
    monkeypatch.setattr(kept, "_DRIVER_BYTES", most_bytes)
    delta = DeltaJvm(spark)
    monkeypatch.setattr(delta, "has_own_classes", has_classes)
    batch = spark.range(0, 1_000, 1, 4).selectExpr("id", "IF(id % 7 = 0, NULL, id) AS n")
    rules = [
        rule("known", "n IS NOT NULL"),
        rule("large", "id >= 10", "warn"),
        rule("even", "n % 2 = 0", "warn"),
    ]
    split = split_rows(batch, rules)
    assert split is not None
    rows = split.df.withColumn(f"{MASK_PREFIX}x", F.expr("CAST(id % 3 AS INT)"))
    frame, counts = kept.keep_and_count(delta, rows, split, by=f"{MASK_PREFIX}x")
    try:
        assert frame.storageLevel.useMemory == (most_bytes < 1_000_000 or not has_classes)
        bad = [number for number in range(1_000) if number % 7 == 0]
        assert counts.bad_rows == len(bad)
        assert counts.clean_rows == 1_000 - len(bad)
        assert counts.by == Counter(n % 3 for n in range(1_000) if n % 7)
        odd = [n for n in range(1_000) if n % 2 or n % 7 == 0]
        failed = {name: count.failed for name, count in counts.rules.items()}
        assert failed == {"known": len(bad), "large": 10, "even": len(odd)}
        assert all(count.passed + count.failed == 1_000 for count in counts.rules.values())
    finally:
        frame.unpersist()


def test_failed_batch_is_not_persisted(spark: SparkSession) -> None:
    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    batch = spark.range(3).selectExpr("raise_error('broken') AS x")
    with pytest.raises(Exception, match="broken"):
        kept.keep_and_count(DeltaJvm(spark), batch, None)
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


def test_update_batch_without_rows_does_not_change_the_table(
    spark: SparkSession, harness: Harness
) -> None:
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "id BIGINT, name STRING")
    harness.prepare(rows)
    writer = harness.upserter(["id"])
    writer.write(rows, 0)
    writer.write(rows.where("id > 5"), 1)
    writer.write(rows.selectExpr("id", "'c' AS name").where("id = 2"), 2)
    assert sorted(tuple(row) for row in harness.rows().collect()) == [(1, "a"), (2, "c")]


def test_newest_version_is_known_after_commits_of_other_writers(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, delta = str(tmp_path / "t"), DeltaJvm(spark)

    def create(name: str) -> None:
        rows = spark.range(3).selectExpr(f"id AS {name}").coalesce(1)
        for _ in range(3):
            rows.write.format("delta").mode("append").save(path)

    assert delta.version(path) == -1
    create("a")
    known = delta.snapshot(path)
    assert known.version() == 2
    assert delta.snapshot(path).equals(known)
    write_deltalake(path, pa.table({"a": [7]}), mode="append")  # like another process
    assert delta.version(path) == 3
    assert delta.begin(path, writes=True).snapshot().version() == 3
    write_deltalake(path, pa.table({"a": [8]}), mode="append")
    assert delta.begin(path, writes=True).snapshot().version() == 4
    # Another table with the same number of commits.
    shutil.rmtree(path)
    assert delta.version(path) == -1
    create("b")
    for _ in range(2):
        write_deltalake(path, pa.table({"b": [7]}), mode="append")
    snapshot = delta.snapshot(path)
    assert snapshot.version() == 4
    assert delta.metadata(snapshot).schema.names == ["b"]
    # The log is listed again from time to time, so that checkpoints are used.
    for number in range(5, 20):
        txn = delta.begin(path, writes=True)
        operation = delta.streaming_operation("app", number, "{}", complete=False)
        delta.commit(txn, [delta.set_transaction("app", number, 0)], operation)
        if number == 6:
            DeltaTable(path).create_checkpoint()
    snapshot = delta.snapshot(path)
    assert snapshot.version() == 19
    assert snapshot.logSegment().deltas().size() == 13


def test_replaced_table_is_detected(spark: SparkSession, tmp_path: Path) -> None:
    path, delta = tmp_path / "t", DeltaJvm(spark)
    for name in ("t", "u"):
        for number in range(3):
            rows = pa.table({name: [number]})
            write_deltalake(tmp_path / name, rows, mode="append")
    assert delta.metadata(delta.snapshot(str(path))).schema.names == ["t"]
    shutil.rmtree(path)
    (tmp_path / "u").rename(path)
    assert delta.metadata(delta.snapshot(str(path))).schema.names == ["u"]
