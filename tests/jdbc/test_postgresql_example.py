"""The unchanged example of the PostgreSQL sink in the folder `examples`."""

import json
import shutil
from pathlib import Path
from typing import Any

from database_tables import Tables
from postgres_server import PASSWORD, USER, PostgresServer

from penstock._observe.bus import EventBus
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._tables.layout import StorageLayout
from penstock._update import UpdateOptions, run_update

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "postgresql_sink"


def test_orders_are_in_both_tables_and_bad_rows_in_quarantine(
    tmp_path: Path, spark, postgres_server: PostgresServer, tables: Tables, monkeypatch
):
    root = tmp_path / "example"
    shutil.copytree(EXAMPLE, root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PENSTOCK_SECRET_DATABASE_PASSWORD", PASSWORD)
    conf = {"database.url": postgres_server.url, "database.user": USER}
    settings = load_settings(root, configuration=conf)
    # The second run reads one more file.
    later = {"id": 6, "customer": "bob", "amount": 1, "placed": "2026-01-07T00:00:00Z"}
    for new in (None, later):
        if new is not None:
            (root / "data" / "2026-01-07.json").write_text(json.dumps(new))
        result = run_update(settings, UpdateOptions(), bus=EventBus())
        assert result.state is UpdateState.COMPLETED, result.failures
    assert tables.query("SELECT id, amount, note FROM orders ORDER BY id") == [
        ("1", "12.50", "first"),
        ("2", "7.00", None),
        ("5", "30.25", "cut\N{REPLACEMENT CHARACTER}here"),
        ("6", "1.00", None),
    ]
    assert tables.query("SELECT customer, orders, spent FROM customers ORDER BY 1") == [
        ("ada", "2", "42.75"),
        ("bob", "2", "8.00"),
    ]
    place = StorageLayout(settings.storage).root + "/tables/spark_catalog/default/orders_quarantine"
    bad = spark.read.format("delta").load(place).select("id", "_failed_rules")
    assert sorted(tuple(row) for row in bad.collect()) == [
        (3, ["has_customer"]),
        (4, ["not_negative"]),
    ]


def test_new_orders_and_changed_customers_are_read_once(
    tmp_path: Path, spark, postgres_server: PostgresServer, tables: Tables, monkeypatch
):
    root = tmp_path / "source"
    shutil.copytree(EXAMPLE.with_name("postgresql_source"), root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PENSTOCK_SECRET_DATABASE_PASSWORD", PASSWORD)
    conf = {"database.url": postgres_server.url, "database.user": USER}
    settings = load_settings(root, configuration=conf)
    for script in ("shop.sql", "later.sql"):
        tables.script((root / script).read_text())
        result = run_update(settings, UpdateOptions(), bus=EventBus())
        assert result.state is UpdateState.COMPLETED, result.failures
    folder = StorageLayout(settings.storage).root + "/tables/spark_catalog/default/"

    def rows(table: str, *columns: str) -> list[tuple[Any, ...]]:
        df = spark.read.format("delta").load(folder + table).select(*columns)
        return sorted(tuple(row) for row in df.collect())

    assert [row[0] for row in rows("orders", "id")] == [1, 2, 6, 7]
    assert rows("orders_quarantine", "id", "_failed_rules") == [
        (3, ["has_customer"]),
        (4, ["not_negative"]),
    ]
    versions = [("ada", "London"), ("bob", "Bern"), ("bob", "Rome"), ("eve", "Oslo")]
    assert rows("customer_versions", "name", "city") == versions
    assert rows("customers", "name", "city") == [
        ("ada", "London"),
        ("bob", "Rome"),
        ("eve", "Oslo"),
    ]
