"""The backlog of folders and Delta tables of running flows, and its report by `penstock status`."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from update_project import Project

from penstock import monitoring
from penstock._runtime.update import UpdateResult
from penstock.sources.delta import lag as delta_lag
from penstock.sources.delta.lag import PendingVersions
from penstock.sources.files.lag import PendingFiles


def run_one_batch(df: Any, checkpoint: Path) -> Any:
    """Start a query; return when its first batch is finished. The next batch is an hour later."""
    stream = df.writeStream.foreachBatch(lambda *_: None)
    stream = stream.option("checkpointLocation", str(checkpoint))
    query = stream.trigger(processingTime="1 hour").start()
    deadline, pause = time.monotonic() + 60, threading.Event()
    # The progress is reported after the commit entry.
    while not (checkpoint / "commits" / "0").exists() or query.lastProgress is None:
        assert time.monotonic() < deadline
        assert query.exception() is None
        pause.wait(0.05)
    return query


def commit_times(table: Path) -> list[int]:
    """The timestamps of the commits of a table, in milliseconds."""
    lines = (
        path.read_text().splitlines() for path in sorted((table / "_delta_log").glob("*.json"))
    )
    return [json.loads(first)["commitInfo"]["timestamp"] for first, *_ in lines]


def test_backlog_of_files_and_of_delta_versions_is_measured(
    spark: Any, tmp_path: Path, monkeypatch: Any
):
    folder = tmp_path / "in put"
    folder.mkdir()
    for number in range(4):
        (folder / f"part é {number}.json").write_text(json.dumps({"id": number}) + "\n")
    (folder / "_ignored.json").write_text("{}")
    (folder / "other.csv").write_text("1")
    stream = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1)
    df = stream.option("pathGlobFilter", "*.json").json(str(folder))
    query = run_one_batch(df, tmp_path / "files")
    source = query._jsq.streamingQuery().sources().head()
    try:
        for number in range(4):
            os.utime(folder / f"part é {number}.json", (1_000_000 + number, 1_000_000 + number))
        files = PendingFiles(spark, now_ms=lambda: 1_000_600_000)
        lag = files.measure(source)
        age = lag.pop("seconds_behind")
        assert lag == {"kind": "files", "files": 3, "bytes": 3 * 10}
        assert age in (599.0, 600.0)  # depends on the file that the batch read
        (folder / "late.json").write_text('{"id": 10}\n')
        lag = files.measure(source)
        assert (lag["files"], lag["bytes"], lag["seconds_behind"]) == (4, 3 * 10 + 11, age)
    finally:
        query.stop()

    table = str(tmp_path / "table")
    for number in range(3):
        spark.range(number + 1).coalesce(1).write.format("delta").mode("append").save(table)
    stream = spark.readStream.format("delta").option("startingVersion", 0)
    query = run_one_batch(stream.option("maxFilesPerTrigger", 1).load(table), tmp_path / "delta")
    try:
        end = json.loads(query.recentProgress[-1].json)["sources"][0]["endOffset"]
        first_unread = commit_times(Path(table))[1]
        versions = PendingVersions(spark, now_ms=lambda: first_unread + 90_000)
        lag = versions.measure(table, end)
        assert (lag["versions"], lag["rows"], lag["latest_version"]) == (2, 5, 2)
        assert lag["bytes"] > 0
        assert lag["seconds_behind"] == 90.0  # the age of the first unread commit
        # A stream ignores rewrites without changed rows.
        spark.sql(f"OPTIMIZE delta.`{table}`").collect()
        again = versions.measure(table, end)
        assert (again["versions"], again["rows"], again["bytes"]) == (2, 5, lag["bytes"])
        # Within an initial snapshot, the number of remaining bytes is unknown.
        snapshot = versions.measure(table, {**end, "isStartingVersion": True})
        assert {snapshot[key] for key in ("bytes", "rows", "seconds_behind")} == {None}
        monkeypatch.setattr(delta_lag, "_MOST_COMMITS", 2)
        many = versions.measure(table, end)
        assert (many["versions"], many["rows"], many["seconds_behind"]) == (3, None, 90.0)
        for version in (4, 50):  # all is read; the log was cleaned up or replaced
            read = versions.measure(table, {**end, "reservoirVersion": version, "index": -1})
            assert (read["versions"], read["latest_version"]) == (0, 3), version
        nothing = versions.measure(table, {"strange": 1})
        assert {nothing[key] for key in ("versions", "bytes", "rows")} == {None}
    finally:
        query.stop()


def test_backlog_is_reported_at_the_end_of_an_update(spark: Any, tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(
        """
@dp.table
def bronze():
    return rows()


@dp.table
def silver():
    return spark.readStream.table("bronze")
"""
    )
    project.add("a.json", [{"id": 1, "amount": 1, "ts": "2026-01-01 00:00:00"}])
    result: UpdateResult = project.run()
    assert result.state == "COMPLETED"
    status = monitoring.status(tmp_path)
    assert status is not None
    lags = {flow["flow"]: flow["lag"] for flow in status["flows"]}
    (files,), (table,) = lags["bronze"]["sources"], lags["silver"]["sources"]
    assert (files["files"], files["bytes"]) == (0, 0)
    assert (table["versions"], table["bytes"], table["rows"]) == (0, 0, 0)
    assert lags["silver"]["measured_at"] is not None
    # The loss of offsets is only known for sources with partitions.
    assert (lags["silver"]["loss"], lags["silver"]["seconds_behind"]) == (None, 0.0)
    assert (files["seconds_behind"], lags["bronze"]["seconds_behind"]) == (0.0, 0.0)
    assert {event["origin"]["flow_name"] for event in project.log("lag_progress")} == {
        "bronze",
        "silver",
    }
