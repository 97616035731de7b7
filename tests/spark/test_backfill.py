"""A range of a source is processed again, and no row is duplicated."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crashes import after_steps
from update_project import Project

from penstock import monitoring
from penstock._cli.main import main
from penstock._execution.flow_state import StateStore
from penstock._project.spec import load_settings
from penstock._repair.backfill import (
    BackfillOptions,
    BackfillReport,
    backfill_flow,
)
from penstock._repair.backfill_run import BATCH, COMMITTED, PLANNED, STAGED
from penstock._tables.files import StorageFiles
from penstock._tables.read.checkpoint_files import flow_records
from penstock.errors import PenstockError
from penstock.sources.base import parse_start

SOURCE = """
@dp.table
@dp.expect_or_drop("small", "amount < 100")
def bronze():
    files = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    return files.option("pathGlobFilter", "[!x]*.json").json("data")


dp.create_streaming_table("keyed", deduplicate_by=["id"])


@dp.append_flow(target="keyed")
def into_keyed():
    return spark.readStream.table("bronze")


@dp.table
def daily():
    return spark.readStream.table("bronze").select("id", F.expr("amount * 1").alias("value"))


dp.create_streaming_table("newest", schema="id BIGINT, amount BIGINT, ts TIMESTAMP")
dp.create_auto_cdc_flow(target="newest", source="bronze", keys=["id"], sequence_by="amount")


@dp.table
def counted():
    return spark.readStream.table("bronze").groupBy("id").count()


@dp.materialized_view
def view():
    return spark.read.table("daily").select("id")
