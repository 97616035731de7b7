"""Rows are moved out of quarantine exactly once, also after crashes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from crashes import after_steps
from update_project import Project

from penstock import monitoring
from penstock._cli.main import main
from penstock._project.spec import load_settings
from penstock._repair.migrate import MigrationOptions, migrate_flow
from penstock._repair.quarantine_replay import (
    IN_TABLE,
    OUT_OF_QUARANTINE,
    STAGED,
    Replayed,
    replay_quarantine,
)
from penstock._repair.reset import reset_flow
from penstock._repair.restore import RestoreOptions, restore_savepoint
from penstock._repair.savepoint import create_savepoint
from penstock._runtime.lease import Lease
from penstock._runtime.lease_paths import pipeline_lease_path
from penstock._tables.read.browsing import TableBrowser
from penstock._tables.read.checkpoint_doctor import Severity, examine
from penstock._tables.read.checkpoint_files import checkpoints
from penstock._tables.read.row_selection import RowSelection
from penstock.errors import DefinitionError, PlanError, SetupError, SpecError
from penstock.sources.base import parse_start

STRICT = """
@dp.table
@dp.expect_or_drop("small", "amount < 10")
@dp.expect_or_drop("has_id", "id IS NOT NULL")
def silver():
    return rows()


@dp.table
def gold():
    return spark.readStream.table("silver").select("id")


@dp.materialized_view
@dp.expect_or_drop("small", "amount < 10")
def view():
    return spark.read.table("silver")
"""
RELAXED = STRICT.replace("amount < 10", "amount < 100", 1)
NO_RULES = """
@dp.table
def silver():
    return rows()
