"""Random histories, and targets that apply them; shared by the CDC tests.

Every key is an independent history, so one run of a few batches tests thousands of them.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cdc_oracle import DELETE, TRUNCATE, UPSERT, Event, Row, Rules, table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from writer_harness import decision_file

from penstock._model.cdc import CdcSpec, ScdType, TrackHistory
from penstock._model.origin import SourceLocation
from penstock._tables.layout import TableRef
from penstock._tables.write import cdc_history, cdc_writer
from penstock._tables.write.cdc_events import EventShape, TargetShape, resolve
from penstock._tables.write.cdc_writer import CdcWriter, split_events
from penstock._tables.write.keyed import Way
from penstock._tables.write.prepare import prepare_table
from penstock._tables.write.table_spec import TableSpec

COLUMNS = ("a", "b", "c")
SOURCE = (
    "id INT, part STRING, ts INT, n INT, op STRING, a INT, b STRING, c INT,"
    " updates ARRAY<STRING>, skip ARRAY<STRING>"
)
ORIGIN = SourceLocation("pipeline.py", 7)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One combination of parameters, and the properties of its random events.

    Attributes:
        keeps_null: As in `Rules`, like `by_list` and `tracked`.
        truncates: Number of truncates in the whole run.
        pair: Order by `struct(ts, n)` instead of `ts`.
        way: The way in which rows of the target are replaced.
    """

    scd_type: int
    keeps_null: tuple[str, ...] = ()
    by_list: bool = False
    tracked: tuple[str, ...] = COLUMNS
    truncates: int = 0
    pair: bool = False
    way: Way | None = None

    def rules(self) -> Rules:
        return Rules(
            columns=COLUMNS,
            keeps_null=frozenset(self.keeps_null),
            by_list=self.by_list,
            tracked=frozenset(self.tracked),
        )

    def spec(self) -> CdcSpec:
        limited = self.keeps_null and self.keeps_null != COLUMNS
        tracks = self.tracked != COLUMNS
        return CdcSpec(
            source="s",
            keys=("id", "part"),
            sequence_by="struct(ts, n)" if self.pair else "ts",
            apply_as_deletes="op = 'D'",
            apply_as_truncates="op = 'T'" if self.truncates else None,
            except_columns=("ts", "n", "op", "updates", "skip"),
            scd_type=ScdType(str(self.scd_type)),
            track_history=TrackHistory(columns=self.tracked) if tracks else TrackHistory(),
            ignore_null_updates=bool(self.keeps_null),
            ignore_null_columns=self.keeps_null if limited else None,
            columns_to_update="updates" if self.by_list else None,
        )


@dataclass
class Histories:
    """Random events, distributed over batches."""

    events: list[Event] = field(default_factory=list)
    batches: list[list[int]] = field(default_factory=list)


def random_event(random_: random.Random, case: Case, key: Any) -> Event:
    ts, n = random_.randint(1, 7), random_.randint(1, 2)
    op = DELETE if random_.random() < 0.22 else UPSERT
    if op == DELETE:
        return Event(key, (ts, n) if case.pair else ts, op)
    values = {
        "a": random_.choice([None, 1, 2]),
        "b": random_.choice([None, "x", "y"]),
        "c": random_.choice([None, 1, 2]),
    }
    updates = None
    if case.by_list and random_.random() < 0.8:
        updates = tuple(c for c in COLUMNS if random_.random() < 0.5)
    return Event(key, (ts, n) if case.pair else ts, op, values, updates)


def make(case: Case, keys: int, batches: int, seed: int) -> Histories:
    """Random events of many keys, shuffled over batches, with some duplicates."""
    random_ = random.Random(seed)
    histories = Histories(batches=[[] for _ in range(batches)])
    for number in range(keys):
        key = (number, random_.choice("pq"))
        for _ in range(random_.randint(1, 8)):
            histories.events.append(random_event(random_, case, key))
    for _ in range(case.truncates):
        event = random_event(random_, case, None)
        histories.events.append(Event(None, event.seq, TRUNCATE))
    for index in range(len(histories.events)):
        for _ in range(1 + (random_.random() < 0.12)):
            histories.batches[random_.randrange(batches)].append(index)
    for batch in histories.batches:
        random_.shuffle(batch)
    return histories


def rows_of(case: Case, events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """Events as rows of the source."""
    rules = case.rules()
    rows = []
    for event in events:
        ts, n = event.seq if case.pair else (event.seq, 0)
        number, part = event.key if event.key is not None else (None, None)
        values = [event.values.get(column) for column in COLUMNS]
        skip = [c for c in COLUMNS if not rules.sets(event, c)] if event.op == UPSERT else None
        updates = None if event.updates is None else list(event.updates)
        rows.append((number, part, ts, n, event.op, *values, updates, skip))
    return rows


def with_digests(spark: SparkSession, case: Case, events: Sequence[Event]) -> list[Event]:
    """The events with the digests that break ties."""
    df = spark.createDataFrame(rows_of(case, events), SOURCE)
    present = F.array_compact(F.array(*[F.when(F.col(c).isNotNull(), F.lit(c)) for c in COLUMNS]))
    partial = ["skip"] if case.by_list or case.keeps_null else []
    digest = F.xxhash64(present, *COLUMNS, *partial)
    digests = [row[0] for row in df.select(digest).collect()]
    return [replace(e, digest=d) for e, d in zip(events, digests, strict=True)]


def expected(case: Case, events: Iterable[Event]) -> dict[Any, list[Row]]:
    rows = table(events, case.rules(), case.scd_type)
    return {key: sorted(versions, key=repr) for key, versions in rows.items()}


def by_key(rows: Iterable[Any]) -> dict[Any, list[Row]]:
    """Rows of a target in the format of the oracle."""
    result: dict[Any, list[Row]] = {}
    for row in rows:
        key, values = (row[0], row[1]), tuple(row)[2:]
        result.setdefault(key, []).append(tuple(map(_plain, values)))
    return {key: sorted(versions, key=repr) for key, versions in result.items()}


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, tuple) else value


