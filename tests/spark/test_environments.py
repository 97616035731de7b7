"""A development target reads unchanged datasets from production and builds the others."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_rows import stored_rows
from update_project import HEADER

from penstock._observe.bus import EventBus
from penstock._observe.events import Event, UpdateState
from penstock._plan.explain import explain_text
from penstock._project.spec import load_settings
from penstock._repair.deployment import plan_deployment
from penstock._repair.maintain import maintain_tables
from penstock._repair.migrate import MigrationOptions, migrate_flow
from penstock._repair.quarantine_replay import replay_quarantine
from penstock._runtime.update import UpdateResult
from penstock._update import UpdateOptions, plan_update, run_update
from penstock.errors import PenstockError

SPEC = """
name: shop
libraries: [{file: {path: pipeline.py}}]
configuration: {shop.out: prod-out}
maintenance: false
targets:
  prod: {storage: prod}
  dev:
    mode: development
    storage: dev
    schema: dev_me
    defer_to: prod
    configuration: {shop.out: dev-out}
"""
BASE = """
@dp.table
@dp.expect_or_drop("positive", "amount > 0")
def bronze():
    return rows()


@dp.temporary_view
def large():
    return spark.readStream.table("bronze").where("amount > 1")


@dp.table
def silver():
    return spark.readStream.table("large").select("id", (F.col("amount") * 2).alias("twice"))


dp.create_streaming_table("people")
dp.create_auto_cdc_flow(target="people", source="bronze", keys=["id"], sequence_by="ts")


@dp.materialized_view
def totals():
    return spark.sql("SELECT id, sum(twice) AS total FROM silver GROUP BY id")


@dp.materialized_view
def names():
    return spark.sql("SELECT count(*) AS n FROM people")


dp.create_sink("out", "json", {"path": spark.conf.get("shop.out")})


@dp.append_flow(target="out")
def away():
    return spark.readStream.table("silver")
"""
REJECTED = """

@dp.materialized_view
def rejected():
    return spark.sql("SELECT amount FROM bronze_quarantine")
