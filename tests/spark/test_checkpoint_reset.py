"""A reset flow starts at its position, and rows are duplicated only if that is accepted."""

import json
from pathlib import Path
from typing import Any

import pytest
from crashes import after_steps
from update_project import Project

from penstock._cli.main import main
from penstock._project.spec import load_settings
from penstock._repair.reset import EMPTIED, MARKED, ResetPlan, reset_flow
from penstock._runtime.lease import Lease
from penstock._runtime.lease_paths import pipeline_lease_path
from penstock._tables.read.checkpoint_files import flow_records
from penstock._tables.read.log_scan import read_commit_counts
from penstock.errors import PenstockError
from penstock.sources.base import parse_start

SOURCE = """
@dp.table
def bronze():
    return rows()


@dp.table
def silver():
    return spark.readStream.table("bronze")


dp.create_streaming_table("keyed", deduplicate_by=["id"])


@dp.append_flow(target="keyed")
def into_keyed():
    return spark.readStream.table("bronze")


@dp.table
def totals():
    return spark.readStream.table("bronze").groupBy("id").count()


@dp.materialized_view
def view():
    return spark.read.table("silver")
"""


class _Killed(BaseException):
    """Simulates a killed process."""


def _row(number: int) -> dict[str, Any]:
    return {"id": number, "amount": number, "ts": "2026-01-01 00:00:00"}


