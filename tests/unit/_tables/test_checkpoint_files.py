"""Checkpoints read from their files, and each kind of damage that is reported."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from penstock._cli.main import main
from penstock._model.pipeline import PipelineSettings
from penstock._tables.read.checkpoint_doctor import Severity, examine
from penstock._tables.read.checkpoint_files import checkpoints, flow_records
from penstock.errors import SpecError

EPOCH = "e162c9024d824824801ef70c8e1263d3"


class Store:
    """A storage root with a flow that has finished batches 0 to 3 and planned batch 4."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = PipelineSettings(name="shop", storage=root.as_uri(), root=str(root))
        self.table = root / "tables" / "spark_catalog" / "default" / "silver"
        rows = pa.table({"id": [1]})
        self.write(rows, batch=3)
        self.folder = self.checkpoint("silver", EPOCH, query="q-1")
        self.record("silver", EPOCH)

    def write(self, rows: Any, *, batch: int) -> None:
        commit = CommitProperties(app_transactions=[Transaction(self.app_id, batch)])
        write_deltalake(str(self.table), rows, mode="append", commit_properties=commit)

    @property
    def app_id(self) -> str:
        from penstock._tables.layout import app_id

        return app_id("shop", "silver", EPOCH)

    def record(self, flow: str, epoch: str) -> None:
        folder = self.root / "state" / "flows"
        folder.mkdir(parents=True, exist_ok=True)
        body = {
            "epoch": epoch,
            "target_id": str(DeltaTable(str(self.table)).metadata().id),
            "stateful_operators": ["source StreamingRelation"],
            "output_mode": "append",
        }
        (folder / f"{flow}.json").write_text(json.dumps(body), encoding="utf-8")

    def checkpoint(self, flow: str, epoch: str, *, query: str) -> Path:
        folder = self.root / "checkpoints" / flow / epoch
        for name in ("offsets", "commits", "state/0/0", "state/0/1"):
            (folder / name).mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps({"id": query}), encoding="utf-8")
        for number in range(5):
            head = {
                "batchWatermarkMs": 1_000 * number,
                "batchTimestampMs": 1_795_265_346_017,
                "conf": {"spark.sql.shuffle.partitions": "2"},
            }
            offset = {"orders": {"0": 10 * number}}
            text = f"v1\n{json.dumps(head)}\n{json.dumps(offset)}\n-"
            (folder / "offsets" / str(number)).write_text(text, encoding="utf-8")
            (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
            if number < 4:
                done = 'v1\n{"nextBatchWatermarkMs":0}'
                (folder / "commits" / str(number)).write_text(done, encoding="utf-8")
                for part in "01":
                    file = folder / "state" / "0" / part / f"{number + 1}.changelog"
                    file.write_bytes(b"x" * 10)
        return folder

    def kinds(self) -> dict[str, Severity]:
        return {finding.kind: finding.severity for finding in examine(self.settings)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_checkpoint_is_read(store: Store):
    (checkpoint,) = checkpoints(store.settings)
    assert (checkpoint.flow, checkpoint.epoch, checkpoint.is_current, checkpoint.query_id) == (
        "silver",
        EPOCH,
        True,
        "q-1",
    )
    assert (checkpoint.last_planned, checkpoint.last_finished) == (4, 3)
    assert checkpoint.planned[-1].offsets == ({"orders": {"0": 40}}, None)
    assert checkpoint.planned[-1].watermark_ms == 4000
    assert [(part.partition, part.versions[-1]) for part in checkpoint.state] == [(0, 4), (1, 4)]
    assert checkpoint.damaged == {}
    assert flow_records(store.settings)["silver"].has_started


def test_intact_checkpoint_has_at_most_an_open_batch(store: Store):
    assert store.kinds() == {"batch-open": Severity.NOTE}
    (store.folder / "commits" / "4").write_text("v1\n{}", encoding="utf-8")
    for part in "01":
        (store.folder / "state" / "0" / part / "5_ab-12.zip").write_bytes(b"x")
    assert store.kinds() == {}
    # The format of offsets without micro-batches.
    _write(store.folder / "offsets" / "4", 'v1\n\n{"orders": {"0": 40}}\n-')
    assert store.kinds() == {}
    (checkpoint,) = checkpoints(store.settings)
    assert checkpoint.planned[-1].offsets == ({"orders": {"0": 40}}, None)


def _overwrite(name: str, text: str) -> Callable[[Store], None]:
    return lambda store: _write(store.folder / name, text)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _remove(*names: str) -> Callable[[Store], None]:
    def act(store: Store) -> None:
        for name in names:
            path = store.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    return act


@pytest.mark.parametrize(
    ("damage", "kind", "severity"),
    [
        (_overwrite("offsets/4", ""), "file-damaged", Severity.ERROR),
        (_overwrite("offsets/4", "v1\n{"), "file-damaged", Severity.ERROR),
        (_overwrite("offsets/4", "garbage"), "file-damaged", Severity.ERROR),
        (_overwrite("offsets/4", 'v1\n{"conf":{}}'), "file-damaged", Severity.ERROR),
        (_overwrite("offsets/1", ""), "file-damaged", Severity.WARNING),
        (_overwrite("commits/3", ""), "file-damaged", Severity.WARNING),
        (_overwrite("metadata", "{"), "file-damaged", Severity.ERROR),
        (_remove("metadata"), "file-damaged", Severity.ERROR),
        (_remove("commits/2", "commits/3"), "commits-missing", Severity.WARNING),
        (_remove("commits"), "commits-missing", Severity.WARNING),
        (_remove("offsets/3", "offsets/4"), "offsets-missing", Severity.ERROR),
        (_remove("offsets/2"), "offsets-gap", Severity.WARNING),
        (_overwrite("offsets/4", 'v1\n{"conf":{}}\n{}'), "sources-changed", Severity.WARNING),
        (_remove("state/0/1"), "state-partitions", Severity.WARNING),
        (_remove("state/0/1/4.changelog"), "state-behind", Severity.WARNING),
        (
            _remove("offsets", "commits", "metadata", "state", ""),
            "checkpoint-missing",
            Severity.ERROR,
        ),
        (lambda store: store.write(pa.table({"id": [2]}), batch=5), "behind-table", Severity.ERROR),
        (lambda store: shutil.rmtree(store.table), "table-unknown", Severity.WARNING),
        (
            lambda store: store.checkpoint("silver", "0ld", query="q-0"),
            "not-used",
            Severity.NOTE,
        ),
        (
            lambda store: (
                store.checkpoint("gold", "e2", query="q-1"),
                store.record("gold", "e2"),
            ),
            "query-id-shared",
            Severity.ERROR,
        ),
    ],
)
def test_damage_is_reported_with_its_severity(
    store: Store, damage: Callable[[Store], Any], kind: str, severity: Severity
):
    damage(store)
    assert store.kinds()[kind] is severity


def _write_commit_note(store: Store) -> None:
    """Write the commit note of batch 3 for the current version of the table."""
    table = DeltaTable(str(store.table))
    commit = {
        "table_id": str(table.metadata().id),
        "version": table.version(),
        "batch_id": 3,
        "app_id": store.app_id,
    }
    _write(store.folder / "committed.json", json.dumps({"format": 1, "tables": {"target": commit}}))


def _log_file(store: Store) -> Path:
    return max((store.table / "_delta_log").glob("*.json"))


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda store: None, None),
        (lambda store: _log_file(store).unlink(), "table-behind"),
        # A table without a commit, which delta-rs refuses.
        (
            lambda store: _log_file(store).rename(_log_file(store).with_suffix(".crc")),
            "table-behind",
        ),
        # A batch that is not finished runs again.
        (lambda store: (_log_file(store).unlink(), _unfinish(store)), None),
        (
            lambda store: (_log_file(store).unlink(), store.write(pa.table({"id": [1]}), batch=2)),
            "table-behind",
        ),
        (lambda store: _write(_log_file(store), ""), "table-log-damaged"),
        (lambda store: _write(_log_file(store), '{"commitInfo":{}}\n{"ad'), "table-log-damaged"),
        (
            lambda store: (store.table / "_delta_log" / f"{0:020d}.json").unlink(),
            "table-log-damaged",
        ),
        (lambda store: shutil.rmtree(store.root / "state"), "state-missing"),
        (
            lambda store: _write(store.root / "state" / "flows" / "silver.json", "{"),
            "state-missing",
        ),
        (lambda store: _write(store.folder / "committed.json", "{"), None),
        # Commits of the table have the earlier name of the pipeline.
        (lambda store: _rename(store), None),
        (lambda store: (_log_file(store).unlink(), _rename(store)), "table-behind"),
    ],
)
def test_lost_commits_and_state_are_reported_with_a_hint(
    store: Store, damage: Callable[[Store], Any], kind: str | None
):
    store.write(pa.table({"id": [2]}), batch=3)
    _write_commit_note(store)
    damage(store)
    errors = {
        finding.kind: finding
        for finding in examine(store.settings)
        if finding.severity is Severity.ERROR
    }
    assert set(errors) == ({kind} if kind else set())
    assert all(finding.hint for finding in errors.values())


