import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, TimestampType
from stored_rows import stored_rows
from writer_harness import decision_file, rule

from penstock._model.cdc import CdcSpec, ScdType, TrackHistory
from penstock._model.origin import SourceLocation
from penstock._tables.commits import CommitResult
from penstock._tables.layout import TableRef
from penstock._tables.write import cdc_compaction, cdc_history, cdc_writer
from penstock._tables.write.cdc_events import RowShape, TargetShape, resolve
from penstock._tables.write.cdc_snapshot import SnapshotWriter
from penstock._tables.write.cdc_writer import CdcWriter, split_events
from penstock._tables.write.keyed import Way
from penstock._tables.write.prepare import prepare_table
from penstock._tables.write.table_spec import TableSpec, table_state
from penstock.errors import CheckpointError, FlowError, PlanError

ORIGIN = SourceLocation("pipeline.py", 7)
PLAIN = "id INT, seq INT, op STRING, a STRING"


class Target:
    """A target on disk and flows that change it."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.target = TableRef(str(root / "t"), "t")
        self.state = TableRef(str(root / "s"), "s")
        self.quarantine = TableRef(str(root / "q"), "q")

    def write(
        self,
        df: DataFrame,
        batch_id: int,
        *,
        flow: str = "f",
        rules: Sequence[Any] = (),
        quarantine: bool = True,
        options: dict[str, Any] | None = None,
        partition_cols: tuple[str, ...] = (),
        **parameters: Any,
    ) -> CommitResult:
        arguments: dict[str, Any] = {
            "source": "s",
            "keys": ("id",),
            "sequence_by": "seq",
            "apply_as_deletes": "op = 'D'",
            "except_columns": ("seq", "op"),
            **parameters,
        }
        spec = CdcSpec(**arguments)
        shape = TargetShape.of([spec])
        events = resolve(df, spec, shape, flow=flow, origin=ORIGIN)
        table = TableSpec(schema=events.target_schema(), partition_cols=partition_cols)
        prepare_table(self.spark, self.target, table)
        split = split_events(df, events, rules, quarantine=quarantine, origin=ORIGIN)
        self.writer = CdcWriter(
            self.spark,
            flow=flow,
            app_id=f"p/{flow}/writer/1",
            target=self.target,
            state=self.state,
            quarantine=self.quarantine if quarantine else None,
            events=events,
            decisions=decision_file(self.spark, self.root, f"p/{flow}/writer/1"),
            split=split,
            **(options or {}),
        )
        return self.writer.write(split.df, batch_id)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        return stored_rows(self.spark, self.target.path, *columns, key=repr)


@pytest.fixture
def target(spark: SparkSession, tmp_path: Path) -> Target:
    return Target(spark, tmp_path)


def plain(spark: SparkSession, *events: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(events), PLAIN)


@pytest.mark.parametrize(
    ("scd_type", "way"), [(1, Way.MERGE), pytest.param(2, Way.TABLE, marks=pytest.mark.long)]
)
def test_values_of_every_type_are_stored_and_compared(
    spark: SparkSession, target: Target, scd_type: int, way: Way
) -> None:
    df = spark.sql(
        """
        SELECT id, seq, 'U' AS op, map('x', n, 'y', 2) AS m, parse_json(j) AS v,
          named_struct('p', n, 'q', array(map('k', d))) AS s, array(n, NULL) AS l,
          CAST(n AS DECIMAL(38, 18)) AS dec, CAST('ab' AS BINARY) AS bin, d,
          TIMESTAMP '1582-10-04 00:00:00' AS ts, DATE '9999-12-31' AS day
        FROM VALUES (1, 1, 1, '{"a":1}', double('NaN')), (2, 1, NULL, 'null', -0.0D) t(id,seq,n,j,d)
        """
    )
    options = {"scd_type": ScdType(str(scd_type)), "options": {"way": way}}
    target.write(df, 0, **options)
    target.write(df.withColumn("seq", F.lit(2)), 1, **options)
    same = "m['x'], m['y'], to_json(v), s.p, s.q[0]['k'], l, CAST(dec AS INT), bin, d, year(day)"
    rows = target.rows("id", *same.split(", "), *(["__END_AT"] if scd_type == 2 else []))
    assert len(rows) == 2
    assert rows[0][1:4] == (1, 2, '{"a":1}')
    assert str(rows[0][5]) == "nan"
    assert (rows[1][1], rows[1][6], rows[1][9]) == (None, [None, None], 0.0)
    other = df.where("id = 1").withColumn("seq", F.lit(3)).withColumn("m", F.expr("map('x', 5)"))
    target.write(other, 2, **options)
    assert len(target.rows("id")) == (2 if scd_type == 1 else 3)


def test_maps_are_equal_in_any_order_of_their_entries(spark: SparkSession, target: Target) -> None:
    for batch, text in enumerate(("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)")):
        df = spark.sql(f"SELECT 1 AS id, {batch} AS seq, 'U' AS op, {text} AS m")
        target.write(df, batch, scd_type=ScdType.TWO)
    assert target.rows("id", "__START_AT", "__END_AT") == [(1, 0, None)]


@pytest.mark.parametrize(
    ("scd_type", "way"), [pytest.param(1, Way.TABLE, marks=pytest.mark.long), (2, Way.MERGE)]
)
def test_columns_may_have_the_internal_names_of_the_writer(
    spark: SparkSession, target: Target, scd_type: int, way: Way
) -> None:
    names = "v,kind,hash,at,del,row,cols,alive,truncated,version,shown,life,start,next,last,skip"
    values = ", ".join(f"{n} AS `{name}`" for n, name in enumerate(names.split(",")))
    df = spark.sql(f"SELECT 1 AS k, 1 AS seq, 'U' AS op, {values}")
    options = {
        "keys": ("k",),
        "except_columns": None,
        "ignore_null_updates": True,
        "ignore_null_columns": ("del", "skip"),
        "scd_type": ScdType(str(scd_type)),
        "options": {"way": way},
    }
    target.write(df, 0, **options)
    target.write(
        df.withColumn("seq", F.lit(2)).withColumn("del", F.expr("CAST(NULL AS INT)")), 1, **options
    )
    assert target.rows("k", "seq", "op", "del", "skip")[-1] == (1, 2, "U", 4, 15)


@pytest.mark.long
@pytest.mark.parametrize("swapped", [False, True])
def test_ties_with_swapped_nulls_have_the_same_result_in_both_orders(
    spark: SparkSession, target: Target, swapped: bool
) -> None:
    events = [(1, 1, "U", None, 7, [None, 1]), (1, 1, "U", 7, None, [1, None])]
    schema = "id INT, seq INT, op STRING, a INT, b INT, l ARRAY<INT>"
    for batch, event in enumerate(reversed(events) if swapped else events):
        target.write(spark.createDataFrame([event], schema), batch)
    (row,) = target.rows("a", "b")
    other = Target(spark, Path(target.target.path).parent / "other")
    other.write(spark.createDataFrame(events, schema), 0)
    assert other.rows("a", "b") == [row]


@pytest.mark.parametrize(
    ("scd_type", "point"),
    [
        (1, "after_quarantine_commit"),
        (2, "after_state_commit"),
        pytest.param(1, "after_state_commit", marks=pytest.mark.long),
        pytest.param(2, "after_quarantine_commit", marks=pytest.mark.long),
    ],
)
def test_batch_is_completed_when_the_process_crashed_between_two_commits(
    spark: SparkSession,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    scd_type: int,
) -> None:
    df = plain(spark, (1, 1, "U", "x"), (2, None, "U", "bad"), (3, 1, "U", ""))
    rules = (rule("filled", "a <> ''", "drop"), rule("short", "length(a) < 1", "warn"))
    options = {"rules": rules, "scd_type": ScdType(str(scd_type))}

    def crash(step: str, *_: Any) -> None:
        if step == point:
            raise KeyboardInterrupt

    from penstock._tables.write import writer

    with monkeypatch.context() as patch:
        patch.setattr(cdc_writer, "kill_point", crash)
        patch.setattr(writer, "kill_point", crash)
        with pytest.raises(KeyboardInterrupt):
            target.write(df, 0, **options)
    assert target.rows() == []
    result = target.write(df, 0, **options)
    assert (result.rows_written, result.rows_quarantined, result.replayed) == (1, 2, False)
    assert result.rules["filled"].failed == 1
    assert result.rules["short"].failed == 2
    again = target.write(df, 0, **options)
    assert (again.replayed, again.rules) == (True, result.rules)
    assert target.rows("id", "a") == [(1, "x")]
    assert spark.read.format("delta").load(target.quarantine.path).count() == 2
    assert spark.read.format("delta").load(target.state.path).count() == 1


def test_rules_apply_to_upserts_only(spark: SparkSession, target: Target) -> None:
    strict = (rule("filled", "a IS NOT NULL", "fail"),)
    target.write(plain(spark, (1, 1, "U", "x")), 0, rules=strict)
    result = target.write(plain(spark, (1, 2, "D", None)), 1, rules=strict)
    assert (result.rows_deleted, target.rows()) == (1, [])
    with pytest.raises(Exception, match="PENSTOCK_EXPECTATION_FAILED"):
        target.write(plain(spark, (1, 3, "U", None)), 2, rules=strict)
    assert target.rows() == []


def test_flow_fails_when_an_event_has_no_sequence_and_there_is_no_quarantine(
    spark: SparkSession, target: Target
) -> None:
    without: tuple[Any, ...] = (1, None, "U", "x")
    nested = {"sequence_by": "struct(struct(seq, id) AS at, id)"}
    for bad, more in ((without, {}), ((None, 1, "U", "x"), {}), (without, nested)):
        with pytest.raises(FlowError) as caught:
            target.write(plain(spark, bad, (2, 1, "U", "y")), 0, quarantine=False, **more)
        assert caught.value.condition == "CDC_EVENT_INVALID"
        assert "'f'" in caught.value.message
        assert not caught.value.retryable
    assert target.rows() == []


@pytest.mark.parametrize("scd_type", [pytest.param(1, marks=pytest.mark.long), 2])
def test_new_columns_are_added_when_the_source_has_more(
    spark: SparkSession, target: Target, scd_type: int
) -> None:
    wide = "id INT, seq INT, op STRING, b STRUCT<x: INT, y: INT>, a STRING"
    options = {"scd_type": ScdType(str(scd_type)), "track_history": TrackHistory(columns=("id",))}
    options = options if scd_type == 2 else {}
    target.write(plain(spark, (1, 1, "U", "x"), (2, 1, "U", "y")), 0, **options)
    target.write(spark.createDataFrame([(2, 3, "U", (7, 8), "z")], wide), 1, **options)
    late = spark.createDataFrame([(2, 2, "U", (0, 0), "late"), (1, 0, "U", None, "l")], wide)
    target.write(late, 2, **options)
    assert target.rows("id", "a", "b.y") == [(1, "x", None), (2, "z", 8)]


def test_flow_fails_when_a_key_column_was_dropped_between_batches(
    spark: SparkSession, target: Target
) -> None:
    target.write(plain(spark, (1, 1, "U", "a")), 0)
    path = f"delta.`{target.target.path}`"
    spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')")
    spark.sql(f"ALTER TABLE {path} DROP COLUMN id")
    with pytest.raises(PlanError, match=r"SCHEMA_INCOMPATIBLE.*no column 'id', which is a key"):
        target.writer.write(plain(spark, (1, 2, "U", "b")), 1)
    assert target.rows() == [("a",)]


def test_fields_of_structs_are_matched_by_name(spark: SparkSession, target: Target) -> None:
    values = (
        "named_struct('a', 1, 'b', 2)",
        "named_struct('b', 2, 'new', 3, 'a', 1)",
        "named_struct('b', 2)",
    )
    for batch, value in enumerate(values):
        df = spark.sql(
            f"SELECT {batch} AS id, 1 AS seq, 'U' AS op, {value} AS s, array({value}) AS l, "
            f"map('k', {value}) AS m"
        )
        target.write(df, batch, options={"allow_missing": True})
    for column in ("s", "l[0]", "m['k']"):
        rows = target.rows(*(f"{column}.{name}" for name in ("a", "b", "new")))
        assert rows == [(1, 2, 3), (1, 2, None), (None, 2, None)]


@pytest.mark.parametrize("way", [None, Way.MERGE])
def test_struct_fields_may_have_another_order_in_the_table(
    spark: SparkSession, target: Target, way: Way | None
) -> None:
    declared = "id INT, s STRUCT<b: INT, a: INT, t: STRING>"
    schema = spark.createDataFrame([], declared).schema
    prepare_table(spark, target.target, TableSpec(schema=schema, declared=True))
    for seq, a, b in ((0, 1, 2), (1, 2, 1)):
        value = f"named_struct('t', 'x', 'a', {a}, 'b', {b})"
        df = spark.sql(f"SELECT 1 AS id, {seq} AS seq, 'U' AS op, {value} AS s")
        target.write(df, seq, options={"way": way})
        assert target.rows("s.a", "s.b", "s.t") == [(a, b, "x")]


class Snapshots:
    """A target on disk that follows snapshots."""

    def __init__(self, spark: SparkSession, root: Path, scd_type: str) -> None:
        self.target = Target(spark, root)
        self.spark = spark
        self.scd_type = ScdType(scd_type)
        self.number = 0

    def apply(
        self, query: str, version: Any = None, kind: DataType | None = None
    ) -> CommitResult | None:
        df = self.spark.sql(query)
        shape = RowShape(
            shape=TargetShape(keys=("id",), scd_type=self.scd_type, track_history=TrackHistory()),
            columns=tuple(df.schema),
            sequence=kind or LongType(),
        )
        if self.number == 0:
            prepare_table(self.spark, self.target.target, TableSpec(schema=shape.target_schema()))
        writer = SnapshotWriter(
            self.spark, flow="f", app_id="p/f/writer/1", target=self.target.target, shape=shape
        )
        self.number += 1
        return writer.apply(df, version or self.number, self.number - 1, always=True)


@pytest.mark.parametrize("scd_type", ["1", "2"])
def test_fields_of_snapshots_are_compared_by_name(
    spark: SparkSession, tmp_path: Path, scd_type: str
) -> None:
    snapshots = Snapshots(spark, tmp_path, scd_type)
    snapshots.apply("SELECT 1 AS id, named_struct('a', 1, 'b', 2) AS s")
    same = snapshots.apply("SELECT 1 AS id, named_struct('b', 2, 'a', 1) AS s")
    assert same is not None and same.rows_written == 0
    snapshots.apply("SELECT 1 AS id, named_struct('b', 1, 'a', 2) AS s")
    snapshots.apply("SELECT 1 AS id, named_struct('new', 3, 'b', 1, 'a', 2) AS s")
    rows = snapshots.target.rows("s.a", "s.b", "s.new")
    before = [(1, 2, None), (2, 1, None)] if scd_type == "2" else []
    assert rows == sorted([(2, 1, 3), *before], key=repr)


def test_fields_of_snapshots_may_be_declared_not_null(spark: SparkSession, tmp_path: Path) -> None:
    snapshots = Snapshots(spark, tmp_path, "1")
    schema = spark.createDataFrame([], "id INT, s STRUCT<b: INT NOT NULL, a: INT>").schema
    prepare_table(spark, snapshots.target.target, TableSpec(schema=schema, declared=True))
    for snapshots.number in (1, 2):
        snapshots.apply(
            "SELECT 1 AS id, named_struct('b', nullif(2, id), 'a', 1) AS s FROM range(1)"
        )
    assert snapshots.target.rows("s.a", "s.b") == [(1, 2)]


def test_version_without_a_time_zone_does_not_depend_on_that_of_the_process(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        snapshots = Snapshots(spark, tmp_path, "2")
        noon = datetime.fromisoformat("2026-07-01T12:00")
        snapshots.apply("SELECT 1 AS id", noon, TimestampType())
        rows = snapshots.target.rows("CAST(__START_AT AS STRING)")
        assert rows == [("2026-07-01 12:00:00",)]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_empty_partition_of_a_snapshot_does_not_differ_from_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    snapshots = Snapshots(spark, tmp_path, "2")
    schema = spark.createDataFrame([], "id INT, part STRING, __START_AT LONG, __END_AT LONG").schema
    spec = TableSpec(schema=schema, partition_cols=("part",))
    prepare_table(spark, snapshots.target.target, spec)
    for snapshots.number in (1, 2):
        snapshots.apply("SELECT 1 AS id, '' AS part")
    assert snapshots.target.rows() == [(1, None, 2, None)]


@pytest.mark.parametrize("scd_type", [pytest.param(1, marks=pytest.mark.long), 2])
def test_table_may_have_only_key_columns(
    spark: SparkSession, target: Target, scd_type: int
) -> None:
    options = {"columns": ("id",), "except_columns": None, "scd_type": ScdType(str(scd_type))}
    target.write(plain(spark, (1, 1, "U", "x"), (2, 1, "U", "y")), 0, **options)
    target.write(plain(spark, (1, 2, "D", None), (2, 3, "U", "z")), 1, **options)
    expected = [(2,)] if scd_type == 1 else [(1, 1, 2), (2, 1, None)]
    assert target.rows() == expected


def test_key_may_be_a_partition_column_with_an_empty_string(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdc_writer, "REWRITE_BYTES", 0)  # also searches the state
    keys, options = ("id", "a"), {"way": Way.VECTORS}
    texts = ("", "__HIVE_DEFAULT_PARTITION__", "x")
    for seq in (1, 2):
        df = plain(spark, *[(n, seq, "U", text) for n, text in enumerate(texts)])
        df = df.withColumn("b", F.col("seq"))
        target.write(df, seq, keys=keys, options=options, partition_cols=("a",))
    assert target.rows() == [(0, None, 2), (1, None, 2), (2, "x", 2)]


def test_flows_with_different_columns_share_one_state(spark: SparkSession, target: Target) -> None:
    more = "id INT, seq INT, op STRING, b STRING"
    options = {"allow_missing": True}
    target.write(plain(spark, (1, 5, "U", "x")), 0, flow="one", options=options)
    second = spark.createDataFrame([(1, 3, "U", "old"), (2, 1, "U", "new")], more)
    target.write(second, 0, flow="two", options=options)
    target.write(
        plain(spark, (2, 0, "U", "late"), (1, 4, "D", None)), 1, flow="one", options=options
    )
    assert target.rows("id", "a", "b") == [(1, "x", None), (2, None, "new")]


def test_state_is_refused_when_the_declaration_changed(spark: SparkSession, target: Target) -> None:
    df = plain(spark, (1, 1, "U", "x"))
    target.write(df, 0)
    for changed in (
        {"sequence_by": "struct(seq, id)"},
        {"ignore_null_updates": True},
        {"keys": ("id", "a")},
    ):
        with pytest.raises(CheckpointError) as caught:
            target.write(df, 1, **changed)
        assert caught.value.condition == "CDC_STATE_INCOMPATIBLE"


def test_table_with_rows_but_without_state_is_refused(spark: SparkSession, target: Target) -> None:
    df = plain(spark, (1, 1, "U", "x"))
    df.select("id", "a").write.format("delta").save(target.target.path)
    with pytest.raises(CheckpointError) as caught:
        target.write(df, 0)
    assert caught.value.condition == "CDC_STATE_MISSING"


def test_tombstones_are_removed_only_after_their_retention(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.write(plain(spark, (1, 5, "D", None), (2, 5, "D", None), (3, 1, "U", "x")), 0)
    target.write(plain(spark, (1, 4, "U", "late")), 1, options={"tombstone_seconds": 60})
    state = target.writer._state
    like = spark.range(1)
    target.writer._compaction.compact(spark)
    assert table_state(spark, target.state.path) is not None
    assert state.rows(like).count() == 3
    target.write(plain(spark, (2, 3, "U", "late")), 2, options={"tombstone_seconds": 60})
    assert target.rows("id") == [(3,)]
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    state = target.writer._state
    target.writer._compaction.compact(spark)
    assert [row["id"] for row in state.rows(like).select("k.id").collect()] == [3]
    target.write(plain(spark, (2, 4, "U", "revived")), 3)
    assert target.rows("id", "a") == [(2, "revived"), (3, "x")]


@pytest.mark.parametrize("scd_type", [pytest.param(1, marks=pytest.mark.long), 2])
def test_result_is_the_same_when_the_state_was_compacted(
    spark: SparkSession, target: Target, scd_type: int
) -> None:
    options = {"scd_type": ScdType(str(scd_type))}
    for batch, seq in enumerate((3, 5, 3)):
        target.write(plain(spark, (1, seq, "U", f"v{seq}")), batch, **options)
    target.writer._compaction.compact(spark)
    assert len(list(Path(target.state.path).glob("*.parquet"))) >= 4
    rows = target.writer._state.rows(spark.range(1))
    assert rows.count() == (1 if scd_type == 1 else 2)
    target.write(plain(spark, (1, 4, "D", None)), 3, **options)
    expected = [(1, "v5")] if scd_type == 1 else [(1, "v3", 3, 4), (1, "v5", 5, None)]
    assert target.rows() == expected


def test_keys_stay_truncated_when_the_declaration_has_no_truncates_any_more(
    spark: SparkSession, target: Target
) -> None:
    truncates = {"apply_as_truncates": "op = 'T'"}
    target.write(plain(spark, (1, 5, "U", "a"), (None, 6, "T", None)), 0, **truncates)
    for batch, seq in ((1, 4), (2, 3)):
        target.write(plain(spark, (1, seq, "U", "late")), batch)
        assert target.rows("id") == []


def test_truncated_rows_stay_removed_when_a_batch_is_repeated_after_a_compaction(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"apply_as_truncates": "op = 'T'"}
    target.write(plain(spark, (1, 1, "U", "x"), (2, 2, "U", "y")), 0, **options)

    def crash(step: str, *_: Any) -> None:
        if step == "after_state_commit":
            raise KeyboardInterrupt

    batch = plain(spark, (1, 3, "T", None), (3, 4, "U", "z"))
    with monkeypatch.context() as patch:
        patch.setattr(cdc_writer, "kill_point", crash)
        with pytest.raises(KeyboardInterrupt):
            target.write(batch, 1, **options)
    target.writer._compaction.compact(spark)
    target.write(batch, 1, **options)
    assert target.rows("id", "a") == [(3, "z")]


def test_a_batch_does_not_wait_for_the_compaction_of_the_state(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    started, may_finish = threading.Event(), threading.Event()
    merged, threads = cdc_compaction.merged, set[str]()

    def merge_slowly(*arguments: Any) -> DataFrame:
        threads.add(threading.current_thread().name)
        started.set()
        assert may_finish.wait(60)
        return merged(*arguments)

    monkeypatch.setattr(cdc_compaction, "_EVERY", 2)
    monkeypatch.setattr(cdc_compaction, "merged", merge_slowly)
    target.write(plain(spark, (1, 1, "U", "x")), 0)
    target.write(plain(spark, (2, 2, "U", "y")), 1)
    assert started.wait(60)
    target.write(plain(spark, (3, 3, "U", "z")), 2)
    assert threads == {f"compact {target.state.name}"}
    may_finish.set()
    _wait_for_compactions()
    state, like = target.writer._state, spark.range(1)
    assert state.rows(like).count() == 3
    assert len(state.rows(like).inputFiles()) == 2  # the first two are merged
    target.write(plain(spark, (1, 6, "D", None)), 3)
    _wait_for_compactions()
    assert target.rows("id") == [(2,), (3,)]

    def fail(*arguments: Any) -> DataFrame:
        raise OSError("disk full")

    monkeypatch.setattr(cdc_compaction, "merged", fail)
    for batch in (4, 5):
        target.write(plain(spark, (9, batch + 3, "U", "w")), batch)
    _wait_for_compactions()
    assert "was not compacted: disk full" in caplog.text
    assert target.rows("id")[-1] == (9,)


def test_a_stop_cancels_a_compaction(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    started, may_finish = threading.Event(), threading.Event()

    def merge_slowly(*arguments: Any) -> DataFrame:
        started.set()
        assert may_finish.wait(60)
        return cdc_history.merged(*arguments)

    monkeypatch.setattr(cdc_compaction, "_EVERY", 2)
    monkeypatch.setattr(cdc_compaction, "merged", merge_slowly)
    target.write(plain(spark, (1, 1, "U", "x")), 0)
    target.write(plain(spark, (2, 2, "U", "y")), 1)
    assert started.wait(60)
    target.writer.cancel()
    may_finish.set()
    _wait_for_compactions()
    assert len(target.writer._state.rows(spark.range(1)).inputFiles()) == 2
    assert caplog.text == ""
    target.write(plain(spark, (1, 3, "D", None)), 2)  # the compaction of the next start
    assert target.rows("id") == [(2,)]


def _wait_for_compactions() -> None:
    """Wait for all compactions; each write has its own writer."""
    for thread in threading.enumerate():
        if thread.name.startswith("compact "):
            thread.join(60)
