"""Event tables contain each line of the event log once, also after crashes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from update_project import ContinuousRun, Project

from penstock._cli.main import main
from penstock._execution import event_tables
from penstock._observe.log import read_events
from penstock._project.spec import load_settings
from penstock._repair.maintain import maintain_tables
from penstock._tables.kill_points import step_callback
from penstock._tables.layout import TableRef
from penstock._tables.read.log_scan import NEWEST
from penstock._tables.write.log_table import LogTable
from penstock._tables.write.table_spec import TableSpec, parse_schema
from penstock.errors import SetupError

SOURCE = """
@dp.table
@dp.expect_or_drop("positive", "amount > 0")
@dp.expect("small", "amount < 10")
def silver():
    return rows()
"""
TABLES = "events: {table: ops.event_log, quality_table: ops.quality}\n"
COUNTS = ("timestamp", "update_id", "flow", "batch_id", "batches", "dataset", "rule")


class _Killed(BaseException):
    """Simulates a killed process."""


def _row(number: int, amount: int) -> dict[str, Any]:
    return {"id": number, "amount": amount, "ts": "2026-01-01 00:00:00"}


@pytest.fixture
def project(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, spark).source(SOURCE)


def _publish(project: Project, settings: str = TABLES) -> None:
    (project.root / "penstock.yaml").write_text(settings)


def _folder(project: Project, name: str) -> Path:
    return project.root / ".penstock/tables/spark_catalog/ops" / name


def _logged(project: Project) -> list[tuple[Any, ...]]:
    return sorted(
        (
            *(event["id"], event["event_type"], event["level"], event["message"]),
            event["origin"]["update_id"],
            event["origin"].get("batch_id"),
            event["sequence"]["data_plane_id"]["seq_no"],
            json.dumps(event["details"], sort_keys=True),
        )
        for event in read_events(project.root / ".penstock" / "events")
    )


def _stored(project: Project) -> list[tuple[Any, ...]]:
    frame = project.spark.read.format("delta").load(str(_folder(project, "event_log")))
    rows = frame.selectExpr(
        *("id", "event_type", "level", "message", "origin.update_id", "origin.batch_id"),
        *("sequence.data_plane_id.seq_no", "details", "timestamp IS NOT NULL AS has_time"),
    ).collect()
    assert all(row.has_time for row in rows)
    plain = [(*row[:7], json.dumps(json.loads(row.details), sort_keys=True)) for row in rows]
    return sorted(plain)


def _quality(project: Project) -> list[tuple[Any, ...]]:
    frame = project.spark.read.format("delta").load(str(_folder(project, "quality")))
    time = "date_format(timestamp, \"yyyy-MM-dd'T'HH:mm:ss.SSS'Z'\")"
    return sorted(map(tuple, frame.selectExpr(time, *COUNTS[1:], "passed", "failed").collect()))


def _counted(project: Project, capsys: pytest.CaptureFixture[str]) -> list[tuple[Any, ...]]:
    capsys.readouterr()
    assert main(["quality", "--update", "all", "--output", "json"]) == 0
    records = map(json.loads, capsys.readouterr().out.splitlines())
    return sorted(tuple(record[key] for key in (*COUNTS, "passed", "failed")) for record in records)


def _kill_at(project: Project, table: str) -> None:
    """Run an update whose writer thread ends after the commit of a table, as if killed."""

    def on_step(point: str, name: str, _: int | None) -> None:
        if (point, name) == ("after_event_table", table):
            raise _Killed

    with step_callback(on_step):
        assert project.run().state == "COMPLETED"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tables_have_each_event_once_when_the_writer_is_killed_or_starts_late(
    project: Project, capsys: pytest.CaptureFixture[str]
):
    # An update without the setting, and an update whose last line is truncated.
    project.add("a.json", [_row(1, 1), _row(2, 20), _row(3, -1)]).run()
    (log,) = (project.root / ".penstock" / "events").glob("*.jsonl")
    log.write_bytes(log.read_bytes()[:-40])
    _publish(project)
    _kill_at(project, "ops.event_log")
    assert len(_stored(project)) > 0
    assert _quality(project) == []
    project.add("b.json", [_row(4, 4)])
    _kill_at(project, "ops.quality")
    project.add("c.json", [_row(5, -5)]).run()
    assert _stored(project) == _logged(project)
    counted = _counted(project, capsys)
    assert _quality(project) == counted
    assert [sum(column) for column in zip(*(row[-2:] for row in counted), strict=True)] == [7, 3]
    # Dropped rows are counted per batch and are in quarantine.
    frame = project.spark.read.format("delta").load(str(_folder(project, "quality")))
    dropped = frame.where("rule = 'positive'").selectExpr(
        "sum(batch_dropped)", "sum(batch_quarantined)"
    )
    assert tuple(dropped.first()) == (2, 2)
    described = project.spark.sql(f"DESCRIBE DETAIL delta.`{_folder(project, 'event_log')}`")
    assert described.first().description == f"event log of pipeline {project.root.name}"
    # A deleted table is written again from the log; the other table continues.
    shutil.rmtree(_folder(project, "event_log"))
    project.add("d.json", [_row(6, 6)]).run()
    assert _stored(project) == _logged(project)
    assert _quality(project) == _counted(project, capsys)


def test_lines_are_refused_that_another_driver_wrote_before_many_other_commits(
    spark: Any, tmp_path: Path
):
    spec = TableSpec(schema=parse_schema(spark, "line STRING"), declared=True)
    table, other = (LogTable(spark, TableRef(str(tmp_path), "log"), spec) for _ in range(2))
    for each in (table, other):
        each.open()
    other.add("paused", 0, ['{"line": "first"}'])
    other.commit(without_rows=False)
    for number in range(NEWEST):
        other.add("another", number, [])
        other.commit(without_rows=True)
    table.add("paused", 0, ['{"line": "first"}'])
    with pytest.raises(SetupError, match="another driver has written events"):
        table.commit(without_rows=False)


def test_a_table_that_cannot_be_written_is_a_warning_and_no_failure(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    _publish(project)
    path = _folder(project, "event_log")
    path.parent.mkdir(parents=True)
    path.write_text("a file")
    assert project.add("a.json", [_row(1, 1)]).run().state == "COMPLETED"
    (warning,) = (e for e in project.events if e.error is not None)
    assert (warning.level, warning.error.condition) == ("WARN", "EVENT_TABLE_NOT_WRITTEN")
    assert project.rows("silver", "id") == [(1,)]
    path.unlink()
    # Rows are written while the update runs, and their commits cause no events.
    monkeypatch.setattr(event_tables, "_COMMIT_SECONDS", 0.1)
    running = ContinuousRun(project.add("b.json", [_row(2, 2)]))
    running.wait_until(lambda: len(_quality(project)) == 4)
    project.add("c.json", [_row(3, 3)])
    running.wait_until(lambda: len(_quality(project)) == 6)
    running.stop()
    assert _stored(project) == _logged(project)
    assert not any(event.error or "event_log" in event.message for event in project.events)
    before = _stored(project)
    done = maintain_tables(load_settings(project.root), (), vacuum=False)
    assert {e.body.table for e in done} >= {"ops.event_log", "ops.quality"}
    assert _stored(project) == before


def test_tables_in_a_shared_storage_belong_to_the_pipeline(project: Project):
    _publish(project, TABLES + "name: shop\nshared_storage: true\n")
    for number in (1, 2):
        project.add(f"{number}.json", [_row(number, 1)]).run()
    assert not any(event.error for event in project.events)
    assert len({row[1] for row in _quality(project)}) == 2
    table = f"delta.`{_folder(project, 'quality')}`"
    project.spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('penstock.pipeline')")
    project.run()
    (warning,) = (event.message for event in project.events if event.error)
    assert "SET TBLPROPERTIES ('penstock.pipeline' = 'shop')" in warning