"""

NAMES = ("bronze", "silver", "people", "totals", "names")


class Shop:
    def __init__(self, root: Path, spark: Any) -> None:
        self.root, self.spark = root, spark
        self.text = BASE + REJECTED
        self.texts: list[str] = []
        (root / "pipeline.yaml").write_text(SPEC)
        (root / "data").mkdir()

    def settings(self, target: str, **arguments: Any) -> Any:
        (self.root / "pipeline.py").write_text(HEADER + self.text)
        return load_settings(self.root, target=target, environ={}, **arguments)

    def change(self, *pairs: tuple[str, str]) -> None:
        for old, new in pairs:
            assert self.text.count(old) == 1, old
            self.text = self.text.replace(old, new)

    def add(self, name: str, *amounts: int) -> None:
        at = int(name) * 10
        rows = [
            {"id": n % 2, "amount": n, "ts": f"2026-01-01 00:00:{at + i:02}"}
            for i, n in enumerate(amounts)
        ]
        (self.root / "data" / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))

    def run(self, target: str = "dev", **options: Any) -> UpdateResult:
        events: list[Event] = []
        bus = EventBus()
        bus.subscribe(events.append)
        settings = self.settings(target)
        result = run_update(settings, UpdateOptions(**options), bus=bus)
        self.texts = [event.message for event in events]
        return result

    def build(self, target: str = "dev", **options: Any) -> None:
        result = self.run(target, **options)
        assert result.state is UpdateState.COMPLETED, result.failures

    def plan(self, **arguments: Any) -> dict[str, str]:
        return dict(plan_deployment(self.settings("dev", **arguments)).deferred)

    def rows(self, name: str, *columns: str, target: str = "dev") -> list[tuple[Any, ...]]:
        schema = "default" if target == "prod" else "dev_me"
        path = self.root / target / "tables" / "spark_catalog" / schema / name
        return stored_rows(self.spark, path, *columns)

    def tables(self) -> set[str]:
        folder = self.root / "dev" / "tables" / "spark_catalog" / "dev_me"
        return {path.name for path in folder.glob("[!.]*")}

    def exported(self, target: str) -> list[tuple[Any, ...]]:
        rows = self.spark.read.json(str(self.root / f"{target}-out"))
        return sorted((row.id, row.twice) for row in rows.collect())

    def production(self) -> dict[Path, bytes]:
        files = (self.root / "prod").rglob("*")
        return {file: file.read_bytes() for file in files if file.is_file()}


@pytest.fixture
def shop(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path, spark)


def test_development_target_builds_only_datasets_that_differ_from_production(shop: Shop):
    shop.add("0", -1, 1, 2, 3)
    placed = f'@dp.materialized_view(path="{shop.root}/placed")\ndef names'
    shop.text = BASE.replace("@dp.materialized_view\ndef names", placed)
    _, plan = plan_update(shop.settings("dev"), UpdateOptions())
    assert plan.warnings[0].startswith("nothing is deployed at prod")
    assert len(plan.tables) == 5
    shop.build("prod")
    before = shop.production()
    unchanged = dict.fromkeys(NAMES, "read from prod (unchanged)")
    assert shop.plan() == unchanged
    settings = shop.settings("dev")
    graph, plan = plan_update(settings, UpdateOptions())
    assert (plan.tables, plan.warnings) == ((), ())
    assert [step.flow for step in plan.runs] == ["away"]
    assert explain_text(graph, plan)[1:3] == [
        "bronze [streaming table]",
        "  | read from prod (unchanged)",
    ]
    for command in (
        lambda: plan_update(settings, UpdateOptions(refresh=("bronze",))),
        lambda: replay_quarantine(settings, "bronze"),
        lambda: migrate_flow(settings, "silver", MigrationOptions()),
    ):
        assert _condition(command) == "DATASET_DEFERRED"
    assert maintain_tables(settings, (), vacuum=True) == []
    same = shop.settings("dev", configuration={"shop.out": "prod-out"})
    _, plan = plan_update(same, UpdateOptions())
    assert plan.warnings[0].startswith("sink out writes to the same place as at prod")
    shop.change(("count(*) AS n", "count(*) AS m"))
    assert _condition(shop.plan) == "TARGETS_SHARE_TABLE"
    shop.change(("count(*) AS m", "count(*) AS n"))

    shop.change(("* 2)", "* 3)"))
    shop.build()
    built = {
        "silver": "built here: the query of flow silver changed",
        "totals": "built here: silver, which it reads, is built here",
    }
    assert {text for text in shop.texts if "(unchanged)" in text or "built here" in text} == {
        f"{name}: {text}" for name, text in {**unchanged, **built}.items()
    }
    assert shop.tables() == {"silver", "totals"}
    assert shop.rows("silver") == [(0, 6), (1, 9)]
    assert shop.rows("totals") == [(0, 6), (1, 9)]
    assert shop.exported("dev") == [(0, 6), (1, 9)]
    assert shop.production() == before
    shop.build()  # no new rows in production
    assert shop.rows("silver") == [(0, 6), (1, 9)]

    state = shop.root / "prod" / "state" / "flows" / "bronze.json"
    text = state.read_text()
    state.write_text(text.replace("{", '{"later": 1,', 1))
    assert _condition(shop.plan) == "DEFERRED_STORAGE_NOT_READABLE"
    state.unlink()
    state.mkdir()  # a file system error, such as a missing permission
    assert _condition(shop.plan) == "DEFERRED_STORAGE_NOT_READABLE"
    state.rmdir()
    state.write_text(text[:40])  # a crash on a file system without atomic replacement
    shop.change((placed, "@dp.materialized_view\ndef names"))
    assert "no recorded declaration" in shop.plan()["bronze"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_rows_of_two_targets_are_not_mixed_when_a_source_moves_between_them(shop: Shop):
    shop.add("0", -1, 1, 2, 3)
    shop.text = BASE
    shop.build("prod")
    shop.text += REJECTED  # the query needs the quarantine
    shop.build("prod")
    shop.change(("* 2)", "* 3)"))
    shop.build()
    shop.add("1", 5, 6, -7)
    shop.change(("* 3)", "* 2)"))
    shop.build("prod")
    shop.change(("* 2)", "* 3)"))
    before = shop.production()
    shop.build()  # reads only new rows of the production table
    assert shop.rows("silver") == [(0, 6), (0, 18), (1, 9), (1, 15)]

    shop.change(("amount > 0", "amount > 2"))
    (error,) = shop.run().failures
    assert error.condition == "SOURCE_TABLE_REPLACED"
    assert "--full-refresh silver" in str(error)
    assert shop.rows("silver") == [(0, 6), (0, 18), (1, 9), (1, 15)]
    assert shop.rows("bronze", "amount") == [(3,), (5,), (6,)]
    assert shop.rows("names") == [(2,)]
    shop.build(full_refresh=("silver",), refresh=("totals", "rejected"))
    assert shop.rows("silver") == [(0, 18), (1, 9), (1, 15)]
    assert shop.rows("totals") == [(0, 18), (1, 24)]
    assert shop.rows("rejected") == [(-7,), (-1,), (1,), (2,)]
    assert shop.production() == before

    # Unchanged again: the table in this storage is no longer read.
    shop.change(("amount > 2", "amount > 0"))
    assert shop.plan()["bronze"] == "read from prod (unchanged)"
    assert [error.condition for error in shop.run().failures] == ["SOURCE_TABLE_REPLACED"]
    shop.build(full_refresh=("silver",), refresh=("totals",))
    assert shop.rows("totals") == [(0, 24), (1, 24)]
    # A full refresh in production while this target streams from it.
    shop.change(("* 3)", "* 2)"))
    shutil.rmtree(shop.root / "prod-out")
    shop.run("prod", full_refresh_all=True)  # needs an empty folder of its sink
    shop.change(("* 2)", "* 3)"))
    assert "SOURCE_ROWS_CHANGED" in {error.condition for error in shop.run().failures}
    shop.build(full_refresh=("silver",))
    assert len(shop.rows("silver")) == 4
    # Deployed datasets are read from production.
    shop.run("prod", full_refresh=("silver",))
    assert set(shop.plan().values()) == {"read from prod (unchanged)"}
    # A table that was removed in production, and one that production does not have.
    shutil.rmtree(shop.root / "prod" / "tables" / "spark_catalog" / "default" / "names")
    shop.text += REJECTED.replace("rejected", "fresh").replace("_quarantine", "")
    plan = shop.plan()
    assert plan.pop("names") == plan.pop("fresh") == "built here: it is not deployed at prod"
    assert set(plan.values()) == {"read from prod (unchanged)"}
    shop.build(refresh=("names", "fresh"))
    assert shop.rows("fresh") == [(1,), (2,), (3,), (5,), (6,)]


def _condition(action: Callable[[], Any]) -> str | None:
    try:
        action()
    except PenstockError as error:
        return error.condition
    return None
