"""`penstock apply` does what `penstock plan` shows, and an interrupted `apply` continues."""

import contextlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from crashes import after_steps
from update_project import Project

from penstock._cli.main import main
from penstock._observe.bus import EventBus
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._repair.apply import ApplyOptions, ApplyResult, apply_deployment
from penstock._repair.deployment import plan_deployment
from penstock._repair.deployment_plan import Change, DeploymentPlan
from penstock._update import UpdateOptions, run_update
from penstock.errors import PenstockError

BEFORE = """
WIDE = 30
PLUS = 0


@dp.table
@dp.expect_or_drop("positive", "amount > 0")
def bronze():
    return rows()


@dp.table
def silver():
    return spark.readStream.table("bronze").select("id", (F.col("amount") * 2).alias("twice"))


@dp.table
def totals():
    return spark.readStream.table("bronze").groupBy("id").agg(F.sum("amount").alias("total"))


@dp.table(partition_cols=["amount"])
def parts():
    return spark.readStream.table("bronze").select("id", "amount")


dp.create_streaming_table("people")
dp.create_auto_cdc_flow(
    target="people", source="bronze", keys=["id"], sequence_by="ts", stored_as_scd_type=2
)


@dp.materialized_view
def view():
    return spark.read.table("silver").groupBy("id").agg(F.count("*").alias("n"))


@dp.materialized_view
def wide():
    columns = [(F.col("amount") + number).alias(f"c{number}") for number in range(WIDE)]
    return spark.read.table("bronze").select(*columns)


@dp.materialized_view
def coded():
    plus = F.udf(lambda amount: amount + PLUS, "int")
    return spark.read.table("second").select(plus("amount").alias("amount"))


@dp.table
def second():
    return rows("second")


@dp.table
def gone():
    return spark.readStream.table("bronze").select("id")


@dp.materialized_view
def same():
    return spark.read.table("second").groupBy("id").count()


dp.create_sink("out", "json", {"path": "out"})


@dp.append_flow(target="out")
def away():
    return spark.readStream.table("silver")
"""
CHANGES = (
    # Rule, columns, comment, property and clustering of one table.
    ("@dp.table\n@dp.expect", '@dp.table(comment="raw", cluster_by=["id"], **KEPT)\n@dp.expect'),
    ("amount > 0", "amount > 1"),
    ("return rows()", 'return rows().withColumn("more", F.lit("x"))'),
    ('* 2).alias("twice")', '* 3).alias("twice")'),
    ('alias("total"))', 'alias("total"), F.max("more").alias("more"))'),
    ('["amount"])', '["id"])'),
    ("scd_type=2", "scd_type=1"),
    ('alias("n"))', 'alias("n"), F.max("twice").alias("most"))'),
    ("+ number)", "+ (number if number != 28 else 1000))"),
    ("amount + PLUS", "amount + 10"),
    ('rows("second")', 'rows("third")'),
    ('@dp.table\ndef gone():\n    return spark.readStream.table("bronze").select("id")\n', ""),
    ('return spark.readStream.table("silver")\n', 'return spark.readStream.table("people")\n'),
)
ADDED = """
KEPT = {"table_properties": {"team.owner": "shop"}}
"""
FRESH = """

@dp.materialized_view
def fresh():
    return spark.read.table("totals").select("more")
"""
NEEDS = {
    "bronze": "next update",
    "silver": "next update",
    "totals": "migration",
    "parts": "migration",
    "people": "full refresh",
    "view": "next update",
    "wide": "next update",
    "coded": "next update",
    "second": "new checkpoint",
    "fresh": "next update",
    "out": "new checkpoint",
    "gone": "nothing",
}


def _after() -> str:
    text = BEFORE
    for old, new in CHANGES:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return ADDED + text + FRESH


class _Killed(BaseException):
    """Simulates a killed process."""


def _rows(first: int) -> list[dict[str, Any]]:
    return [
        {"id": number % 3, "amount": number % 4, "ts": f"2026-01-01 00:00:{number:02}"}
        for number in range(first, first + 12)
    ]


def _update(project: Project) -> Callable[[Sequence[str], Sequence[str]], bool]:
    def update(refresh: Sequence[str], full_refresh: Sequence[str]) -> bool:
        options = UpdateOptions(refresh=tuple(refresh), full_refresh=tuple(full_refresh))
        result = run_update(load_settings(project.root), options, bus=EventBus())
        assert result.state is UpdateState.COMPLETED, result.failures
        return True

    return update


def _apply(project: Project) -> ApplyResult:
    options = ApplyOptions(accept_duplicates=True, execute=True)
    settings = load_settings(project.root)
    return apply_deployment(settings, options, _update(project))


def _plan(project: Project) -> DeploymentPlan:
    return plan_deployment(load_settings(project.root))


def _needs(plan: DeploymentPlan) -> dict[str, str]:
    return {change.name: change.need.text for change in plan.changes}


def _deployed(root: Path, spark: Any) -> Project:
    project = Project(root, spark).source(BEFORE)
    project.add("a.json", _rows(0)).add("b.json", _rows(30), "second")
    project.add("c.json", _rows(40), "third").run()
    # The sink must be emptied before it accepts rows of a new checkpoint.
    shutil.rmtree(root / "out")
    project.add("d.json", _rows(20))
    return project.source(_after())


