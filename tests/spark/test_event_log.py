"""The event log after crashes and cleanups, and as a table in SQL."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_events import flow_progress, stream_progress
from update_project import Project

from penstock._analysis.sql_names import FunctionCall
from penstock._analysis.table_functions import call_function
from penstock._model.pipeline import EventLogSettings
from penstock._observe.events import EventOrigin, FlowMetrics, FlowStatus, UpdateState
from penstock._observe.log import EventLog, commit_of_line, read_events
from penstock._observe.retention import clean, roll_up
from penstock._observe.segments import updates

pytestmark = pytest.mark.spark

PIPELINE = """
@dp.table
def bronze():
    return spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json("data")

@dp.table
@dp.expect_or_drop("positive", "amount > 0")
def silver():
    return dp.read_stream("bronze").select("id", "amount")

@dp.materialized_view
def audit():
    return spark.sql('''
        SELECT origin.flow_name AS flow, CAST(origin.batch_id AS INT) AS batch,
               CAST(get_json_object(details, '$.flow_progress.metrics.num_output_rows') AS INT) AS n
        FROM event_log('shop')
        WHERE event_type = 'flow_progress'
          AND get_json_object(details, '$.flow_progress.table_version') IS NOT NULL
          AND origin.flow_name IN ('bronze', 'silver')
          AND origin.update_id IS NOT NULL AND sequence.data_plane_id.seq_no > 0
          AND error.exceptions[0].message IS NULL
    ''')
"""
REPORTED = "reported after a restart"


def commits(folder: Path) -> list[tuple[str, int, int, list[tuple[str, int, int]]]]:
    """Flow, batch, rows and counts of the rules of each recorded commit."""
    recorded = []
    for event in read_events(folder, event_type="flow_progress"):
        body: dict[str, Any] = event["details"]["flow_progress"]
        if "table_version" in body and "batch_id" in event["origin"]:
            rules = body.get("data_quality", {}).get("expectations", ())
            counts = [(r["name"], r["passed_records"], r["failed_records"]) for r in rules]
            origin, rows = event["origin"], body["metrics"]["num_output_rows"]
            recorded.append((origin["flow_name"], origin["batch_id"], rows, counts))
    return sorted(recorded)


def test_commit_events_are_restored_without_duplicates_when_the_log_is_truncated(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(PIPELINE)
    for number, name in enumerate("abc"):
        project.add(f"{name}.json", [{"id": i, "amount": i} for i in range(number, 5)])
    assert project.run().state is UpdateState.COMPLETED
    folder = tmp_path / ".penstock" / "events"
    whole = commits(folder)
    assert [(flow, batch, rows) for flow, batch, rows, _ in whole if flow == "bronze"] == [
        ("bronze", 0, 5),
        ("bronze", 1, 4),
        ("bronze", 2, 3),
    ]
    rules = [counts for flow, *_, counts in whole if flow == "silver"]
    assert sum(passed for ((_, passed, _),) in rules) == 11
    assert sum(failed for ((_, _, failed),) in rules) == 1

    # After a power failure, the log ends in the middle of a line before the second batch; the
    # tables are complete.
    (update,) = updates(folder)
    (segment,) = update.files
    text = segment.path.read_bytes()
    lines = text.splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if commit_of_line(line) is not None)
    segment.path.write_bytes(b"".join(lines[: first + 1]) + lines[first + 1][:40])
    assert len(commits(folder)) == 1
    assert project.run().state is UpdateState.COMPLETED
    assert commits(folder) == whole
    rebuilt = [event for event in project.events if REPORTED in event.message]
    assert len(rebuilt) == len(whole) - 1
    # The view was refreshed concurrently: it has the events that were in the log at that time.
    table = sorted(tuple(row) for row in project.table("audit").collect())
    assert {(flow, batch, rows) for flow, batch, rows, _ in whole} >= set(table)
    assert ("bronze", 0, 5) in table

    # Events that the retention removed are not restored again.
    clean(folder, EventLogSettings(keep_days=1), own="", now=4e9)
    assert updates(folder) == []
    assert project.run().state is UpdateState.COMPLETED
    assert [event.message for event in project.events if REPORTED in event.message] == []


def test_a_planned_query_reads_the_same_events_when_the_log_is_rolled_up(
    tmp_path: Path, spark: Any
):
    log = EventLog(tmp_path, EventLogSettings(keep_progress_days=None, max_progress_mb=40))
    origin = EventOrigin(update_id="long", flow_name="silver", dataset_name="silver")
    log(flow_progress(origin, FlowStatus.RUNNING, "runs"))
    # The log is larger than one partition of Spark's reader.
    for batch in range(2500):
        batch_origin = replace(origin, batch_id=batch)
        log(stream_progress(batch_origin, {"batchId": batch, "name": "x" * 4000}))
        log(
            flow_progress(
                batch_origin, FlowStatus.RUNNING, "", metrics=FlowMetrics(num_input_rows=batch)
            )
        )

    def unused(*_: Any) -> Any:
        raise AssertionError("the log is read by another reader")

    call = FunctionCall(start=0, end=0, name="event_log", arguments=())

    def query() -> Any:
        events = call_function(spark, call, unused, tmp_path)
        assert events is not None
        return events.selectExpr(
            "count(*)",
            "count(distinct sequence.data_plane_id.seq_no)",
            "sum(get_json_object(details, '$.flow_progress.metrics.num_input_rows'))",
        )

    planned = query()
    settings, now = EventLogSettings(keep_progress_days=1e-6), time.time() + 60
    (update,) = updates(tmp_path)
    assert len(update.files) == 3
    assert roll_up(update, settings, now=now, is_over=False, stop=threading.Event())
    total = sum(range(2500))
    # The files that the planned query reads are kept for an hour; new queries ignore them.
    assert len(update.listed().files) == 4
    assert tuple(planned.collect()[0]) == (5001, 5001, total)
    (count, numbers, rows) = query().collect()[0]
    assert (count == numbers < 2500, rows) == (True, total)
    roll_up(update.listed(), settings, now=now + 3600, is_over=False, stop=threading.Event())
    assert len(update.listed().files) == 2
    assert tuple(query().collect()[0]) == (count, numbers, total)
    log.close()
