"""A pipeline is restored to a savepoint as a whole, and computes the same rows again."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from errno import ENOSPC
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from crashes import after_steps
from deltalake import DeltaTable
from stored_rows import stored_rows
from update_project import Project

from penstock._cli.main import main
from penstock._execution.savepoints import SavedTable, Savepoint, Savepoints
from penstock._project.spec import load_settings
from penstock._repair.restore import RestoreOptions, RestoreReport, moved_offsets, restore_savepoint
from penstock._repair.savepoint import create_savepoint, list_savepoints
from penstock._tables.files import StorageFiles
from penstock._tables.layout import layout_of
from penstock.errors import PenstockError

SOURCE = """
@dp.table
@dp.expect_or_drop("positive", "amount > 0")
def bronze():
    return rows()


@dp.table
def silver():
    late = spark.readStream.table("bronze").withWatermark("ts", "1 hour")
    return late.dropDuplicates(["id", "ts"])


@dp.table
def totals():
    return spark.readStream.table("bronze").groupBy("id").agg(F.sum("amount").alias("total"))


dp.create_streaming_table("people")
dp.create_auto_cdc_flow(
    target="people", source="bronze", keys=["id"], sequence_by="ts", stored_as_scd_type=2
)


@dp.materialized_view
def view():
    return spark.read.table("silver").groupBy("id").count()
"""
# RESTORE takes two seconds per table.
TOTALS = SOURCE[SOURCE.index("@dp.table\ndef totals") : SOURCE.index("dp.create_streaming_table")]
SMALL = SOURCE[: SOURCE.index("@dp.table\ndef silver")] + TOTALS
# Several batches per update, rules that count and that drop rows, a window, both SCD types.
LONG = (
    SOURCE.replace(
        "return rows()",
        'return spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 3).json("data")',
    ).replace("@dp.table\ndef silver", '@dp.table\n@dp.expect("small", "amount < 3")\ndef silver')
    + """

@dp.table
def windows():
    rows = spark.readStream.table("bronze").withWatermark("ts", "1 hour")
    return rows.groupBy(F.window("ts", "10 minutes")).agg(F.count("*").alias("n"))


dp.create_streaming_table("newest")
dp.create_auto_cdc_flow(
    target="newest", source="bronze", keys=["id"], sequence_by="ts", apply_as_deletes="amount = 4"
)
"""
)
RESTORE = """
import os
import pathlib
import signal
import sys

from penstock._project.spec import load_settings
from penstock._repair.restore import RestoreOptions, restore_savepoint
from penstock._tables.kill_points import step_callback


def on_step(step, *_):
    if step == f"restore_{sys.argv[1]}":
        os.kill(os.getpid(), signal.SIGKILL)


with step_callback(on_step):
    restore_savepoint(load_settings(pathlib.Path()), "first", RestoreOptions(execute=True))