"""


class _Killed(BaseException):
    """Simulates a killed process: `except Exception` does not catch it."""


def _row(number: int | None, amount: int) -> dict[str, Any]:
    return {"id": number, "amount": amount, "ts": "2026-01-01 00:00:00"}


@pytest.fixture
def project(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(STRICT)
    rows = [_row(1, 1), _row(2, 50), _row(3, 60), _row(4, 500), _row(None, 70)]
    project.add("a.json", rows).run()
    return project


def _replay(project: Project, kill_at: str = "", **chosen: Any) -> Replayed | None:
    def kill(step: str, _: str) -> None:
        if step == kill_at:
            raise _Killed

    try:
        settings, selection = load_settings(project.root), RowSelection(**chosen)
        with after_steps("", kill):
            return replay_quarantine(settings, "silver", selection=selection)
    except _Killed:
        return None


def _content(project: Project) -> tuple[list[Any], list[Any]]:
    table = [row[0] for row in project.rows("silver", "id")]
    quarantined = project.table("silver_quarantine").select("id", "amount").collect()
    return table, sorted((row["amount"], row["id"]) for row in quarantined)


def test_repaired_rows_move_once_to_the_table_and_downstream(
    project: Project, capsys: pytest.CaptureFixture[str]
):
    assert _content(project) == ([1], [(50, 2), (60, 3), (70, None), (500, 4)])
    status = monitoring.status(project.root)
    assert status is not None
    assert (status["state"], status["is_alive"], status["error"]) == ("COMPLETED", False, None)
    (flow,) = (entry for entry in status["flows"] if entry["flow"] == "silver")
    assert (flow["state"], flow["rows"], flow["quarantined"]) == ("COMPLETED", 1, 4)
    assert [(rule["name"], rule["failed"]) for rule in flow["rules"]] == [
        ("small", 4),
        ("has_id", 1),
    ]
    assert flow["last_progress"]["input_rows"] == 5
    findings = examine(load_settings(project.root))
    assert [entry for entry in findings if entry.severity is not Severity.NOTE] == []
    # No row satisfies the rules yet: there is no commit.
    versions = project.version("silver"), project.version("silver_quarantine")
    done = _replay(project)
    assert done is not None
    assert (done.moved, done.kept) == (0, 4)
    assert (project.version("silver"), project.version("silver_quarantine")) == versions

    project.source(RELAXED)
    done = _replay(project)
    assert done is not None
    assert (done.moved, done.kept, done.resumed) == (2, 2, False)
    assert _content(project) == ([1, 2, 3], [(70, None), (500, 4)])
    reasons = project.table("silver_quarantine").select("id", "_failed_rules", "_row").collect()
    assert {row["id"]: row["_failed_rules"] for row in reasons} == {None: ["has_id"], 4: ["small"]}
    assert all('"amount":' in row["_row"] for row in reasons)
    again = _replay(project)
    assert again is not None
    assert (again.moved, again.kept) == (0, 2)

    # The next update reads the moved rows once, in addition to its own batches.
    project.add("b.json", [_row(5, 5), _row(6, 600)]).run()
    assert project.rows("gold", "id") == [(1,), (2,), (3,), (5,)]
    assert _content(project) == ([1, 2, 3, 5], [(70, None), (500, 4), (600, 6)])

    # Without rules, all rows are valid.
    project.source(NO_RULES)
    capsys.readouterr()
    command = ["quarantine", "replay", "silver", "--project", str(project.root)]
    assert main([*command, "--output", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["table"], body["moved"], body["kept"], body["resumed"]) == ("silver", 3, 0, False)
    assert {row["id"] for row in project.table("silver").collect()} == {1, 2, 3, 4, 5, 6, None}
    assert project.table("silver_quarantine").isEmpty()


def test_no_row_is_lost_or_duplicated_when_a_replay_is_killed(project: Project):
    project.source(RELAXED)
    assert _replay(project, kill_at=STAGED) is None
    assert _content(project)[0] == [1]
    # The decision is recorded: changed rules and names, or new rows, do not change it.
    project.source(STRICT.replace("def silver", "def Silver"))
    assert _replay(project, kill_at=IN_TABLE) is None
    project.source(STRICT)
    assert _content(project) == ([1, 2, 3], [(50, 2), (60, 3), (70, None), (500, 4)])
    project.add("b.json", [_row(7, 77)]).run()
    done = _replay(project, kill_at=OUT_OF_QUARANTINE)
    assert done is None
    after = ([1, 2, 3], [(70, None), (77, 7), (500, 4)])
    assert _content(project) == after
    done = _replay(project)
    assert done is not None
    assert (done.resumed, done.moved, done.kept) == (True, 2, 2)
    assert _content(project) == after
    assert project.rows("gold", "id") == [(1,), (2,), (3,)]
    done = _replay(project)
    assert done is not None
    assert (done.resumed, done.moved, done.kept) == (False, 0, 3)
    assert not list((project.path("silver").parents[3] / "state" / "replay").rglob("*.parquet"))


def test_rows_of_a_driver_that_lost_its_lease_are_not_added_to_a_later_replay(project: Project):
    project.source(RELAXED)
    assert _replay(project, kill_at=STAGED, where="amount > 10") is None
    staging, late = project.path("silver").parents[3] / "state" / "replay", project.root / "late"
    staging.rename(late)
    assert _replay(project, kill_at=STAGED, where="amount > 10") is None
    unfinished = {path: path.read_text() for path in staging.rglob("decided.json")}
    shutil.copytree(late, staging, dirs_exist_ok=True)
    for path, text in unfinished.items():
        path.write_text(text)
    done = _replay(project)
    assert done is not None
    assert _content(project) == ([1, 2, 3], [(70, None), (500, 4)])


def test_an_interrupted_replay_is_dropped_after_a_restore_or_full_refresh(project: Project):
    settings = load_settings(project.root)
    create_savepoint(settings, "first")
    project.source(RELAXED)
    assert _replay(project, kill_at=IN_TABLE) is None
    with pytest.raises(PlanError, match="has an unfinished replay of its quarantine"):
        create_savepoint(settings, "second")
    with pytest.raises(PlanError, match="a replay of its quarantine is unfinished"):
        migrate_flow(settings, "silver", MigrationOptions())
    restore_savepoint(settings, "first", RestoreOptions(execute=True, keeps_undo=False))
    assert _content(project)[0] == [1]
    assert _replay(project, kill_at=STAGED) is None
    project.run(full_refresh=("silver",))
    done = _replay(project)
    assert done is not None
    assert (done.resumed, done.moved, done.kept) == (False, 0, 2)
    assert _content(project) == ([1, 2, 3], [(70, None), (500, 4)])


def _refused(project: Project) -> dict[int, tuple[str, tuple[Any, ...]]]:
    """Rows in quarantine by amount: the file and all columns of each row."""
    rows = project.table("silver_quarantine").select("_metadata.file_name", "*").collect()
    return {row["amount"]: (row["file_name"], tuple(row)[1:]) for row in rows}


def test_only_chosen_rows_are_replayed(project: Project, capsys: pytest.CaptureFixture[str]):
    project.add("b.json", [_row(5, 55), _row(6, 660), _row(7, 77)]).run()
    project.source(RELAXED)
    before = _refused(project)
    tables = ("silver", "silver_quarantine")
    versions = [project.version(name) for name in tables]
    command = ["quarantine", "replay", "silver", "--project", str(project.root), "-o", "json"]

    def replay(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*command, *words]) == 0
        body: dict[str, Any] = json.loads(capsys.readouterr().out)
        return body

    where = "amount IN (55, 660) AND _row LIKE '%amount%'"
    body = replay("--where", where, "--dry-run")
    assert (body["chosen"], body["would_move"], body["would_keep"]) == (2, 1, 1)
    assert (body["by_rule"], body["unfinished"]) == ({"small": 1}, False)
    # The rows still violate this rule: there is no commit, and the version is the same.
    body = replay("--rule", "has_id")
    assert (body["chosen"], body["moved"], body["kept"]) == (1, 0, 1)
    assert [project.version(name) for name in tables] == versions

    body = replay("--where", where)
    assert (body["chosen"], body["moved"], body["kept"]) == (2, 1, 1)
    assert body["quarantine_version"] == versions[1]
    assert (body["resumed"], body["finished"]) == (False, None)
    after = _refused(project)
    assert project.rows("silver", "id") == [(1,), (5,)]
    assert after.keys() == before.keys() - {55}
    # Files without a chosen row are unchanged, and so are rows that were not chosen.
    assert {n: after[n] for n in (50, 60, 70, 500)} == {n: before[n] for n in (50, 60, 70, 500)}
    assert after[77][0] != before[77][0]
    assert after[77][1] == before[77][1]
    assert after[660][1] == before[660][1]

    # Row ids are the same with and without Spark.
    assert main(["quarantine", "show", "silver", "--project", str(project.root), "-o", "json"]) == 0
    shown = {entry["_row"]: entry["_id"] for entry in json.loads(capsys.readouterr().out)}
    storage = load_settings(project.root).storage
    page = TableBrowser(storage).quarantine("spark_catalog.default.silver", None, limit=50)
    ids = {json.loads(entry["row"])["amount"]: entry["id"] for entry in page["rows"]}
    assert ids == {json.loads(row)["amount"]: entry for row, entry in shown.items()}
    body = replay("--row", f"{ids[77]},{ids[50]}", "--rule", "small")
    assert (body["chosen"], body["moved"], body["kept"]) == (2, 2, 0)
    assert project.rows("silver", "id") == [(1,), (2,), (5,), (7,)]
    remaining = _refused(project)
    assert {n: remaining[n][1] for n in (60, 70, 500, 660)} == {
        n: before[n][1] for n in (60, 70, 500, 660)
    }


@pytest.mark.long
def test_an_interrupted_replay_of_chosen_rows_is_completed_first(project: Project):
    project.add("b.json", [_row(7, 77)]).run()
    project.source(RELAXED)
    assert _replay(project, kill_at=STAGED, where="id = 7") is None
    # The interrupted replay is completed first, regardless of the new selection.
    assert _replay(project, kill_at=IN_TABLE, where="id < 5") is None
    assert _content(project) == (
        [1, 7],
        [(50, 2), (60, 3), (70, None), (77, 7), (500, 4)],
    )
    # Rows that were not chosen may change meanwhile.
    quarantine = f"delta.`{project.path('silver_quarantine')}`"
    properties = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    project.spark.sql(f"ALTER TABLE {quarantine} SET {properties}")
    project.spark.sql(f"DELETE FROM {quarantine} WHERE id = 3")
    assert _replay(project, kill_at=OUT_OF_QUARANTINE, where="id < 5") is None
    assert _content(project) == ([1, 7], [(50, 2), (70, None), (500, 4)])
    done = _replay(project, where="id < 5")
    assert done is not None
    assert (done.resumed, done.chosen, done.moved, done.kept) == (True, 2, 1, 1)
    assert done.finished is not None
    # The row that was deleted by a vector does not come back with its file.
    assert _content(project) == ([1, 2, 7], [(70, None), (500, 4)])


def test_no_row_is_lost_when_a_checkpoint_is_deleted(project: Project):
    settings = load_settings(project.root)
    (checkpoint,) = checkpoints(settings, "silver")
    shutil.rmtree(checkpoint.path)
    project.add("b.json", [_row(8, 8)])
    assert [finding.kind for finding in examine(settings, "silver")] == ["checkpoint-missing"]
    result = project.run(refresh=("silver",))
    assert [error.condition for error in result.failures] == ["CHECKPOINT_MISSING"]
    assert project.rows("silver", "id") == [(1,)]
    start = parse_start("earliest")
    plan = reset_flow(settings, "silver", start)
    assert "an unknown number of rows" in (plan.refused or "")
    reset_flow(settings, "silver", start, accept_duplicates=True, execute=True)
    project.run(refresh=("silver",))
    # As the plan warned, rows that still exist in the source are duplicated.
    assert project.rows("silver", "id") == [(1,), (1,), (8,)]


def test_replay_is_refused_when_the_lease_is_held_or_quarantined_rows_changed(project: Project):
    settings = load_settings(project.root)
    with (
        Lease.acquire(pipeline_lease_path(settings.storage), holder={}),
        pytest.raises(SetupError) as held,
    ):
        replay_quarantine(settings, "silver")
    assert held.value.condition == "LEASE_HELD"
    with pytest.raises(SpecError) as unknown:
        replay_quarantine(settings, "bronze")
    assert "silver" in (unknown.value.hint or "")
    with pytest.raises(PlanError) as view:
        replay_quarantine(settings, "view")
    assert view.value.condition == "QUARANTINE_REPLAY_NOT_POSSIBLE"

    quarantine = str(project.path("silver_quarantine"))
    version = project.version("silver_quarantine")
    late = "SET _failed_rules = array('late') WHERE id = 4"
    project.spark.sql(f"UPDATE delta.`{quarantine}` {late}")
    with pytest.raises(PlanError, match="it has late rows, which are input of a window"):
        _replay(project)
    project.spark.sql(f"RESTORE delta.`{quarantine}` TO VERSION AS OF {version}")

    project.source(RELAXED)
    assert _replay(project, kill_at=IN_TABLE) is None
    project.spark.sql(f"DELETE FROM delta.`{quarantine}` WHERE id = 4")
    with pytest.raises(PlanError) as changed:
        _replay(project)
    assert changed.value.condition == "QUARANTINE_CHANGED"
    version = project.version("silver_quarantine") - 1
    assert f"VERSION AS OF {version}" in (changed.value.hint or "")
    assert _content(project)[0] == [1, 2, 3]
    project.spark.sql(f"RESTORE delta.`{quarantine}` TO VERSION AS OF {version}")
    done = _replay(project)
    assert done is not None
    assert (done.resumed, done.moved, done.kept) == (True, 2, 2)
    assert _content(project) == ([1, 2, 3], [(70, None), (500, 4)])


def test_rules_about_file_metadata_are_refused_in_a_replay(project: Project) -> None:
    project.source(STRICT.replace("amount < 10", "_metadata.file_name LIKE '%.parquet'", 1))
    with pytest.raises(DefinitionError, match=r"EXPECTATION_INVALID.*small"):
        _replay(project)


def test_computed_columns_are_computed_for_replayed_rows(project: Project) -> None:
    table = """
