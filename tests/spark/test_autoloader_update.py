"""Auto Loader in whole updates: schemas that grow, files that cannot be read, dry runs."""

import gzip
import json
import os
from pathlib import Path

import pytest
from update_project import ContinuousRun, Project

from penstock import monitoring
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._update import UpdateOptions, plan_update

pytestmark = pytest.mark.spark

PIPELINE = """
@dp.table
def bronze():
    return (
        spark.readStream.format("cloudFiles")
        .option("cloudFiles.format", "json")
        .option("cloudFiles.inferColumnTypes", True)
        .load("landing")
    )


@dp.table
def silver():
    return spark.readStream.table("bronze").select("*", F.current_timestamp().alias("seen"))
"""


@pytest.fixture
def project(tmp_path: Path, spark, monkeypatch) -> Project:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "landing").mkdir()
    return Project(tmp_path, spark)


def put(project: Project, name: str, text: "str | bytes", folder: str = "landing") -> Path:
    target = project.root / folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name("." + name)
    draft.write_bytes(text if isinstance(text, bytes) else text.encode())
    draft.rename(target)
    return target


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def rows_with_nulls(project: Project, table: str, *columns: str) -> list[tuple]:
    """Rows that may have NULLs, sorted as strings."""
    return project.rows(table, *columns, key=str)


def notes(project: Project, flow: str, name: str) -> list:
    (file,) = (project.root / ".penstock" / "state" / "files" / flow).glob(f"*/*/{name}.json")
    return json.loads(file.read_text())


def test_a_new_field_becomes_a_column_in_the_same_update_and_downstream(project):
    project.source(PIPELINE)
    put(project, "a.json", lines({"id": 1, "name": "a"}))
    assert project.run().state is UpdateState.COMPLETED
    put(project, "b.json", lines({"id": 2, "name": "b", "city": "Bonn"}, {"id": "x"}))
    result = project.run()
    assert result.state is UpdateState.COMPLETED
    assert rows_with_nulls(project, "bronze", "id", "name", "city") == [
        (1, "a", None),
        (2, "b", "Bonn"),
        (None, None, None),
    ]
    assert "city" in project.table("silver").columns
    rescued = [
        json.loads(row[0]) for row in rows_with_nulls(project, "silver", "_rescued_data") if row[0]
    ]
    assert [row["id"] for row in rescued] == ["x"]
    started_again = [event for event in project.events if "starts again" in event.message]
    assert len(started_again) == 1
    assert "'city'" in started_again[0].message


def test_no_file_is_skipped_or_read_again_when_it_is_years_old(project):
    project.source(PIPELINE)
    old = put(project, "a.json", lines({"id": 1, "name": "a"}))
    os.utime(old, (1_300_000_000, 1_300_000_000))
    project.run()
    put(project, "b.json", lines({"id": 2, "name": "b"}))
    older = put(project, "c.json", lines({"id": 3, "name": "c"}))
    os.utime(older, (1_200_000_000, 1_200_000_000))
    project.run()
    project.run()
    assert project.rows("bronze", "id") == [(1,), (2,), (3,)]
    assert project.rows("silver", "id") == [(1,), (2,), (3,)]


def test_pending_files_are_read_when_existing_files_are_excluded_after_the_first_batch(project):
    project.source(PIPELINE)
    put(project, "a.json", lines({"id": 1}))
    assert project.run().state is UpdateState.COMPLETED
    put(project, "b.json", lines({"id": 2}))
    excluding = '.option("cloudFiles.includeExistingFiles", False)\n        .load("landing")'
    project.source(PIPELINE.replace('.load("landing")', excluding))
    assert project.run().state is UpdateState.COMPLETED
    assert rows_with_nulls(project, "bronze", "id") == [(1,), (2,)]
    assert notes(project, "bronze", "existing_files") == []


