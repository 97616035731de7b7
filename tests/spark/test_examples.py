"""Each folder of `examples/` runs unchanged, and invalid rows are in the documented tables."""

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_events import details
from stored_rows import stored_rows

from penstock._observe.bus import EventBus
from penstock._observe.events import Event, Level, UpdateState
from penstock._project.spec import load_settings
from penstock._repair.quarantine_replay import replay_quarantine
from penstock._repair.reading import read_flow_state
from penstock._tables.files import local_path
from penstock._tables.layout import StorageLayout
from penstock._update import UpdateOptions, run_update
from penstock.errors import PenstockError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Example:
    """A copy of one example, run in this process."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.root = root
        self.spark = spark
        self.events: list[Event] = []

    def run(self, **options: Any) -> None:
        bus = EventBus()
        self.events = []
        bus.subscribe(self.events.append)
        result = run_update(load_settings(self.root), UpdateOptions(**options), bus=bus)
        assert result.state is UpdateState.COMPLETED, result.failures

    def add_later_files(self) -> None:
        """Copy the files for the second run as described on the page of the example."""
        later = self.root / "later"
        flat = (self.root / "data").exists()
        target = self.root / "data" if flat else self.root
        # Like `cp -r`, do not keep file times: sources detect changed files by their new time.
        shutil.copytree(later, target, dirs_exist_ok=True, copy_function=shutil.copy)

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        root = local_path(StorageLayout(load_settings(self.root).storage).root)
        assert root is not None
        folder = root / "tables" / "spark_catalog" / "default" / table
        return stored_rows(self.spark, folder, *columns, key=str)

    def counted(self, flow: str, key: str) -> int:
        total = 0
        for event in self.events:
            if event.event_type == "flow_progress" and event.origin.flow_name == flow:
                quality = details(event).get("data_quality", {})
                total += quality.get(key, 0)
        return total


@pytest.fixture
def example(tmp_path: Path, spark, monkeypatch) -> Callable[[str], Example]:
    def copy(name: str) -> Example:
        root = tmp_path / name
        shutil.copytree(EXAMPLES / name, root, ignore=shutil.ignore_patterns(".penstock"))
        monkeypatch.chdir(root)
        return Example(root, spark)

    return copy


# Streams with state take the most time; `test_time_and_state` restarts some of them, too.
second_update = pytest.mark.parametrize("updates", [1, pytest.param(2, marks=pytest.mark.long)])


@second_update
def test_windows_example_writes_the_documented_rows(example, updates: int):
    windows = example("windows")
    windows.run()
    assert windows.counted("readings", "duplicate_records") == 1
    bad = windows.rows("readings_quarantine", "reading_id", "_failed_rules")
    assert bad == [
        ("a4", ["has_time", "clock_is_right"]),
        ("a5", ["has_time", "clock_is_right"]),
        ("a6", ["clock_is_right"]),
    ]
    if updates == 1:
        return
    windows.add_later_files()
    windows.run()
    # Rows with known keys are skipped; NULL is no key.
    assert windows.counted("readings", "duplicate_records") == 1
    ids = [row[0] for row in windows.rows("readings", "reading_id")]
    assert sorted(filter(None, ids)) == ["a1", "a2", "a3", "a7", "b1", "b2", "b3", "b4"]
    assert ids.count(None) == 2
    # Two late rows of one group; Spark's own metric reports 1.
    for flow in ("averages", "averages_now"):
        assert windows.counted(flow, "late_records") == 2, flow
        late = windows.rows(f"{flow}_quarantine", "sensor", "celsius", "_failed_rules")
        # The sensor is a column of both tables; a single row has no average.
        assert [row[2] for row in late] == [["late"], ["late"]]
        quarantined = windows.rows(f"{flow}_quarantine", "_row")
        assert [("b1" in row[0], "b2" in row[0]) for row in quarantined] == [
            (True, False),
            (False, True),
        ]
    assert windows.counted("sessions", "late_records") == 2
    starts = windows.rows("averages", "window_start", "sensor", "celsius", "readings")
    assert [(f"{row[0]:%H:%M}", *row[1:]) for row in starts] == [
        ("10:00", "cellar", 9.0, 1),
        ("10:00", "roof", 21.0, 2),
        ("11:00", "cellar", 11.0, 2),
        ("11:00", "roof", 25.0, 2),
    ]
    now = windows.rows("averages_now", "window_start", "sensor", "celsius", "readings")
    assert [(f"{row[0]:%H:%M}", *row[1:]) for row in now] == [
        *[(f"{row[0]:%H:%M}", *row[1:]) for row in starts],
        ("12:00", "roof", 25.0, 1),
    ]
    # Every reading is counted in one window, or in quarantine.
    assert sum(row[3] for row in now) + 2 == len(ids)


@second_update
def test_state_example_writes_the_documented_rows(example, updates: int):
    state = example("state")
    state.run()
    assert state.rows("signals_quarantine", "signal") == [("s3",), ("s4",)]
    assert state.counted("signals", "duplicate_records") == 1
    assert state.rows("totals") == [("fan", 2), ("pump", 5)]
    assert state.rows("alarms") == []
    if updates == 1:
        return
    state.add_later_files()
    state.run()
    # The count of the pump includes the initial state; the fan sent a signal after a pause.
    alarms = state.rows("alarms", "device", "signals")
    assert ("pump", 101) in alarms
    assert state.rows("totals") == [("fan", 6), ("pump", 5)]
    sections = read_flow_state(load_settings(state.root), "alarms", operator=None, limit=5)
    assert {section.name for section in sections} >= {"seen", "timers"}
    (total,) = read_flow_state(load_settings(state.root), "totals", operator=0, limit=5)
    assert total.total == 2


@second_update
def test_joins_example_writes_the_documented_rows(example, updates: int):
    joins = example("joins")
    joins.run()
    assert joins.rows("impressions_quarantine", "impression") == [("i4",), ("i5",)]
    assert joins.rows("clicks_quarantine", "click") == [("c4",)]
    assert joins.counted("clicks", "duplicate_records") == 1
    assert joins.rows("clicked", "click", "impression") == [("c1", "i1"), ("c5", "i6")]
    # i2 was clicked too late and i3 never: they are written when no click can match any more.
    assert joins.rows("impressions_with_clicks", "impression", "click") == [
        ("i1", "c1"),
        ("i2", None),
        ("i3", None),
        ("i6", "c5"),
    ]
    assert joins.rows("clicks_by_campaign") == [("c1", "winter"), ("c5", None)]
    if updates == 1:
        return
    joins.add_later_files()
    joins.run()
    assert joins.counted("clicks", "duplicate_records") == 1
    assert joins.counted("impressions_with_clicks", "late_records") == 1
    (late,) = joins.rows("impressions_with_clicks_quarantine", "impression", "ad", "_failed_rules")
    assert late == ("i7", "shoes", ["late"])
    # The earlier row keeps the campaign at the time of its batch.
    assert joins.rows("clicks_by_campaign") == [("c1", "winter"), ("c5", None), ("c6", "summer")]


def test_files_example_writes_the_documented_rows(example):
    files = example("files")
    # Years older than the files that were already read.
    old = files.root / "later" / "orders" / "3.json"
    os.utime(old, (1_000_000_000, 1_000_000_000))
    files.run()
    assert files.rows("orders", "id", "source_file") == [(1, "1.json"), (2, "1.json")]
    shutil.copytree(files.root / "later", files.root, dirs_exist_ok=True)
    files.run()
    assert files.rows("orders", "id") == [(1,), (2,), (5,)]
    bad = files.rows("orders_quarantine", "_failed_rules", "_corrupt")
    assert bad == [
        (["has_id"], None),
        (["is_json"], '{"id": 3, "amount": 4'),
        (["is_json"], '{"id": 4, "amount": "much"}'),
    ]
    exported = files.spark.read.option("header", "true").csv(str(files.root / "export"))
    assert sorted(row.id for row in exported.collect()) == ["1", "2", "5"]
    archived = {file.name for file in (files.root / "archive").rglob("*.json")}
    assert archived == {"1.json", "2.json"}
    assert [file.name for file in (files.root / "orders").glob("*.json")] == ["3.json"]


def test_delta_example_writes_the_documented_rows(example):
    delta = example("delta")
    delta.run()
    assert delta.rows("customer_events_quarantine", "city") == [("Rome",)]
    assert delta.rows("orders_quarantine", "amount") == [(-1,)]
    assert delta.rows("amounts_now") == [("ada", 5), ("eve", 7)]
    orders = delta.root / "storage" / "tables" / "spark_catalog" / "default" / "orders"
    delta.spark.sql(f"DELETE FROM delta.`{orders}` WHERE customer = 'eve'")
    delta.add_later_files()
    delta.run()
    assert delta.rows("amounts") == [("ada", 5), ("ada", 6), ("eve", 7)]
    assert delta.rows("amounts_now") == [("ada", 11)]
    # Eve's older event changes nothing.
    assert delta.rows("customers", "customer", "city") == [("ada", "Paris"), ("eve", "Bern")]
    changes = delta.rows("customer_changes", "_change_type", "customer", "city")
    assert changes == [
        ("insert", "ada", "London"),
        ("insert", "eve", "Bern"),
        ("update_postimage", "ada", "Paris"),
        ("update_preimage", "ada", "London"),
    ]


def test_console_example_writes_the_documented_rows(example):
    console = example("console")
    console.run()
    assert console.rows("readings_quarantine", "sensor", "as_read") == [("roof", "warm")]
    rows = console.spark.table("newest").collect()
    assert sorted(tuple(row) for row in rows) == [("attic", 1), ("cellar", 1), ("roof", 1)]


def test_batches_example_writes_the_documented_rows(example):
    batches = example("batches")
    batches.run()
    assert batches.rows("orders_quarantine", "amount") == [(3,)]
    for flow in ("publish", "to_audit", "to_files"):
        # The state as after a crash between the function and Spark's commit entry of its batch.
        commits = next((batches.root / ".penstock" / "checkpoints" / flow).iterdir()) / "commits"
        for name in ("0", ".0.crc"):
            (commits / name).unlink(missing_ok=True)
    batches.add_later_files()
    batches.run()
    with contextlib.closing(sqlite3.connect(batches.root / "shop.db")) as database:
        rows = database.execute("SELECT * FROM orders ORDER BY 1, 2").fetchall()
    assert rows == [(1, 10), (1, 11), (2, 5000), (3, 7)]
    audited = {
        name: sorted(
            tuple(row)
            for row in batches.spark.read.format("delta")
            .load(str(batches.root / "audit" / name))
            .collect()
        )
        for name in ("all", "large")
    }
    assert audited == {"all": rows, "large": [(2, 5000)]}
    keyed = {file.name: file.read_text().strip() for file in (batches.root / "keyed").iterdir()}
    assert keyed == {"1": "11", "2": "5000", "3": "7"}


def test_data_quality_example_writes_the_documented_rows(example):
    quality = example("data_quality")
    quality.run()
    assert quality.rows("orders", "id") == [(1,), (2,)]
    assert quality.rows("orders_quarantine", "id", "_failed_rules") == [
        (3, ["plausible"]),
        (4, ["has_customer"]),
        (5, ["plausible"]),
    ]
    (event,) = [e for e in quality.events if e.event_type == "flow_progress" and _rules(e)]
    failed = {rule["name"]: rule["failed_records"] for rule in _rules(event)}
    assert failed == {"has_country": 1, "has_customer": 1, "plausible": 2, "never_huge": 0}
    notices = [json.loads(line) for line in (quality.root / "alerts.jsonl").open() if line.strip()]
    assert {(n["state"], n["alert"]) for n in notices} == {("firing", "many bad orders")}
    assert any("plausible" in notice["about"] for notice in notices)

    pipeline = quality.root / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace('amount < 1000"', 'amount < 10000"'))
    done = replay_quarantine(load_settings(quality.root), "orders")
    assert (done.moved, done.kept) == (1, 2)
    quality.run()
    assert quality.rows("orders", "id") == [(1,), (2,), (5,)]
    assert quality.rows("totals") == [("ada", 5010), ("bob", 20)]

    # One row violates a fail rule: no row of its batch is written.
    (quality.root / "data" / "2.json").write_text(
        '{"id": 6, "customer": "ada", "amount": 1}\n{"id": 7, "amount": 1000000}\n'
    )
    with pytest.raises(AssertionError, match="never_huge"):
        quality.run()
    assert quality.rows("orders", "id") == [(1,), (2,), (5,)]


def _rules(event: Event) -> list[dict[str, Any]]:
    body = details(event).get("data_quality", {})
    expectations: list[dict[str, Any]] = body.get("expectations", [])
    return expectations


def test_deduplication_example_writes_the_documented_rows(example):
    events = example("deduplication")
    events.run()
    assert events.counted("by_table", "duplicate_records") == 1
    assert events.rows("events_quarantine", "event") == [("e3",)]
    events.add_later_files()
    events.run()

    def names(table: str) -> list[str | None]:
        return sorted((row[0] for row in events.rows(table, "event")), key=str)

    assert names("by_table") == [None, None, "e1", "e2", "e4", "e5"]
    assert names("within_watermark") == [None, "e1", "e1", "e2", "e4"]
    assert names("by_id_and_time") == [None, "e1", "e1", "e2", "e4"]
    late = events.rows("within_watermark_quarantine", "event", "_failed_rules")
    assert late == [("e5", ["late"])]
    assert events.counted("by_id_and_time", "late_records") == 1


def test_triggers_example_writes_the_documented_rows(example):
    triggers = example("triggers")
    triggers.run()
    for table in ("like_the_pipeline", "old_style"):
        assert triggers.rows(table) == [(1,), (2,), (None,)], table
    assert triggers.rows("often") == [(1,), (2,)]
    warnings = [e.message for e in triggers.events if e.level == Level.WARN]
    assert [text for text in warnings if "once" in text], warnings
    pipeline = triggers.root / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace('"once"', '"sometimes"'))
    with pytest.raises(PenstockError, match="sometimes"):
        triggers.run()
