"""Several pipelines whose tables are below one storage root."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from update_project import Project

from penstock._cli.main import app
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._runtime.leases import PipelineLeases

pytestmark = pytest.mark.spark

BRONZE = """
@dp.table
def bronze():
    return rows()
"""
SILVER = """
@dp.table
@dp.expect_or_drop("positive", "amount > 0")
def silver():
    return spark.readStream.table("bronze")
"""


def project(root: Path, name: str, source: str, spark: Any, *, shared: bool = True) -> Project:
    folder = root / name
    folder.mkdir()
    settings = {"name": name, "storage": str(root / "lake"), "shared_storage": shared}
    (folder / "penstock.yaml").write_text(json.dumps(settings), encoding="utf-8")
    return Project(folder, spark).source(source)


def test_pipelines_run_concurrently_in_one_storage_and_read_tables_by_name(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = project(tmp_path, "ingest", BRONZE, spark)
    second = project(tmp_path, "clean", SILVER, spark)
    first.add("0.json", [{"id": n, "amount": n % 3} for n in range(9)])
    monkeypatch.chdir(first.root)
    assert first.run().state is UpdateState.COMPLETED
    with PipelineLeases(load_settings(first.root).home, {"pipeline": "ingest"}):
        monkeypatch.chdir(second.root)
        assert second.run().state is UpdateState.COMPLETED
        assert len(second.rows("silver", "id")) == 6
        assert len(second.rows("silver_quarantine", "id")) == 3
        monkeypatch.chdir(first.root)
        with pytest.raises(Exception, match="another update writes here"):
            first.run()
    # Each pipeline has separate checkpoints and events, also for flows with the same name.
    for name, flow in (("ingest", "bronze"), ("clean", "silver")):
        home = tmp_path / "lake" / "pipelines" / name
        assert [path.name for path in (home / "checkpoints").iterdir()] == [flow]
        assert list((home / "events").glob("*.jsonl"))
    assert {path.name for path in (tmp_path / "lake").iterdir()} == {"pipelines", "tables"}
    listed = CliRunner().invoke(app, ["list", str(second.root), "--output", "json"])
    rows = {row["pipeline"]: row for row in json.loads(listed.stdout)}
    assert {name: (row["state"], row["rows"]) for name, row in rows.items()} == {
        "clean": ("COMPLETED", 6),
        "ingest": ("COMPLETED", 9),
    }
    waited = CliRunner().invoke(app, ["wait", str(second.root)])
    assert (waited.exit_code, "COMPLETED" in waited.stdout) == (0, True)


def test_table_of_another_pipeline_is_refused(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = project(tmp_path, "owner", BRONZE, spark)
    owner.add("0.json", [{"id": 1, "amount": 1}])
    monkeypatch.chdir(owner.root)
    assert owner.run().state is UpdateState.COMPLETED
    assert owner.run().state is UpdateState.COMPLETED
    for name, shared in (("other", True), ("alone", False)):
        other = project(tmp_path, name, BRONZE, spark, shared=shared)
        other.add("0.json", [{"id": 2, "amount": 1}])
        monkeypatch.chdir(other.root)
        result = other.run()
        assert [error.condition for error in result.failures] == ["TABLE_OF_ANOTHER_PIPELINE"]
        assert "by pipeline 'owner'" in str(result.failures[0])
    assert owner.rows("bronze", "id") == [(1,)]
    # A renamed pipeline has no checkpoints; it must not read all rows again.
    settings = json.loads((owner.root / "penstock.yaml").read_text())
    settings["name"] = "owner's"
    (owner.root / "penstock.yaml").write_text(json.dumps(settings), encoding="utf-8")
    monkeypatch.chdir(owner.root)
    (failure,) = owner.run().failures
    assert failure.condition == "TABLE_OF_ANOTHER_PIPELINE"
    assert r"'owner\'s')" in str(failure)


def test_tables_without_a_pipeline_are_refused_when_a_storage_becomes_shared(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = project(tmp_path, "owner", BRONZE, spark, shared=False)
    owner.add("0.json", [{"id": 1, "amount": 1}])
    monkeypatch.chdir(owner.root)
    assert owner.run().state is UpdateState.COMPLETED
    settings = json.loads((owner.root / "penstock.yaml").read_text())
    settings["shared_storage"] = True
    (owner.root / "penstock.yaml").write_text(json.dumps(settings), encoding="utf-8")
    (failure,) = owner.run().failures
    assert failure.condition == "TABLE_OF_ANOTHER_PIPELINE"
    assert "without the setting `shared_storage`" in str(failure)
    assert owner.rows("bronze", "id") == [(1,)]
