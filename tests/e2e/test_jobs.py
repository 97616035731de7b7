"""Programs that start their queries themselves, run unchanged."""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import penstock
from deltalake import DeltaTable

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))

from pipeline_process import PipelineProcess

from penstock._tables.files import local_path

pytestmark = pytest.mark.e2e

TWO_QUERIES = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("two").getOrCreate()
rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json("inbox")


def append(batch, batch_id):
    options = {"txnAppId": "batches", "txnVersion": batch_id}
    batch.write.format("delta").options(**options).mode("append").save("out/batches")


if __name__ == "__main__":
    batches = (
        rows.writeStream.foreachBatch(append)
        .option("checkpointLocation", "checkpoints/batches")
        .start()
    )
    (
        rows.writeStream.format("delta")
        .option("checkpointLocation", "checkpoints/direct")
        .trigger(processingTime="500 milliseconds")
        .start("out/direct")
    )
    spark.streams.awaitAnyTermination()
    print("after the queries")
"""

ONE_QUERY = """
rows = spark.readStream.schema("id long").json("{root}/inbox")
query = (
    rows.writeStream.foreachBatch({function})
    .option("checkpointLocation", "{root}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print("after the query")
spark.stop()
"""


def add(root: Path, *ids: int) -> None:
    (root / "inbox").mkdir(exist_ok=True)
    for number in ids:
        (root / "inbox" / f"{number}.json").write_text(json.dumps({"id": number}))


def ids_of(table: Path) -> list[int]:
    if not (table / "_delta_log").exists():
        return []
    with suppress(Exception):  # the table is being created
        return sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist())
    return []


def test_job_resumes_after_kill_and_stops_after_its_batches(tmp_path: Path):
    (tmp_path / "job.py").write_text(TWO_QUERIES)
    add(tmp_path, *range(3))
    tables = [tmp_path / "out" / name for name in ("batches", "direct")]
    first = PipelineProcess(tmp_path, "job.py")
    try:
        assert first.wait_until(lambda: all(map(ids_of, tables)), 200), first.output
    finally:
        first.kill_group()
    add(tmp_path, *range(3, 6))
    second = PipelineProcess(tmp_path, "job.py")
    try:
        done = second.wait_until(lambda: all(len(ids_of(t)) == 6 for t in tables), 200)
        assert done, second.output
        os.kill(second._process.pid, signal.SIGTERM)
        assert second._process.wait(30) == 130, second.output
    finally:
        second.kill_group()
    assert "after the queries" in second.output
    assert [ids_of(table) for table in tables] == [list(range(6))] * 2
    status = json.loads(penstock(tmp_path, "status", "job.py", "--output", "json").out)
    assert {flow["flow"]: flow["state"] for flow in status["flows"]} == {
        "batches": "STOPPED",
        "direct": "STOPPED",
    }
    updates = json.loads(penstock(tmp_path, "history", "--output", "json").out)
    assert "CANCELED" in json.dumps(updates)


def test_job_ends_when_all_rows_are_processed(spark, tmp_path: Path):
    (tmp_path / "job.py").write_text(
        "import sys\nprint(sys.argv[1:])\nspark = spark.newSession()\n"
        + ONE_QUERY.format(root=tmp_path, function="lambda df, _: df.count()")
        + "dbutils.notebook.exit('done')\nprint('after the exit')\n"
    )
    add(tmp_path, 1)
    run = penstock(tmp_path, "run", ".", "--", "--topic", "a b", "--refresh=x", "--debug")
    assert run.code == 0, run.text
    assert "['--topic', 'a b', '--refresh=x', '--debug']" in run.out
    assert "after the query" in run.text
    assert "after the exit" not in run.text
    status = json.loads(penstock(tmp_path, "status", "job.py", "--output", "json").out)
    assert [(f["flow"], f["state"], f["batches"]) for f in status["flows"]] == [
        ("query", "COMPLETED", 1)
    ]


def test_job_fails_with_its_query(spark, tmp_path: Path):
    (tmp_path / "job.py").write_text(
        'shown = spark.readStream.format("rate").load().writeStream.format("console").start()\n'
        "while shown.lastProgress is None: shown.awaitTermination(0.1)\n"
        + ONE_QUERY.format(root=tmp_path, function="lambda df, _: 1 / 0")
    )
    add(tmp_path, 1)
    run = penstock(tmp_path, "run", "job.py")
    assert run.code == 1, run.text
    assert "query failed: ZeroDivisionError: division by zero (job.py:6)" in run.err
    assert "declared at job.py:9" in run.err
    assert "after the query" not in run.text
    (printed,) = (line for line in run.text.splitlines() if "prints its rows" in line)
    log = Path(printed.partition("which is the file ")[2])
    assert "|timestamp|value|" in log.read_text()


BROKEN = """
import pathlib, time
from pyspark.sql import SparkSession

spark = SparkSession.builder.config("job.name", "broken").getOrCreate()
while not pathlib.Path("{root}/started").exists():
    time.sleep(0.05)
rows = spark.readStream.schema("id long").json("{root}/inbox")
query = (
    rows.writeStream.foreachBatch(lambda df, _: 1 / 0)
    .option("checkpointLocation", "{root}/broken")
    .start()
)
try:
    query.awaitTermination()
finally:
    pathlib.Path("{root}/failed").touch()
"""

GOOD = """
import pathlib, time
from pyspark.sql import SparkSession
from starting import started

if __name__ == "__main__":
    spark = SparkSession.builder.config("job.name", "good").getOrCreate()
    query = started(spark.readStream.schema("id long").json("{root}/inbox"))
    query.processAllAvailable()
    pathlib.Path("{root}/started").touch()
    while not pathlib.Path("{root}/failed").exists():
        time.sleep(0.05)
    pathlib.Path("{root}/inbox/2.json").write_text('{{"id": 2}}')
    query.processAllAvailable()
    print("good:", spark.conf.get("job.name"), len(spark.streams.active))
    spark.stop()
"""

STARTING = """
def started(rows):
    query = rows.writeStream.format("delta").option("checkpointLocation", "{root}/checkpoint")
    return query.start("{root}/out")
"""

PARQUET_TABLE = """
rows = spark.readStream.schema("id long").json("{root}/inbox")
writer = rows.writeStream.trigger(availableNow=True)
writer.option("checkpointLocation", "{root}/table").toTable("of_an_earlier_run")
"""


def test_jobs_of_a_folder_run_together(spark, tmp_path: Path):
    jobs = {"broken": BROKEN, "good": GOOD, "starting": STARTING, "table": PARQUET_TABLE}
    for name, text in jobs.items():
        (tmp_path / f"{name}.py").write_text(text.format(root=tmp_path))
    add(tmp_path, 1)
    warehouse = local_path(spark.conf.get("spark.sql.warehouse.dir"))
    (warehouse / "of_an_earlier_run" / "part").mkdir(parents=True)
    run = penstock(tmp_path, "run")
    assert run.code == 1, run.text
    assert "running broken.py, good.py, table.py" in run.text
    assert "flow broken_query: " in run.err
    assert "query failed: ZeroDivisionError: division by zero (broken.py:" in run.err
    assert "LOCATION_ALREADY_EXISTS" in run.err
    assert "spark.sql.sources.default: delta" in run.err
    assert "good: good 1" in run.out
    assert ids_of(tmp_path / "out") == [1, 2]
    status = json.loads(penstock(tmp_path, "status", "--output", "json").out)
    assert {flow["flow"]: flow["state"] for flow in status["flows"]} == {
        "broken_query": "FAILED",
        "out": "COMPLETED",
    }


FAILS_ONCE = 'lambda df, _: os.path.exists("first") or os.mkdir("first") or 1 / 0'


def test_continuous_job_starts_again_after_a_failed_query(spark, tmp_path: Path):
    (tmp_path / "job.py").write_text(
        "import os\n" + ONE_QUERY.format(root=tmp_path, function=FAILS_ONCE)
    )
    add(tmp_path, 1)
    run = penstock(tmp_path, "run", "--continuous", "job.py")
    assert run.code == 0, run.text
    assert "[FLOW_FAILED]" in run.err
    assert "a new update starts in" in run.err
    assert "after the query" in run.out


def test_restarted_query_is_the_same_flow(spark, tmp_path: Path):
    query = ONE_QUERY.format(root=tmp_path, function="lambda df, _: 1 / divisors.pop()")
    body = query.replace("\n", "\n    ")
    (tmp_path / "job.py").write_text(
        f"divisors = [1, 0, 0]\nwhile divisors:\n  try:{body}\n  except Exception as e:\n    pass\n"
    )
    add(tmp_path, 1)
    run = penstock(tmp_path, "run", "job.py")
    assert run.code == 0, run.text
    status = json.loads(penstock(tmp_path, "status", "job.py", "--output", "json").out)
    assert [(f["flow"], f["state"]) for f in status["flows"]] == [("query", "COMPLETED")]


def test_commands_for_pipelines_refuse_a_job(spark, tmp_path: Path):
    (tmp_path / "job.py").write_text(TWO_QUERIES)
    for command in (["dry-run"], ["check"], ["run", "--full-refresh-all"]):
        refused = penstock(tmp_path, command[0], "job.py", *command[1:])
        assert "SOURCE_IS_JOB" in refused.text, refused.text
    assert not (tmp_path / "checkpoints").exists()