"""


class _Killed(BaseException):
    """Simulates a killed process."""


def _rows(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": number % 7,
            "amount": number % 5,
            "ts": f"2026-01-01 {number // 60 % 24:02}:{number % 60:02}:00",
        }
        for number in range(first, first + count)
    ]


def _many(first: int, count: int) -> list[dict[str, Any]]:
    """Rows of 1,009 keys, out of order, with duplicates of earlier rows; some violate a rule."""
    rows = []
    for number in range(first, first + count):
        at = number - 50 if number % 40 == 0 else number
        time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at + at * 37 % 300)
        amount = None if at % 101 == 0 else at % 5
        rows.append({"id": at * 7919 % 1009, "amount": amount, "ts": f"{time:%Y-%m-%d %H:%M:%S}"})
    return rows


Content = dict[str, tuple[int, str]]


def _content(project: Project) -> Content:
    """Number and digest of the sorted rows of all tables, also quarantine and state of CDC."""
    storage = project.path("bronze").parents[3]
    tables = sorted(log.parent for log in storage.rglob("_delta_log"))
    return {str(table.relative_to(storage)): _digest(project, table) for table in tables}


def _digest(project: Project, table: Path) -> tuple[int, str]:
    columns = DeltaTable(table).schema().fields
    # The state of CDC has the time at which it was written.
    names = [column.name for column in columns if column.name != "at"]
    rows = stored_rows(project.spark, table, *names, key=repr)
    return len(rows), hashlib.sha256(repr(rows).encode()).hexdigest()


def _restore(project: Project, name: str, **arguments: Any) -> RestoreReport:
    options = RestoreOptions(execute=True, **arguments)
    return restore_savepoint(load_settings(project.root), name, options)


def _create(project: Project, name: str) -> Savepoint:
    return create_savepoint(load_settings(project.root), name)


def _refused(call: Any, *arguments: Any, **more: Any) -> PenstockError:
    with pytest.raises(PenstockError) as error:
        call(*arguments, **more)
    assert error.value.hint
    return error.value


@pytest.fixture
def small(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, spark).source(SMALL).add("a.json", _rows(0, 100))


@pytest.mark.parametrize(
    "every_step",
    [False, pytest.param(True, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_all_tables_are_restored_and_computed_again(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, every_step: bool
):
    monkeypatch.chdir(tmp_path)
    source = LONG if every_step else SOURCE.replace(TOTALS, "")
    before = _many(0, 5000) if every_step else _rows(0, 100)
    project = Project(tmp_path, spark).source(source).add("a.json", before)
    assert project.run().state == "COMPLETED"
    savepoint = _create(project, "first")
    newest = {"bronze": 0, "silver": 1, "people": 0}  # plus one batch without data for late rows
    assert newest.items() <= {flow.flow: flow.batch_id for flow in savepoint.flows}.items()
    at_first = _content(project)
    assert len(at_first) == (10 if every_step else 6)
    assert all(rows for rows, _ in at_first.values())
    for number in range(10 if every_step else 1):
        rows = _many(5000 + number * 10_000, 10_000) if every_step else _rows(100, 1000)
        project.add(f"b{number}.json", rows)
    assert project.run().state == "COMPLETED"
    later = _content(project)
    assert all(later[table] != at_first[table] for table in later)

    assert main(["savepoint", "restore", "first", "--output", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert not plan["done"]
    assert "recompute view with the next update" in plan["steps"]
    assert _content(project) == later

    steps: list[tuple[str, str]] = []

    def kill(step: str, name: str) -> None:
        if (step, name) not in steps:
            steps.append((step, name))
            second = len([other for other, _ in steps if other == step]) == 2
            if every_step or (second and step in ("restored", "switched")):
                raise _Killed

    for kind in ("undo", "begun", "restored", "numbered", "copied") if every_step else ():
        _killed_process(tmp_path, kind)
    report, refused = None, ""
    while report is None:
        with contextlib.suppress(_Killed), after_steps("restore_", kill):
            report = _restore(project, "first")
        if report is None and not refused:
            refused = _refused(_refused_run, project).condition
    assert refused == "RESTORE_UNFINISHED"
    if not every_step:
        assert steps[:2] == [("undo", ""), ("begun", "")]
        assert len([step for step, _ in steps if step == "restored"]) == len(at_first)
    assert {("switched", "bronze"), ("switched", "people"), ("done", "")} <= set(steps)
    assert report.resumed
    assert report.undo is not None
    assert _content(project) == at_first

    result = project.run()
    assert result.state == "COMPLETED"
    warnings = [event.message for event in project.events if event.level == "WARN"]
    assert not [text for text in warnings if "restore" in text.lower()]
    assert _content(project) == later
    assert project.run().state == "COMPLETED"
    assert _content(project) == later

    if every_step:
        # Undo returns to the state before the restore, in which all rows were read.
        project.add("c.json", _rows(1100, 10)).run()
        assert _content(project) != later
        _restore(project, report.undo)
        assert _content(project) == later
        project.run()
        bronze = "tables/spark_catalog/default/bronze"
        assert _content(project)[bronze] != later[bronze]
    capsys.readouterr()
    assert main(["savepoint", "list"]) == 0
    names = [point.name for point in list_savepoints(load_settings(project.root))]
    assert names[0] == "first"
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == names
    assert main(["checkpoint", "doctor"]) == 0


def _killed_process(folder: Path, kind: str) -> None:
    """A restore in a new process, which SIGKILL ends at the first step of a kind."""
    source = str(Path(sys.modules["penstock"].__file__ or "").parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", RESTORE, kind],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output = process.communicate(timeout=240)[0].decode(errors="replace")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # ends the JVM
    assert process.returncode == -signal.SIGKILL, output[-3000:]


def _refused_run(project: Project) -> None:
    result = project.run()
    for failure in result.failures:
        raise failure


def test_impossible_savepoints_and_restores_are_refused(small: Project, capsys: Any):
    project = small
    project.run()
    _create(project, "first")
    assert _refused(_create, project, "first").condition == "SAVEPOINT_EXISTS"
    assert _refused(_create, project, "../x").condition == "SAVEPOINT_NAME_INVALID"
    assert _refused(_restore, project, "other").condition == "SAVEPOINT_NOT_FOUND"
    savepoints = project.root / ".penstock" / "savepoints"
    (savepoints / "killed" / "flows").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "copy2", Mock(side_effect=OSError(ENOSPC, "No space left")))
        assert main(["savepoint", "create", "full"]) != 0
    assert "No space left" in capsys.readouterr().err
    assert [folder.name for folder in savepoints.iterdir()] == ["first"]

    project.add("b.json", _rows(100, 10)).run(refresh=("bronze",))
    unread = _refused(_create, project, "second")
    assert unread.condition == "SAVEPOINT_NOT_POSSIBLE"
    assert "has not read all rows of bronze" in unread.message
    no_undo = _refused(_restore, project, "first")
    assert "--no-undo" in (no_undo.hint or "")
    project.run()
    offsets = project.commits_folder("totals").with_name("offsets")
    offsets.rename(offsets.with_name("lost"))
    damaged = _refused(_create, project, "second")
    assert "without the offsets of finished micro-batch 1" in damaged.message
    offsets.with_name("lost").rename(offsets)
    (project.commits_folder("totals") / "1").unlink()
    unfinished = _refused(_create, project, "second")
    assert "has not finished micro-batch 1" in unfinished.message
    migration = project.root / ".penstock" / "state" / "migrate" / "totals"
    migration.mkdir(parents=True)
    _restore(project, "first", keeps_undo=False)  # the old checkpoint has the unfinished batch
    assert not migration.exists()  # it had read rows that will be replaced
    project.run()
    assert len(project.rows("bronze")) == len([row for row in _rows(0, 110) if row["amount"]])

    # The old files are deleted, as after a VACUUM by another program.
    project.run(full_refresh=("totals",))
    saved = (
        project.spark.read.option("versionAsOf", 1)
        .format("delta")
        .load(str(project.path("totals")))
    )
    file = Path(saved.inputFiles()[0].removeprefix("file:"))
    file.rename(file.with_suffix(".gone"))
    gone = _refused(_restore, project, "first")
    assert gone.condition == "RESTORE_NOT_POSSIBLE"
    assert f"VACUUM has deleted its file {file.as_uri()}" in gone.message
    file.with_suffix(".gone").rename(file)
    DeltaTable(project.path("totals")).create_checkpoint()
    commit = project.path("totals") / "_delta_log" / f"{1:020}.json"
    commit.rename(commit.with_suffix(".gone"))
    assert "its log was cleaned up" in _refused(_restore, project, "first").message
    commit.with_suffix(".gone").rename(commit)
    shutil.rmtree(project.path("totals"))
    project.run(full_refresh=("totals",))
    assert "created again" in _refused(_restore, project, "first").message
    assert main(["savepoint", "delete", "first", "--yes"]) == 0
    assert list_savepoints(load_settings(project.root)) == []


def test_a_newer_table_is_emptied_and_a_sink_is_not_restored(
    small: Project,
):
    project = small
    project.run()
    _create(project, "first")
    project.source(
        SMALL
        + """

