"""Whether the files of a saved version still exist, before a restore changes anything."""

import json
import threading
from unittest.mock import MagicMock

import pytest

from penstock._execution.savepoints import SavedTable
from penstock._repair.restore import _Run
from penstock.errors import PlanError

TABLE = SavedTable(name="t", path="s3a://lake/t", table_id="id", version=1)


def _run(exists) -> _Run:
    run = object.__new__(_Run)
    removals = [json.dumps({"remove": {"path": f"{number}.parquet"}}) for number in range(2)]
    run._delta = MagicMock()
    run._delta.snapshot.return_value.version.return_value = 2
    run._delta.metadata.return_value.id = "id"
    run._delta.commit_lines.return_value = removals
    run._delta.action.return_value.deletionVector.return_value = None
    run._files = MagicMock(exists=exists)
    return run


def test_files_are_looked_for_at_the_same_time_when_a_table_is_checked():
    together = threading.Barrier(2, timeout=10)
    _run(lambda uri: together.wait() >= 0)._check(TABLE)


def test_a_restore_names_the_file_when_vacuum_has_deleted_it():
    with pytest.raises(PlanError) as refused:
        _run(lambda uri: not uri.endswith("1.parquet"))._check(TABLE)
    assert "VACUUM has deleted its file s3a://lake/t/1.parquet" in refused.value.message
