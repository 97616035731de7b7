"""Tables in a Hive metastore, and another engine that reads them by name."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock._local.jars import class_path

HERE = Path(__file__).parent
URL = "spark.hadoop.javax.jdo.option.ConnectionURL"


def run(script: str, *arguments: str, cwd: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        capture_output=True, text=True, check=False, cwd=cwd, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def updates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("shop")
    return root, run("hive_updates.py", str(root), cwd=root)


def test_an_update_registers_its_tables_with_columns_comments_and_rules(
    updates: tuple[Path, dict[str, Any]],
) -> None:
    _, result = updates
    first = result["first"]
    assert set(first) == {"orders", "orders_quarantine", "totals", "states", "quality"}
    assert first["quality"]["comment"] == "counts of rules of pipeline shop"
    orders = first["orders"]
    assert (orders["comment"], orders["pipeline"], orders["type"]) == (
        "of the shop",
        "shop",
        "EXTERNAL",
    )
    columns = {field["name"]: field["metadata"].get("comment") for field in orders["schema"]}
    assert columns == {"id": "number", "amount": None}
    assert orders["rules"] == {"valid_id": {"condition": "id > 0", "on_violation": "drop"}}
    assert [field["name"] for field in first["totals"]["schema"]] == ["id", "total"]


def test_only_changed_tables_are_registered_again(updates: tuple[Path, dict[str, Any]]) -> None:
    _, result = updates
    assert (result["created"], result["again"], result["looked_up"]) == (5, 0, 5)
    orders = result["changed"]["orders"]
    assert orders["comment"] == "all orders"
    assert [field["name"] for field in orders["schema"]] == ["id", "amount", "note"]
    assert orders["rules"]["valid_id"]["condition"] == "id > -9"


def test_name_of_another_table_is_refused_and_that_table_is_unchanged(
    updates: tuple[Path, dict[str, Any]],
) -> None:
    root, result = updates
    (refused,) = result["refused"]
    assert "[CATALOG_TABLE_EXISTS]" in refused
    assert f"file:{root}/elsewhere" in refused
    assert result["rows_of_other"] == 3
    assert result["changed"]["taken"]["pipeline"] is None


def test_a_table_that_is_only_in_the_metastore_is_read_by_name(
    updates: tuple[Path, dict[str, Any]],
) -> None:
    assert updates[1]["read_by_name"] == 3


def test_another_engine_reads_the_tables_by_name(updates: tuple[Path, dict[str, Any]]) -> None:
    root, _ = updates
    jars = os.pathsep.join(str(jar) for jar in class_path(["delta"]))
    derby = f"jdbc:derby:;databaseName={root}/.penstock/metastore"
    names = ["default.orders", "default.orders_quarantine", "default.states"]
    tables = run("hive_reader.py", jars, f"{URL}={derby}", "--", *names, cwd=root)
    orders = tables["default.orders"]
    assert orders["rows"] == [[1, 2, None], [2, 5, None]]
    assert (orders["comment"], orders["columns"]["id"]) == ("all orders", "number")
    assert orders["properties"]["team"] == "sales"
    assert "valid_id" in orders["properties"]["penstock.expectations"]
    assert [row[0] for row in tables["default.orders_quarantine"]] == [-1]
    assert [row[0] for row in tables["default.states"]] == [1, 2]
    # Engines without a metastore client read the table by its location.
    location = orders["location"].removeprefix("file:")
    assert len(DeltaTable(location).to_pyarrow_table()) == 2
