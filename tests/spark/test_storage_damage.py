"""Tables, checkpoints and states that are damaged between two updates, one damage per flow."""

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from update_project import Project, shared_project

from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._repair.backfill import BackfillOptions, backfill_flow
from penstock._repair.reset import reset_flow
from penstock._runtime.update import UpdateResult
from penstock._tables.read.checkpoint_doctor import examine
from penstock.errors import PenstockError
from penstock.sources.base import parse_start

FLOWS = (
    *("behind", "torn", "emptied", "planned", "unstated", "restored", "filtered"),
    *("older", "planless", "uncommitted"),
)
SOURCE = """
def batches():
    return spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json("data")

def table(name, condition="true"):
    @dp.table(name=name)
    def query():
        return batches().where(condition)

for name in {flows}:
    # Batches without rows leave no commit.
    table(name, "id < 2" if name == "filtered" else "true")

@dp.table
@dp.expect_or_drop("positive", "amount > 0")
def kept():
    return batches()

@dp.table
def below():
    return spark.readStream.table("torn")

dp.create_streaming_table("keyed")
dp.create_auto_cdc_flow(target="keyed", source="events", keys=["id"], sequence_by="ts")

@dp.temporary_view
def events():
    return batches()

dp.create_sink("nowhere", "noop")

@dp.append_flow(target="nowhere")
def sent():
    return batches()

@dp.append_flow(target="nowhere")
def idle():
    return spark.readStream.schema(ROWS).json("empty")
"""


def row(number: int, amount: int) -> dict[str, Any]:
    return {"id": number, "amount": amount, "ts": f"2026-01-01T00:00:{number:02}Z"}


def newest(folder: Path) -> Path:
    """The newest numbered file of a log, of Delta or of Spark."""
    return max(
        (file for file in folder.iterdir() if file.name.removesuffix(".json").isdigit()),
        key=lambda file: int(file.name.removesuffix(".json")),
    )


@dataclass
class Damaged:
    """The project, its storage before the damage, and the updates before and after it."""

    project: Project
    saved: Path
    first: UpdateResult
    kinds: dict[str, str]
    second: UpdateResult
    warnings: list[str]

    def failure(self, flow: str) -> PenstockError:
        (error,) = (
            failure for failure in self.second.failures if getattr(failure, "flow", "torn") == flow
        )
        return error


