"""Sinks that Spark, Delta or the user's functions write: what is there after a batch ran twice."""

import json
from pathlib import Path

import pytest
from update_project import Project

from penstock._observe.events import UpdateState
from penstock.batches import current_batch
from penstock.errors import DefinitionError

pytestmark = pytest.mark.spark


@pytest.fixture
def project(tmp_path: Path, spark, monkeypatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, spark)


def forget_last_commits(project: Project, *flows: str) -> None:
    for flow in flows:
        commits = [f for f in project.commits_folder(flow).iterdir() if f.name.isdigit()]
        newest = max(commits, key=lambda f: int(f.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


SYSTEMS = """
import json
from pathlib import Path
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

FORMATS = ("json", "csv", "parquet", "orc")

for name in FORMATS:
    dp.create_sink(f"to_{name}", name, {"path": f"out/{name}"})
dp.create_sink("by_path", "delta", {"path": "out/delta"})
dp.create_sink("by_name", "delta", {"tableName": "shared.orders"})
dp.create_sink("shown", "console", {"numRows": "1"})
dp.create_sink("kept", "memory")
dp.create_sink("own", "appender", {"path": str(Path("own.jsonl").absolute())})

for name in (*(f"to_{f}" for f in FORMATS), "by_path", "by_name", "shown", "kept", "own"):
    @dp.append_flow(target=name, name=f"flow_{name}")
    def flow():
        return rows().select("id", "amount")

class Writer(DataSourceStreamWriter):
    def __init__(self, path):
        self.path = path

    def write(self, iterator):
        return Message(sorted(row.id for row in iterator))

    def commit(self, messages, batchId):
        with open(self.path, "a") as out:
            ids = sorted(n for m in messages if m is not None for n in m.ids)
            out.write(json.dumps([batchId, ids]) + "\\n")

    def abort(self, messages, batchId):
        pass

class Message(WriterCommitMessage):
    def __init__(self, ids):
        self.ids = ids

class Appender(DataSource):
    @classmethod
    def name(cls):
        return "appender"

    def streamWriter(self, schema, overwrite):
        return Writer(self.options["path"])

spark.dataSource.register(Appender)
"""


def test_files_and_delta_have_each_row_once_when_batches_are_run_again(project: Project):
    project.source(SYSTEMS).add("a.json", [{"id": 1, "amount": 1}, {"id": 2, "amount": 2}])
    result = project.run()
    assert result.state is UpdateState.COMPLETED, [str(failure) for failure in result.failures]
    flows = [path.name for path in (project.root / ".penstock" / "checkpoints").iterdir()]
    assert len(flows) == 9
    forget_last_commits(project, *(flow for flow in flows if flow not in ("flow_kept",)))
    project.add("b.json", [{"id": 3, "amount": 3}])
    result = project.run()
    assert result.state is UpdateState.COMPLETED, [str(failure) for failure in result.failures]
    spark = project.spark
    for name in ("json", "csv", "parquet", "orc"):
        found = spark.read.schema("id BIGINT, amount INT").format(name)
        rows = found.load(str(project.root / "out" / name)).collect()
        assert sorted(tuple(row) for row in rows) == [(1, 1), (2, 2), (3, 3)], name
    for path in ("out/delta", ".penstock/tables/spark_catalog/shared/orders"):
        rows = spark.read.format("delta").load(str(project.root / path)).collect()
        assert sorted(row.id for row in rows) == [1, 2, 3], path
    lines = [json.loads(line) for line in (project.root / "own.jsonl").read_text().splitlines()]
    assert lines == [[0, [1, 2]], [0, [1, 2]], [1, [3]]]


FUNCTION = """
from pathlib import Path
from penstock.batches import current_batch, idempotent_delta_write, once_per_batch

def note(text):
    with Path("notes").open("a") as out:
        out.write(text + "\\n")

@dp.foreach_batch_sink
def audit(df, batch_id):
    assert current_batch().batch_id == batch_id
    wrote = idempotent_delta_write(df, "audit/all", partition_by=["k"])
    wrote &= idempotent_delta_write(df.where("n > 1"), "audit/all", name="again")
    note(f"{current_batch().flow} {batch_id} {wrote}")
    once_per_batch(lambda: note(f"once {batch_id}"), name="note")
    df.write.format("delta").mode("append").save("audit/plain")

@dp.append_flow(target="audit", output_mode="update")
def counted():
    return rows().groupBy((F.col("id") % 2).alias("k")).agg(F.count("*").alias("n"))
"""


def test_helpers_make_the_writes_of_a_function_repeatable_and_state_goes_on(project: Project):
    project.source(FUNCTION).add("a.json", [{"id": 1}, {"id": 2}, {"id": 3}])
    assert project.run().state is UpdateState.COMPLETED
    forget_last_commits(project, "counted")
    project.add("b.json", [{"id": 5}])
    result = project.run()
    assert result.state is UpdateState.COMPLETED, result.failures

    def rows(name: str) -> list[tuple[int, int]]:
        df = project.spark.read.format("delta").load(str(project.root / "audit" / name))
        return sorted((row.k, row.n) for row in df.collect())

    assert rows("all") == [(0, 1), (1, 2), (1, 2), (1, 3), (1, 3)]
    # Without the helper, the batch that ran twice is there twice.
    assert rows("plain") == [(0, 1), (0, 1), (1, 2), (1, 2), (1, 3)]
    assert (project.root / "notes").read_text().splitlines() == [
        "counted 0 True",
        "once 0",
        "counted 0 False",
        "counted 1 True",
        "once 1",
    ]


def test_a_function_that_raises_or_misuses_the_helpers_is_told_so(project: Project):
    project.source(
        """
from penstock.batches import idempotent_delta_write

@dp.foreach_batch_sink
def twice(df, batch_id):
    idempotent_delta_write(df, "t")
    idempotent_delta_write(df, "t")

@dp.foreach_batch_sink
def raises(df, batch_id):
    df.selectExpr("no_such_column")

@dp.append_flow(target="twice")
def one():
    return rows()

@dp.append_flow(target="raises")
def other():
    return rows()
"""
    ).add("a.json", [{"id": 1}])
    result = project.run()
    failures = {failure.condition: str(failure) for failure in result.failures}
    assert set(failures) == {"BATCH_WRITE_REPEATED", "FLOW_FAILED"}
    assert "pipeline.py:" in failures["BATCH_WRITE_REPEATED"]
    assert "no_such_column" in failures["FLOW_FAILED"]
    with pytest.raises(DefinitionError, match="OUTSIDE_MICRO_BATCH"):
        current_batch()
