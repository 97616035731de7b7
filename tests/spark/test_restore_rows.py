"""Restoring an earlier version of a table, with Penstock's commit or with Delta's command."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from penstock._repair.shadow import restore_rows
from penstock._tables.commits import actions_of
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import commit_lines
from penstock._tables.layout import TableRef
from penstock.errors import PlanError, SetupError

pytestmark = [pytest.mark.spark]

VECTORS = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"


class Table:
    """A table with a partition column, whose versions are known."""

    def __init__(self, spark: Any, path: Path, properties: str = VECTORS) -> None:
        self.spark = spark
        self.path = path
        self.name = f"delta.`{path}`"
        self.ref = TableRef(str(path), "rows")
        spark.sql(
            f"CREATE TABLE {self.name} (id BIGINT, `ä` STRING) USING delta "
            f"PARTITIONED BY (`ä`) {properties}"
        )
        self.add(0)

    def add(self, first: int, more: str = "") -> None:
        partition = "IF(id % 3 = 0, NULL, concat('a/b ', id % 2))"
        rows = f"SELECT id, {partition}{more} FROM RANGE({first}, {first + 9})"
        self.spark.sql(f"INSERT INTO {self.name} {rows}")

    def rows(self, version: int | None = None) -> list[Any]:
        at = "" if version is None else f" VERSION AS OF {version}"
        return sorted(self.spark.sql(f"SELECT * FROM {self.name}{at}").collect(), key=str)

    @property
    def version(self) -> int:
        return DeltaJvm(self.spark).version(str(self.path))

    def actions(self, kind: str) -> list[dict[str, Any]]:
        """The actions of the newest commit."""
        lines = commit_lines(self.path, self.version)
        return list(actions_of(lines or [], kind))


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> Table:
    return Table(spark, tmp_path / "rows")


def test_every_version_can_be_restored(table: Table, spark: Any) -> None:
    delta = DeltaJvm(spark)
    spark.sql(f"DELETE FROM {table.name} WHERE id = 4")
    table.add(9)
    delta.log(str(table.path)).checkpoint()
    spark.sql(f"DELETE FROM {table.name} WHERE id < 13")
    versions = {version: table.rows(version) for version in range(table.version)}
    assert [len(rows) for rows in versions.values()] == [0, 9, 8, 17]
    for version, rows in versions.items():
        before = table.version
        assert delta.restore(str(table.path), version)
        assert table.version == before + 1
        assert table.rows() == rows
        added, removed = table.actions("add"), table.actions("remove")
        # A stream must read the rows again, also from files that the checkpoint lists.
        assert all(action["dataChange"] for action in [*added, *removed])
        (info,) = table.actions("commitInfo")
        assert info["operation"] == "RESTORE"
        assert int(info["operationMetrics"]["numRestoredFiles"]) == len(added)
        assert int(info["operationMetrics"]["numRemovedFiles"]) == len(removed)
    assert not delta.restore(str(table.path), table.version)


def test_columns_and_properties_are_restored(table: Table, spark: Any) -> None:
    rows, version = table.rows(), table.version
    spark.sql(
        f"ALTER TABLE {table.name} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'note' = 'new')"
    )
    mapped = table.version
    spark.sql(f"ALTER TABLE {table.name} RENAME COLUMN id TO number")
    spark.sql(f"ALTER TABLE {table.name} ADD COLUMN more STRING")
    table.spark.sql(f"INSERT INTO {table.name} SELECT 7, 'x', 'more'")
    delta = DeltaJvm(spark)
    # The earlier version does not have column mapping.
    assert not delta.restore(str(table.path), version)
    assert delta.restore(str(table.path), mapped)
    assert spark.table(table.name).columns == ["id", "ä"]
    assert table.rows() == rows
    table.add(9)
    assert len(table.rows()) == 18


@pytest.mark.parametrize("name", ["enableRowTracking", "appendOnly"])
def test_restore_command_of_delta_is_used_when_table_features_need_it(
    spark: Any, tmp_path: Path, name: str
) -> None:
    table = Table(spark, tmp_path / "rows", f"TBLPROPERTIES ('delta.{name}' = 'true')")
    table.add(9)
    assert not DeltaJvm(spark).restore(str(table.path), 1)
    rows = table.rows(1)
    restore_rows(spark, table.ref, 1)
    assert table.rows() == rows


def test_version_with_deleted_files_is_refused(table: Table, spark: Any) -> None:
    version = table.version
    spark.sql(f"DELETE FROM {table.name}")
    next(table.path.rglob("*.parquet")).unlink()
    newest = table.version
    with pytest.raises(PlanError, match="RESTORE_NOT_POSSIBLE"):
        restore_rows(spark, table.ref, version)
    assert table.version == newest


def test_unavailable_storage_is_not_reported_as_deleted_files(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    error: Any = OSError("An error occurred while calling o1.commit")
    error.java_exception = Mock()
    error.java_exception.toString.return_value = (
        "SdkClientException: Unable to execute HTTP request: Connection refused"
    )
    monkeypatch.setattr(DeltaJvm, "restore", Mock(side_effect=error))
    with pytest.raises(SetupError, match="STORAGE_NOT_READABLE"):
        restore_rows(spark, TableRef("/none", "rows"), 1)


def test_restore_fails_when_another_writer_commits(
    table: Table, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = table.version
    spark.sql(f"DELETE FROM {table.name} WHERE id = 4")
    as_seq = DeltaJvm.seq

    def late(delta: DeltaJvm, actions: list[Any]) -> Any:
        table.add(100)
        return as_seq(delta, actions)

    monkeypatch.setattr(DeltaJvm, "seq", late)
    with pytest.raises(PlanError, match="oncurrent"):
        restore_rows(spark, table.ref, version)
    assert len(table.rows()) == 17