@pytest.fixture(scope="module")
def damaged(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    with shared_project(tmp_path_factory.mktemp("damaged"), spark) as project:
        project.source(SOURCE.format(flows=FLOWS))
        (project.root / "empty").mkdir()
        project.add("a.json", [row(0, 1), row(1, 2)]).add("b.json", [row(2, 0), row(3, -1)])
        first = project.run()
        storage, saved = project.root / ".penstock", project.root / "saved"
        shutil.copytree(storage, saved, symlinks=True)
        # The pipeline is renamed: the writers of its flows keep their identity.
        (project.root / "penstock.yaml").write_text("name: renamed\n", encoding="utf-8")
        for flow, damage in _damages(project, storage).items():
            damage(flow)
        _forget_snapshots(project)
        kinds = {trouble.flow: trouble.kind for trouble in _troubles(project)}
        before = _log(project, "torn")
        project.add("c.json", [row(4, 5)])
        second = project.run()
        assert _log(project, "torn") == before, "something was written to a torn log"
        warnings = [event.message for event in project.events if event.level.value == "WARN"]
        return Damaged(project, saved, first, kinds, second, warnings)


def _forget_snapshots(project: Project) -> None:
    """Clear Delta's cache, like in a new process."""
    project.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def _log(project: Project, table: str) -> list[bytes]:
    folder = project.path(table) / "_delta_log"
    return [file.read_bytes() for file in sorted(folder.glob("*.json"))]


def _troubles(project: Project) -> list[Any]:
    return [
        finding
        for finding in examine(load_settings(project.root))
        if finding.severity.value == "error"
    ]


def _damages(project: Project, storage: Path) -> dict[str, Callable[[str], Any]]:
    def forget_newest(table: Path) -> None:
        file = newest(table / "_delta_log")
        file.unlink()
        file.with_suffix(".crc").unlink(missing_ok=True)

    def checkpoint(flow: str) -> Path:
        (folder,) = (storage / "checkpoints" / flow).iterdir()
        return folder

    def plan_torn(flow: str) -> None:
        # A power failure lost the newest files of table, checkpoint and state: repeats the batch.
        folder = checkpoint(flow)
        (folder / "committed.json").unlink()
        (folder / "commits" / "1").unlink()
        forget_newest(project.path(flow))
        os.truncate(folder / "offsets" / "1", 5)

    def remove(flow: str, *names: str) -> None:
        for name in names:
            (checkpoint(flow) / name).unlink()

    return {
        "older": lambda flow: remove(flow, "offsets/1", "commits/1", "committed.json"),
        "planless": lambda flow: remove(
            flow, *(f"{kind}/{number}" for kind in ("offsets", "commits") for number in (0, 1))
        ),
        "uncommitted": lambda flow: remove(flow, "commits/0", "commits/1"),
        "behind": lambda flow: forget_newest(project.path(flow)),
        "torn": lambda flow: os.truncate(newest(project.path(flow) / "_delta_log"), 60),
        "kept": lambda flow: forget_newest(project.path(f"{flow}_quarantine")),
        "emptied": lambda flow: os.truncate(newest(checkpoint(flow) / "offsets"), 0),
        "planned": plan_torn,
        "unstated": lambda flow: (storage / "state" / "flows" / f"{flow}.json").write_text("{"),
        "sent": lambda flow: shutil.rmtree(checkpoint(flow)),
        "restored": lambda flow: DeltaTable(str(project.path(flow))).restore(1),
        "keyed": lambda _: forget_newest(
            storage / "state" / "cdc" / "spark_catalog" / "default" / "keyed"
        ),
    }


def test_each_damaged_flow_fails_with_its_own_error(damaged: Damaged):
    assert damaged.first.state is UpdateState.COMPLETED, damaged.first.failures
    assert damaged.second.state is UpdateState.FAILED
    assert {
        flow: damaged.failure(flow).condition
        for flow in ("behind", "torn", "kept", "emptied", "planned", "unstated", "keyed")
    } == {
        "behind": "TABLE_BEHIND_CHECKPOINT",
        "torn": "TABLE_LOG_DAMAGED",
        "kept": "TABLE_BEHIND_CHECKPOINT",
        "emptied": "CHECKPOINT_DAMAGED",
        "planned": "CHECKPOINT_DAMAGED",
        "unstated": "FLOW_STATE_MISSING",
        "keyed": "TABLE_BEHIND_CHECKPOINT",
    }
    assert damaged.failure("older").condition == "CHECKPOINT_BEHIND_TABLE"
    assert damaged.failure("planless").condition == "CHECKPOINT_MISSING"
    assert damaged.failure("sent").condition == "CHECKPOINT_MISSING"
    assert len(damaged.second.failures) == 10
    assert damaged.second.skipped == ("below",)


def test_batches_without_rows_and_a_restore_are_not_errors(damaged: Damaged):
    assert set(damaged.second.completed) == {"restored", "filtered", "uncommitted", "idle"}
    assert damaged.project.rows("uncommitted", "id") == [(number,) for number in range(5)]
    assert damaged.project.rows("filtered", "id") == [(0,), (1,)]
    (warning,) = (text for text in damaged.warnings if "restored" in text)
    assert "was restored to version 1 after flow restored had committed batch 1" in warning
    assert "penstock backfill restored" in warning


def test_each_error_names_batches_and_commands(damaged: Damaged):
    behind = damaged.failure("behind")
    assert (
        'The rows of batch 1 are missing: from {"logOffset":0} to {"logOffset":1}' in behind.message
    )
    assert "restore version 2" in (behind.hint or "")
    assert "the quarantine of" in damaged.failure("kept").message
    assert "the CDC state of" in damaged.failure("keyed").message
    assert "offsets/1 is empty" in damaged.failure("emptied").message
    assert "offsets/1: the table has no rows of the batch" in (
        damaged.failure("planned").hint or ""
    )
    older = damaged.failure("older")
    assert "it ends at 0, but older has its batches up to 1" in older.message
    assert "reset older --from earliest --truncate" in (older.hint or "")
    assert "--full-refresh" in (damaged.failure("unstated").hint or "")


def test_checkpoint_doctor_reports_the_same_damage(damaged: Damaged):
    assert damaged.kinds == {
        "": "table-log-damaged",
        "older": "behind-table",
        "planless": "behind-table",
        "behind": "table-behind",
        "kept": "table-behind",
        "keyed": "table-behind",
        "emptied": "file-damaged",
        "planned": "file-damaged",
        "unstated": "state-missing",
        "sent": "checkpoint-missing",
    }


@pytest.mark.long
def test_hints_of_the_errors_repair_the_tables(damaged: Damaged):
    project, storage = damaged.project, damaged.project.root / ".penstock"
    torn = newest(project.path("torn") / "_delta_log")
    torn.unlink()
    torn.with_suffix(".crc").unlink(missing_ok=True)
    path = project.path("behind")
    shutil.copytree(damaged.saved / path.relative_to(storage), path, dirs_exist_ok=True)
    (cut,) = (storage / "checkpoints" / "planned").glob("*/offsets/1")
    cut.unlink()
    _forget_snapshots(project)
    settings = load_settings(project.root)
    with contextlib.chdir(project.root):
        reset_flow(settings, "unstated", parse_start("earliest"), truncate=True, execute=True)
        done = backfill_flow(settings, "kept", BackfillOptions(by=("id",), execute=True))
        assert done.counts["quarantined"] == 2
        result = project.run(
            full_refresh=("emptied",), refresh=("behind", "kept", "planned", "torn", "unstated")
        )
    everything = [(number,) for number in range(5)]
    for table in ("behind", "planned", "unstated", "emptied"):
        assert project.rows(table, "id") == everything, table
    assert project.rows("kept", "id") == [(0,), (1,), (4,)]
    assert project.rows("kept_quarantine", "id") == [(2,), (3,)]
    # The truncated commit was removed: the table is behind its checkpoint.
    (error,) = result.failures
    assert error.condition == "TABLE_BEHIND_CHECKPOINT"
    assert "torn is behind" in error.message