def test_truncated_gzip_files_are_quarantined_with_reasons_and_others_are_read(project):
    project.source(PIPELINE)
    put(project, "a.json", lines({"id": 1, "name": "a"}))
    whole = gzip.compress(lines(*({"id": i, "name": "z"} for i in range(3000))).encode())
    put(project, "b.json.gz", whole[: len(whole) // 2])
    put(project, "c.json.gz", whole[: len(whole) // 3])
    result = project.run()
    assert result.state is UpdateState.COMPLETED
    assert project.rows("bronze", "id") == [(1,)]
    listed = notes(project, "bronze", "quarantined_files")
    assert sorted(Path(entry["file"]).name for entry in listed) == ["b.json.gz", "c.json.gz"]
    assert all("end of input" in entry["reason"] for entry in listed)
    assert len([event for event in project.events if "was set aside" in event.message]) == 1


def test_functions_of_sinks_get_new_columns_and_no_corrupt_files(project):
    project.source(
        """
@dp.foreach_batch_sink
def archive(df, batch_id):
    df.write.mode("overwrite").json(f"archive/{batch_id}")


@dp.append_flow(target="archive")
def bronze():
    files = spark.readStream.format("cloudFiles").option("cloudFiles.format", "json")
    return files.option("cloudFiles.maxFilesPerTrigger", 1).load("landing")
"""
    )
    put(project, "a.json", lines({"id": 1}))
    assert project.run().failures == ()
    put(project, "b.json", lines({"id": 2, "city": "Bonn"}))
    put(project, "c.json.gz", gzip.compress(lines({"id": 3}).encode() * 3000)[:50])
    assert project.run().failures == ()
    stored = project.spark.read.schema("id STRING, city STRING").json(f"{project.root}/archive/*")
    assert sorted(map(tuple, stored.collect()), key=str) == [("1", None), ("2", "Bonn")]
    listed = notes(project, "bronze", "quarantined_files")
    assert [Path(entry["file"]).name for entry in listed] == ["c.json.gz"]


def test_update_fails_with_a_hint_when_mode_is_fail_on_new_columns(project):
    project.source(
        PIPELINE.replace(
            '.load("landing")',
            '.option("cloudFiles.schemaEvolutionMode", "failOnNewColumns").load("landing")',
        )
    )
    put(project, "a.json", lines({"id": 1}))
    project.run()
    put(project, "b.json", lines({"id": 2, "city": "Bonn"}))
    result = project.run()
    assert result.state is UpdateState.FAILED
    assert result.failures[0].condition == "UNKNOWN_FIELD"
    assert "schemaHints" in (result.failures[0].hint or "")
    assert project.rows("bronze", "id") == [(1,)]


def test_dry_run_writes_nothing_and_shows_the_persisted_columns(project):
    project.source(PIPELINE)
    put(project, "a.json", lines({"id": 1, "name": "a"}))
    settings = load_settings(project.root)
    graph, _ = plan_update(settings, UpdateOptions())
    assert not (project.root / ".penstock" / "state").exists()
    (node,) = [node for node in graph.datasets.values() if node.display == "bronze"]
    assert '"name"' in node.schema_json
    project.run()
    before = sorted(str(path) for path in (project.root / ".penstock").rglob("*"))
    put(project, "b.json", lines({"id": 1, "other": "a"}))
    graph, _ = plan_update(settings, UpdateOptions())
    (node,) = [node for node in graph.datasets.values() if node.display == "bronze"]
    assert "other" not in node.schema_json
    assert sorted(str(path) for path in (project.root / ".penstock").rglob("*")) == before


def test_full_refresh_infers_the_types_again(project):
    project.source(PIPELINE)
    put(project, "a.json", lines({"id": 1, "name": "a"}))
    project.run()
    (project.root / "landing" / "a.json").unlink()
    put(project, "b.json", lines({"id": 2.5, "name": "b"}))
    project.run(full_refresh_all=True)
    assert project.rows("bronze", "id", "name") == [(2.5, "b")]


def test_error_has_a_hint_when_there_are_no_files_to_infer_a_schema_from(project):
    project.source(PIPELINE)
    with pytest.raises(Exception, match="SCHEMA_NOT_INFERRED") as caught:
        project.run()
    assert "pipeline.py" in str(caught.value)
    assert "schemaHints" in str(caught.value)


def test_warning_names_the_folder_when_it_does_not_exist(project):
    project.source(PIPELINE.replace('.load("landing")', '.schema("id INT").load("land")'))
    result = project.run()
    assert result.state is UpdateState.COMPLETED, result.failures
    (warning,) = [event.message for event in project.events if "does not exist" in event.message]
    assert f"{project.root}/land" in warning
    assert "bronze has nothing to read" in warning
    assert "`paths`" in warning


def test_a_planned_batch_waits_for_a_folder_that_vanished(project):
    good = PIPELINE.replace('.load("landing")', '.schema("id INT").load("landing")')
    failing = '.load("landing").where("assert_true(id = 0) IS NULL")'
    project.source(good.replace('.load("landing")', failing))
    for number in range(2):
        put(project, f"{number}.json", lines({"id": number + 1}))
    assert project.run().state is UpdateState.FAILED
    project.source(good)
    landing, away = project.root / "landing", project.root / "away"
    landing.rename(away)
    landing.mkdir()  # an empty folder, as if not mounted
    assert project.run().failures[0].condition == "FOLDER_NOT_READABLE"
    landing.rmdir()
    away.rename(landing)
    (landing / "0.json").unlink()
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("bronze", "id") == [(2,)]
    (message,) = [event.message for event in project.events if "rows were lost" in event.message]
    assert "landing/0.json had been removed" in message


def test_parquet_columns_are_added_before_the_batch_is_written_when_a_file_has_more(project, spark):
    project.source(PIPELINE.replace('"json"', '"parquet"'))
    spark.range(3).write.parquet(str(project.root / "landing" / "one"))
    project.run()
    spark.range(3, 5).selectExpr("id", "'x' AS city", "named_struct('p', id) AS o").write.parquet(
        str(project.root / "landing" / "two")
    )
    spark.sql("SELECT 'text' AS id").write.parquet(str(project.root / "landing" / "three"))
    put(project, "bad.parquet", b"PAR1 this is no parquet file")
    result = project.run()
    assert result.state is UpdateState.COMPLETED
    expected = [(0, None), (1, None), (2, None), (3, "x"), (4, "x")]
    assert rows_with_nulls(project, "silver", "id", "city") == expected
    reasons = [entry["reason"] for entry in notes(project, "bronze", "quarantined_files")]
    assert len(reasons) == 2


def test_continuous_update_adds_new_fields_to_the_table_and_its_readers(project):
    project.source(PIPELINE)
    put(project, "a.json", lines({"id": 1, "name": "a"}))
    run = ContinuousRun(project)
    run.wait_until(lambda: len(project.rows("silver", "id")) == 1)
    put(project, "b.json", lines({"id": 2, "name": "b", "city": "Bonn"}))
    run.wait_until(lambda: "city" in project.table("silver").columns)
    run.wait_until(lambda: len(project.rows("silver", "id")) == 2)
    run.stop()
    assert rows_with_nulls(project, "silver", "id", "city") == [(1, None), (2, "Bonn")]
    # The reported folder is not that of the log that Spark reads.
    events = [e for e in project.log("stream_progress") if e["origin"]["flow_name"] == "bronze"]
    (source,) = events[-1]["details"]["stream_progress"]["progress_json"]["sources"]
    assert source["description"] == f"FileStreamSource[{project.root}/landing]"
    status = monitoring.status(project.root)
    assert status is not None
    (lag,) = [flow["lag"] for flow in status["flows"] if flow["flow"] == "bronze"]
    assert (lag["sources"][0]["source"], lag["sources"][0]["files"]) == (source["description"], 0)


def test_materialized_view_reads_files_and_skips_corrupt_files(project):
    project.source(
        """
@dp.materialized_view
def totals():
    files = spark.read.format("cloudFiles").option("cloudFiles.format", "csv")
    files = files.option("header", True).option("cloudFiles.inferColumnTypes", True)
    return files.load("landing").groupBy("name").agg(F.sum("amount").alias("s"))
"""
    )
    put(project, "a.csv", "name,amount\na,1\n")
    put(project, "b.csv", "amount,name\n2,a\n3,b\n")
    put(project, "c.csv.gz", gzip.compress(b"name,amount\na,5\n" * 500)[:-20])
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("totals") == [("a", 3), ("b", 3)]


def check_that_changed_files_are_read_again(project: Project) -> list[tuple]:
    source = PIPELINE.replace(
        '.load("landing")', '.option("cloudFiles.allowOverwrites", True).load("landing")'
    )
    project.source(source)
    spec = "configuration:\n  spark.sql.streaming.fileSource.log.compactInterval: '3'\n"
    (project.root / "pipeline.yaml").write_text(spec)
    whole = gzip.compress(lines(*({"id": i, "name": "z"} for i in range(3000))).encode())
    put(project, "a b.json", lines({"id": 1, "name": "first"}))
    put(project, "c.json", lines({"id": 2, "name": "kept"}))
    put(project, "cut.json.gz", whole[: len(whole) // 2])
    assert project.run().state is UpdateState.COMPLETED

    # The changed files have entries in several log files, including the newest log file.
    put(project, "d.json", lines({"id": 3, "name": "late"}))
    project.run()
    for name, text in (
        ("a b.json", lines({"id": 1, "name": "second"})),
        ("d.json", lines({"id": 3, "name": "later"})),
        ("cut.json.gz", gzip.compress(lines({"id": 4, "name": "whole"}).encode())),
    ):
        changed = put(project, name, text)
        os.utime(changed, (changed.stat().st_mtime + 5,) * 2)
    assert project.run().state is UpdateState.COMPLETED
    expected = [(1, "first"), (1, "second"), (2, "kept"), (3, "late"), (3, "later"), (4, "whole")]
    assert project.rows("bronze", "id", "name") == expected
    assert notes(project, "bronze", "quarantined_files") == []
    (message,) = [event.message for event in project.events if "read again" in event.message]
    assert "3 files changed" in message
    return expected


def test_a_changed_file_is_read_again_when_overwrites_are_allowed(project):
    check_that_changed_files_are_read_again(project)


@pytest.mark.long
def test_a_changed_file_is_read_again_when_the_file_log_was_compacted(project):
    expected = check_that_changed_files_are_read_again(project)
    for number in range(2):
        assert project.run().state is UpdateState.COMPLETED
        assert len(project.rows("bronze", "id")) == len(expected) + number
        put(project, f"e{number}.json", lines({"id": 9, "name": "new"}))
    changed = put(project, "a b.json", lines({"id": 1, "name": "third"}))
    os.utime(changed, (changed.stat().st_mtime + 10,) * 2)
    project.run()
    assert [row for row in project.rows("bronze", "id", "name") if row[0] == 1] == [
        (1, "first"),
        (1, "second"),
        (1, "third"),
    ]
    (log,) = (project.root / ".penstock").glob("**/sources/0")
    assert sorted(path.name for path in log.glob("*.compact"))
