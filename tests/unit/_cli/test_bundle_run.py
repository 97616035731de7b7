import json
from pathlib import Path

import pytest
import typer

from penstock._cli import bundle_run, exit_codes, options
from penstock.errors import FlowError, SetupError, SpecError

BUNDLE = """
bundle: {name: shop}
resources:
  pipelines:
    ingest: {name: ingest, libraries: [{file: {path: ingest.py}}]}
    report: {name: report, libraries: [{file: {path: report.py}}]}
"""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "databricks.yml").write_text(BUNDLE, encoding="utf-8")
    for name in ("ingest", "report"):
        (tmp_path / f"{name}.py").write_text("import dlt\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def share(bundle: Path, **more: object) -> None:
    settings = {"shared_storage": True, **more}
    (bundle / "penstock.yaml").write_text(json.dumps(settings), encoding="utf-8")


def test_all_pipelines_of_a_bundle_are_selected_in_order(bundle: Path) -> None:
    share(bundle)
    chosen = [*bundle_run.each_pipeline(options.UpdateOptions())]
    assert [settings.name for settings in chosen] == ["ingest", "report"]
    assert len({settings.home for settings in chosen}) == 2


def test_only_the_named_pipeline_is_selected(bundle: Path) -> None:
    chosen = [*bundle_run.each_pipeline(options.UpdateOptions(pipeline="report"))]
    assert [settings.name for settings in chosen] == ["report"]


def test_pipelines_that_share_a_checkpoint_folder_are_refused(bundle: Path) -> None:
    with pytest.raises(SpecError) as caught:
        [*bundle_run.each_pipeline(options.UpdateOptions())]
    assert caught.value.condition == "PIPELINES_SHARE_STORAGE"


def test_pipelines_with_the_same_name_are_refused(bundle: Path) -> None:
    text = BUNDLE.replace("name: report,", "name: ingest,")
    (bundle / "databricks.yml").write_text(text, encoding="utf-8")
    share(bundle)
    with pytest.raises(SpecError) as caught:
        [*bundle_run.each_pipeline(options.UpdateOptions())]
    assert caught.value.condition == "PIPELINES_SHARE_STORAGE"


def test_continuous_pipeline_of_a_bundle_is_refused(bundle: Path) -> None:
    share(bundle, continuous=True)
    with pytest.raises(typer.BadParameter, match="--triggered"):
        [*bundle_run.each_pipeline(options.UpdateOptions())]
    assert [*bundle_run.each_pipeline(options.UpdateOptions(continuous=False))]


@pytest.mark.parametrize(
    ("outcomes", "code", "states"),
    [
        ({"ingest": 0, "report": 0}, 0, [None, None]),
        ({"ingest": 1, "report": 0}, 1, [None, None]),
        ({"ingest": SetupError("LEASE_HELD", "held"), "report": 1}, 3, ["FAILED", None]),
        ({"ingest": FlowError("FLOW_FAILED", "x", flow="f"), "report": 0}, 1, ["FAILED", None]),
        ({"ingest": exit_codes.INTERRUPTED, "report": 0}, 130, [None, "NOT STARTED"]),
    ],
)
def test_each_pipeline_runs_when_others_fail_unless_interrupted(
    bundle: Path,
    outcomes: dict[str, object],
    code: int,
    states: list[str | None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    share(bundle)

    def run(settings: object) -> int:
        outcome = outcomes[settings.name]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    exit_code, rows = bundle_run.run_each([*bundle_run.each_pipeline(options.UpdateOptions())], run)
    assert exit_code == code
    assert [row["state"] for row in rows] == states
    capsys.readouterr()
    bundle_run.print_rows([{**row, "state": row["state"] or "COMPLETED"} for row in rows])
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[-2:]]
    assert [
        f"{name} {state or 'COMPLETED'}" in line
        for name, state, line in zip(("ingest", "report"), states, printed, strict=True)
    ] == [True, True]
    error = rows[0].get("error") or "-"
    assert printed[0].endswith(f"0 0 {error}")