@dp.table
def newer():
    return spark.readStream.table("bronze").select("id")


dp.create_sink("out", "json", {"path": "out"})


@dp.append_flow(target="out")
def into_out():
    return spark.readStream.table("bronze")
"""
    )
    project.add("b.json", _rows(100, 50)).run()
    # Without rows in the sink, its flow would continue after the restored rows.
    checkpoint = project.commits_folder("into_out")
    (checkpoint / "0").rename(checkpoint / "unfinished")
    behind = _refused(_restore, project, "first", accept_duplicates=True)
    assert behind.condition == "RESTORE_NOT_POSSIBLE"
    assert "'into_out' has not written all rows of bronze to the sink out" in behind.message
    (checkpoint / "unfinished").rename(checkpoint / "0")
    expected, newer = _content(project), project.rows("newer", key=repr)
    assert _refused(_restore, project, "first").condition == "RESTORE_REPEATS_ROWS"
    _restore(project, "first", accept_duplicates=True)
    assert project.rows("newer") == []
    project.run()
    assert _content(project) == expected
    assert project.rows("newer", key=repr) == newer


def test_no_row_is_repeated_when_the_code_of_a_flow_was_removed(small: Project):
    bronze = """
dp.create_streaming_table("bronze")


@dp.append_flow(target="bronze")
def less():
    return rows()
