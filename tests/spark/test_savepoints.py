"""A pipeline is restored to a savepoint as a whole, and computes the same rows again."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
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
# RESTORE takes two seconds for each table.
TOTALS = SOURCE[SOURCE.index("@dp.table\ndef totals") : SOURCE.index("dp.create_streaming_table")]
SMALL = SOURCE[: SOURCE.index("@dp.table\ndef silver")] + TOTALS
TABLES = ("bronze", "bronze_quarantine", "silver", "totals", "people", "view")


class _Killed(BaseException):
    """As if the process had died."""


def _rows(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": number % 7,
            "amount": number % 5,
            "ts": f"2026-01-01 {number // 60 % 24:02}:{number % 60:02}:00",
        }
        for number in range(first, first + count)
    ]


def _content(project: Project) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: project.rows(name, *_columns(project, name), key=repr)
        for name in TABLES
        if project.path(name).exists()
    }


def _columns(project: Project, name: str) -> list[str]:
    # When a row was quarantined differs between two updates.
    return [column for column in project.table(name).columns if not column.startswith("_")]


def _restore(project: Project, name: str, **more: Any) -> RestoreReport:
    on_step = more.pop("on_step", lambda _: None)
    options = RestoreOptions(execute=True, **more)
    return restore_savepoint(load_settings(project.root), name, options, on_step=on_step)


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


@pytest.mark.parametrize("every_step", [False, pytest.param(True, marks=pytest.mark.long)])
def test_all_tables_are_restored_and_computed_again(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, every_step: bool
):
    monkeypatch.chdir(tmp_path)
    source = SOURCE if every_step else SOURCE.replace(TOTALS, "")
    project = Project(tmp_path, spark).source(source).add("a.json", _rows(0, 100))
    project.run()
    savepoint = _create(project, "first")
    newest = {"bronze": 0, "silver": 1, "people": 0}  # one without data for late rows
    assert {flow.flow: flow.batch_id for flow in savepoint.flows if flow.flow != "totals"} == newest
    at_first = _content(project)
    assert all(at_first.values())
    project.add("b.json", _rows(100, 1000)).run()
    later = _content(project)
    assert later != at_first

    assert main(["savepoint", "restore", "first", "--output", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert not plan["done"]
    assert "recompute view with the next update" in plan["steps"]
    assert _content(project) == later

    seen: list[str] = []

    def kill(step: str) -> None:
        if step not in seen:
            seen.append(step)
            kind = step.partition(" ")[0]
            if every_step or len([other for other in seen if other.startswith(kind)]) == 2:
                raise _Killed

    report = None
    while report is None:
        with contextlib.suppress(_Killed):
            report = _restore(project, "first", on_step=kill)
        if len(seen) < 5:
            assert _refused(_refused_run, project).condition == "RESTORE_UNFINISHED"
    assert seen[0] == "begun"
    assert {f"restored {name}" for name in at_first} <= set(seen)
    assert {"switched bronze", "switched people", "done"} <= set(seen)
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
        # The way back: the state before the restore, in which nothing is left to read.
        project.add("c.json", _rows(1100, 10)).run()
        assert _content(project) != later
        _restore(project, report.undo)
        assert _content(project) == later
        project.run()
        assert _content(project)["bronze"] != later["bronze"]
    capsys.readouterr()
    assert main(["savepoint", "list"]) == 0
    names = [point.name for point in list_savepoints(load_settings(project.root))]
    assert names[0] == "first"
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == names
    assert main(["checkpoint", "doctor"]) == 0


def _refused_run(project: Project) -> None:
    result = project.run()
    for failure in result.failures:
        raise failure


def test_what_cannot_be_saved_or_restored_is_refused(small: Project, capsys: Any):
    project = small
    project.run()
    _create(project, "first")
    assert _refused(_create, project, "first").condition == "SAVEPOINT_EXISTS"
    assert _refused(_create, project, "../x").condition == "SAVEPOINT_NAME_INVALID"
    assert _refused(_restore, project, "other").condition == "SAVEPOINT_NOT_FOUND"

    project.add("b.json", _rows(100, 10)).run(refresh=("bronze",))
    unread = _refused(_create, project, "second")
    assert unread.condition == "SAVEPOINT_NOT_POSSIBLE"
    assert "has not read all rows of bronze" in unread.message
    no_undo = _refused(_restore, project, "first")
    assert "--no-undo" in (no_undo.hint or "")
    project.run()
    (project.commits_folder("totals") / "1").unlink()
    unfinished = _refused(_create, project, "second")
    assert "has not finished micro-batch 1" in unfinished.message
    _restore(project, "first", keeps_undo=False)  # the unfinished batch is of the old checkpoint
    project.run()
    assert len(project.rows("bronze")) == len([row for row in _rows(0, 110) if row["amount"]])

    # The old files are gone, as after a VACUUM by another program.
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
    expected, newer = _content(project), project.rows("newer", key=repr)
    assert _refused(_restore, project, "first").condition == "RESTORE_REPEATS_ROWS"
    _restore(project, "first", accept_duplicates=True)
    assert project.rows("newer") == []
    project.run()
    assert _content(project) == expected
    assert project.rows("newer", key=repr) == newer


def test_vacuum_keeps_what_a_savepoint_needs(small: Project, capsys: Any):
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


def test_a_savepoint_without_its_last_file_does_not_exist(small: Project):
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