def _rename(store: Store) -> None:
    store.settings = replace(store.settings, name="renamed")


def _unfinish(store: Store) -> None:
    for name in ("commits/3", "offsets/4"):
        (store.folder / name).unlink()


def test_sink_checkpoint_without_flow_state_is_reported(store: Store):
    sink = store.checkpoint("to_files", "e3", query="q-3")
    (lost,) = (finding for finding in examine(store.settings) if finding.flow == "to_files")
    assert (lost.kind, lost.severity) == ("state-missing", Severity.ERROR)
    assert "its sink has batches" in lost.message
    assert "--full-refresh" not in lost.hint
    # The state of a table that was dropped: the flow starts again.
    _write(sink / "committed.json", '{"format": 1, "tables": {}}')
    assert "state-missing" not in store.kinds()


def test_error_names_the_encoded_file_of_a_missing_state(store: Store):
    store.checkpoint("caf=C3=A9", "e3", query="q-3")
    (lost,) = (finding for finding in examine(store.settings) if finding.flow == "café")
    assert str(store.root / "state/flows/caf%C3%A9.json") in lost.message


def test_decision_file_of_a_one_time_flow_is_not_a_checkpoint(store: Store):
    folder = store.root / "checkpoints" / "backlog" / EPOCH
    folder.mkdir(parents=True)
    (folder / "decision.json").write_text("{}")
    (folder / ".decision.json.5f1c").write_text("{")  # left by a process that was killed
    assert [checkpoint.flow for checkpoint in checkpoints(store.settings)] == ["silver"]


