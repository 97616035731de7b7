import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from writer_harness import Harness, rule

from penstock._tables.commits import CommitResult
from penstock._tables.write.fenced import FencedTable
from penstock._tables.write.writer import FlowWriter

RULES = (rule("positive", "id % 10 <> 0"),)


def run_available(df: DataFrame, writer: FlowWriter, checkpoint: Path) -> list[CommitResult]:
    results: list[CommitResult] = []
    query = (
        df.writeStream.foreachBatch(lambda d, b: results.append(writer.write(d, b)))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return results


def numbers(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.format("json").schema("id BIGINT, at TIMESTAMP")
    return reader.option("maxFilesPerTrigger", 1).load(str(folder))


def write_numbers(folder: Path, files: int, rows: int) -> None:
    folder.mkdir()
    for number in range(files):
        lines = [
            json.dumps({"id": i, "at": f"2024-01-01T00:{i % 60:02d}:00Z"})
            for i in range(number * rows, (number + 1) * rows)
        ]
        path = folder / f"{number}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def forget_last_commit(checkpoint: Path) -> int:
    commits = checkpoint / "commits"
    last = max(int(p.name) for p in commits.iterdir() if p.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    return last


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
def test_replayed_batch_changes_nothing_when_the_newest_commit_file_is_deleted(
    spark: SparkSession, harness: Harness, tmp_path: Path, stateful: bool
) -> None:
    write_numbers(tmp_path / "in", 3, 50)
    source = numbers(spark, tmp_path / "in")
    if stateful:
        source = source.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])
    df = harness.prepare(source, RULES)
    options = {"stateful": stateful}
    first = run_available(df, harness.writer(**options), tmp_path / "cp")
    version = first[-1].version or first[-2].version
    rows = harness.rows().count()
    forgotten = forget_last_commit(tmp_path / "cp")
    again = run_available(df, harness.writer(**options), tmp_path / "cp")
    assert again[0].batch_id == forgotten
    written = next(r for r in first if r.batch_id == forgotten)
    if written.version is not None:
        assert again[0].replayed
        assert again[0].rules == written.rules
    assert rows == harness.rows().count() == harness.rows().distinct().count() == 135
    assert harness.bad().count() == 15
    empty = (
        harness.rows()
        .limit(0)
        .selectExpr(
            "CAST(NULL AS BOOLEAN) penstock_dq_0",
            "*",
            "CAST(NULL AS ARRAY<STRING>) _failed_rules",
            "CAST(NULL AS STRING) _row",
            "CAST(NULL AS STRING) _source",
            "'table' penstock_dest",
        )
    )
    assert harness.writer().write(empty, 2).replayed
    assert version == 3


def test_batch_is_completed_when_the_process_crashed_between_the_two_commits(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = harness.prepare(spark.range(100).coalesce(2), RULES)
    commit = FencedTable.commit

    def crash_at_the_target(self: FencedTable, *args: object, **kwargs: object) -> int:
        if self.ref == harness.target:
            raise KeyboardInterrupt
        return commit(self, *args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(FencedTable, "commit", crash_at_the_target)
        with pytest.raises(KeyboardInterrupt):
            harness.writer().write(df, 0)
    assert (harness.rows().count(), harness.bad().count()) == (0, 10)
    result = harness.writer().write(df, 0)
    assert not result.replayed
    assert (harness.rows().count(), harness.bad().count()) == (90, 10)
    assert result.rules["positive"].failed == 10


def test_batches_of_two_flows_of_one_table_are_fenced_independently(
    spark: SparkSession, harness: Harness
) -> None:
    df = harness.prepare(spark.range(10).coalesce(1))
    first, second = harness.writer(app_id="p/a/w/1"), harness.writer(app_id="p/b/w/1")
    for batch in range(3):
        assert not first.write(df, batch).replayed
        assert not second.write(df, batch).replayed
    df.write.format("delta").mode("append").save(harness.target.path)
    assert first.write(df, 2).replayed
    assert second.write(df, 2).replayed
    assert not first.write(df, 3).replayed
    assert harness.rows().count() == 80


def test_commit_fails_when_another_driver_wrote_the_same_batch(
    spark: SparkSession, harness: Harness
) -> None:
    df = harness.prepare(spark.range(10).coalesce(1))
    writer, other = harness.writer(), harness.writer()
    writer.write(df, 0)
    transaction = writer._target.begin(1)
    other.write(df, 1)
    result = CommitResult(flow="orders", app_id="p/orders/writer/1", batch_id=1, version=None)
    with pytest.raises(Exception, match=r"(?i)concurrent"):
        writer._target.commit(transaction, [], 1, result, complete=False)
    assert harness.rows().count() == 20


@pytest.mark.parametrize(
    ("point", "target", "quarantine"),
    [("before_write", 0, 0), ("after_quarantine_commit", 0, 10), ("after_target_commit", 90, 10)],
)
def test_process_is_killed_exactly_at_the_kill_point(
    tmp_path: Path, point: str, target: int, quarantine: int
) -> None:
    # Without Spark: kill points of other flows and batches do not kill the process.
    code = (
        "from penstock._tables.kill_points import kill_point\n"
        f"kill_point('{point}', 'other', 0); kill_point('{point}', 'orders', 1)\n"
        f"kill_point('{point}', 'orders', 0); print('alive')"
    )
    env = {**os.environ, "PENSTOCK_KILL_AT": f"{point}:orders:0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert done.returncode == -9
    assert done.stdout == b""


def test_counts_are_unchanged_when_a_batch_is_replayed_after_other_commits(
    spark: SparkSession, harness: Harness
) -> None:
    df = harness.prepare(spark.range(100).coalesce(1), RULES)
    writer = harness.writer()
    written = [writer.write(df.withColumn("id", F.col("id")), b) for b in range(3)]
    spark.sql(f"OPTIMIZE delta.`{harness.target.path}`")
    again = harness.writer().write(df, 1)
    assert (again.replayed, again.version, again.rules) == (True, 2, written[1].rules)