"""
    more = bronze[bronze.index("@dp") :].replace("less", "more").replace("rows()", 'rows("more")')
    project = small.source(bronze).add("m.json", _rows(500, 10), folder="more")
    project.run()
    _create(project, "first")
    project.source(bronze + more).run()
    later = _content(project)
    project.source(bronze)
    _restore(project, "first", keeps_undo=False)
    assert _content(project) != later
    project.source(bronze + more).run()
    assert _content(project) == later
    # A savepoint without the code of the flow does not make it a new flow.
    project.source(bronze)
    _create(project, "removed")
    project.source(bronze + more).add("n.json", _rows(700, 10), folder="more").run()
    added = _content(project)
    _restore(project, "removed", keeps_undo=False)
    assert _content(project) == later
    project.run()
    assert _content(project) == added


def test_rows_of_a_stream_are_not_added_to_a_restored_view(small: Project):
    bronze = "@dp.table\ndef bronze():\n    return rows()\n\n\n"
    view = "@dp.materialized_view\ndef mid():\n    return spark.read.table('bronze')\n"
    stream = "@dp.table\ndef mid():\n    return spark.readStream.table('bronze')\n"
    project = small.source(bronze + view)
    project.run()
    _create(project, "view")
    first = project.rows("mid")
    project.source(bronze + stream).run(full_refresh=("mid",))
    _restore(project, "view", keeps_undo=False)
    project.run()
    assert project.rows("mid") == first
    # The former stream is now a view; it has unread rows that no update will read.
    project.source(bronze + view).add("b.json", _rows(100, 10)).run()
    _restore(project, "view")
    project.source(bronze + stream)
    assert [error.condition for error in project.run().failures] == ["DATASET_KIND_CHANGED"]
    # The checkpoint of the former stream does not belong to the rows of the view.
    project.run(full_refresh=("mid",))
    project.source(bronze + view).run()
    project.source(bronze + stream)
    _create(project, "refused")
    _restore(project, "refused", keeps_undo=False)
    assert project.run().failures == ()
    assert project.rows("mid") == project.rows("bronze")
    # The rows belong to the stream until the first refresh.
    project.source(bronze + view)
    _create(project, "declared")
    _restore(project, "declared", keeps_undo=False)
    assert project.source(bronze + stream).run().failures == ()
    assert project.rows("mid") == project.rows("bronze")


def test_deleted_rows_are_unread_when_a_flow_reads_the_change_feed(small: Project):
    changes = 'spark.readStream.option("readChangeFeed", "true").table("bronze")'
    project = small.source(
        f"""
