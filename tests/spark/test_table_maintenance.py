"""OPTIMIZE and VACUUM while flows run, at the end of an update, and by command."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from test_continuous_updates import orders
from update_project import ContinuousRun, Project
from writer_harness import Harness

from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._repair.maintain import maintain_tables
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import TableRef
from penstock._tables.write.cdc_compaction import StateCompaction

CHAIN = """
@dp.table
def bronze():
    return rows()


@dp.table
@dp.expect_or_drop("positive", "amount > 0")
def silver():
    return dp.read_stream("bronze")


@dp.materialized_view(refresh_policy="incremental")
def gold():
    return dp.read("bronze").agg(F.sum("amount").alias("s"))
"""


def maintained(project: Project, *tables: str, vacuum: bool = True) -> list[tuple[str, str, str]]:
    events = maintain_tables(load_settings(project.root), tables, vacuum=vacuum)
    return [(e.body.table, e.body.operation, e.body.status) for e in events]


def live_files(project: Project, table: str) -> int:
    return len(project.table(table).inputFiles())


def stored_files(project: Project, table: str) -> int:
    return len(list(project.path(table).glob("part-*.parquet")))


def age_files(path: Path) -> None:
    for file in path.glob("part-*.parquet"):
        os.utime(file, (0, 0))


def keep_files_for_a_second(project: Project, path: Path) -> None:
    """Set the retention to one second; VACUUM skips tables that are younger than the retention."""
    threading.Event().wait(1.0)
    project.spark.sql(
        f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES "
        "('delta.deletedFileRetentionDuration' = 'interval 1 seconds')"
    )


def state_files_after_vacuum(project: Project, table: str) -> list[Path]:
    """Compact the CDC state of a table and delete old files; returns the remaining files."""
    state = project.root / ".penstock/state/cdc/spark_catalog/default" / table
    delta, ref, lock = DeltaJvm(project.spark), TableRef(state.as_uri(), table), threading.RLock()
    StateCompaction(delta, ref, "a", lock, tombstone_seconds=None).compact(project.spark)
    keep_files_for_a_second(project, state)
    age_files(state)
    assert (f"{table} (CDC state)", "VACUUM", "COMPLETED") in maintained(project, table)
    return list(state.glob("part-*.parquet"))


def techniques(project: Project) -> list[str]:
    plans = [e["details"]["planning_information"] for e in project.log("planning_information")]
    return [info["technique_information"][0]["maintenance_type"] for info in plans]


def test_readers_see_the_same_rows_when_files_are_compacted_and_deleted(project: Project) -> None:
    project.source(CHAIN)
    project.add("a.json", orders(1, -1))
    assert project.run().state is UpdateState.COMPLETED
    first = project.version("bronze")
    for number in (2, 3):  # written by another writer, so that silver lags
        write_deltalake(
            str(project.path("bronze")),
            pa.table(
                {
                    "id": pa.array([number], pa.int64()),
                    "amount": pa.array([number], pa.int32()),
                    "ts": pa.array([None], pa.timestamp("us", "UTC")),
                }
            ),
            mode="append",
        )
    assert maintained(project, "bronze") == [("bronze", "OPTIMIZE", "COMPLETED")]
    assert (live_files(project, "bronze"), stored_files(project, "bronze")) == (1, 4)
    travel = project.spark.read.format("delta").option("versionAsOf", first + 1)
    assert travel.load(str(project.path("bronze"))).count() == 3
    keep_files_for_a_second(project, project.path("bronze"))
    age_files(project.path("bronze"))
    # Silver has not read the small files.
    assert maintained(project, "bronze") == [("bronze", "VACUUM", "SKIPPED")]
    skipped = project.log("maintenance_progress")[-1]["details"]["maintenance_progress"]
    reason = "flow silver has not read all versions older than the retention period"
    assert skipped["reason"] == reason  # the same message for any number of versions
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("silver", "amount") == [(1,), (2,), (3,)]
    assert project.rows("gold") == [(5,)]
    # Readers without backlog do not need the files. The version of OPTIMIZE causes no refresh.
    assert ("bronze", "VACUUM", "COMPLETED") in maintained(project)
    assert stored_files(project, "bronze") == 1
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("silver", "amount") == [(1,), (2,), (3,)]
    assert [name.rpartition("_")[2] for name in techniques(project)] == [
        "RECOMPUTE",
        "AGGREGATE",
        "OP",
    ]


def test_staged_files_stay_when_a_batch_is_unfinished(project: Project) -> None:
    project.source(CHAIN)
    project.add("a.json", orders(1, -1))
    assert project.run().state is UpdateState.COMPLETED
    keep_files_for_a_second(project, project.path("silver"))
    (decision,) = (project.root / ".penstock" / "checkpoints" / "silver").glob("*/decision.json")
    content = json.loads(decision.read_text())
    record = json.loads(content["record"])
    content["record"] = json.dumps({**record, "batch": record["batch"] + 1})
    decision.write_text(json.dumps(content))
    staged = project.path("silver") / "part-staged.parquet"
    staged.write_bytes(b"")
    os.utime(staged, (0, 0))
    assert maintained(project, "silver") == [("silver", "VACUUM", "SKIPPED")]
    assert staged.exists()
    decision.unlink()
    assert ("silver", "VACUUM", "COMPLETED") in maintained(project, "silver")
    assert not staged.exists()
    assert project.rows("silver_quarantine", "amount") == [(-1,)]


def test_update_compacts_at_its_end_when_auto_compact_is_set(project: Project) -> None:
    (project.root / "penstock.yaml").write_text("maintenance: {min_small_files: 2}\n")
    project.source(
        """
