"""Direct scans of the log return the same results as Delta."""

import json
import threading
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from writer_harness import Harness

from penstock._tables.delta_log import DeltaJvm
from penstock._tables.read.live_files import LiveFiles
from penstock._tables.read.log_scan import append_only_start, keeps_rows, last_batch
from penstock._tables.write.create import reset_table
from penstock._tables.write.prepare import prepare_table
from penstock._tables.write.table_spec import TableSpec

APP = "p/orders/writer/1"


class Log:
    """The log of one table, read directly and by Delta."""

    def __init__(self, spark: SparkSession, harness: Harness) -> None:
        self.spark = spark
        self.harness = harness
        self.delta = DeltaJvm(spark)
        self.path = harness.target.path
        self.files: LiveFiles | None = None

    @property
    def version(self) -> int:
        return int(self.delta.snapshot(self.path).version())

    def last_batch(self) -> int | None:
        return last_batch(self.delta, self.path, self.version, APP)

    def last_batch_of_delta(self) -> int:
        return int(self.delta.begin(self.path).txnVersion(APP))

    def live(self) -> set[str]:
        """Live files, cached between calls; a new object must return the same files."""
        self.files = self.files or LiveFiles(self.delta, self.path)
        cached, new = (
            {
                file["path"]
                for file in self.delta.file_contents(files.all(self.delta.snapshot(self.path)))
            }
            for files in (self.files, LiveFiles(self.delta, self.path))
        )
        assert cached == new
        return cached

    def live_of_delta(self) -> set[str]:
        files = self.delta.file_contents(self.delta.begin(self.path).filterFiles())
        return {file["path"] for file in files}

    def start(self) -> int | None:
        return append_only_start(self.delta, self.path, self.version)

    def sql(self, text: str) -> None:
        self.spark.sql(text.format(t=f"delta.`{self.path}`"))


@pytest.fixture
def log(spark: SparkSession, harness: Harness) -> Log:
    return Log(spark, harness)


def rows(spark: SparkSession, n: int = 4) -> DataFrame:
    return spark.range(n).selectExpr("id", "id * 2 AS twice").coalesce(1)


def test_last_batch_and_live_files_equal_those_of_delta_when_a_flow_appends(
    spark: SparkSession, log: Log
) -> None:
    df = log.harness.prepare(rows(spark))
    assert (log.last_batch(), log.last_batch_of_delta()) == (-1, -1)
    assert log.live() == log.live_of_delta() == set()
    writer = log.harness.writer()
    for batch in range(3):
        writer.write(df, batch)
        assert log.last_batch() == log.last_batch_of_delta() == batch
    assert log.live() == log.live_of_delta()
    assert len(log.live()) == 3
    assert log.start() == 0
    assert _streamed(spark, log, 0) == 12


def test_scans_fail_or_return_none_when_the_log_is_too_long_or_damaged(
    spark: SparkSession, log: Log
) -> None:
    df = log.harness.prepare(rows(spark))
    log.harness.writer().write(df, 0)
    other = log.harness.writer(app_id="p/other/writer/1")
    for batch in range(20):
        other.write(df, batch)
    assert log.last_batch() is None
    assert log.last_batch_of_delta() == 0
    assert log.live() == log.live_of_delta()
    assert log.start() == 0
    version = log.version
    folder = log.harness.root / "orders" / "_delta_log"
    with (folder / f"{version:020d}.json").open("r+") as commit:
        commit.truncate(30)  # truncated within the first action
    for scan in (append_only_start, lambda *of: keeps_rows(*of[:2], version - 1, version)):
        with pytest.raises(json.JSONDecodeError):
            scan(log.delta, log.path, version)
    (folder / f"{0:020d}.json").unlink()
    assert append_only_start(log.delta, log.path, version) is None


def test_commits_of_remote_storage_are_read_several_at_a_time() -> None:
    together = threading.Barrier(4, timeout=60)

    class Delta:
        def commit_lines(self, path: str, version: int) -> list[str]:
            assert path == "s3a://lake/orders"
            if version < 12:
                together.wait()
            app = "ours" if version == 5 else "other"
            return [json.dumps({"txn": {"appId": app, "version": version}})]

    delta: Any = Delta()
    assert last_batch(delta, "s3a://lake/orders", 12, "other") == 12
    assert last_batch(delta, "s3a://lake/orders", 12, "ours") == 5


def test_append_only_start_is_none_when_the_partitions_changed(
    spark: SparkSession, log: Log
) -> None:
    log.harness.prepare(rows(spark))
    assert log.start() == 0
    df = log.harness.prepare(rows(spark), partition_cols=("twice",))
    log.harness.writer().write(df, 0)
    assert log.start() is None
    assert log.live() == log.live_of_delta()


def test_live_files_equal_those_of_delta_when_old_commits_are_cleaned_up(
    spark: SparkSession, log: Log
) -> None:
    df = log.harness.prepare(rows(spark))
    writer = log.harness.writer()
    for batch in range(3):
        writer.write(df, batch)
    log.delta.log(log.path).checkpoint()
    (log.harness.root / "orders" / "_delta_log" / f"{0:020d}.json").unlink()
    log.delta.jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert len(log.live()) == 3
    assert log.live() == log.live_of_delta()


