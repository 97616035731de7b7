"""Migration gives a changed query a new table and checkpoint, also after kills."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from crashes import after_steps
from update_project import Project

from penstock._cli.main import main
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._repair.migrate import (
    LEFT,
    QUARANTINED,
    REPLACED,
    MigrationOptions,
    migrate_flow,
)
from penstock._repair.shadow import restore_rows, swap_rows
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import TableRef
from penstock._tables.read.checkpoint_files import flow_records
from penstock._tables.write.fenced import last_number
from penstock._tables.write.table_spec import table_state
from penstock.errors import PlanError

pytestmark = pytest.mark.timeout(1200)

SOURCE = """
from penstock.timing import window_columns


@dp.table
def bronze():
    files = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    return files.json("data")


@dp.table(output_mode="update", partition_cols=["window_start"])
@dp.expect_or_drop("known", "id IS NOT NULL")
def windows():
    rows = spark.readStream.option("maxFilesPerTrigger", 1).table("bronze")
    return (
        rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "10 minutes"), "id")
        .agg(F.count("*").alias("n"))
        .transform(window_columns)
    )


@dp.materialized_view
def view():
    return spark.read.table("windows").groupBy("id").agg(F.sum("n").alias("n"))


@dp.table
def strict():
    return spark.readStream.table("windows")


@dp.table
def lenient():
    return spark.readStream.option("skipChangeCommits", "true").table("windows")

