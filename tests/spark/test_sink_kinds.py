"""Sinks of Spark in a pipeline: rows for their readers after crashes around a commit."""

import json
from pathlib import Path

import pytest
from made_events import details
from update_project import Project

from penstock._check import check_project
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._update import UpdateOptions, plan_update
from penstock.errors import DefinitionErrors

pytestmark = pytest.mark.spark

FILES = ("json", "csv", "text")
SINKS = """
import os
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from penstock.batches import foreach_row

HERE = str(Path.cwd())

@dp.table
def clean():
    return rows().select("id", F.coalesce("amount", F.lit(0)).alias("amount"))

def stream():
    return spark.readStream.table("clean")

for kind in ("json", "csv", "text"):
    options = {"path": f"out/{kind}", **({"header": "true"} if kind == "csv" else {})}
    dp.create_sink(kind, kind, options)

    @dp.append_flow(target=kind, name=f"to_{kind}")
    def write(kind=kind):
        # Text files take one column of strings.
        text = F.col("id").cast("string").alias("value")
        return stream().select(text) if kind == "text" else stream()

dp.create_sink("screen", "console", {"truncate": "false"})
dp.create_sink("view", "memory")

@dp.append_flow(target="screen")
def to_screen():
    return stream()

@dp.append_flow(target="view")
def remembered():
    return stream()

class Written(WriterCommitMessage):
    def __init__(self, ids):
        self.ids = ids

class BatchFiles(DataSourceStreamWriter):
    def __init__(self, path):
        self.path = path
    def write(self, iterator):
        return Written([row.id for row in iterator])
    def commit(self, messages, batchId):
        ids = sorted(i for message in messages if message for i in message.ids)
        with open(os.path.join(self.path, f"python-{batchId}"), "w") as out:
            out.write(",".join(map(str, ids)))
    def abort(self, messages, batchId):
        pass

class Files(DataSource):
    @classmethod
    def name(cls):
        return "batchfiles"
    def streamWriter(self, schema, overwrite):
        return BatchFiles(self.options["folder"])

spark.dataSource.register(Files)
dp.create_sink("python", "batchfiles", {"folder": HERE})

@dp.append_flow(target="python")
def to_python():
    return stream()

class Note:
    def open(self, partition_id, batch_id):
        self.out = open(os.path.join(HERE, "noted"), "a")
        self.batch = batch_id
        return True
    def process(self, row):
        self.out.write(f"{self.batch} {row.id}\\n")
    def close(self, error):
        self.out.close()

@dp.foreach_batch_sink
def notes(df, batch_id):
    foreach_row(df, Note())
    foreach_row(df.where("id < 0"), print)

@dp.append_flow(target="notes")
def to_notes():
    return stream()
"""


