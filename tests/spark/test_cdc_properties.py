"""Thousands of random histories are compared with the oracle; the oracle detects known bugs."""

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cdc_histories import COLUMNS, Case, DeltaTarget, MemoryTarget, make, play
from cdc_oracle import Event
from pyspark.sql import Column, DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._tables.write import cdc_compaction, cdc_history, cdc_writer
from penstock._tables.write.cdc_compaction import StateCompaction
from penstock._tables.write.cdc_events import DELETE, TRUNCATE, TargetShape
from penstock._tables.write.keyed import Way

pytestmark = pytest.mark.usefixtures("two_partitions")

KEYS = int(os.environ.get("PENSTOCK_CDC_HISTORIES", "300"))
SEED = int(os.environ.get("PENSTOCK_CDC_SEED", "20261121"))
BATCHES = 2

CASES = {
    "scd1": Case(scd_type=1),
    "scd1 merge nulls": Case(scd_type=1, keeps_null=COLUMNS, way=Way.MERGE),
    "scd1 some nulls truncates": Case(scd_type=1, keeps_null=("b",), truncates=4, pair=True),
    "scd1 lists": Case(scd_type=1, by_list=True),
    "scd1 vectors": Case(scd_type=1, way=Way.VECTORS),
    "scd1 files": Case(scd_type=1, pair=True, way=Way.FILES),
    "scd2": Case(scd_type=2, pair=True),
    "scd2 vectors": Case(scd_type=2, pair=True, way=Way.VECTORS),
    "scd2 merge tracked nulls": Case(
        scd_type=2, tracked=("a", "c"), keeps_null=("a", "b"), way=Way.MERGE
    ),
    "scd2 lists": Case(scd_type=2, tracked=("b",), by_list=True),
}


# For each type, the cases with the most features.
QUICK_CASES = (
    "scd1 some nulls truncates",
    "scd1 vectors",
    "scd2 merge tracked nulls",
    "scd2 lists",
)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK_CASES else pytest.param(name, marks=pytest.mark.long) for name in CASES],
)
def test_table_equals_the_oracle_after_every_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    if case.way in (Way.VECTORS, Way.FILES):  # like a large table: also searches the state
        monkeypatch.setattr(cdc_writer, "REWRITE_BYTES", -1)
    monkeypatch.setattr(cdc_compaction, "_EVERY", 1)  # compact during most batches
    compacted, merge = [], StateCompaction._merge

    def counted(self: StateCompaction, session: SparkSession, *, drops: bool) -> bool:
        compacted.append(merge(self, session, drops=drops))
        return compacted[-1]

    monkeypatch.setattr(StateCompaction, "_merge", counted)
    histories = make(case, KEYS, BATCHES, SEED)
    target = DeltaTarget(spark, tmp_path, case)
    faults = ["crash", "replay"] if "merge" in name else ["replay", "crash", "none"]
    random.Random(SEED).shuffle(faults)

    def apply(events: list[Event], batch_id: int) -> None:
        fault = faults[batch_id % len(faults)]
        if fault == "crash":
            target.apply_with_crash(events, batch_id, monkeypatch, "after_state_commit")
            return
        target.apply(events, batch_id)
        if fault == "replay":
            target.writer = target.new_writer()
            target.apply(events, batch_id)

    assert play(spark, case, histories, target, apply) == 0
    for thread in threading.enumerate():  # compactions of all writers
        if thread.name.startswith("compact "):
            thread.join(60)
    assert any(compacted)


# -- deliberate bugs ----------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]
_history_rows = cdc_history.history_rows
_merged = cdc_history.merged
_last_by = cdc_history.last_by


def replaced(name: str, function: object) -> Patch:
    return lambda patch: patch.setattr(cdc_history, name, function)


def upsert_beats_delete(sequence: Column, deleted: Column) -> Column:
    return deleted.isNull() | (sequence >= deleted)


def truncate_removes_its_own(sequence: Column, truncated: Column) -> Column:
    return truncated.isNull() | (sequence > truncated)


def by_arrival(value: Column, order: Column) -> Column:
    return F.first(F.when(order.isNotNull(), value), ignorenulls=True)


def late_is_ignored(events: DataFrame, schema: StructType, shape: TargetShape) -> DataFrame:
    before = Window.partitionBy("k").orderBy("at").rangeBetween(Window.unboundedPreceding, -1)
    newest = events.withColumn("newest", F.max("seq").over(before))
    known = newest.where(F.col("newest").isNull() | (F.col("seq") > F.col("newest")))
    return _history_rows(known.drop("newest"), schema, shape)


def unknown_delete_is_forgotten(rows: DataFrame, columns: cdc_history.StateColumns) -> DataFrame:
    return _merged(rows, columns).where("row IS NOT NULL OR kind = 1")


def every_event_opens(by_key: WindowSpec) -> Column:
    return ~F.col("dead")


def ends_where_it_begins(*_: object) -> Column:
    return F.max("seq")


MUTANTS: dict[str, tuple[Case, Patch]] = {
    "upsert wins a tie with a delete": (
        Case(scd_type=1),
        replaced("outlives_delete", upsert_beats_delete),
    ),
    "delete leaves no tombstone": (
        Case(scd_type=1, truncates=1),
        replaced("removes", lambda: F.col("op") == TRUNCATE),
    ),
    "tie goes to what came first": (Case(scd_type=1), replaced("last_by", by_arrival)),
    "late event is ignored": (Case(scd_type=2), replaced("history_rows", late_is_ignored)),
    "version ends at its own last event": (
        Case(scd_type=2),
        replaced("version_end", ends_where_it_begins),
    ),
    "NULL overwrites": (
        Case(scd_type=1, keeps_null=COLUMNS),
        replaced("sets", lambda column: F.lit(True)),
    ),
    "NULL overwrites in history": (
        Case(scd_type=2, keeps_null=("a",)),
        replaced("last_set", lambda value: F.last(value)),
    ),
    "untracked column opens a version": (
        Case(scd_type=2, tracked=("a",)),
        lambda patch: patch.setattr(TargetShape, "is_tracked", lambda self, column: True),
    ),
    "truncate removes its own sequence": (
        Case(scd_type=1, truncates=2),
        replaced("outlives_truncate", truncate_removes_its_own),
    ),
    "truncate is not remembered": (
        Case(scd_type=1, truncates=2),
        replaced("removes", lambda: F.col("op") == DELETE),
    ),
    "delete of an unknown key is forgotten": (
        Case(scd_type=1),
        replaced("merged", unknown_delete_is_forgotten),
    ),
    "event that changes nothing opens a version": (
        Case(scd_type=2),
        replaced("opens_version", every_event_opens),
    ),
}


# One bug of each kind; the other bugs test no additional code.
QUICK = ("upsert wins a tie with a delete", "late event is ignored", "NULL overwrites in history")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in MUTANTS],
)
def test_oracle_reports_a_difference_when_there_is_a_bug(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case, patch = MUTANTS[name]
    histories = make(case, 60, 2, SEED)
    with monkeypatch.context() as context:
        patch(context)
        target = MemoryTarget(spark, case)
        assert play(spark, case, histories, target, target.apply) > 0


@pytest.mark.parametrize("scd_type", [1, 2])
def test_oracle_reports_no_difference_when_there_is_no_bug(
    spark: SparkSession, scd_type: int
) -> None:
    case = Case(scd_type=scd_type, keeps_null=("a",), truncates=2 if scd_type == 1 else 0)
    histories = make(case, 60, 2, SEED)
    target = MemoryTarget(spark, case)
    assert play(spark, case, histories, target, target.apply) == 0