"""


def _row(number: int | None, amount: int) -> dict[str, Any]:
    return {"id": number, "amount": amount, "ts": "2026-01-01 00:00:00"}


@pytest.fixture
def project(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(SOURCE).add("x.json", [_row(9, 9)])
    project.add("a.json", [_row(1, 1), _row(2, 500)])
    project.add("b.json", [_row(3, 3), _row(4, 600)])
    return project.add("c.json", [_row(5, 5), _row(None, 6)])


def _backfill(project: Project, flow: str, **arguments: Any) -> BackfillReport:
    options = BackfillOptions(**{"execute": True, **arguments})
    return backfill_flow(load_settings(project.root), flow, options)


def _interrupt(step: str, _: str) -> None:
    raise KeyboardInterrupt(step)


def _fail_at(step: str) -> Callable[[str, str], None]:
    def fail(current: str, _: str) -> None:
        if current == step:
            raise OSError("interrupted")

    return fail


def _interrupt_at(step: str) -> Callable[[str, str], None]:
    def interrupt(current: str, _: str) -> None:
        if current == step:
            raise KeyboardInterrupt

    return interrupt


def _refused(project: Project, flow: str, **arguments: Any) -> str:
    with pytest.raises(PenstockError) as error:
        _backfill(project, flow, **arguments)
    assert error.value.hint
    return error.value.condition


def _ids(project: Project, table: str) -> list[Any]:
    return [row[0] for row in project.rows(table, "id", key=str)]


def _delete(project: Project, table: str, where: str) -> None:
    project.spark.sql(f"DELETE FROM delta.`{project.path(table)}` WHERE {where}")


def _check_refusals(project: Project) -> None:
    newest = project.version("bronze")
    for flow, arguments, condition in (
        ("daily", {}, "BACKFILL_WOULD_DOUBLE"),
        ("daily", {"by": ("nothing",)}, "BACKFILL_NOT_POSSIBLE"),
        ("counted", {"by": ("id",)}, "BACKFILL_NOT_POSSIBLE"),
        ("view", {}, "BACKFILL_NOT_POSSIBLE"),
        ("daily", {"by": ("id",), "files": "*"}, "BACKFILL_RANGE_INVALID"),
        ("bronze", {"by": ("id",), "begin": parse_start("version=1")}, "START_NOT_AVAILABLE"),
        (
            "into_keyed",
            {"end": parse_start(f"version={newest + 1}")},
            "BACKFILL_NOT_READ_YET",
        ),
    ):
        assert _refused(project, flow, **arguments) == condition, (flow, arguments)


def test_missing_rows_are_added_once_when_a_backfill_is_interrupted(
    project: Project, capsys: pytest.CaptureFixture[str]
):
    """A short version of the two long tests below, in one process."""
    project.run(refresh=("bronze", "keyed", "daily"))
    _check_refusals(project)
    _delete(project, "keyed", "id = 3")
    report = _backfill(project, "into_keyed", begin=parse_start("earliest"))
    assert (report.way, report.counts["added"]) == ("keys", 1)
    assert _ids(project, "keyed") == [1, 3, 5, None]

    # A row that is added after the rows of the range were staged is not removed.
    project.source(SOURCE.split("@dp.materialized_view")[0])
    part = {"where": "id >= 3"}
    with pytest.raises(KeyboardInterrupt), after_steps("", _interrupt_at(STAGED)):
        _backfill(project, "daily", **part)
    project.add("late.json", [_row(4, 4)]).run(refresh=("bronze", "daily"))
    assert _refused(project, "daily", resume=True) == "BACKFILL_NOT_POSSIBLE"
    assert _ids(project, "daily") == [1, 3, 4, 5, None]
    capsys.readouterr()
    assert main(["history", "--output", "json"]) == 0
    states = [update["state"] for update in json.loads(capsys.readouterr().out)]
    assert states[:3] == ["FAILED", "COMPLETED", "CANCELED"]
    assert _backfill(project, "daily", abandon=True).state == "abandoned"
    # A driver that lost its lease while it staged a batch may still write its files.
    with pytest.raises(PenstockError, match="interrupted"), after_steps("", _fail_at(BATCH)):
        _backfill(project, "daily", **part)
    staging, late = project.root / ".penstock/state/backfill/daily/rows", project.root / "late"
    shutil.copytree(staging, late, ignore=shutil.ignore_patterns("folder_of*"))
    with pytest.raises(KeyboardInterrupt), after_steps("", _interrupt_at(STAGED)):
        _backfill(project, "daily", resume=True)
    shutil.copytree(late, staging, dirs_exist_ok=True)
    assert _backfill(project, "daily", resume=True).counts["removed"] == 3
    assert _ids(project, "daily") == [1, 3, 4, 5, None]
    # Rows that violate a new rule would not replace those that are in the table.
    daily = "@dp.table\ndef daily"
    strict = SOURCE.replace(daily, f'@dp.expect_or_drop("low", "value < 5")\n{daily}')
    project.source(strict.split("@dp.materialized_view")[0])
    assert _refused(project, "daily", **part) == "BACKFILL_WOULD_LOSE_ROWS"
    assert _ids(project, "daily") == [1, 3, 4, 5, None]

    _delete(project, "bronze", "id IN (1, 3)")

    with pytest.raises(KeyboardInterrupt, match=PLANNED), after_steps("", _interrupt):
        _backfill(project, "bronze", files="[bcx].json", by=("id",))
    assert _refused(project, "bronze", files="*", by=("id",)) == "BACKFILL_UNFINISHED"
    done = _backfill(project, "bronze", resume=True)
    assert (done.state, done.resumed) == ("done", True)
    assert _ids(project, "bronze") == [3, 4, 5, None]  # 1 is outside the range

    # Rows in quarantine have the old name of a renamed column, so they would be quarantined again.
    quarantine = f"delta.`{project.path('bronze_quarantine')}`"
    project.spark.sql(f"ALTER TABLE {quarantine} ADD COLUMN old BIGINT")
    project.spark.sql(f"UPDATE {quarantine} SET old = id, id = NULL")
    with pytest.raises(PenstockError, match="they have values in `old`, which bronze does not"):
        _backfill(project, "bronze", by=("id",))
    project.spark.sql(f"UPDATE {quarantine} SET id = old, old = NULL")

    # Without the rule, the row would be in the table and remain in quarantine.
    project.source("@dp.table\n" + SOURCE[SOURCE.index("def bronze") : SOURCE.index("dp.create_")])
    project.spark.sql(f"ALTER TABLE delta.`{project.path('bronze')}` ADD COLUMN later INT")
    with pytest.raises(PenstockError, match="its quarantine has rows with id >= 3"):
        _backfill(project, "bronze", where="id >= 3 AND later IS NULL")
    # Without its files, an interrupted backfill cannot replace the old rows.
    with pytest.raises(KeyboardInterrupt, match=PLANNED), after_steps("", _interrupt):
        _backfill(project, "bronze", where="id = 3")
    for file in (project.root / "data").glob("*.json"):
        file.unlink()
    assert _refused(project, "bronze", resume=True) == "BACKFILL_RANGE_INVALID"
    assert _ids(project, "bronze") == [3, 4, 5, None]


@pytest.mark.long
def test_missing_rows_are_added_and_existing_rows_are_not_duplicated(
    project: Project, spark: Any, capsys: Any
):
    project.run(refresh=("bronze",))
    _delete(project, "bronze", "id IN (1, 3)")
    epoch = flow_records(load_settings(project.root))["bronze"].epoch

    command = ["backfill", "bronze", "--files", "[bc].json", "--by", "id"]
    assert main([*command, "--output", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["state"], plan["way"], plan["sources"][0]["count"]) == ("planned", "keys", 2)
    assert _ids(project, "bronze") == [5, None]

    # Killed with SIGKILL right after the first of two batches was committed.
    environment = {
        **os.environ,
        "PENSTOCK_KILL_AT": "after_target_commit:bronze:0",
        "PYTHONPATH": str(Path(sys.modules["penstock"].__file__ or "").parents[1]),
    }
    killed = subprocess.run(
        [sys.executable, "-m", "penstock", *command, "--yes"],
        cwd=project.root,
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-3000:]
    assert len(_ids(project, "bronze")) in (2, 3)
    assert _refused(project, "bronze", files="*", by=("id",)) == "BACKFILL_UNFINISHED"
    # An update in between changes nothing.
    project.add("d.json", [_row(7, 7)]).run(refresh=("bronze",))

    assert main(["backfill", "bronze", "--resume", "--output", "json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["state"], done["resumed"]) == ("done", True)
    assert _ids(project, "bronze") == [3, 5, 7, None]  # 1 is outside the range
    quarantine = project.spark.read.format("delta").load(str(project.path("bronze_quarantine")))
    assert sorted(row.id for row in quarantine.collect()) == [2, 4]
    assert _refused(project, "bronze", resume=True) == "BACKFILL_NOT_BEGUN"
    assert flow_records(load_settings(project.root))["bronze"].epoch == epoch
    assert not (project.root / ".penstock" / "state" / "backfill" / "bronze").exists()

    # The backfill is recorded with its own events, but it is not the newest update.
    recorded = project.log("backfill_progress")
    own = recorded[-1]["origin"]["update_id"]
    shown, newest = monitoring.status(project.root, update=own), monitoring.status(project.root)
    assert shown is not None and newest is not None
    assert (shown["state"], shown["flows"][0]["flow"]) == ("COMPLETED", "bronze")
    assert newest["update_id"] not in {e["origin"]["update_id"] for e in recorded}
    steps = [e["details"]["backfill_progress"]["step"] for e in recorded]
    assert steps[0] == "planned"
    assert "resumed" in steps
    assert steps[-1] == "done"
    assert _refused(project, "bronze", by=("id",), files="x*") == "BACKFILL_RANGE_INVALID"

    # The flow was reset after the start of the backfill, so it may read rows of the range itself.
    with pytest.raises(KeyboardInterrupt, match=PLANNED), after_steps("", _interrupt):
        _backfill(project, "bronze", files="[bc].json", by=("id",))
    store = StateStore(StorageFiles(spark), str(project.root / ".penstock" / "state"), "p")
    known = store.flow("bronze")
    assert known is not None
    store.save_flow("bronze", replace(known, epoch="another"))
    assert _refused(project, "bronze", resume=True) == "BACKFILL_NOT_POSSIBLE"
    assert _backfill(project, "bronze", abandon=True).state == "abandoned"
    store.save_flow("bronze", known)
    capsys.readouterr()

    # A range without `--to` does not include a file that the flow has not read yet.
    project.add("new.json", [_row(8, 8)])
    assert _backfill(project, "bronze", by=("id",)).counts["added"] == 1  # only row 1
    later = parse_start("2100-01-01")
    assert _refused(project, "bronze", by=("id",), end=later) == "BACKFILL_NOT_READ_YET"
    assert 8 not in _ids(project, "bronze")
    assert _backfill(project, "bronze", abandon=True).state == "abandoned"
    project.run(refresh=("bronze",))
    assert _ids(project, "bronze") == [1, 3, 5, 7, 8, None]


@pytest.mark.long
def test_table_versions_are_added_by_key_or_replace_rows_of_a_condition(project: Project):
    project.run(refresh=("bronze", "keyed", "daily", "newest"))
    _check_refusals(project)
    newest = project.version("bronze")
    _delete(project, "keyed", "id = 3")
    report = _backfill(project, "into_keyed", begin=parse_start("earliest"))
    assert (report.way, report.counts["added"], report.counts["unidentified"]) == ("keys", 1, 1)
    assert _ids(project, "keyed") == [1, 3, 5, None]

    # Events that were already applied change neither the table nor the quarantine.
    before = project.rows("newest", "id", "amount")
    bad = project.table("newest_quarantine").count()
    report = _backfill(project, "newest")
    assert (report.way, report.state) == ("events", "done")
    assert project.rows("newest", "id", "amount") == before == [(1, 1), (3, 3), (5, 5)]
    assert project.table("newest_quarantine").count() == bad == 1

    # The query was corrected: the rows of a condition are recomputed and replaced in one commit.
    project.source(SOURCE.replace("amount * 1", "amount * 10"))
    whole = [(1, 1), (3, 3), (5, 5), (None, 6)]
    rows = lambda: project.rows("daily", key=str)  # noqa: E731
    assert rows() == whole
    # Rows cannot be identified by a column that the table does not have yet.
    project.source(SOURCE.replace('"id", F.expr', '"id", "ts", F.expr'))
    assert _refused(project, "daily", by=("id", "ts")) == "BACKFILL_NOT_POSSIBLE"
    project.source(SOURCE.replace("amount * 1", "amount * 10"))
    part = {"begin": parse_start(f"version={newest}"), "where": "id >= 3"}
    assert _refused(project, "daily", **part) == "BACKFILL_NOT_POSSIBLE"  # a view reads it
    project.source(SOURCE.replace("amount * 1", "amount * 10").split("@dp.materialized_view")[0])
    assert _refused(project, "daily", **part) == "BACKFILL_WOULD_LOSE_ROWS"
    assert rows() == whole

    def interrupt_at(step: str) -> None:
        arguments: dict[str, Any] = {"where": "id >= 3"} if step == STAGED else {"resume": True}
        with pytest.raises(KeyboardInterrupt), after_steps("", _interrupt_at(step)):
            _backfill(project, "daily", **arguments)

    interrupt_at(STAGED)
    assert rows() == whole
    interrupt_at(COMMITTED)
    assert rows() == [(1, 1), (3, 30), (5, 50), (None, 6)]
    report = _backfill(project, "daily", resume=True)
    assert (report.counts["outside"], report.counts["removed"]) == (2, 2)
    assert rows() == [(1, 1), (3, 30), (5, 50), (None, 6)]