@dp.table(table_properties={{"delta.enableChangeDataFeed": "true"}})
def bronze():
    return rows()


@dp.table
def plain():
    return spark.readStream.table("bronze")


@dp.table
def changes():
    return {changes}.select("id", "_change_type")


dp.create_sink("rows", "json", {{"path": "rows"}})
dp.create_sink("out", "json", {{"path": "out"}})


@dp.append_flow(target="rows")
def into_rows():
    return spark.readStream.table("bronze")


@dp.append_flow(target="out")
def into_out():
    return {changes}.select("id", "_change_type")
"""
    )
    project.run()
    _create(project, "first")
    project.spark.sql(f"DELETE FROM delta.`{project.path('bronze')}`").collect()
    unread = _refused(_create, project, "second")
    assert unread.condition == "SAVEPOINT_NOT_POSSIBLE"
    assert "'changes' has not read all rows of bronze" in unread.message
    behind = _refused(_restore, project, "first", accept_duplicates=True)
    assert behind.condition == "RESTORE_NOT_POSSIBLE"
    assert "'into_out' has not written all rows of bronze to the sink out" in behind.message


def test_vacuum_is_skipped_when_a_savepoint_needs_old_files(small: Project, capsys: Any):
    project = small
    project.run()
    project.run(full_refresh=("totals",))
    _create(project, "first")
    project.run(full_refresh=("totals",))
    project.spark.sql(
        f"ALTER TABLE delta.`{project.path('totals')}` SET TBLPROPERTIES "
        "('delta.deletedFileRetentionDuration' = 'interval 0 hours')"
    )
    project.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        main(["maintain", "totals", "--output", "json"])
        reasons = [body["reason"] for body in json.loads(capsys.readouterr().out)]
        assert "savepoint first needs version 3" in " ".join(map(str, reasons))
        main(["savepoint", "delete", "first", "--yes"])
        capsys.readouterr()
        main(["maintain", "totals", "--output", "json"])
        operations = {
            body["operation"]: body["status"] for body in json.loads(capsys.readouterr().out)
        }
        assert operations["VACUUM"] == "COMPLETED"
    finally:
        project.spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")


def test_offsets_of_other_sources_do_not_change():
    text = 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":5}}\n-\n' + json.dumps(
        {"sourceVersion": 3, "reservoirId": "a", "reservoirVersion": 2, "index": 4}
    )
    assert moved_offsets(text, {"b": 9}) == text
    moved = moved_offsets(text, {"a": 9}).split("\n")
    assert moved[:4] == text.split("\n")[:4]
    assert json.loads(moved[4]) == {
        "sourceVersion": 3,
        "reservoirId": "a",
        "reservoirVersion": 9,
        "index": -100,
        "isStartingVersion": False,
    }


def test_savepoint_is_not_listed_before_its_last_file_is_written(small: Project):
    project = small
    settings = load_settings(project.root)
    savepoints = Savepoints(StorageFiles(project.spark), layout_of(settings))
    table = SavedTable(name="t", path="/t", table_id="x", version=1)
    savepoint = Savepoint(name="s", created_at="2026-01-01", tables=(table,), flows=())
    folder = Path(layout_of(settings).savepoint_folder("s").removeprefix("file:"))
    (folder / "flows").mkdir(parents=True)
    assert savepoints.all() == []
    savepoints.save(savepoint)
    assert savepoints.all() == [savepoint]
