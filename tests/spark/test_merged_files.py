"""Small files are merged without Delta's OPTIMIZE, except where it is needed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock._tables.commits import actions_of
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import commit_lines
from penstock._tables.write import maintain
from penstock._tables.write.maintain import TARGET_BYTES, TableFiles, maintenance_session

pytestmark = [pytest.mark.spark]

MIB = 1024 * 1024


class Table:
    def __init__(self, spark: Any, path: Path, properties: str = "") -> None:
        self.spark = spark
        self.path = path
        self.name = f"delta.`{path}`"
        spark.sql(
            f"CREATE TABLE {self.name} (id BIGINT, part STRING, v VARCHAR(9) NOT NULL, "
            "twice BIGINT GENERATED ALWAYS AS (id * 2)) USING delta PARTITIONED BY (part) "
            f"TBLPROPERTIES ('delta.checkpointInterval' = '4' {properties})"
        )
        self.files = TableFiles(DeltaJvm(maintenance_session(spark)), str(path))

    def add(self, first: int, rows: int = 10) -> None:
        columns = "id, IF(id % 2 = 0, NULL, 'a/ä=1') AS part, concat('v', id) AS v"
        frame = self.spark.sql(f"SELECT {columns} FROM RANGE({first}, {first + rows})")
        frame.coalesce(1).write.format("delta").mode("append").save(str(self.path))

    def rows(self) -> list[Any]:
        return sorted(self.spark.sql(f"SELECT * FROM {self.name}").collect())

    def actions(self, kind: str) -> list[dict[str, Any]]:
        """The actions of the newest commit."""
        lines = commit_lines(self.path, DeltaJvm(self.spark).version(str(self.path)))
        return list(actions_of(lines or [], kind))


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> Table:
    return Table(spark, tmp_path / "rows")


@pytest.fixture
def no_optimize(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(files: TableFiles, statement: str) -> None:
        raise AssertionError(f"{statement} of Delta")

    monkeypatch.setattr(TableFiles, "_optimize", refuse)
    yield


@pytest.mark.usefixtures("no_optimize")
@pytest.mark.parametrize(
    "properties",
    [
        ", 'delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true'",
        ", 'delta.enableDeletionVectors' = 'true', 'delta.autoOptimize.optimizeWrite' = 'true'",
    ],
)
def test_files_of_each_partition_are_merged_into_one(
    spark: Any, tmp_path: Path, properties: str
) -> None:
    table = Table(spark, tmp_path / "rows", properties)
    for number in range(4):
        table.add(number * 10)
    spark.sql(f"DELETE FROM {table.name} WHERE id = 3")
    rows = table.rows()
    assert len(rows) == 39
    assert table.files.compact(at_least=7) is None
    snapshot = table.files.newest()
    assert table.files._largest_to_merge(snapshot, None, 6) == MIB
    done = table.files.compact(at_least=6)
    assert done is not None
    assert (done.metrics["files_removed"], done.metrics["files_added"]) == (8, 2)
    assert table.rows() == rows
    added, removed = table.actions("add"), table.actions("remove")
    assert (len(added), len(removed)) == (2, 8)
    assert not any(action["dataChange"] for action in [*added, *removed])
    assert sum(json.loads(action["stats"])["numRecords"] for action in added) == 39
    (info,) = table.actions("commitInfo")
    assert info["operation"] == "OPTIMIZE"
    assert info["operationMetrics"]["numRemovedFiles"] == "8"
    assert table.files.compact(below=TARGET_BYTES) is None
    table.add(100)
    done = table.files.compact(below=TARGET_BYTES)
    assert done is not None
    assert (done.metrics["files_removed"], done.metrics["files_added"]) == (4, 2)
    assert len(table.rows()) == 49


@pytest.mark.usefixtures("no_optimize")
def test_merged_files_are_not_larger_than_the_target_size(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        table.add(number * 10)
    sizes = [int(file["size"]) for file in table.actions("add")]
    monkeypatch.setattr(maintain, "TARGET_BYTES", 2 * max(sizes) + 1)
    done = table.files.compact(below=2 * max(sizes))
    assert done is not None
    assert (done.metrics["files_removed"], done.metrics["files_added"]) == (8, 4)
    assert len(table.rows()) == 50


def test_optimize_of_delta_is_used_for_large_groups_and_row_tracking(
    table: Table, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    optimize = TableFiles._optimize

    def count(files: TableFiles, statement: str) -> Any:
        statements.append(statement)
        return optimize(files, statement)

    monkeypatch.setattr(TableFiles, "_optimize", count)
    table.add(0)
    table.add(10)
    monkeypatch.setattr(maintain, "_BATCH_BYTES", 100)
    done = table.files.compact(below=MIB)
    assert done is not None
    assert done.metrics["files_removed"] == 4
    monkeypatch.undo()
    monkeypatch.setattr(TableFiles, "_optimize", count)
    spark.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    table.add(20)
    assert table.files.compact(below=MIB) is not None
    assert len(statements) == 2
    assert len(table.rows()) == 30


def test_commits_of_other_writers_are_not_overwritten(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.add(0)
    table.add(10)
    commit = DeltaJvm.commit

    def late(statement: Any) -> None:
        def patched(delta: DeltaJvm, *arguments: Any) -> int:
            monkeypatch.setattr(DeltaJvm, "commit", commit)
            statement()
            return commit(delta, *arguments)

        monkeypatch.setattr(DeltaJvm, "commit", patched)

    late(lambda: table.add(20))
    assert table.files.compact(below=MIB) is not None
    assert len(table.rows()) == 30
    late(lambda: table.spark.sql(f"DELETE FROM {table.name} WHERE id = 1"))
    # The type of the error depends on whether Delta's Python package was imported.
    with pytest.raises(Exception, match="DELTA_CONCURRENT_DELETE_DELETE"):
        table.files.compact(below=MIB)
    assert len(table.rows()) == 29
    assert table.files.compact(below=MIB) is not None
    assert len(table.rows()) == 29
