"""A batch is decided once: each row is in one table, even if rules see other data in a retry."""

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from stored_rows import stored_rows
from writer_harness import Harness, decision_file, rule

from penstock._model.cdc import CdcSpec, ScdType
from penstock._model.origin import SourceLocation
from penstock._tables.layout import TableRef
from penstock._tables.write import cdc_writer, row_files, writer
from penstock._tables.write.cdc_events import TargetShape, resolve
from penstock._tables.write.cdc_writer import CdcWriter, split_events
from penstock._tables.write.decision import DecisionFile
from penstock._tables.write.keyed import Way
from penstock._tables.write.prepare import prepare_quarantine, prepare_table
from penstock._tables.write.row_files import Refused
from penstock._tables.write.schema import IDENTITY_EXPLICIT, IDENTITY_START, IDENTITY_STEP
from penstock._tables.write.table_spec import TableSpec
from penstock._tables.write.upsert import UniqueWriter, UpsertWriter
from penstock._tables.write.writer import FlowWriter
from penstock.errors import CheckpointError
from penstock.quality.split import RowSplit, split_rows

CASES = int(os.environ.get("PENSTOCK_DECISION_CASES", "20"))
SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "20261122"))
ORIGIN = SourceLocation("pipeline.py", 7)
APP = "p/orders/writer/1"
ROWS = 12
POINTS = ("after_decision", "after_quarantine_commit", "after_target_commit")
Write = Callable[["Tables", DataFrame, list[Any], int], None]


class CrashError(BaseException):
    """Simulates a crash of the process."""


@dataclass
class Tables:
    """A target and its quarantine, written by a new writer for each attempt."""

    spark: SparkSession
    root: Path

    def __post_init__(self) -> None:
        self.target = TableRef(str(self.root / "t"), "t")
        self.quarantine = TableRef(str(self.root / "t_quarantine"), "t_quarantine")

    def common(self, split: RowSplit) -> dict[str, Any]:
        return {
            "flow": "orders",
            "app_id": APP,
            "target": self.target,
            "split": split,
            "quarantine": self.quarantine,
            "decisions": decision_file(self.spark, self.root, APP),
        }

    def ids(self, ref: TableRef) -> list[int]:
        return [row[0] for row in stored_rows(self.spark, ref.path, "id")]


def split_of(tables: Tables, df: DataFrame, rules: list[Any], **options: Any) -> RowSplit:
    split = split_rows(df, rules)
    assert split is not None
    if not (tables.root / "t").exists():
        schema = df.schema
        spec = TableSpec(schema=schema, **options)
        state = prepare_table(tables.spark, tables.target, spec)
        prepare_quarantine(tables.spark, tables.quarantine, state)
    return split


def appends(*, jobs: int = 1) -> Write:
    def write(tables: Tables, df: DataFrame, rules: list[Any], batch_id: int) -> None:
        split = split_of(tables, df, rules)
        with pytest.MonkeyPatch.context() as patch:
            if jobs == 2:
                patch.setattr(row_files, "can_stage", lambda *_: False)
            FlowWriter(tables.spark, **tables.common(split)).write(split.df, batch_id)

    return write


def unique(tables: Tables, df: DataFrame, rules: list[Any], batch_id: int) -> None:
    split = split_of(tables, df, rules)
    UniqueWriter(tables.spark, keys=["id"], **tables.common(split)).write(split.df, batch_id)


def upserts(way: Way) -> Write:
    def write(tables: Tables, df: DataFrame, rules: list[Any], batch_id: int) -> None:
        split = split_of(tables, df, rules)
        options = {**tables.common(split), "way": way}
        UpsertWriter(tables.spark, keys=["id"], **options).write(split.df, batch_id)

    return write


def applies_changes(scd_type: ScdType) -> Write:
    def write(tables: Tables, df: DataFrame, rules: list[Any], batch_id: int) -> None:
        spec = CdcSpec(source="s", keys=("id",), sequence_by="seq", scd_type=scd_type)
        events = resolve(df, spec, TargetShape.of([spec]), flow="orders", origin=ORIGIN)
        prepare_table(tables.spark, tables.target, TableSpec(schema=events.target_schema()))
        split = split_events(df, events, rules, quarantine=True, origin=ORIGIN)
        state = TableRef(str(tables.root / "state"), "state")
        CdcWriter(tables.spark, state=state, events=events, **tables.common(split)).write(
            split.df, batch_id
        )

    return write