def test_live_files_of_a_checkpoint_equal_those_of_delta(spark: SparkSession, log: Log) -> None:
    properties = {"delta.enableDeletionVectors": "true"}
    values = "id", "IF(id = 0, NULL, concat('a b%/', id % 2)) AS part", "id * 2 AS twice"
    df = log.harness.prepare(
        spark.range(4).selectExpr(*values), partition_cols=("part",), properties=properties
    )
    writer = log.harness.writer()
    writer.write(df, 0)
    log.sql("DELETE FROM {t} WHERE id = 1")
    log.sql("OPTIMIZE {t}")
    writer.write(df, 1)
    log.sql("DELETE FROM {t} WHERE id = 3")
    log.delta.log(log.path).checkpoint()
    (log.harness.root / "orders" / "_delta_log" / f"{0:020d}.json").unlink()
    for batch in (2, 3):
        log.delta.jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        snapshot = log.delta.snapshot(log.path)
        files = log.delta.file_contents(LiveFiles(log.delta, log.path).all(snapshot))
        assert not snapshot.stateReconstructionTriggered()
        by_path = {json.dumps([file["path"], file.get("deletionVector")]): file for file in files}
        assert len(by_path) == len(files)
        for file in log.delta.file_contents(snapshot.allFiles().collect()):
            own = by_path.pop(json.dumps([file["path"], file.get("deletionVector")]))
            no_tags = {} if own.get("tags") else {"tags": {}}
            assert own | {"dataChange": False} | no_tags == file | no_tags
        assert by_path == {}
        writer.write(df, batch)


def test_damaged_checkpoint_is_an_error_only_when_commits_are_missing(
    spark: SparkSession, log: Log
) -> None:
    df = log.harness.prepare(rows(spark))
    log.harness.writer().write(df, 0)
    log.delta.log(log.path).checkpoint()
    folder = log.harness.root / "orders" / "_delta_log"
    (checkpoint,) = folder.glob("*.checkpoint.parquet")
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(b"x" * len(content))
    (folder / f".{checkpoint.name}.crc").unlink(missing_ok=True)
    log.delta.jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    # The commits still exist.
    assert len(log.live()) == 1
    (folder / f"{0:020d}.json").unlink()
    with pytest.raises(Py4JJavaError, match="checkpoint"):
        log.live()


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM {t} WHERE id = 1",
        "UPDATE {t} SET twice = 0 WHERE id = 1",
        "ALTER TABLE {t} ADD COLUMNS (more INT)",
    ],
)
def test_append_only_start_is_none_when_the_table_was_changed(
    spark: SparkSession, log: Log, change: str
) -> None:
    writer = log.harness.writer
    df = log.harness.prepare(rows(spark))
    writer().write(df, 0)
    log.sql(change)
    assert log.start() is None
    assert log.live() == log.live_of_delta()


def test_live_files_equal_those_of_delta_when_files_have_deletion_vectors(
    spark: SparkSession, log: Log
) -> None:
    properties = {"delta.enableDeletionVectors": "true"}
    df = log.harness.prepare(rows(spark), properties=properties)
    log.harness.writer().write(df, 0)
    log.sql("DELETE FROM {t} WHERE id = 1")
    log.sql("DELETE FROM {t} WHERE id = 2")
    assert log.start() is None
    assert log.live() == log.live_of_delta()
    assert len(log.live()) == 1


def test_live_files_equal_those_of_delta_after_a_compaction(spark: SparkSession, log: Log) -> None:
    df = log.harness.prepare(rows(spark))
    writer = log.harness.writer()
    for batch in range(3):
        writer.write(df, batch)
    log.sql("OPTIMIZE {t}")
    assert log.live() == log.live_of_delta()
    assert len(log.live()) == 1
    assert log.start() is None


def test_append_only_start_is_after_the_reset_of_a_table(spark: SparkSession, log: Log) -> None:
    df = log.harness.prepare(rows(spark))
    writer = log.harness.writer()
    writer.write(df, 0)
    reset_table(spark, log.harness.target)
    assert log.live() == log.live_of_delta() == set()
    assert log.start() is None  # A stream cannot start from an empty table.
    prepare_table(spark, log.harness.target, TableSpec(schema=df.schema, comment="again"))
    assert log.start() == 3
    writer.write(df, 1)
    assert log.start() == 3
    assert _streamed(spark, log, 3) == 4


def test_live_files_equal_those_of_delta_when_a_view_was_replaced(
    spark: SparkSession, log: Log
) -> None:
    df = log.harness.prepare(rows(spark))
    writer: Any = log.harness.writer(replaces=True)
    for turn in range(25):
        writer.write_batch(df, fingerprint=f"{turn}")
    assert log.version > 20
    assert log.live() == log.live_of_delta()
    assert log.start() is None
    assert log.harness.rows().count() == 4


def _streamed(spark: SparkSession, log: Log, start: int) -> int:
    stream = spark.readStream.format("delta").option("startingVersion", start).load(log.path)
    counts: list[int] = []
    query = (
        stream.writeStream.foreachBatch(lambda df, _: counts.append(df.count()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    return sum(counts)