class DeltaTarget:
    """A target on disk, written as a pipeline does."""

    def __init__(self, spark: SparkSession, root: Path, case: Case, **options: Any) -> None:
        self._spark = spark
        self._case = case
        self._root = root
        self.target = TableRef(str(root / "target"), "target")
        self.state = TableRef(str(root / "state"), "state")
        self.quarantine = TableRef(str(root / "quarantine"), "quarantine")
        self._options = {"way": case.way, **options}
        spec = case.spec()
        shape = TargetShape.of([spec])
        empty = spark.createDataFrame([], SOURCE)
        self.events = resolve(empty, spec, shape, flow="changes", origin=ORIGIN)
        prepare_table(spark, self.target, TableSpec(schema=self.events.target_schema()))
        self.writer = self.new_writer()

    def new_writer(self) -> CdcWriter:
        """A writer as after a restart."""
        empty = self._spark.createDataFrame([], SOURCE)
        split = split_events(empty, self.events, [], quarantine=True, origin=ORIGIN)
        return CdcWriter(
            self._spark,
            flow="changes",
            app_id="p/changes/writer/1",
            target=self.target,
            state=self.state,
            quarantine=self.quarantine,
            events=self.events,
            decisions=decision_file(self._spark, self._root, "p/changes/writer/1"),
            split=split,
            **self._options,
        )

    def apply(self, events: Sequence[Event], batch_id: int) -> None:
        df = self._spark.createDataFrame(rows_of(self._case, events), SOURCE)
        split = split_events(df, self.events, [], quarantine=True, origin=ORIGIN)
        self.writer.write(split.df, batch_id)

    def apply_with_crash(
        self, events: Sequence[Event], batch_id: int, monkeypatch: pytest.MonkeyPatch, point: str
    ) -> None:
        """Crash at a kill point, and repeat the batch with a new writer."""

        def crash(step: str, *_: Any) -> None:
            if step == point:
                raise KeyboardInterrupt

        from penstock._tables.write import writer

        with monkeypatch.context() as patch:
            patch.setattr(cdc_writer, "kill_point", crash)
            patch.setattr(writer, "kill_point", crash)
            with pytest.raises(KeyboardInterrupt):
                self.apply(events, batch_id)
        self.writer = self.new_writer()
        self.apply(events, batch_id)

    def rows(self) -> dict[Any, list[Row]]:
        return by_key(self._spark.read.format("delta").load(self.target.path).collect())


class MemoryTarget:
    """The functions that compute rows from events, without tables: for tests of the oracle."""

    def __init__(self, spark: SparkSession, case: Case) -> None:
        self._spark = spark
        self._case = case
        spec = case.spec()
        self._shape = TargetShape.of([spec])
        empty = spark.createDataFrame([], SOURCE)
        self._events: EventShape = resolve(empty, spec, self._shape, flow="f", origin=ORIGIN)
        self._key, self._value = self._events.key_type(), self._events.value_type()
        self._schema = cdc_history.state_schema(
            self._shape, self._key, self._value, self._events.sequence
        )
        self._columns = self._events.target_schema().fieldNames()
        self._state: list[Any] = []

    def _state_columns(self) -> cdc_history.StateColumns:
        # Not cached, because a test may replace the functions that create the columns.
        return cdc_history.StateColumns(self._schema)

    def apply(self, events: Sequence[Event], batch_id: int) -> None:
        df = self._spark.createDataFrame(rows_of(self._case, events), SOURCE)
        rows = self._events.events(df, self._events.event_columns(self._key, self._value), batch_id)
        columns = self._state_columns()
        rows = cdc_history.state_rows(rows, columns)
        self._state += cdc_history.merged(rows, columns).collect()

    def rows(self) -> dict[Any, list[Row]]:
        state: DataFrame = self._spark.createDataFrame(self._state, self._schema)
        if self._case.scd_type == 1:
            columns = self._state_columns()
            merged = cdc_history.merged(state, columns)
            rows = cdc_history.current_rows(merged, columns, truncates=True)
        else:
            rows = cdc_history.history_rows(state, self._schema, self._shape)
        return by_key(rows.select(*self._columns).collect())


def play(
    spark: SparkSession,
    case: Case,
    histories: Histories,
    target: "DeltaTarget | MemoryTarget",
    apply: Callable[[list[Event], int], None],
) -> int:
    """Apply all batches; after each, compare the target with the oracle.

    Returns:
        The number of incorrect keys, summed over the batches.
    """
    events = with_digests(spark, case, histories.events)
    applied: set[int] = set()
    wrong = 0
    for batch_id, batch in enumerate(histories.batches):
        apply([events[index] for index in batch], batch_id)
        applied.update(batch)
        expected_rows = expected(case, [events[index] for index in sorted(applied)])
        actual_rows = target.rows()
        wrong += sum(
            expected_rows.get(key) != actual_rows.get(key) for key in {*expected_rows, *actual_rows}
        )
    return wrong
