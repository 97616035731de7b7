"""Whether the files of a saved version still exist, before a restore changes anything."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from penstock._execution.savepoints import (
    SavedTable,
    Savepoint,
    Savepoints,
    unfinished_restore,
)
from penstock._model.pipeline import PipelineSettings
from penstock._repair.restore import _Run
from penstock._repair.savepoint import list_savepoints
from penstock._tables.files import StorageFiles
from penstock._tables.layout import StorageLayout
from penstock._tables.write.table_spec import OWNER
from penstock.errors import PlanError, SetupError, SpecError

TABLE = SavedTable(name="t", path="s3a://lake/t", table_id="id", version=1)


def _run(exists, **configuration: str) -> _Run:
    run = object.__new__(_Run)
    run._pipeline = MagicMock(settings=SimpleNamespace(name="shop"))
    run._layout = StorageLayout("s3a://lake")
    removals = [json.dumps({"remove": {"path": f"{number}.parquet"}}) for number in range(2)]
    run._delta = MagicMock()
    run._delta.snapshot.return_value.version.return_value = 2
    run._delta.metadata.return_value = SimpleNamespace(id="id", configuration=configuration)
    run._delta.commit_lines.return_value = removals
    run._delta.action.return_value.deletionVector.return_value = None
    run._files = MagicMock(exists=exists)
    return run


def test_files_of_a_table_are_checked_concurrently():
    together = threading.Barrier(2, timeout=10)
    _run(lambda uri: together.wait() >= 0)._check(TABLE)


def test_restore_error_names_a_file_deleted_by_vacuum():
    with pytest.raises(PlanError) as refused:
        _run(lambda uri: not uri.endswith("1.parquet"))._check(TABLE)
    assert "VACUUM has deleted its file s3a://lake/t/1.parquet" in refused.value.message


def test_tables_outside_of_the_storage_are_not_restored():
    """Savepoints of a copied storage name the original. A table may belong to another pipeline."""
    run = _run(lambda _: True)
    with pytest.raises(PlanError, match="is not in the storage s3a://lake"):
        run._check(replace(TABLE, path="s3a://lake-of-production/t"))
    run._delta.snapshot.assert_not_called()
    _run(lambda _: True, **{OWNER: "shop"})._check(TABLE)
    with pytest.raises(PlanError, match="it is a table of pipeline 'other' now"):
        _run(lambda _: True, **{OWNER: "other"})._check(TABLE)


@pytest.mark.parametrize("changed", [{"format": 2}, {"tables": [{"name": "t", "later": 1}]}])
def test_savepoint_of_another_version_is_not_readable(tmp_path, changed):
    layout = StorageLayout(f"file:{tmp_path}")
    savepoints = Savepoints(StorageFiles(None), layout)
    savepoints.save(Savepoint(name="s", created_at="2026-01-01", tables=(TABLE,), flows=()))
    file = Path(layout.savepoint_folder("s").removeprefix("file:"), "savepoint.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    with pytest.raises(SpecError, match="'s' was written by another version of Penstock"):
        savepoints.find("s")


def test_driver_without_the_lease_deletes_nothing():
    spark = MagicMock()
    spark._jvm.penstock.storage.StorageLease.check.side_effect = OSError("LEASE_LOST")
    with pytest.raises(OSError, match="LEASE_LOST"):
        StorageFiles(spark).copy_tree("s3a://lake/savepoints/s", "s3a://lake/checkpoints/f")
    system = spark._jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.return_value
    system.delete.assert_not_called()


def test_driver_that_loses_the_lease_stops_copying():
    spark = MagicMock()
    jvm = spark._jvm
    jvm.penstock.storage.StorageLease.check.side_effect = [None, None, OSError("LEASE_LOST")]
    names = ["1.delta", "1.delta", "2.delta"]  # Hadoop lists some folders of Azure twice
    entries = [MagicMock(), MagicMock(), MagicMock()]
    for entry, name in zip(entries, names, strict=True):
        entry.isDirectory.return_value = False
        entry.getPath.return_value.getName.return_value = name
    system = jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.return_value
    system.listStatus.return_value = entries
    with pytest.raises(OSError, match="LEASE_LOST"):
        StorageFiles(spark).copy_tree("s3a://lake/savepoints/s", "s3a://lake/checkpoints/f")
    assert StorageFiles(spark).names("s3a://lake/savepoints/s") == ["1.delta", "2.delta"]
    (copied,) = jvm.org.apache.hadoop.fs.FileUtil.copy.mock_calls
    assert copied.args[4:6] == (False, False), "a file of the next driver would be overwritten"


def test_a_file_that_cannot_be_copied_is_named(tmp_path):
    gone = tmp_path / "checkpoint" / "state" / "1.delta"
    gone.parent.mkdir(parents=True)
    gone.symlink_to(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"checkpoint/state/1\.delta"):
        StorageFiles(MagicMock()).copy_tree(f"{tmp_path}/checkpoint", f"{tmp_path}/copy")


def test_damaged_savepoint_is_reported(tmp_path):
    settings = PipelineSettings(name="shop", root=tmp_path, storage=tmp_path.as_uri())
    folder = tmp_path / "savepoints" / "first"
    folder.mkdir(parents=True)
    (folder / "savepoint.json").write_text('{"format": 1', encoding="utf-8")
    with pytest.raises(SpecError, match="its file is damaged: "):
        list_savepoints(settings)


def test_damaged_journal_of_a_restore_is_reported(tmp_path):
    journal = tmp_path / "state" / "restore" / "restore.json"
    journal.parent.mkdir(parents=True)
    journal.write_text('{"savepoint": "fir', encoding="utf-8")
    with pytest.raises(SetupError, match=f"JOURNAL_DAMAGED.*{journal}"):
        unfinished_restore(StorageFiles(None), StorageLayout(f"file:{tmp_path}"))