"""
CHANGED = SOURCE.replace('"10 minutes"), "id"', '"5 minutes"), "id"').replace(
    '.agg(F.count("*").alias("n"))', '.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))'
)
START = datetime(2026, 1, 1, tzinfo=UTC)


def _rows(seed: int) -> list[dict[str, Any]]:
    rows = [
        {
            "id": None if number % 11 == 5 else number % 3,
            "amount": number,
            "ts": (START + timedelta(seconds=(number * 137 + seed * 61) % 2400)).isoformat(),
        }
        for number in range(40)
    ]
    return [*rows, rows[0]]


def _expected(batches: int, minutes: int) -> Counter[Any]:
    """The result of a batch query over all rows, computed in Python."""
    count: Counter[Any] = Counter()
    total: Counter[Any] = Counter()
    for row in (row for seed in range(batches) for row in _rows(seed) if row["id"] is not None):
        seconds = int((datetime.fromisoformat(row["ts"]) - START).total_seconds())
        key = (seconds // (60 * minutes), row["id"])
        count[key] += 1
        total[key] += row["amount"]
    return Counter((*key, n, total[key] if minutes == 5 else None) for key, n in count.items())


def _actual(project: Project, minutes: int) -> Counter[Any]:
    df = project.table("windows")
    counts: Counter[Any] = Counter()
    for row in df.collect():
        at = row["window_start"].replace(tzinfo=UTC) - START
        total = row["total"] if "total" in df.columns else None
        counts[int(at.total_seconds()) // (60 * minutes), row["id"], row["n"], total] += 1
    return counts


@pytest.fixture
def project(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(SOURCE)
    for number in range(2):
        project.add(f"{number}.json", _rows(number))
    return project


def _kill(project: Project, at: str, *command: str) -> None:
    """Run the command in a new process, which kills itself."""
    environment = {
        **os.environ,
        "PENSTOCK_KILL_AT": at,
        "PYTHONPATH": str(Path(sys.modules["penstock"].__file__ or "").parents[1]),
    }
    killed = subprocess.run(
        [sys.executable, "-m", "penstock", "migrate", "windows", *command],
        cwd=project.root,
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-3000:]


def _raising_at(*steps: str) -> contextlib.AbstractContextManager[None]:
    """Raise an error after a step was recorded, like a kill at this step."""

    def end(step: str, _: str) -> None:
        if step in steps:
            raise KeyboardInterrupt(step)

    return after_steps("migration_", end)


def _run_migrate(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main(["migrate", *command, "--output", "json"]) == code
    captured = capsys.readouterr()
    return json.loads(captured.out) if code == 0 else captured.err


@contextlib.contextmanager
def _without_old_files(project: Project, name: str) -> Iterator[None]:
    """Remove files that are not in the newest version of a table, like VACUUM."""
    folder = Path(project.path(name))
    newest = {Path(urlsplit(path).path) for path in project.table(name).inputFiles()}
    old = [file for file in folder.rglob("*.parquet") if "_delta_log" not in file.parts]
    old = [file for file in old if file not in newest]
    assert old
    for file in old:
        file.rename(file.with_suffix(".away"))
    yield
    for file in old:
        file.with_suffix(".away").rename(file)


def _update(project: Project) -> UpdateState:
    return project.run(refresh=("bronze", "windows", "view")).state


def test_migration_of_a_changed_window_is_resumed_and_undone(
    project: Project, capsys: pytest.CaptureFixture[str]
):
    """A short version of the test below: interrupted between table and state, resumed, undone."""
    flows = ("bronze", "windows")
    (project.root / "data" / "1.json").unlink()
    assert project.run(refresh=flows).state is UpdateState.COMPLETED
    epoch = project.commits_folder("windows").parent.name
    listed = project.root / f".penstock/state/files/windows/{epoch}/source/listed_at.json"
    listed.parent.mkdir(parents=True)
    listed.write_text("1.0", encoding="utf-8")
    quarantined = project.table("windows_quarantine").count()
    project.source(CHANGED)
    with pytest.raises(KeyboardInterrupt, match=REPLACED), _raising_at(REPLACED):
        migrate_flow(
            load_settings(project.root),
            "windows",
            MigrationOptions(execute=True),
        )
    assert _actual(project, 5) == _expected(1, 5)
    done = _run_migrate(capsys, "windows", "--resume")
    assert (done["state"], done["resumed"]) == ("done", True)
    project.add("1.json", _rows(1))
    assert project.run(refresh=flows).state is UpdateState.COMPLETED
    assert _actual(project, 5) == _expected(2, 5)
    project.source(SOURCE)
    assert _run_migrate(capsys, "windows", "--undo", "--yes")["state"] == "undone"
    assert _actual(project, 10) == _expected(1, 10)
    assert project.table("windows_quarantine").count() == quarantined
    # The migrated flow has received the messages of later files: the old flow must list them.
    assert not listed.exists()


@pytest.mark.long
def test_migration_of_a_changed_window_survives_kills_and_flows_continue(
    project: Project, capsys: pytest.CaptureFixture[str]
):
    assert _update(project) is UpdateState.COMPLETED
    assert _actual(project, 10) == _expected(2, 10)
    quarantined = project.table("windows_quarantine").count()

    project.source(CHANGED)
    plan = _run_migrate(capsys, "windows")
    assert (plan["state"], plan["refused"], plan["new_epoch"]) == ("planned", None, None)
    (source,) = plan["sources"]
    assert (source["unit"], source["missing"], source["bytes"] > 0) == ("versions", None, True)
    assert plan["rows"] == len(_expected(2, 10))
    assert "total bigint is new" in plan["columns"]
    assert [line.split(":")[0] for line in plan["operators"]] == ["gone", "new"]
    effects = {reader["flow"]: reader["effect"] for reader in plan["readers"]}
    assert effects == {"view": "recomputes", "strict": "stops", "lenient": "skips"}
    old = project.version("windows")

    # Killed while the new table is built: readers use the old table.
    _kill(project, "after_target_commit:windows:1", "--yes")
    assert (project.version("windows"), _actual(project, 10)) == (old, _expected(2, 10))
    assert "MIGRATION_UNFINISHED" in _run_migrate(capsys, "windows", "--yes", code=2)
    # Interrupted between table and flow state: readers use the new table, and no update can run.
    with pytest.raises(KeyboardInterrupt, match=REPLACED), _raising_at(REPLACED):
        migrate_flow(
            load_settings(project.root),
            "windows",
            MigrationOptions(resume=True),
        )
    assert (project.version("windows"), _actual(project, 5)) == (old + 1, _expected(2, 5))
    result = project.run(refresh=("windows",))
    assert {error.condition for error in result.failures} == {"MIGRATION_UNFINISHED"}
    done = _run_migrate(capsys, "windows", "--resume")
    assert (done["state"], done["resumed"], done["new_version"]) == ("done", True, old + 1)
    assert flow_records(load_settings(project.root))["windows"].epoch == done["new_epoch"]
    assert not list((project.root / ".penstock" / "state" / "migrate" / "windows").glob("*/table"))

    # The next update continues from the new checkpoint.
    project.add("2.json", _rows(2))
    assert _update(project) is UpdateState.COMPLETED
    assert _actual(project, 5) == _expected(3, 5)
    assert project.table("windows").schema["total"].dataType.simpleString() == "bigint"
    sums = Counter(row["id"] for n in range(3) for row in _rows(n) if row["id"] is not None)
    assert dict(project.rows("view")) == sums
    steps = [e["details"]["migration_progress"]["step"] for e in project.log("migration_progress")]
    assert steps[0] == "planned"
    assert {"batch", "resumed", "built", "done"} <= set(steps)

    # Undo changes nothing when VACUUM has deleted the files that it needs.
    project.source(SOURCE)
    state = project.root / ".penstock" / "state" / "flows" / "windows.json"
    migrated = state.read_text(), project.table("windows_quarantine").count()
    for name in ("windows_quarantine", "windows"):
        with _without_old_files(project, name):
            assert f"{name} cannot be restored to version" in _run_migrate(
                capsys, "windows", "--undo", "--yes", code=2
            )
        assert (state.read_text(), project.table("windows_quarantine").count()) == migrated
        assert _actual(project, 5) == _expected(3, 5)

    # Undo restores the table and the checkpoint; newer rows are read again.
    assert _run_migrate(capsys, "windows", "--undo", "--yes")["state"] == "undone"
    assert _actual(project, 10) == _expected(2, 10)
    assert project.table("windows_quarantine").count() == quarantined
    assert _update(project) is UpdateState.COMPLETED
    assert _actual(project, 10) == _expected(3, 10)

    # Rows that were deleted in the source in the meantime would be missing.
    project.spark.sql(f"DELETE FROM delta.`{project.path('bronze')}` WHERE id = 1")
    project.source(CHANGED)
    refused = _run_migrate(capsys, "windows", "--yes", code=2)
    assert "MIGRATION_WOULD_LOSE_HISTORY" in refused
    assert "(DELETE)" in refused
    # Abandoned right before the table would be replaced: everything is unchanged.
    before = state.read_text()
    quarantined = project.table("windows_quarantine").count()

    for options in (
        MigrationOptions(accept_less=True, execute=True),
        MigrationOptions(abandon=True),
    ):
        with pytest.raises(KeyboardInterrupt), _raising_at(QUARANTINED, LEFT):
            migrate_flow(load_settings(project.root), "windows", options)
        assert state.read_text() != before
    # The old quarantine is restored, so the migration cannot be resumed.
    assert "--abandon ends it" in _run_migrate(capsys, "windows", "--resume", code=2)
    assert _run_migrate(capsys, "windows", "--abandon")["state"] == "abandoned"
    assert state.read_text() == before
    assert project.table("windows_quarantine").count() == quarantined
    assert _actual(project, 10) == _expected(3, 10)


def test_rows_and_schema_of_a_table_are_swapped_and_restored(tmp_path: Path, spark: Any):
    old, new = (TableRef(str(tmp_path / name), name) for name in ("old", "new"))
    spark.sql(
        f"CREATE TABLE delta.`{old.path}` (id BIGINT NOT NULL, at DATE, gone STRING) USING delta "
        "PARTITIONED BY (at) COMMENT 'kept' TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'own' = 'kept')"
    )
    spark.sql(f"INSERT INTO delta.`{old.path}` VALUES (1, DATE'2026-01-01', 'x')")
    before = table_state(spark, old.path)
    spark.sql(
        f"CREATE TABLE delta.`{new.path}` (id STRING COMMENT 'other', day DATE, n INT) USING delta "
        "PARTITIONED BY (day) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"INSERT INTO delta.`{new.path}` VALUES ('a', DATE'2026-01-02', 7), ('b', NULL, 8)")

    def rows() -> list[tuple[Any, ...]]:
        stored = spark.read.format("delta").load(old.path).collect()
        return sorted((tuple(row) for row in stored), key=str)

    swapped = [
        swap_rows(spark, old, new, flow="f", app_id="p/f/writer/e", last=4) for _ in range(2)
    ]
    assert [result.replayed for result in swapped] == [False, True]
    assert swapped[0].version == swapped[1].version
    assert rows() == [("a", datetime(2026, 1, 2, tzinfo=UTC).date(), 7), ("b", None, 8)]
    after = table_state(spark, old.path)
    assert before is not None
    assert after is not None
    assert (after.id, after.comment, after.properties["own"]) == (before.id, "kept", "kept")
    assert after.partition_columns == ("day",)
    assert (after.schema["id"].metadata or {}).get("comment") == "other"
    assert last_number(DeltaJvm(spark), old.path, "p/f/writer/e") == 4

    restore_rows(spark, old, before.version)
    again = table_state(spark, old.path)
    assert again is not None
    assert (again.schema, again.partition_columns) == (before.schema, ("at",))
    assert rows() == [(1, datetime(2026, 1, 1, tzinfo=UTC).date(), "x")]
    with pytest.raises(PlanError, match="cannot be restored to version 99"):
        restore_rows(spark, old, 99)
