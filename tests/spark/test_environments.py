"""A development target reads what is unchanged from the production target, and builds the rest."""

import json
from pathlib import Path
from typing import Any

import pytest
from stored_rows import stored_rows
from update_project import HEADER

from penstock._observe.bus import EventBus
from penstock._observe.events import Event, UpdateState
from penstock._project.spec import load_settings
from penstock._repair.deployment import plan_deployment
from penstock._runtime.update import UpdateResult
from penstock._update import UpdateOptions, run_update

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
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    def production(self) -> dict[Path, bytes]:
        files = (self.root / "prod").rglob("*")
        return {file: file.read_bytes() for file in files if file.is_file()}


@pytest.fixture
def shop(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path, spark)


def test_explore(shop: Shop):
    import time, traceback
    def show(what, f):
        at = time.monotonic()
        try:
            r = f()
        except BaseException as e:
            r = f"!! {type(e).__name__}: {str(e)[:700]}"
            if not isinstance(e, PenstockError): traceback.print_exc(limit=-4)
        print(f"## {what} ({time.monotonic()-at:.1f}s): {r}", flush=True)
    def ran(*a, **k):
        def f():
            r = shop.run(*a, **k)
            return r.state.name, [str(x)[:700] for x in r.failures], [t for t in shop.texts if "built here" in t or "read from" in t or "same place" in t or "deployed" in t], sorted(shop.tables())
        return f
    shop.add("0", -1, 1, 2, 3)
    shop.text = BASE
    show("plan empty", shop.plan)
    show("prod", ran("prod"))
    shop.text += REJECTED
    show("prod2", ran("prod"))
    before = shop.production()
    show("plan unchanged", shop.plan)
    show("dev unchanged", ran())
    shop.change(("* 2)", "* 3)"))
    show("dev silver", ran())
    show("rows", lambda: (shop.rows("silver"), shop.rows("totals")))
    show("prod same", lambda: shop.production() == before)
    shop.add("1", 5, 6, -7)
    shop.change(("* 3)", "* 2)"))
    show("prod more", ran("prod"))
    shop.change(("* 2)", "* 3)"))
    show("dev more", ran())
    show("rows", lambda: (shop.rows("silver"), shop.rows("totals")))
    shop.change(("amount > 0", "amount > 2"))
    show("dev bronze", ran())
    show("rows", lambda: (shop.rows("bronze"), shop.rows("silver"), shop.rows("rejected"), shop.rows("names")))
    show("plan moved", lambda: plan_deployment(shop.settings("dev")).changes)
    show("dev full refresh silver", ran(full_refresh=("silver",)))
    show("dev again", ran())
    show("rows", lambda: (shop.rows("silver"), shop.rows("totals"), shop.rows("rejected")))
    shop.change(("amount > 2", "amount > 0"))
    show("dev back", ran())
    show("rows", lambda: (shop.rows("silver"), shop.rows("totals")))
    show("dev full refresh silver", ran(full_refresh=("silver",)))
    show("prod full refresh", lambda: (shop.change(("* 3)", "* 2)")), ran("prod", full_refresh=("bronze",))(), shop.change(("* 2)", "* 3)")))
    show("dev after prod reset", ran())
    show("refresh deferred", ran(refresh=("bronze",)))
    show("prod deploys", lambda: ran("prod", full_refresh=("silver",))())
    show("dev equal", ran())
    show("dry", lambda: "\n".join(__import__("penstock._plan.explain", fromlist=["x"]).explain_text(*plan_update(shop.settings("dev"), UpdateOptions()))))
    raise SystemExit