def test_findings_are_sorted_by_severity_and_errors_have_a_hint(store: Store):
    _remove("offsets/2", "metadata")(store)
    findings = examine(store.settings, "SILVER")
    assert [finding.severity for finding in findings] == [
        Severity.ERROR,
        Severity.WARNING,
        Severity.NOTE,
    ]
    assert "--full-refresh" in findings[0].hint


def test_checkpoint_is_examined_when_its_commit_note_is_damaged(store: Store):
    (store.folder / "committed.json").write_bytes(b"\xff")
    assert store.kinds() == {"batch-open": Severity.NOTE}


def test_torn_record_is_skipped_and_unknown_flow_or_remote_storage_fails(store: Store):
    _write(store.root / "state" / "flows" / "torn.json", "{")
    assert set(flow_records(store.settings)) == {"silver"}
    with pytest.raises(SpecError, match="silver") as error:
        checkpoints(store.settings, "gold")
    assert error.value.condition == "CHECKPOINT_NOT_FOUND"
    away = PipelineSettings(name="shop", storage="s3a://bucket/x", root=str(store.root))
    with pytest.raises(SpecError) as remote:
        checkpoints(away)
    assert remote.value.condition == "STORAGE_NOT_LOCAL"


def test_checkpoint_commands_print_text_and_json(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    monkeypatch.chdir(store.root)
    _write(store.root / "pipeline.yaml", "name: shop\nstorage: .\n")
    assert main(["checkpoint", "list", "--output", "json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["flow"], listed["planned_batch"], listed["finished_batch"]) == ("silver", 4, 3)
    assert main(["checkpoint", "list"]) == 0
    assert EPOCH in capsys.readouterr().out
    assert main(["checkpoint", "inspect", "silver"]) == 0
    assert 'source 0: {"orders": {"0": 40}}' in capsys.readouterr().out
    assert main(["checkpoint", "inspect", "silver", "--output", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["watermark"] == "1970-01-01T00:00:04.000Z"
    assert shown["state"] == [{"operator": 0, "partitions": 2, "version": 4, "bytes": 80}]
    offset = store.folder / "offsets" / "4"
    offset.write_text(offset.read_text().replace(": 4000,", ": 400000000000000,"))
    assert main(["checkpoint", "inspect", "silver"]) == 0
    assert "400000000000000 ms since 1970" in capsys.readouterr().out
    assert main(["checkpoint", "inspect", "silver", "--epoch", "x"]) == 2
    assert main(["checkpoint", "doctor"]) == 0
    capsys.readouterr()
    _remove("metadata")(store)
    assert main(["checkpoint", "doctor", "silver", "--output", "json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["kind"] == "file-damaged"
