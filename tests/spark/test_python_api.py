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


def test_an_update_runs_with_its_progress_shown(shop: Path, capsys: pytest.CaptureFixture[str]):
    before = Path.cwd()
    storage = str(shop.parent / "storage")
    result = penstock.run(shop, refresh=["bronze", "silver"], storage=storage)
    assert result.state is UpdateState.COMPLETED
    assert {name.rpartition(".")[2] for name in result.completed} == {"bronze", "silver"}
    printed = capsys.readouterr().out
    assert "silver" in printed and "COMPLETED" in printed
    assert Path.cwd() == before
    assert {path.parent.name for path in Path(storage).rglob("_delta_log")} >= {"bronze", "silver"}


def test_a_plan_is_the_text_and_json_of_a_dry_run(shop: Path):
    planned = penstock.dry_run(str(shop), full_refresh_all=True)
    assert "silver" in str(planned)
    shown: list[str] = []
    planned._repr_pretty_(SimpleNamespace(text=shown.append), False)
    assert shown == [str(planned)]
    assert len(planned.plan.resets) == len(planned.plan.tables) > 0
    steps = planned.to_dict()["steps"]
    assert len(steps) == len(planned.plan.runs)
    with pytest.raises(SpecError):
        penstock.dry_run(shop, refresh=["sliver"])


def test_a_pipeline_is_open_for_its_queries(shop: Path, spark):
    with penstock.open_pipeline(shop) as pipeline:
        df, _ = pipeline.query(pipeline.flow("bronze"))
        assert pipeline.spark is spark
        assert df.isStreaming


def test_a_project_is_checked(shop: Path, tmp_path: Path):
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
