"""The sink of docs/adding-a-sink.md in a separate package: its suite, and an update."""

import importlib
import re
import sqlite3
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_events import details
from update_project import Project

from penstock._observe.events import UpdateState
from penstock.errors import SetupError
from penstock.sinks import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-a-sink.md"
BLOCKS = re.findall(r"(?ms)^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"))
CODE, USE, SUITE = (text for language, text in BLOCKS if language == "python")
((_, ENTRY_POINT),) = (block for block in BLOCKS if block[0] == "text")


def _suite() -> type:
    """The test class in the last code block, and the module that it tests."""
    package = types.ModuleType("penstock_sqlite")
    exec(compile(CODE, str(PAGE), "exec"), vars(package))
    suite = types.ModuleType("test_penstock_sqlite")
    sys.modules[package.__name__] = package
    try:
        exec(compile(SUITE, str(PAGE), "exec"), vars(suite))
    finally:
        del sys.modules[package.__name__]
    return suite.TestSqliteSink


TestSqliteSink = _suite()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with an installed package and its metadata."""
    site = tmp_path / "site"
    metadata = site / "penstock_sqlite-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "penstock_sqlite.py").write_text(CODE, encoding="utf-8")
    (metadata / "METADATA").write_text("Name: penstock-sqlite\nVersion: 1.0\n")
    # The metadata has another header than pyproject.toml, and no quotes.
    lines = ENTRY_POINT.replace('[project.entry-points."penstock.sinks"]', "[penstock.sinks]")
    (metadata / "entry_points.txt").write_text(lines.replace('"', ""))
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    registry._sinks.cache_clear()
    yield metadata
    registry._sinks.cache_clear()
    sys.modules.pop("penstock_sqlite", None)


def test_a_pipeline_writes_to_the_sink_of_another_package(
    installed: Path, spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark)
    code = USE.replace("/tmp/orders.db", "orders.db")  # inside the project
    project.source(code).add("a.json", [{"id": 1, "name": "a"}, {"id": 2}], folder="data/orders")
    assert project.run().state is UpdateState.COMPLETED
    progress = [details(e) for e in project.events if e.event_type == "flow_progress"]
    metrics = [body["metrics"] for body in progress if body.get("metrics")]
    assert sum(figures.get("num_output_rows", 0) for figures in metrics) == 2
    assert project.run().state is UpdateState.COMPLETED
    rows = sqlite3.connect(tmp_path / "orders.db").execute("SELECT * FROM orders").fetchall()
    assert sorted(rows) == [(1, "a"), (2, None)]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("sqlite3:connect", "not a subclass"),
        ("penstock_sqlite:Missing", "cannot be loaded"),
        ("penstock.sinks.kafka:KafkaSink", "which KafkaSink has already"),
    ],
)
def test_an_invalid_sink_entry_point_is_refused(installed: Path, names: str, problem: str):
    (installed / "entry_points.txt").write_text(f"[penstock.sinks]\nsqlite = {names}\n")
    with pytest.raises(SetupError, match="SINK_CLASS_INVALID") as caught:
        registry.sink_of("sqlite")
    assert problem in caught.value.message and names in caught.value.message