def forget(folder: Path) -> None:
    """Remove the newest entry of a log that Spark writes."""
    newest = max((f for f in folder.iterdir() if f.name.isdigit()), key=lambda f: int(f.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def ids(project: Project, kind: str) -> list[int]:
    reader = project.spark.read.format(kind).option("header", "true")
    df = reader.load(str(project.root / "out" / kind))
    return sorted(int(row[0]) for row in df.select("value" if kind == "text" else "id").collect())


def test_every_sink_writes_rows_and_file_readers_see_no_duplicates(project: Project):
    project.source(SINKS).add("a.json", [{"id": 1}, {"id": 2, "amount": 5}, {"id": 3}])
    result = project.run()
    assert result.state is UpdateState.COMPLETED, result.failures
    written = {
        event.origin.sink_name: metrics["num_output_rows"]
        for event in project.events
        if event.event_type == "flow_progress" and event.origin.sink_name
        if "num_output_rows" in (metrics := details(event).get("metrics") or {})
    }
    assert {written[kind] for kind in (*FILES, "screen", "view")} == {3}
    for kind in FILES:
        assert ids(project, kind) == [1, 2, 3], kind
        # A crash after the sink's commit, before Spark's commit entry of the batch.
        forget(project.commits_folder(f"to_{kind}"))
    # A crash between the files of a batch and the sink's commit.
    forget(project.root / "out" / "json" / "_spark_metadata")
    for flow in ("to_python", "to_notes"):
        forget(project.commits_folder(flow))
    project.add("b.json", [{"id": 4}])
    result = project.run()
    assert result.state is UpdateState.COMPLETED, result.failures
    for kind in FILES:
        assert ids(project, kind) == [1, 2, 3, 4], kind
    # Readers that ignore Spark's log also read the rows of the killed attempt.
    lines = [
        json.loads(line)["id"]
        for file in (project.root / "out" / "json").glob("*.json")
        for line in file.read_text().splitlines()
    ]
    assert sorted(lines) == [1, 1, 2, 2, 3, 3, 4]
    # The memory sink starts from the beginning; other sinks write at least once, with the same id.
    assert sorted(row.id for row in project.spark.table("remembered").collect()) == [1, 2, 3, 4]
    written = {file.name: file.read_text() for file in project.root.glob("python-*")}
    assert written == {"python-0": "1,2,3", "python-1": "4"}
    noted = sorted((project.root / "noted").read_text().splitlines())
    assert noted == ["0 1", "0 1", "0 2", "0 2", "0 3", "0 3", "1 4"]


def test_foreach_sinks_and_invalid_row_writers_are_refused(project: Project):
    project.source(
        """
from penstock.batches import foreach_row

@dp.table
def clean():
    return rows()

dp.create_sink("each", "foreach", {})

@dp.append_flow(target="each")
def to_each():
    return spark.readStream.table("clean")
"""
    ).add("a.json", [{"id": 1}])
    with pytest.raises(Exception, match="foreach_row"):
        project.run()
    project.source(
        """
from penstock.batches import foreach_row

@dp.foreach_batch_sink
def each(df, batch_id):
    foreach_row(df, "no writer")

@dp.append_flow(target="each")
def to_each():
    return rows()
"""
    )
    (error,) = project.run().failures
    assert error.condition == "FOREACH_WRITER_INVALID"


def test_sinks_that_would_write_wrong_or_unreadable_rows_are_refused(project: Project):
    project.source(
        """
@dp.table
def clean():
    return rows()

dp.create_sink("own", "delta", {"tableName": "clean"})
dp.create_sink("twice", "json", {"path": "twice"})

@dp.append_flow(target="own")
def to_own():
    return spark.readStream.table("clean")

@dp.append_flow(target="twice")
def to_twice():
    return rows().select("id", "id")
"""
    ).add("a.json", [{"id": 1}])
    failures = {error.condition: str(error) for error in project.run().failures}
    assert "is table spark_catalog.default.clean" in failures["SINK_OPTION_REFUSED"]
    assert "two columns of the query are named id" in failures["SINK_SCHEMA_INCOMPATIBLE"]
    assert project.rows("clean", "id") == [(1,)]


def test_sink_of_an_unknown_format_is_refused_by_the_analysis(project: Project):
    project.source(
        """
from pyspark.sql.datasource import DataSource


class Paper(DataSource):
    @classmethod
    def name(cls):
        return "paper"


spark.dataSource.register(Paper)
for format in ("paper", "rate", "parquett", "com.acme.Sink"):
    name = format.replace(".", "_")
    dp.create_sink(name, format, {"path": "x"})
    dp.append_flow(target=name, name=f"to_{name}")(rows)
"""
    )
    settings = load_settings(project.root)
    with pytest.raises(DefinitionErrors) as caught:
        plan_update(settings, UpdateOptions())
    near, other = caught.value.errors
    assert "did you mean 'parquet'?" in str(near)
    assert "add its jar" in str(other)
    # On a machine for checks, the jar may be missing.
    (refused,) = check_project(settings).refused
    assert refused.condition == "SINK_FORMAT_NOT_SUPPORTED" and "parquett" in refused.message


@pytest.mark.parametrize(
    ("sink", "folder", "stream"),
    [
        ("json", "./data/", "rows()"),
        ("json", "data/./out", "stream('data')"),
        ("json", "data/", "rows('d{ata,iff}')"),
        (
            *("json", "data/new"),
            "spark.readStream.schema(ROWS).option('recursiveFileLookup', True).json('data')",
        ),
        ("delta", "data", "spark.readStream.format('delta').load('data')"),
    ],
)
def test_sink_in_a_folder_that_its_flow_reads_is_refused(project: Project, sink, folder, stream):
    project.add("a.json", [{"id": 1}])
    if sink == "delta":
        project.spark.range(1).write.format("delta").save(str(project.root / "data"))
    project.source(
        f"""
dp.create_sink("same", "{sink}", {{"path": "{project.root}/{folder}"}})

def stream(folder):
    return spark.readStream.format("cloudFiles").option("cloudFiles.format", "json").load(folder)

@dp.append_flow(target="same")
def again():
    return {stream}
"""
    )
    with pytest.raises(DefinitionErrors, match="is read by its own flow"):
        project.run()
    assert not (project.root / "data" / "_spark_metadata").exists()