@dp.table(table_properties={"delta.autoOptimize.autoCompact": "auto",
                            "pipelines.autoOptimize.zOrderCols": "id, amount"})
def compacted():
    return rows()


@dp.table(table_properties={"delta.autoOptimize.autoCompact": "false"})
def left():
    return rows()


@dp.table(table_properties={"delta.autoOptimize.autoCompact": "true",
                            "pipelines.autoOptimize.managed": "false"})
def unmanaged():
    return rows()
"""
    )
    for number in range(3):
        project.add(f"{number}.json", orders(number, start=number))
        assert project.run().state is UpdateState.COMPLETED
    assert live_files(project, "compacted") == 1
    assert live_files(project, "left") == live_files(project, "unmanaged") == 3
    assert project.rows("compacted", "id") == [(0,), (1,), (2,)]
    (event, *_) = project.log("maintenance_progress")
    body = event["details"]["maintenance_progress"]
    assert (body["operation"], body["table"]) == ("OPTIMIZE", "compacted")
    assert body["metrics"]["files_removed"] == 3
    assert maintained(project, "compacted") == [("compacted", "OPTIMIZE", "COMPLETED")]
    history = project.spark.sql(f"DESCRIBE HISTORY delta.`{project.path('compacted')}`").first()
    assert history.operationParameters["zOrderBy"] == '["id","amount"]'
    assert not [e for e in project.events if "only tune Databricks" in e.message]


def test_tables_are_compacted_while_flows_append_and_deduplicate(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock._execution.maintenance._LOOK_SECONDS", 1.0)
    (project.root / "penstock.yaml").write_text("maintenance: {min_small_files: 3}\n")
    project.source(
        """
@dp.table
def appended():
    return rows()


@dp.table(deduplicate_by=["id"])
def unique():
    return dp.read_stream("appended")
"""
    )
    run = ContinuousRun(project)
    added = 0

    def both_compacted() -> bool:
        nonlocal added
        project.add(f"{added}.json", orders(added, start=added))
        added += 1
        return all(
            any('"operation":"OPTIMIZE"' in commit.read_text() for commit in log.glob("*.json"))
            for log in (project.path(name) / "_delta_log" for name in ("appended", "unique"))
        )

    run.wait_until(both_compacted, 180)
    expected = [(number,) for number in range(added)]
    run.wait_until(lambda: project.rows("appended", "id") == expected)
    run.wait_until(lambda: project.rows("unique", "id") == expected)
    result = run.stop()
    assert result.failures == ()
    assert not [e for e in project.events if e.error is not None]
    assert project.spark.conf.get("spark.databricks.delta.autoCompact.enabled", None) is None


def test_no_table_is_maintained_when_maintenance_is_off(project: Project) -> None:
    (project.root / "penstock.yaml").write_text("maintenance: false\n")
    project.source(
        """
@dp.table(table_properties={"delta.autoOptimize.autoCompact": "auto",
                            "delta.logRetentionDuration": "interval 1 days",
                            "delta.deletedFileRetentionDuration": "interval 1 days"})
def t():
    return rows()
"""
    )
    for number in range(2):
        project.add(f"{number}.json", orders(number, start=number))
        assert project.run().state is UpdateState.COMPLETED
    assert project.log("maintenance_progress") == []


def test_log_is_cleaned_up_with_checkpoints_of_our_commits(harness: Harness, spark: Any) -> None:
    properties = {
        "delta.logRetentionDuration": "interval 1 days",
        "delta.deletedFileRetentionDuration": "interval 1 days",
        "delta.checkpointInterval": "3",
    }
    df = harness.prepare(spark.range(1).coalesce(1), properties=properties)
    writer = harness.writer()
    log = Path(harness.target.path) / "_delta_log"
    delta = DeltaJvm(spark)
    for batch in range(4):
        writer.write(df, batch)
    delta.await_checkpoints(60)
    old = time.time() - 3 * 86_400
    for file in log.glob("0*"):
        age = old + int(file.name[:20])
        os.utime(file, (age, age))
    for batch in range(4, 10):
        writer.write(df, batch)
    delta.await_checkpoints(60)
    versions = [int(file.name[:20]) for file in log.glob("0*.json")]
    assert min(versions) >= 3
    assert max(int(file.name[:20]) for file in log.glob("0*.checkpoint.parquet")) == 9
    assert '"version":9' in (log / "_last_checkpoint").read_text()
    assert max(versions) == 10
    assert harness.rows().count() == 10
