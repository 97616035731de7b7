"""The recipes in deploy/: commands, schemas and linters; updates by Airflow and Dagster."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer
import yaml
from deltalake import DeltaTable

from penstock._cli.main import app
from penstock._cli.scaffold import write_project

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = ROOT / ".venv-recipes" / "lint" / "bin"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
STOP_TIMEOUT = 60
VALUES = (
    {},
    {"metricsPort": 0, "storage": "s3a://lake/shop", "volume": {"storageClass": "fast"}},
    {
        "schedule": "0 * * * *",
        "args": ["--target", "prod"],
        "env": {"AWS_REGION": "eu-west-1"},
        "secretNames": ["a", "b"],
        "serviceAccountName": "shop",
    },
)


def checked(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def tool(name: str) -> Path:
    """The path of a linter; some are not installed without Go."""
    path = TOOLS / name
    if not path.exists():
        assert shutil.which("go") is None, f"{path} is missing: .ci/recipes"
        pytest.skip(f"{name} is compiled with Go, which is not here")
    return path


def understood(words: list[str]) -> dict[str, Any]:
    """The parsed options of a penstock command; fails if the command is invalid."""
    group: Any = typer.main.get_command(app)
    command = group.commands[words[0]]
    return command.make_context(words[0], [str(word) for word in words[1:]]).params


def pods(documents: list[Any]) -> list[Any]:
    """The pod templates of manifests."""
    templates = []
    for document in documents:
        spec = document.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        templates += [template["spec"]] if template else []
    return templates


def check_pod(pod: Any) -> None:
    (container,) = pod["containers"]
    run = understood(container["args"])
    assert pod["terminationGracePeriodSeconds"] >= run["stop_timeout"] + 30
    assert run["continuous"] is ("readinessProbe" in container)  # regardless of the settings
    if "readinessProbe" in container:
        understood(container["readinessProbe"]["exec"]["command"][1:])


def test_pods_run_commands_and_stop_gracefully() -> None:
    documents = [d for file in MANIFESTS for d in yaml.safe_load_all(file.read_text("utf-8"))]
    assert len(pods(documents)) == 2
    sets = [document["spec"] for document in documents if document["kind"] == "StatefulSet"]
    assert [spec["podManagementPolicy"] for spec in sets] == ["Parallel"]
    for pod in pods(documents):
        check_pod(pod)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_unit_runs_a_command_and_stops_gracefully(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text("utf-8")
    (words,) = re.findall(r"(?m)^ExecStart=/opt/penstock/bin/penstock (.*)$", text)
    assert "run" in words.split()[0]
    run = understood(words.replace("/srv/penstock/%i", str(tmp_path)).split())
    (seconds,) = re.findall(r"(?m)^TimeoutStopSec=(\d+)$", text)
    assert int(seconds) >= run["stop_timeout"] + 30


def test_the_image_runs_a_command() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    (entry,) = re.findall(r"(?m)^ENTRYPOINT (.*)$", text)
    (arguments,) = re.findall(r"(?m)^CMD (.*)$", text)
    assert yaml.safe_load(entry)[-1] == "penstock"
    understood(yaml.safe_load(arguments))
    (sync,) = re.findall(r"penstock (jars sync .*)$", text, re.MULTILINE)
    sets = re.findall(r"--set (\S+)", sync)
    from penstock._local.jars import SPARK_JAR_SETS

    assert set(sets) == {*SPARK_JAR_SETS, "s3"}


@pytest.mark.long
def test_the_dockerfile_has_no_findings() -> None:
    checked(tool("hadolint"), DEPLOY / "Dockerfile")


@pytest.mark.long
@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_a_manifest_matches_the_schemas(file: Path) -> None:
    assert "passed" in checked(tool("kubernetes-validate"), "--strict", file)


@pytest.mark.long
@pytest.mark.parametrize("values", VALUES, ids=("default", "s3", "schedule"))
def test_the_chart_matches_the_schemas(values: dict[str, Any], tmp_path: Path) -> None:
    helm, chart = tool("helm"), DEPLOY / "helm" / "penstock"
    chosen = tmp_path / "values.yaml"
    chosen.write_text(yaml.safe_dump(values), encoding="utf-8")
    checked(helm, "lint", "--strict", chart, "--values", chosen)
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(checked(helm, "template", "shop", chart, "-f", chosen), encoding="utf-8")
    assert "passed" in checked(tool("kubernetes-validate"), "--strict", rendered)
    (pod,) = pods(list(yaml.safe_load_all(rendered.read_text("utf-8"))))
    check_pod(pod)


@pytest.mark.long
def test_units_are_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    for file in (DEPLOY / "systemd").iterdir():
        text = file.read_text("utf-8").replace("/opt/penstock/bin/penstock", "/bin/true")
        (tmp_path / file.name.replace("@", "@shop")).write_text(text, encoding="utf-8")
    assert checked("systemd-analyze", "verify", *tmp_path.iterdir()) == ""


@pytest.mark.long
def test_the_workflow_has_no_findings() -> None:
    file = DEPLOY / "ci" / "github.yml"
    checked(tool("actionlint"), file)
    commands = re.findall(r"(?m)- run: penstock (.*)$", file.read_text("utf-8"))
    for words in commands:
        if not words.startswith(("jars", "test")):
            understood(words.split())


@pytest.fixture
def project(tmp_path: Path) -> dict[str, str]:
    """A project, and the environment of recipes that run it."""
    write_project(tmp_path, "shop")
    return {
        "PENSTOCK": str(Path(sys.executable).with_name("penstock")),
        "PENSTOCK_PROJECT": str(tmp_path / "shop"),
    }


def check_tables(project: dict[str, str]) -> None:
    tables = Path(project["PENSTOCK_PROJECT"], "storage/tables/spark_catalog/default")
    assert len(DeltaTable(str(tables / "silver")).to_pyarrow_table()) == 27


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_airflow_runs_an_update(project: dict[str, str], tmp_path: Path) -> None:
    airflow = ROOT / ".venv-recipes/airflow/bin/airflow"
    settings = {
        **project,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DEPLOY / "airflow"),
    }
    checked(airflow, "db", "migrate", **settings)
    assert "state=success" in checked(airflow, "dags", "test", "shop", **settings)
    check_tables(project)


FAKE_PENSTOCK = """#!/bin/sh
if [ "$1" = graph ]; then cat graph.json; else cat status.json; exit 1; fi
"""


def test_assets_of_dagster_follow_views_and_have_one_result_of_all_their_flows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {"c.a": "streaming table", "c.v": "view", "c.w": "view", "c.b": "materialized view"}
    nodes["c.0"] = "materialized view"  # its name sorts before that of its source
    edges = [("/in", "c.a"), ("c.a", "c.v"), ("c.v", "c.w"), ("c.w", "c.b"), ("c.b", "c.b")]
    edges.append(("c.a", "c.0"))
    graph = {
        "nodes": [{"id": name, "kind": kind} for name, kind in nodes.items()],
        "edges": [{"from": source, "to": target} for source, target in edges],
    }
    counts = {"rows": 2, "quarantined": 1, "dropped": 1, "batches": 1}
    states = [("c.a", "COMPLETED"), ("c.a", "IDLE"), ("c.b", "COMPLETED"), ("c.b", "FAILED")]
    states.append(("c.0", "IDLE"))
    flows = [{"target": target, "state": state, **counts} for target, state in states]
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    (tmp_path / "status.json").write_text(json.dumps({"flows": flows}))
    penstock = tmp_path / "penstock"
    penstock.write_text(FAKE_PENSTOCK)
    penstock.chmod(0o755)
    dagster = MagicMock(AssetKey=lambda path: SimpleNamespace(path=path), Failure=RuntimeError)
    dagster.AssetSpec = dagster.MaterializeResult = lambda *key, **rest: (*key, rest)
    dagster.multi_asset = lambda specs, **_: lambda function: (specs, function)
    monkeypatch.setitem(sys.modules, "dagster", dagster)
    monkeypatch.setenv("PENSTOCK", str(penstock))
    monkeypatch.chdir(tmp_path)
    specs, update = runpy.run_path(str(DEPLOY / "dagster" / "definitions.py"))["shop"]
    assert [(key.path, [dep.path for dep in rest["deps"]]) for key, rest in specs] == [
        (["c", "0"], [["c", "a"]]),
        (["c", "a"], []),
        (["c", "b"], [["c", "a"]]),
    ]
    results = update(SimpleNamespace(selected_asset_keys=[key for key, _ in specs]))
    for name, rows in (("a", 4), ("0", 2)):
        (result,) = next(results)
        assert (result["asset_key"].path, result["metadata"]["rows"]) == (["c", name], rows)
    with pytest.raises(RuntimeError, match="exit code 1"):
        next(results)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_dagster_materializes_the_tables(project: dict[str, str], tmp_path: Path) -> None:
    dagster = ROOT / ".venv-recipes/dagster/bin/dagster"
    (tmp_path / "dagster").mkdir()
    definitions = ("-f", DEPLOY / "dagster" / "definitions.py")
    settings = {**project, "DAGSTER_HOME": str(tmp_path / "dagster")}
    settings["DAGSTER_DISABLE_TELEMETRY"] = "1"
    command = (dagster, "asset", "materialize", "--select", "*", *definitions)
    output = checked(*command, **settings)
    for table in ("bronze", "silver", "revenue"):
        assert f"Materialized value spark_catalog default {table}" in output
    check_tables(project)
