"""Rows leave quarantine once, whatever dies in between."""

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
    """As if the process had died: nothing that handles exceptions sees it."""


def _row(number: int | None, amount: int) -> dict[str, Any]:
    return {"id": number, "amount": amount, "ts": "2026-01-01 00:00:00"}


@pytest.fixture
def project(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    made = Project(tmp_path, spark).source(STRICT)
    rows = [_row(1, 1), _row(2, 50), _row(3, 60), _row(4, 500), _row(None, 70)]
    made.add("a.json", rows).run()
    return made


def _replay(project: Project, die_at: str = "", **chosen: Any) -> Replayed | None:
    def die(step: str, _: str) -> None:
        if step == die_at:
            raise _Killed

    try:
        settings, selection = load_settings(project.root), RowSelection(**chosen)
        with after_steps("", die):
            return replay_quarantine(settings, "silver", selection=selection)
    except _Killed:
        return None


def _places(project: Project) -> tuple[list[Any], list[Any]]:
    table = [row[0] for row in project.rows("silver", "id")]
    kept = project.table("silver_quarantine").select("id", "amount").collect()
    return table, sorted((row["amount"], row["id"]) for row in kept)


def test_repaired_rows_move_once_and_flow_on(project: Project, capsys: pytest.CaptureFixture[str]):
    assert _places(project) == ([1], [(50, 2), (60, 3), (70, None), (500, 4)])
    seen = monitoring.status(project.root)
    assert seen is not None
    assert (seen["state"], seen["is_alive"], seen["error"]) == ("COMPLETED", False, None)
    (flow,) = (one for one in seen["flows"] if one["flow"] == "silver")
    assert (flow["state"], flow["rows"], flow["quarantined"]) == ("COMPLETED", 1, 4)
    assert [(rule["name"], rule["failed"]) for rule in flow["rules"]] == [
        ("small", 4),
        ("has_id", 1),
    ]
    assert flow["last_progress"]["input_rows"] == 5
    found = examine(load_settings(project.root))
    assert [one for one in found if one.severity is not Severity.NOTE] == []
    # Nothing passes yet: nothing changes, not even a version.
    versions = project.version("silver"), project.version("silver_quarantine")
    done = _replay(project)
    assert done is not None
    assert (done.moved, done.kept) == (0, 4)
    assert (project.version("silver"), project.version("silver_quarantine")) == versions

    project.source(RELAXED)
    done = _replay(project)
    assert done is not None
    assert (done.moved, done.kept, done.resumed) == (2, 2, False)
    assert _places(project) == ([1, 2, 3], [(70, None), (500, 4)])
    reasons = project.table("silver_quarantine").select("id", "_failed_rules", "_row").collect()
    assert {row["id"]: row["_failed_rules"] for row in reasons} == {None: ["has_id"], 4: ["small"]}
    assert all('"amount":' in row["_row"] for row in reasons)
    again = _replay(project)
    assert again is not None
    assert (again.moved, again.kept) == (0, 2)

    # The next update reads on: the moved rows once, and its own batches are not disturbed.
    project.add("b.json", [_row(5, 5), _row(6, 600)]).run()
    assert project.rows("gold", "id") == [(1,), (2,), (3,), (5,)]
    assert _places(project) == ([1, 2, 3, 5], [(70, None), (500, 4), (600, 6)])

    # Without any rule, all of them are good rows.
    project.source(NO_RULES)
    capsys.readouterr()
    command = ["quarantine", "replay", "silver", "--project", str(project.root)]
    assert main([*command, "--output", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["table"], body["moved"], body["kept"], body["resumed"]) == ("silver", 3, 0, False)
    assert {row["id"] for row in project.table("silver").collect()} == {1, 2, 3, 4, 5, 6, None}
    assert project.table("silver_quarantine").isEmpty()


def test_no_row_is_lost_or_doubled_when_a_replay_dies(project: Project):
    project.source(RELAXED)
    assert _replay(project, die_at=STAGED) is None
    assert _places(project)[0] == [1]
    # The decision was made: other rules, names and new rows between do not change it.
    project.source(STRICT.replace("def silver", "def Silver"))
    assert _replay(project, die_at=IN_TABLE) is None
    project.source(STRICT)
    assert _places(project) == ([1, 2, 3], [(50, 2), (60, 3), (70, None), (500, 4)])
    project.add("b.json", [_row(7, 77)]).run()
    done = _replay(project, die_at=OUT_OF_QUARANTINE)
    assert done is None
    after = ([1, 2, 3], [(70, None), (77, 7), (500, 4)])
    assert _places(project) == after
    done = _replay(project)
    assert done is not None
    assert (done.resumed, done.moved, done.kept) == (True, 2, 2)
    assert _places(project) == after
    assert project.rows("gold", "id") == [(1,), (2,), (3,)]
    done = _replay(project)
    assert done is not None
    assert (done.resumed, done.moved, done.kept) == (False, 0, 3)
    assert not list((project.path("silver").parents[3] / "state" / "replay").rglob("*.parquet"))


def test_an_interrupted_replay_ends_with_the_rows_that_it_was_about(project: Project):
    settings = load_settings(project.root)
    create_savepoint(settings, "first")
    project.source(RELAXED)
    assert _replay(project, die_at=IN_TABLE) is None
    with pytest.raises(PlanError, match="has an unfinished replay of its quarantine"):
        create_savepoint(settings, "second")
    with pytest.raises(PlanError, match="a replay of its quarantine is unfinished"):
        migrate_flow(settings, "silver", MigrationOptions())
    restore_savepoint(settings, "first", RestoreOptions(execute=True, keeps_undo=False))
    assert _places(project)[0] == [1]
    assert _replay(project, die_at=STAGED) is None
    project.run(full_refresh=("silver",))
    done = _replay(project)
    assert done is not None
    assert (done.resumed, done.moved, done.kept) == (False, 0, 2)
    assert _places(project) == ([1, 2, 3], [(70, None), (500, 4)])


def _refused(project: Project) -> dict[int, tuple[str, tuple[Any, ...]]]:
    """Rows in quarantine by their amount: their file, and all that is stored of them."""
    rows = project.table("silver_quarantine").select("_metadata.file_name", "*").collect()
    return {row["amount"]: (row["file_name"], tuple(row)[1:]) for row in rows}


def test_only_chosen_rows_are_judged_when_some_are_chosen(
    project: Project, capsys: pytest.CaptureFixture[str]
):
    project.add("b.json", [_row(5, 55), _row(6, 660), _row(7, 77)]).run()
    project.source(RELAXED)
    before = _refused(project)
    tables = ("silver", "silver_quarantine")
    versions = [project.version(name) for name in tables]
    command = ["quarantine", "replay", "silver", "--project", str(project.root), "-o", "json"]

    def asked(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*command, *words]) == 0
        body: dict[str, Any] = json.loads(capsys.readouterr().out)
        return body

    where = "amount IN (55, 660) AND _row LIKE '%amount%'"
    body = asked("--where", where, "--dry-run")
    assert (body["chosen"], body["would_move"], body["would_keep"]) == (2, 1, 1)
    assert (body["by_rule"], body["unfinished"]) == ({"small": 1}, False)
    # Whoever broke only this rule still does: no commit, and the next one is about that version.
    body = asked("--rule", "has_id")
    assert (body["chosen"], body["moved"], body["kept"]) == (1, 0, 1)
    assert [project.version(name) for name in tables] == versions

    body = asked("--where", where)
    assert (body["chosen"], body["moved"], body["kept"]) == (2, 1, 1)
    assert body["quarantine_version"] == versions[1]
    assert (body["resumed"], body["finished"]) == (False, None)
    after = _refused(project)
    assert project.rows("silver", "id") == [(1,), (5,)]
    assert after.keys() == before.keys() - {55}
    # A file without a chosen row is as it was, and so is each row that was not chosen.
    assert {n: after[n] for n in (50, 60, 70, 500)} == {n: before[n] for n in (50, 60, 70, 500)}
    assert after[77][0] != before[77][0]
    assert after[77][1] == before[77][1]
    assert after[660][1] == before[660][1]

    # The ids are those that people see, with and without Spark.
    assert main(["quarantine", "show", "silver", "--project", str(project.root), "-o", "json"]) == 0
    shown = {one["_row"]: one["_id"] for one in json.loads(capsys.readouterr().out)}
    storage = load_settings(project.root).storage
    page = TableBrowser(storage).quarantine("spark_catalog.default.silver", None, limit=50)
    seen = {json.loads(one["row"])["amount"]: one["id"] for one in page["rows"]}
    assert seen == {json.loads(row)["amount"]: one for row, one in shown.items()}
    body = asked("--row", f"{seen[77]},{seen[50]}", "--rule", "small")
    assert (body["chosen"], body["moved"], body["kept"]) == (2, 2, 0)
    assert project.rows("silver", "id") == [(1,), (2,), (5,), (7,)]
    left = _refused(project)
    assert {n: left[n][1] for n in (60, 70, 500, 660)} == {
        n: before[n][1] for n in (60, 70, 500, 660)
    }


@pytest.mark.long
def test_an_interrupted_choice_is_finished_before_another_one_begins(project: Project):
    project.add("b.json", [_row(7, 77)]).run()
    project.source(RELAXED)
    assert _replay(project, die_at=STAGED, where="id = 7") is None
    # Whatever is asked for now, what was decided is done first.
    assert _replay(project, die_at=IN_TABLE, where="id < 5") is None
    assert _places(project) == (
        [1, 7],
        [(50, 2), (60, 3), (70, None), (77, 7), (500, 4)],
    )
    # Others may change what was not chosen meanwhile.
    place = f"delta.`{project.path('silver_quarantine')}`"
    properties = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    project.spark.sql(f"ALTER TABLE {place} SET {properties}")
    project.spark.sql(f"DELETE FROM {place} WHERE id = 3")
    assert _replay(project, die_at=OUT_OF_QUARANTINE, where="id < 5") is None
    assert _places(project) == ([1, 7], [(50, 2), (70, None), (500, 4)])
    done = _replay(project, where="id < 5")
    assert done is not None
    assert (done.resumed, done.chosen, done.moved, done.kept) == (True, 2, 1, 1)
    assert done.finished is not None
    # The row that was deleted by a vector does not come back with its file.
    assert _places(project) == ([1, 2, 7], [(70, None), (500, 4)])


def test_no_row_is_lost_when_a_checkpoint_is_gone(project: Project):
    settings = load_settings(project.root)
    (found,) = checkpoints(settings, "silver")
    shutil.rmtree(found.path)
    project.add("b.json", [_row(8, 8)])
    assert [one.kind for one in examine(settings, "silver")] == ["checkpoint-missing"]
    result = project.run(refresh=("silver",))
    assert [error.condition for error in result.failures] == ["CHECKPOINT_MISSING"]
    assert project.rows("silver", "id") == [(1,)]
    place = parse_start("earliest")
    plan = reset_flow(settings, "silver", place)
    assert "an unknown number of rows" in (plan.refused or "")
    reset_flow(settings, "silver", place, accept_duplicates=True, execute=True)
    project.run(refresh=("silver",))
    # As announced: what the source still has comes once more.
    assert project.rows("silver", "id") == [(1,), (1,), (8,)]


def test_a_replay_is_refused_when_it_could_do_harm(project: Project):
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

    place = str(project.path("silver_quarantine"))
    version = project.version("silver_quarantine")
    late = "SET _failed_rules = array('late') WHERE id = 4"
    project.spark.sql(f"UPDATE delta.`{place}` {late}")
    with pytest.raises(PlanError, match="it has late rows, which are input of a window"):
        _replay(project)
    project.spark.sql(f"RESTORE delta.`{place}` TO VERSION AS OF {version}")

    project.source(RELAXED)
    assert _replay(project, die_at=IN_TABLE) is None
    project.spark.sql(f"DELETE FROM delta.`{place}` WHERE id = 4")
    with pytest.raises(PlanError) as changed:
        _replay(project)
    assert changed.value.condition == "QUARANTINE_CHANGED"
    version = project.version("silver_quarantine") - 1
    assert f"VERSION AS OF {version}" in (changed.value.hint or "")
    assert _places(project)[0] == [1, 2, 3]
    project.spark.sql(f"RESTORE delta.`{place}` TO VERSION AS OF {version}")
    done = _replay(project)
    assert done is not None
    assert (done.resumed, done.moved, done.kept) == (True, 2, 2)
    assert _places(project) == ([1, 2, 3], [(70, None), (500, 4)])


def test_rows_are_not_judged_by_the_files_of_their_quarantine(project: Project) -> None:
    project.source(STRICT.replace("amount < 10", "_metadata.file_name LIKE '%.parquet'", 1))
    with pytest.raises(DefinitionError, match=r"EXPECTATION_INVALID.*small"):
        _replay(project)
