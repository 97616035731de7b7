"""`penstock.run`, `plan`, `check` and `open_pipeline` over one project."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import penstock
from penstock._cli.scaffold import write_project
from penstock.errors import DefinitionError, DefinitionErrors, SpecError
from penstock.pipelines import UpdateState


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, spark) -> Path:
    folder = tmp_path_factory.mktemp("api")
    write_project(folder, "shop")
    return folder / "shop"


def test_run_updates_tables_and_prints_progress(shop: Path, capsys: pytest.CaptureFixture[str]):
    before = Path.cwd()
    storage = str(shop.parent / "storage")
    result = penstock.run(shop, refresh=["bronze", "silver"], storage=storage)
    assert result.state is UpdateState.COMPLETED
    assert {name.rpartition(".")[2] for name in result.completed} == {"bronze", "silver"}
    printed = capsys.readouterr().out
    assert "silver" in printed and "COMPLETED" in printed
    assert Path.cwd() == before
    assert {path.parent.name for path in Path(storage).rglob("_delta_log")} >= {"bronze", "silver"}


def test_dry_run_returns_a_plan_as_text_and_json(shop: Path):
    planned = penstock.dry_run(str(shop), full_refresh_all=True)
    assert "silver" in str(planned)
    printed: list[str] = []
    planned._repr_pretty_(SimpleNamespace(text=printed.append), False)
    assert printed == [str(planned)]
    assert len(planned.plan.resets) == len(planned.plan.tables) > 0
    steps = planned.to_dict()["steps"]
    assert len(steps) == len(planned.plan.runs)
    with pytest.raises(SpecError):
        penstock.dry_run(shop, refresh=["sliver"])


def test_open_pipeline_returns_queries_of_flows(shop: Path, spark):
    # Static configurations, which Spark reads only at its start.
    confs = {"spark.driver.memory": "9g", "spark.sql.extensions": "x"}
    with penstock.open_pipeline(shop, configuration=confs) as pipeline:
        df, _ = pipeline.query(pipeline.flow("bronze"))
        assert pipeline.spark is spark
        assert df.isStreaming


def test_check_returns_planned_flows(shop: Path, tmp_path: Path):
    report = penstock.check(shop)
    assert report.refused == ()
    assert len(report.planned) == len(report.flows)
    with pytest.raises(SpecError):
        penstock.check(tmp_path / "nowhere")


def test_a_source_file_cannot_run_its_own_pipeline(tmp_path: Path, spark):
    source = tmp_path / "pipeline.py"
    source.write_text("import penstock\n\npenstock.run('.')\n", encoding="utf-8")
    with pytest.raises((DefinitionError, DefinitionErrors)) as caught:
        penstock.dry_run(source)
    assert "INSIDE_PIPELINE" in str(caught.value)
    assert "pipeline.py:3" in str(caught.value)