@pytest.fixture
def project(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(SOURCE)
    project.add("a.json", [_row(1), _row(2)]).run(refresh=("bronze",))
    project.add("b.json", [_row(3)]).run(refresh=("bronze", "silver", "keyed", "totals"))
    return project


def _reset(project: Project, flow: str, start: str, **arguments: Any) -> ResetPlan:
    return reset_flow(load_settings(project.root), flow, parse_start(start), **arguments)


def _ids(project: Project, table: str) -> list[int]:
    return [row[0] for row in project.rows(table, "id")]


def _refused(project: Project, flow: str, start: str, **arguments: Any) -> str:
    with pytest.raises(PenstockError) as error:
        _reset(project, flow, start, execute=True, **arguments)
    assert error.value.hint
    return error.value.condition


def _check_that_a_killed_reset_is_completed(project: Project) -> None:
    def kill_at(step: str) -> None:
        def kill(current: str, _: str) -> None:
            if current == step:
                raise _Killed

        with pytest.raises(_Killed), after_steps("", kill):
            _reset(
                project,
                "silver",
                f"version={project.version('bronze')}",
                truncate=True,
                execute=True,
            )

    for step in (MARKED, EMPTIED):
        kill_at(step)
        # The next update completes the reset: empties the table, and fills it from that version.
        project.run(refresh=("silver",))
        assert _ids(project, "silver") == [4], step
    _reset(project, "silver", "earliest", truncate=True, execute=True)
    assert _ids(project, "silver") == []
    project.run(refresh=("silver",))
    assert _ids(project, "silver") == [1, 2, 3, 4]


FILES = """
def loader(folder):
    files = spark.readStream.format("cloudFiles").schema("id LONG")
    return files.option("cloudFiles.format", "json").option(
        "cloudFiles.includeExistingFiles", "false"
    ).load(folder)


@dp.table
def files():
    return loader("data")


@dp.table
def mixed():
    rate = spark.readStream.format("rate").load().where("false").selectExpr("value AS id")
    return loader("data").unionByName(rate)
"""


def test_a_reset_reads_files_from_before_the_first_start(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(FILES).add("a b.json", [_row(1)])
    project.run(refresh=("files", "mixed"))
    project.add("b.json", [_row(2)])
    # The log of the other source of `mixed` has no files.
    assert project.run(refresh=("files", "mixed")).state == "COMPLETED"
    assert (_ids(project, "files"), _ids(project, "mixed")) == ([2], [2])
    _reset(project, "files", "earliest", truncate=True, execute=True)
    project.add("c d.json", [_row(3)]).run(refresh=("files",))
    assert _ids(project, "files") == [1, 2, 3]
    # The writer keeps its identity when the pipeline is renamed.
    monkeypatch.setenv("PENSTOCK_NAME", "renamed")
    project.add("e.json", [_row(4)]).run(refresh=("files",))
    assert _ids(project, "files") == [1, 2, 3, 4]
    before, last = read_commit_counts(spark, str(project.path("files")))[-2:]
    assert before.app_id == last.app_id


def test_flow_starts_at_the_position_of_a_reset(project: Project, capsys: Any):
    settings = load_settings(project.root)
    newest = project.version("bronze")
    epoch = flow_records(settings)["silver"].epoch

    # A reset that would duplicate rows is refused.
    assert main(["checkpoint", "reset", "SILVER", "--from", "earliest", "--output", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["done"], plan["effect"], plan["new_epoch"]) == (False, "added", None)
    (source,) = plan["sources"]
    assert (source["unit"], source["again"], source["skipped"]) == ("versions", newest + 1, 0)
    assert "would be duplicated" in plan["refused"]
    assert main(["checkpoint", "reset", "silver", "--from", "earliest", "--yes"]) == 2
    assert "RESET_WOULD_DOUBLE" in capsys.readouterr().err
    for flow, start, arguments, condition in (
        ("totals", f"version={newest}", {}, "RESET_WOULD_DOUBLE"),
        ("bronze", "2026-01-01", {}, "RESET_WOULD_DOUBLE"),
        ("bronze", "version=1", {}, "START_NOT_AVAILABLE"),
        ("silver", f"version={newest + 9}", {}, "START_NOT_AVAILABLE"),
        ("view", "earliest", {}, "RESET_NOT_POSSIBLE"),
        ("nothing", "earliest", {}, "UNKNOWN_FLOW"),
    ):
        assert _refused(project, flow, start, **arguments) == condition, (flow, start)
    with Lease.acquire(pipeline_lease_path(settings.storage), holder={}):
        assert main(["checkpoint", "reset", "silver", "--from", "latest", "--yes"]) == 3
    assert flow_records(settings)["silver"].epoch == epoch

    # A reset to a version duplicates its rows, because duplicates are accepted.
    done = _reset(project, "silver", f"version={newest}", accept_duplicates=True, execute=True)
    assert done.new_epoch == flow_records(settings)["silver"].epoch != epoch
    # A table with keys and an aggregation start from the beginning without an option.
    _reset(project, "into_keyed", "earliest", execute=True)
    _reset(project, "totals", "earliest", execute=True)
    assert project.run(refresh=("silver", "keyed", "totals")).state == "COMPLETED"
    assert _ids(project, "silver") == [1, 2, 3, 3]
    assert _ids(project, "keyed") == [1, 2, 3]
    assert project.rows("totals", "id", "count") == [(1, 1), (2, 1), (3, 1)]

    # A reset to the latest position of a folder, and of a table without new rows.
    assert _reset(project, "bronze", "latest", execute=True).refused is None
    _reset(project, "silver", "latest", execute=True)
    assert project.run(refresh=("bronze", "silver")).state == "COMPLETED"
    assert (_ids(project, "bronze"), _ids(project, "silver")) == ([1, 2, 3], [1, 2, 3, 3])
    project.add("c.json", [_row(4)]).run(refresh=("bronze", "silver"))
    assert (_ids(project, "bronze"), _ids(project, "silver")) == ([1, 2, 3, 4], [1, 2, 3, 3, 4])
    _check_that_a_killed_reset_is_completed(project)

    # Totals without the deleted row would replace those with it.
    delta = project.path("bronze")
    project.spark.sql(f"DELETE FROM delta.`{delta}` WHERE id = 1")
    assert "(DELETE)" in (_reset(project, "totals", "earliest").refused or "")
    assert _refused(project, "totals", "earliest") == "RESET_WOULD_DOUBLE"