WRITERS: dict[str, tuple[Write, int]] = {
    "one job": (appends(), 24),
    "two jobs": (appends(jobs=2), 3),
    "deduplicate_by": (unique, 2),
    "update rewrites": (upserts(Way.TABLE), 1),
    "update by vectors": (upserts(Way.VECTORS), 1),
    "update merges": (upserts(Way.MERGE), 1),
    "auto CDC 1": (applies_changes(ScdType.ONE), 1),
    "auto CDC 2": (applies_changes(ScdType.TWO), 1),
}
"""Each with how many of 34 cases it gets."""


def random_batch(
    spark: SparkSession, chance: random.Random, batch_id: int
) -> tuple[DataFrame, list[Any]]:
    """A batch with the same rows, but rules and a joined table that differ in each attempt.

    The differences are in the data and not in the query, which Spark would compile each time.
    """
    first = batch_id * ROWS
    known = first + chance.randrange(ROWS)
    divisor = chance.randrange(2, 5)
    other = chance.randrange(divisor)
    is_joined = not chance.randrange(3)
    rows = ", ".join(
        f"({number}L, 1L, {'NULL' if is_joined or number < known else 1}, {divisor}, {other})"
        for number in range(first, first + ROWS)
    )
    df = spark.sql(f"SELECT * FROM VALUES {rows} AS batch (id, seq, k, divisor, other)")
    if is_joined:
        matches = ", ".join(f"({number}L, 1)" for number in range(known, first + ROWS))
        dimension = spark.sql(f"SELECT * FROM VALUES {matches} AS dimension (id, k)")
        df = df.drop("k").join(F.broadcast(dimension), "id", "left")
    else:
        df = df.withColumn("k", F.col("k").cast("int"))
    rules = [
        rule("known", "k IS NOT NULL"),
        rule("divides", "id % divisor <> other"),
        rule("chance", "rand() < 0.8"),
    ]
    return df, chance.sample(rules, chance.randrange(1, 4))