def _epochs(project: Project) -> dict[str, str]:
    files = (project.root / ".penstock" / "state" / "flows").glob("*.json")
    return {file.stem: json.loads(file.read_text())["epoch"] for file in files}


def _content(project: Project) -> dict[str, Any]:
    names = [*NEEDS, "same", "bronze_quarantine"]
    tables = {name: project.path(name) for name in names if project.path(name).exists()}
    content: dict[str, Any] = {
        name: project.rows(name, *[c for c in project.table(name).columns if c[0] != "_"], key=repr)
        for name in tables
    }
    lines = [file.read_text().splitlines() for file in (project.root / "out").glob("*.json")]
    return {**content, "out": sorted(line for file in lines for line in file)}


def _passing_rows(first: int, least: int = 1) -> list[dict[str, Any]]:
    return [row for row in _rows(first) if row["amount"] >= least]


def test_apply_makes_the_changes_of_the_plan(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    monkeypatch.chdir(tmp_path)
    project = _deployed(tmp_path, spark)
    before = {file: file.read_bytes() for file in _files(project)}
    plan = _plan(project)
    assert _needs(plan) == NEEDS
    assert plan.unchanged == ("same",)
    assert {file: file.read_bytes() for file in _files(project)} == before
    changes = {change.name: change for change in plan.changes}
    _check_reasons(changes)
    assert changes["fresh"].change == "new"
    assert changes["gone"].table is not None
    assert changes["gone"].table.rows == 9
    assert changes["totals"].reads is not None
    assert changes["totals"].reads.rows == 9

    epochs, gone = _epochs(project), project.version("gone")
    steps: list[tuple[str, str]] = []
    with after_steps("apply_", lambda step, name: steps.append((step, name))):
        assert _apply(project).succeeded
    assert ("updated_before", "totals") in steps
    assert _needs(_plan(project)) == {"gone": "nothing"}

    now = _epochs(project)
    restarted = {name for name, epoch in now.items() if epochs[name] != epoch}
    assert restarted == {"totals", "parts", "people", "second", "away"}
    assert project.version("gone") == gone
    content = _content(project)
    late = _passing_rows(20, 2)  # according to the new rule
    bronze = _passing_rows(0) + late
    assert len(content["bronze"]) == len(bronze)
    twice = [2 * row["amount"] for row in _passing_rows(0)] + [3 * row["amount"] for row in late]
    assert sorted(row[1] for row in content["silver"]) == sorted(twice)
    assert sorted(row[1] for row in content["totals"]) == sorted(
        sum(row["amount"] for row in bronze if row["id"] == key) for key in range(3)
    )
    assert {row[2] for row in content["totals"]} == {"x"}
    assert sorted(row[1] for row in content["parts"]) == sorted(r["amount"] for r in bronze)
    assert project.table("parts").inputFiles()[0].count("id=") == 1
    assert len(content["people"]) == len({row["id"] for row in bronze}) == len(content["out"])
    assert sorted(row[28] for row in content["wide"]) == sorted(r["amount"] + 1000 for r in bronze)
    second = _rows(30) + _rows(40)
    assert len(content["second"]) == len(second)
    assert sorted(row[0] for row in content["coded"]) == sorted(r["amount"] + 10 for r in second)
    assert main(["plan", "--output", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [change["name"] for change in body["changes"]] == ["gone"]


def _files(project: Project) -> list[Path]:
    folders = [project.root / ".penstock" / name for name in ("state", "tables", "checkpoints")]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return [file for file in files if file.suffix != ".lock"]


def _check_reasons(changes: dict[str, Change]) -> None:
    for name, words in {
        "bronze": ("rule positive: amount > 0", "column 'more' is new", "clustered by id", "'raw'"),
        "silver": ("the query of flow silver changed", "stored rows stay"),
        "totals": ("holds the state of another query", "replaced in one commit"),
        "parts": ("partitioned by amount",),
        "people": ("SCD type: 2 becomes 1",),
        "view": ("the query of flow view changed", "all rows are recomputed"),
        "wide": ("the query of flow wide changed",),
        "coded": ("calls Python functions",),
        "second": ("third is read",),
        "out": ("silver is not read any more", "streams people, whose rows are replaced"),
    }.items():
        text = " | ".join((*changes[name].reasons, changes[name].effect))
        for word in words:
            assert word in text, (name, text)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_apply_has_the_same_result_when_it_is_killed_at_each_step(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    whole = _applied(tmp_path / "whole", spark, monkeypatch, lambda _, __: None)
    refused = capsys.readouterr()
    assert "refused: its sink refuses rows of a new checkpoint" in refused.out
    assert "refused: its target is append-only" in refused.out
    assert "[DEPLOYMENT_NOT_POSSIBLE]" in refused.err
    killed_at: list[tuple[str, str]] = []

    def kill(step: str, name: str) -> None:
        if step.startswith(("apply_", "migration_")) and (step, name) not in killed_at:
            killed_at.append((step, name))
            raise _Killed

    killed = _applied(tmp_path / "killed", spark, monkeypatch, kill)
    migrated = ("planned", "built", "marked", "quarantined", "replaced", "switched")
    assert killed_at == [
        ("apply_new_checkpoint", "second"),
        ("apply_new_checkpoint", "away"),
        ("apply_marked", "people"),
        ("apply_updated_before", "totals"),
        *((f"migration_{step}", table) for table in ("totals", "parts") for step in migrated),
        ("apply_updated", ""),
    ]
    assert killed == whole


def _applied(
    root: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, on_step: Callable[[str, str], None]
) -> dict[str, Any]:
    """Run `apply` until it is complete; returns the content of the project."""
    root.mkdir()
    monkeypatch.chdir(root)
    project = _deployed(root, spark)
    before = {file: file.read_bytes() for file in _files(project)}
    assert main(["apply", "--yes"]) == 2  # without --accept-duplicates
    assert {file: file.read_bytes() for file in _files(project)} == before
    result = None
    while result is None:
        with contextlib.suppress(_Killed), after_steps("", on_step):
            result = _apply(project)
    assert result.succeeded
    assert _needs(_plan(project)) == {"gone": "nothing"}
    return _content(project)


SMALL = """
@dp.table
def bronze():
    return rows()


@dp.materialized_view
def counts():
    return spark.read.table("bronze").groupBy("id").count()
"""


def test_apply_handles_new_unknown_and_impossible_changes(
    tmp_path: Path, spark: Any, monkeypatch: Any, capsys: Any
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(SMALL).add("a.json", _rows(0))
    assert [change.change for change in _plan(project).changes] == ["new", "new"]
    assert main(["apply", "--yes"]) == 0
    assert capsys.readouterr().out.endswith("done\n")
    assert main(["apply", "--yes"]) == 0
    assert "nothing differs" in capsys.readouterr().out

    # The state of an earlier version of Penstock.
    for file in (tmp_path / ".penstock" / "state").rglob("*.json"):
        body = json.loads(file.read_text())
        if body.pop("deployed", None) is not None:
            file.write_text(json.dumps(body))
    plan = _plan(project)
    assert [(change.change, change.need.text) for change in plan.changes] == [
        ("unknown", "next update"),
        ("unknown", "next update"),
    ]
    assert "changed is unknown: it was deployed by an earlier version" in plan.changes[0].reasons[0]
    assert _apply(project).succeeded
    assert _plan(project).changes == ()

    # Another kind of dataset for a table that must not be reset; then an invalid project.
    fixed = '@dp.table(table_properties={"pipelines.reset.allowed": "false"})\ndef counts'
    streams = SMALL.replace("@dp.materialized_view\ndef counts", fixed)
    project.source(streams.replace("spark.read.", "spark.readStream."))
    (change,) = _plan(project).changes
    assert change.need.text == "impossible"
    with pytest.raises(PenstockError, match=r"pipelines\.reset\.allowed is false") as refused:
        _apply(project)
    assert refused.value.condition == "DEPLOYMENT_NOT_POSSIBLE"
    project.source(SMALL.replace('"bronze"', '"bronz"'))
    assert main(["plan"]) == 2
    assert "bronz" in capsys.readouterr().err


TARGETS = """
dp.create_streaming_table("old")
dp.create_streaming_table("new")


@dp.append_flow(target="old")
def stays():
    return rows()


@dp.append_flow(target="new")
def joins():
    return rows()


@dp.append_flow(target="old")
def moves():
    return rows("second")
"""


def test_table_is_refreshed_when_a_flow_of_another_table_moves_to_it(tmp_path: Path, spark: Any):
    project = Project(tmp_path, spark).source(TARGETS)
    project.add("a.json", _rows(0)).add("b.json", _rows(30), "second").run()
    project.source(TARGETS.replace('"old")\ndef moves', '"new")\ndef moves'))
    (change,) = _plan(project).changes
    assert (change.name, change.need.text) == ("new", "full refresh")
    assert change.reasons == (
        "flow moves wrote to old before",
        "the checkpoint of flow moves belongs to that table",
    )
    assert change.flows == ("joins", "moves")


PEOPLE = """
@dp.table
def bronze():
    return rows()


dp.create_streaming_table("people")
dp.create_auto_cdc_flow(target="people", source="bronze", keys=["id"], sequence_by="ts")
"""


def test_declarations_of_a_failed_update_are_not_deployed(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(PEOPLE).add("a.json", _rows(0))
    assert project.run().state is UpdateState.COMPLETED
    changed = PEOPLE.replace('keys=["id"]', 'keys=["id", "amount"]')
    project.source(changed.replace("rows()", 'rows("other")')).add("b.json", _rows(20))
    (tmp_path / "other").mkdir()
    assert project.run().state is UpdateState.FAILED
    changes = {change.name: change for change in _plan(project).changes}
    assert changes["bronze"].need.text == "new checkpoint"
    assert changes["people"].need.text == "full refresh"
    assert changes["people"].reasons[0] == "keys: id becomes amount, id"