@dp.table(
    schema="id BIGINT, amount INT, ts TIMESTAMP, day DATE GENERATED ALWAYS AS (CAST(ts AS DATE)),"
    "number BIGINT GENERATED ALWAYS AS IDENTITY",
    partition_cols=["day"],
)
@dp.expect_or_drop("small", "amount < 10")
def other():
    return rows()
"""
    assert project.source(table).run().failures == ()
    project.source(table.replace("amount < 10", "amount < 60"))
    done = replay_quarantine(load_settings(project.root), "other")
    assert (done.moved, done.kept) == (1, 3)
    assert project.rows("other", "id", "CAST(day AS STRING)", "number > 0") == [
        (1, "2026-01-01", True),
        (2, "2026-01-01", True),
    ]
    assert project.table("other_quarantine").count() == 3


def test_a_replay_is_refused_when_values_have_no_column_in_the_table(project: Project) -> None:
    table, quarantine = (
        f"delta.`{project.path(name)}`" for name in ("silver", "silver_quarantine")
    )
    mapped = f"ALTER TABLE {table} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')"
    renamed = f"ALTER TABLE {table} RENAME COLUMN amount TO price"
    project.source(RELAXED)
    assert _replay(project, STAGED) is None
    for statement in (mapped, renamed):
        project.spark.sql(statement)
    for _ in range(2):  # an interrupted replay, then a new replay
        with pytest.raises(PlanError, match=r"NOT_POSSIBLE.*'amount'(.|\n)*SET `amount` = NULL"):
            _replay(project)
    project.spark.sql(f"ALTER TABLE {quarantine} ADD COLUMN price INT")
    project.spark.sql(f"UPDATE {quarantine} SET price = amount, amount = NULL")
    for name, fields in ((table, "x: INT"), (quarantine, "x: INT, y: INT")):
        project.spark.sql(f"ALTER TABLE {name} ADD COLUMN l ARRAY<STRUCT<{fields}>>")
    project.spark.sql(f"UPDATE {quarantine} SET l = array(named_struct('x', 1, 'y', 2))")
    with pytest.raises(PlanError, match=r"'l.element.y'(.|\n)*SET `l` = .*transform\(\)"):
        _replay(project)
    project.spark.sql(f"UPDATE {quarantine} SET l = NULL")
    project.source(NO_RULES)
    _replay(project)
    assert project.rows("silver", "price") == [(1,), (50,), (60,), (70,), (500,)]