def play(
    tables: Tables, write: Write, cases: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Write batches with crashes at random points; returns ids not in exactly one table."""
    chance = random.Random(seed)
    for batch_id in range(cases):
        has_state = (tables.root / "state").exists()
        points = [*POINTS, "after_state_commit"] if has_state else POINTS
        for point in [*chance.sample(points, 1 + (chance.random() < 0.3)), None]:

            def crash(step: str, *_: Any, crash_point: str | None = point) -> None:
                if step == crash_point:
                    raise CrashError

            df, rules = random_batch(tables.spark, chance, batch_id)
            with monkeypatch.context() as patch:
                patch.setattr(writer, "kill_point", crash)
                patch.setattr(cdc_writer, "kill_point", crash)
                try:
                    write(tables, df, rules, batch_id)
                except CrashError:
                    continue
    everywhere = tables.ids(tables.target) + tables.ids(tables.quarantine)
    return [number for number in range(cases * ROWS) if everywhere.count(number) != 1]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", WRITERS)
def test_each_row_is_in_one_table_when_batches_crash_and_rules_see_other_data(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write, share = WRITERS[name]
    cases = max(1, CASES * share // 34)
    assert play(Tables(spark, tmp_path), write, cases, SEED, monkeypatch) == []


@pytest.mark.parametrize(
    ("name", "point", "target"),
    [
        # 0 to 3 are lost, 6 to 9 are in both tables.
        ("one job", "after_quarantine_commit", [4, 5, 6, 7, 8, 9]),
        # 0 to 3 are lost; 6 to 9 are not written, because the state already has the batch.
        pytest.param("auto CDC 1", "after_state_commit", [4, 5], marks=pytest.mark.long),
    ],
)
def test_rows_are_lost_and_duplicated_when_the_decision_is_not_durable(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    point: str,
    target: list[int],
) -> None:
    monkeypatch.setattr(DecisionFile, "load", lambda *_: None)
    tables, (write, _) = Tables(spark, tmp_path), WRITERS[name]
    df = spark.range(10).selectExpr("id", "1L AS seq")

    def crash(step: str, *_: Any) -> None:
        if step == point:
            raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(writer, "kill_point", crash)
        patch.setattr(cdc_writer, "kill_point", crash)
        with pytest.raises(CrashError):
            write(tables, df, [rule("low", "id < 6")], 0)
    write(tables, df, [rule("high", "id >= 4")], 0)
    assert tables.ids(tables.quarantine) == [6, 7, 8, 9]
    assert tables.ids(tables.target) == target


# -- other changes between attempts ---------------------------------------------------------------

RULES = (rule("positive", "id % 10 <> 0"),)


def interrupted(
    harness: Harness,
    df: DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    make: Callable[..., FlowWriter] | None = None,
    **options: Any,
) -> None:
    def crash(step: str, *_: Any) -> None:
        if step == point:
            raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(writer, "kill_point", crash)
        with pytest.raises(CrashError):
            (make or harness.writer)(**options).write(df, 0)


@pytest.mark.parametrize("point", ["after_decision", "after_quarantine_commit"])
def test_decided_rows_keep_their_table_when_the_rules_are_removed(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    interrupted(harness, harness.prepare(spark.range(100), RULES), monkeypatch, point)
    harness.split = None
    result = harness.writer().write(spark.range(100), 0)
    assert (harness.rows().count(), harness.bad().count()) == (90, 10)
    assert (result.rows_written, result.rows_quarantined, result.replayed) == (90, 10, False)
    assert result.rules["positive"].failed == 10


@pytest.mark.parametrize("point", ["after_decision", "after_quarantine_commit"])
def test_decided_rows_are_not_written_to_a_dataset_named_like_the_quarantine(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    interrupted(harness, harness.prepare(spark.range(100), RULES), monkeypatch, point)
    harness.split = None
    # The name that `PipelineTables.quarantine` uses in this case.
    off = TableRef(f"{harness.quarantine.path}_off", "orders_quarantine")
    if point == "after_quarantine_commit":
        with pytest.raises(CheckpointError, match="does not exist any more"):
            harness.writer(quarantine=off).write(spark.range(100), 0)
        return
    result = harness.writer(quarantine=off).write(spark.range(100), 0)
    assert (harness.rows().count(), harness.bad().count()) == (100, 0)
    assert (result.rows_written, result.rows_quarantined) == (100, 0)


def test_rows_are_decided_again_when_decision_files_are_deleted_before_any_commit(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = harness.prepare(spark.range(100), RULES)
    interrupted(harness, df, monkeypatch, "after_decision")
    for file in harness.root.glob("orders/**/*.parquet"):
        file.unlink()
    harness.writer().write(df, 0)
    assert (harness.rows().count(), harness.bad().count()) == (90, 10)


def test_rows_of_a_driver_that_lost_its_lease_are_not_added_to_a_later_decision(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = harness.prepare(spark.range(100), RULES)
    make = partial(harness.upserter, ["id"])
    interrupted(harness, df, monkeypatch, "after_decision", make)
    (decision,) = harness.root.glob("checkpoints/**/decision.json")
    rows, late = Path(f"{decision}.rows"), harness.root / "late"
    shutil.copytree(rows, late)
    decision.unlink()
    interrupted(harness, df, monkeypatch, "after_decision", make)
    shutil.copytree(late, rows, dirs_exist_ok=True)
    make().write(df, 0)
    assert (harness.rows().count(), harness.bad().count()) == (90, 10)
    assert not rows.exists()


def test_batch_fails_when_decision_files_are_deleted_between_its_commits(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = harness.prepare(spark.range(100), RULES)
    interrupted(harness, df, monkeypatch, "after_quarantine_commit")
    for file in harness.root.glob("orders/**/*.parquet"):
        file.unlink()
    with pytest.raises(CheckpointError, match="some of its files were deleted") as caught:
        harness.writer().write(df, 0)
    assert caught.value.condition == "BATCH_UNFINISHED"
    assert (harness.rows().count(), harness.bad().count()) == (0, 10)


@pytest.mark.parametrize(
    ("point", "rows"), [("after_decision", (90, 10)), ("after_quarantine_commit", None)]
)
def test_a_batch_of_an_earlier_version_is_decided_again_only_before_its_commits(
    spark: SparkSession,
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    rows: tuple[int, int] | None,
) -> None:
    df = harness.prepare(spark.range(100), RULES)
    interrupted(harness, df, monkeypatch, point)
    (file,) = harness.root.glob("checkpoints/**/decision.json")
    content = json.loads(file.read_text())
    quarantine = content["quarantine"]
    # Format 1: bad rows were below the target until the quarantine was committed.
    quarantine |= {"staged": quarantine.pop("files"), "written": []}
    file.write_text(json.dumps({**content, "format": 1}))
    if rows is None:
        with pytest.raises(CheckpointError, match="an earlier version of Penstock started it"):
            harness.writer().write(df, 0)
        rows = (0, 10)
    else:
        harness.writer().write(df, 0)
    assert (harness.rows().count(), harness.bad().count()) == rows


def test_decision_is_dropped_when_its_file_is_truncated(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = harness.prepare(spark.range(100), RULES)
    interrupted(harness, df, monkeypatch, "after_decision")
    (file,) = harness.root.glob("checkpoints/**/decision.json")
    file.write_text(file.read_text()[:50])
    harness.writer().write(df, 0)
    assert (harness.rows().count(), harness.bad().count()) == (90, 10)


@pytest.mark.parametrize("mapping", ["none", "name"])
def test_new_columns_are_kept_when_their_batch_was_interrupted(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch, mapping: str
) -> None:
    harness.prepare(spark.range(1), RULES, properties={"delta.columnMapping.mode": mapping})
    wide = split_rows(spark.range(100).selectExpr("id", "id * 2 AS twice"), RULES)
    assert wide is not None
    harness.split = wide
    interrupted(harness, wide.df, monkeypatch, "after_quarantine_commit")
    plain = split_rows(spark.range(100), RULES)
    assert plain is not None
    harness.split = plain
    harness.writer(allow_missing=True).write(plain.df, 0)
    assert harness.rows().where("twice = id * 2").count() == 90
    assert harness.bad().where("twice = id * 2").count() == 10


def test_both_tables_are_replaced_when_their_batch_is_repeated_with_new_columns(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = spark.range(1).selectExpr("id", "id AS `a b`")
    harness.prepare(before, RULES, properties={"delta.columnMapping.mode": "name"})
    harness.split = split_rows(spark.range(100).selectExpr("id", "string(id) AS `a b`"), RULES)
    assert harness.split is not None
    df = harness.split.df
    interrupted(harness, df, monkeypatch, "after_quarantine_commit", replaces=True)
    harness.writer(replaces=True).write(df, 0)
    assert harness.rows().where("`a b` = string(id)").count() == 90
    assert harness.bad().where("`a b` = string(id)").count() == 10


@pytest.mark.parametrize("mode", ["append", "update"])
def test_a_batch_is_completed_when_its_table_has_new_and_wider_columns(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    make = harness.writer if mode == "append" else partial(harness.upserter, ["id"])
    df = harness.prepare(spark.range(100).selectExpr("id", "int(id) AS n"), RULES)
    interrupted(harness, df, monkeypatch, "after_quarantine_commit", make)
    wider = spark.range(100).selectExpr("id", "id AS n", "'x' AS more")
    result = make().write(harness.prepare(wider, RULES, widen=True), 0)
    assert (result.rows_written, result.rows_quarantined) == (90, 10)
    assert harness.rows().where("n = id AND more IS NULL").count() == 90
    assert harness.bad().where("n = id AND more IS NULL").count() == 10


def test_a_batch_is_decided_again_when_types_change_before_any_commit(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = harness.prepare(spark.range(100).selectExpr("id", "int(id) AS n"), RULES)
    interrupted(harness, df, monkeypatch, "after_decision")
    other = harness.prepare(spark.range(100).selectExpr("id", "string(id) AS n"), RULES)
    harness.writer().write(other, 0)
    assert harness.rows().where("n = string(id)").count() == 90


def test_explicit_identity_values_are_kept_when_a_batch_was_interrupted(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_default = {IDENTITY_START: 1, IDENTITY_STEP: 1, IDENTITY_EXPLICIT: True}
    schema = T.StructType().add("n", T.LongType(), True, by_default).add("id", T.LongType())
    rows = spark.range(100).selectExpr("id + 1000 AS n", "id")
    df = harness.prepare(rows, RULES, schema=schema, declared=True)
    interrupted(harness, df, monkeypatch, "after_quarantine_commit")
    harness.writer().write(df, 0)
    assert harness.rows().where("n = id + 1000").count() == 90


def test_keys_stay_unique_when_another_flow_writes_them_before_the_retry(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(spark, tmp_path)
    df = spark.range(20).selectExpr("id", "1L AS seq")
    split = split_of(tables, df, [rule("low", "id < 15")])
    interrupted_by = {"after_quarantine_commit"}

    def crash(step: str, *_: Any) -> None:
        if step in interrupted_by:
            raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(writer, "kill_point", crash)
        with pytest.raises(CrashError):
            UniqueWriter(spark, keys=["id"], **tables.common(split)).write(split.df, 0)
    other = {**tables.common(split), "app_id": "p/other/writer/1"}
    other["decisions"] = decision_file(spark, tmp_path, "p/other/writer/1")
    ten = replace(split, df=split.df.where("id < 10"))
    UniqueWriter(spark, keys=["id"], **other).write(ten.df, 0)
    result = UniqueWriter(spark, keys=["id"], **tables.common(split)).write(split.df, 0)
    assert tables.ids(tables.target) == list(range(15))
    assert tables.ids(tables.quarantine) == list(range(15, 20))
    assert (result.rows_written, result.rows_duplicate) == (5, 10)


def test_rows_with_an_empty_string_in_a_partition_column_of_their_key_are_all_added(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = Tables(spark, tmp_path)
    df = spark.range(4).selectExpr("id", "IF(id < 2, '', 'x') AS p")
    split = split_of(tables, df, [rule("low", "id < 9")], partition_cols=("p",))
    UniqueWriter(spark, keys=["p"], **tables.common(split)).write(split.df, 0)
    assert stored_rows(spark, tables.target.path, "count(*)", "count(p)") == [(3, 1)]


class LateRows:
    """Returns the late rows of a batch; each attempt would return different rows."""

    keeps = True

    def __init__(self) -> None:
        self.first = 100

    def find(self, df: DataFrame) -> Refused:
        self.first += 5
        late = df.sparkSession.range(self.first, self.first + 5)
        reason = F.array(F.lit("late")).alias("_failed_rules")
        nothing = [F.lit(None).cast("string").alias(name) for name in ("_row", "_source")]
        return Refused(-1, late.select("id", reason, *nothing))


def test_late_rows_are_quarantined_once_when_their_batch_was_interrupted(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    df, late = harness.prepare(spark.range(100), RULES), LateRows()
    interrupted(harness, df, monkeypatch, "after_quarantine_commit", late=late)
    result = harness.writer(late=late).write(df, 0)
    assert (result.rows_written, result.rows_quarantined, result.rows_late) == (90, 15, 5)
    bad = sorted(row[0] for row in harness.bad().select("id").collect())
    assert bad == [*range(0, 100, 10), *range(105, 110)]
    assert harness.rows().count() == 90


# -- fail rules ---------------------------------------------------------------------------------


def test_a_failed_batch_is_decided_again_and_a_committed_batch_is_not(
    spark: SparkSession, harness: Harness
) -> None:
    strict = [rule("known", "id < 50", "fail")]
    df = harness.prepare(spark.range(100), strict)
    with pytest.raises(Exception, match="PENSTOCK_EXPECTATION_FAILED"):
        harness.writer().write(df, 0)
    lenient = split_rows(spark.range(100), [rule("known", "id < 500", "fail")])
    assert lenient is not None
    assert harness.writer().write(lenient.df, 0).rows_written == 100
    assert harness.writer().write(df, 0).replayed
    assert harness.rows().count() == 100


def test_a_committed_stateful_batch_is_evaluated_without_its_rules(
    spark: SparkSession, harness: Harness
) -> None:
    strict = [rule("known", "id < 50", "fail")]
    harness.prepare(spark.range(100), strict)
    evaluated = spark.sparkContext.accumulator(0)

    def with_rules(batch: DataFrame, rules: list[Any]) -> DataFrame:
        split = split_rows(batch, rules)
        assert split is not None
        return split.df

    def stateful(rules: list[Any]) -> FlowWriter:
        return harness.writer(stateful=True, apply_rules=lambda batch: with_rules(batch, rules))

    count = F.udf(lambda n: evaluated.add(1) or n, "bigint")
    batch = spark.range(100).select(count("id").alias("id"))
    assert stateful([rule("known", "id < 500", "fail")]).write(batch, 0).rows_written == 100
    before = evaluated.value
    assert stateful(strict).write(batch, 0).replayed
    assert evaluated.value - before == 100
    with pytest.raises(Exception, match="PENSTOCK_EXPECTATION_FAILED"):
        stateful(strict).write(batch, 1)
