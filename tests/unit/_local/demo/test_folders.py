import json
from pathlib import Path
from typing import Any

import pytest

from penstock._local.demo.folders import DemoFolders

RANGES = {0: (0, 3), 1: (0, 1)}


@pytest.fixture
def finished(tables: Any, bronze: Any) -> Any:
    """Tables and checkpoints after all flows have processed all messages."""
    tables.add("orders_bronze", [bronze(0, offset, b"x") for offset in range(3)])
    tables.add("orders_bronze", [bronze(1, 0, b"x")])
    tables.add("orders", [{"partition": 0, "offset": 0}])
    tables.commit("orders_bronze", {"orders": {"0": 3, "1": 1}})
    tables.commit("orders", {"reservoirVersion": 2, "index": -1})
    tables.commit("revenue_5m", {"reservoirVersion": 1, "index": -1})
    views = tables.folders.storage / "state" / "views"
    views.mkdir(parents=True)
    refreshed = {"sources": {"file:/x/orders": "0"}}
    (views / "spark_catalog.default.customer_totals.json").write_text(json.dumps(refreshed))
    return tables


def test_flows_are_caught_up_when_all_committed_everything(finished: Any) -> None:
    assert finished.folders.is_caught_up(RANGES)


def test_flows_are_not_caught_up_when_kafka_has_more(finished: Any) -> None:
    assert not finished.folders.is_caught_up({0: (0, 3), 1: (0, 2)})


@pytest.mark.parametrize("flow", ["orders", "revenue_5m"])
def test_flows_are_not_caught_up_when_one_is_behind_its_source(finished: Any, flow: str) -> None:
    finished.commit(flow, {"reservoirVersion": 0, "index": -1})
    assert not finished.folders.is_caught_up(RANGES)


def test_flows_are_not_caught_up_when_the_first_snapshot_is_being_read(finished: Any) -> None:
    finished.commit("orders", {"reservoirVersion": 9, "index": 0, "isStartingVersion": True})
    assert finished.folders.consumed_version("orders") == 0
    assert not finished.folders.is_caught_up(RANGES)


def test_flows_are_not_caught_up_when_the_view_is_older_than_silver(finished: Any) -> None:
    finished.add("orders", [{"partition": 0, "offset": 1}])
    finished.commit("revenue_5m", {"reservoirVersion": 2, "index": -1})
    assert not finished.folders.is_caught_up(RANGES)


def test_consumed_version_is_that_of_the_last_committed_batch(
    finished: Any,
) -> None:
    checkpoint = finished.folders.storage / "checkpoints" / "orders" / "e1"
    later = json.dumps({"reservoirVersion": 7, "index": -1})
    (checkpoint / "offsets" / "1").write_text(f"v1\n{{}}\n{later}\n")
    assert finished.folders.consumed_version("orders") == 2
    (checkpoint / "commits" / "1").write_text("v1\n{}\n")
    assert finished.folders.consumed_version("orders") == 7


def test_only_an_empty_topic_is_caught_up_before_the_first_run(tmp_path: Path) -> None:
    folders = DemoFolders(tmp_path)
    assert folders.is_caught_up({0: (0, 0)})
    assert not folders.is_caught_up(RANGES)


def test_progress_changes_when_a_flow_commits(finished: Any) -> None:
    before = finished.folders.progress()
    assert finished.folders.progress() == before
    finished.commit("revenue_5m", {"reservoirVersion": 5, "index": -1}, batch=1)
    assert finished.folders.progress() != before


def test_source_file_is_kept_when_the_project_is_written_again(tmp_path: Path) -> None:
    folders = DemoFolders(tmp_path)
    settings = folders.write_project("127.0.0.1:1")
    source = tmp_path / "pipeline.py"
    assert "def orders_bronze" in source.read_text()
    assert settings.configuration["demo.bootstrap.servers"] == "127.0.0.1:1"
    source.write_text("# mine\n")
    folders.write_project("127.0.0.1:2")
    assert source.read_text() == "# mine\n"
    assert "127.0.0.1:2" in (tmp_path / "pipeline.yaml").read_text()
