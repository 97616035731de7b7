"""Each folder of `examples/` runs as it is, and its bad rows are where its page says."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock._launch import UpdateOptions, read_flow_state, run_update
from penstock._observe.bus import EventBus
from penstock._observe.events import Event, UpdateState
from penstock._project.spec import load_settings
from penstock._tables.files import local_path
from penstock._tables.layout import StorageLayout

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

    def more(self) -> None:
        """What the example's page says to do before the second run."""
        later = self.root / "later"
        flat = (self.root / "data").exists()
        target = self.root / "data" if flat else self.root
        # As `cp -r` does: changed files have a new time, by which a change of their source is told.
        shutil.copytree(later, target, dirs_exist_ok=True, copy_function=shutil.copy)

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        root = local_path(StorageLayout(load_settings(self.root).storage).root)
        assert root is not None
        df = self.spark.read.format("delta").load(
            str(root / "tables" / "spark_catalog" / "default" / table)
        )
        return sorted(
            (tuple(row) for row in (df.select(*columns) if columns else df).collect()), key=str
        )

    def counted(self, flow: str, key: str) -> int:
        total = 0
        for event in self.events:
            if event.event_type == "flow_progress" and event.origin.flow_name == flow:
                quality = event.details["flow_progress"].get("data_quality", {})
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


def test_windows(example):
    windows = example("windows")
    windows.run()
    assert windows.counted("readings", "duplicate_records") == 1
    bad = windows.rows("readings_quarantine", "reading_id", "_failed_rules")
    assert bad == [
        ("a4", ["has_time", "clock_is_right"]),
        ("a5", ["has_time", "clock_is_right"]),
        ("a6", ["clock_is_right"]),
    ]
    windows.more()
    windows.run()
    # Known keys are left out, NULL is no key.
    assert windows.counted("readings", "duplicate_records") == 1
    ids = [row[0] for row in windows.rows("readings", "reading_id")]
    assert sorted(filter(None, ids)) == ["a1", "a2", "a3", "a7", "b1", "b2", "b3", "b4"]
    assert ids.count(None) == 2
    # Two late rows of one group: Spark's own metric says 1.
    for flow in ("averages", "averages_now"):
        assert windows.counted(flow, "late_records") == 2, flow
        late = windows.rows(f"{flow}_quarantine", "sensor", "celsius", "_failed_rules")
        # The sensor is a column of both; the average of a row is none.
        assert [row[2] for row in late] == [["late"], ["late"]]
        kept = windows.rows(f"{flow}_quarantine", "_row")
        assert [("b1" in row[0], "b2" in row[0]) for row in kept] == [(True, False), (False, True)]
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


def test_state(example):
    state = example("state")
    state.run()
    assert state.rows("signals_quarantine", "signal") == [("s3",), ("s4",)]
    assert state.counted("signals", "duplicate_records") == 1
    assert state.rows("totals") == [("fan", 2), ("pump", 5)]
    assert state.rows("alarms") == []
    state.more()
    state.run()
    # The initial state counts for the pump; the fan spoke again, after it had been silent.
    alarms = state.rows("alarms", "device", "signals")
    assert ("pump", 101) in alarms
    assert state.rows("totals") == [("fan", 6), ("pump", 5)]
    shown = read_flow_state(load_settings(state.root), "alarms", operator=None, limit=5)
    assert {section.name for section in shown} >= {"seen", "timers"}
    (total,) = read_flow_state(load_settings(state.root), "totals", operator=0, limit=5)
    assert total.total == 2


def test_joins(example):
    joins = example("joins")
    joins.run()
    assert joins.rows("impressions_quarantine", "impression") == [("i4",), ("i5",)]
    assert joins.rows("clicks_quarantine", "click") == [("c4",)]
    assert joins.counted("clicks", "duplicate_records") == 1
    assert joins.rows("clicked", "click", "impression") == [("c1", "i1"), ("c5", "i6")]
    # i2 was clicked too late, i3 never: they come when no click of theirs can come any more.
    assert joins.rows("impressions_with_clicks", "impression", "click") == [
        ("i1", "c1"),
        ("i2", None),
        ("i3", None),
        ("i6", "c5"),
    ]
    assert joins.rows("clicks_by_campaign") == [("c1", "winter"), ("c5", None)]
    joins.more()
    joins.run()
    assert joins.counted("clicks", "duplicate_records") == 1
    assert joins.counted("impressions_with_clicks", "late_records") == 1
    (late,) = joins.rows("impressions_with_clicks_quarantine", "impression", "ad", "_failed_rules")
    assert late == ("i7", "shoes", ["late"])
    # The row of before keeps the campaign that was there then.
    assert joins.rows("clicks_by_campaign") == [("c1", "winter"), ("c5", None), ("c6", "summer")]
