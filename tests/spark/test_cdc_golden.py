"""The example of the documentation, in every order in which its events can arrive."""

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from writer_harness import decision_file

from penstock._model.cdc import CdcSpec, ScdType, TrackHistory
from penstock._model.origin import SourceLocation
from penstock._tables.layout import TableRef
from penstock._tables.write.cdc_events import TargetShape, resolve
from penstock._tables.write.cdc_writer import CdcWriter, split_events
from penstock._tables.write.prepare import prepare_table
from penstock._tables.write.table_spec import TableSpec

ORIGIN = SourceLocation("pipeline.py", 7)
EVENTS = [
    (124, "Raul", "Oaxaca", "INSERT", 1),
    (123, "Isabel", "Monterrey", "INSERT", 1),
    (125, "Mercedes", "Tijuana", "INSERT", 2),
    (126, "Lily", "Cancun", "INSERT", 2),
    (123, None, None, "DELETE", 6),
    (125, "Mercedes", "Guadalajara", "UPDATE", 6),
    (125, "Mercedes", "Mexicali", "UPDATE", 5),
    (123, "Isabel", "Chihuahua", "UPDATE", 5),
]
TRUNCATE = (None, None, None, "TRUNCATE", 3)
SCD1 = [(124, "Raul", "Oaxaca"), (125, "Mercedes", "Guadalajara"), (126, "Lily", "Cancun")]
SCD2 = [
    (123, "Isabel", "Chihuahua", 5, 6),
    (123, "Isabel", "Monterrey", 1, 5),
    (124, "Raul", "Oaxaca", 1, None),
    (125, "Mercedes", "Guadalajara", 6, None),
    (125, "Mercedes", "Mexicali", 5, 6),
    (125, "Mercedes", "Tijuana", 2, 5),
    (126, "Lily", "Cancun", 2, None),
]
CITY_UNTRACKED = [
    (123, "Isabel", "Chihuahua", 1, 6),
    (124, "Raul", "Oaxaca", 1, None),
    (125, "Mercedes", "Guadalajara", 2, None),
    (126, "Lily", "Cancun", 2, None),
]
SOURCE = "run INT, id INT, name STRING, city STRING, op STRING, seq INT"


class Golden:
    """A target; its key starts with the number of the run, followed by the documented key."""

    def __init__(self, spark: SparkSession, root: Path, **parameters: Any) -> None:
        self._spark = spark
        self._target = TableRef(str(root / "t"), "t")
        spec = CdcSpec(
            source="s",
            keys=("run", "id"),
            sequence_by="seq",
            apply_as_deletes="op = 'DELETE'",
            except_columns=("op", "seq"),
            **parameters,
        )
        empty = spark.createDataFrame([], SOURCE)
        self._events = resolve(empty, spec, TargetShape.of([spec]), flow="f", origin=ORIGIN)
        prepare_table(spark, self._target, TableSpec(schema=self._events.target_schema()))
        self._writer = CdcWriter(
            spark,
            flow="f",
            app_id="p/f/writer/1",
            target=self._target,
            state=TableRef(str(root / "s"), "s"),
            events=self._events,
            split=self._split(empty),
            decisions=decision_file(spark, root, "p/f/writer/1"),
        )

    def _split(self, df: DataFrame) -> Any:
        return split_events(df, self._events, [], quarantine=False, origin=ORIGIN)

    def write(self, df: DataFrame, batch_id: int) -> None:
        self._writer.write(self._split(df).df, batch_id)

    def rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._target.path)


BATCHES = 4
SAMPLE = 300
ORDERS = 40_320


def arrivals(count: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """A seeded sample of all orders: for each run, the events in order with their batches."""
    random_ = random.Random(7)
    orders = list(itertools.permutations(range(len(EVENTS))))
    assert len(orders) == ORDERS
    runs = []
    for run, order in enumerate(random_.sample(orders, count)):
        cuts = [random_.randint(0, len(EVENTS)) for _ in range(BATCHES - 1)]
        runs.append((run, [(event, sum(at >= c for c in cuts)) for at, event in enumerate(order)]))
    return runs


def test_samples_vary_the_order_inside_of_batches_and_use_all_batches() -> None:
    runs = [arrived for _, arrived in arrivals(SAMPLE)]
    assert all(batch <= after for run in runs for (_, batch), (_, after) in itertools.pairwise(run))
    used = [len({batch for _, batch in run}) for run in runs]
    assert {1, 2, 3, 4} == set(used)
    assert sum(number > 2 for number in used) > SAMPLE / 2
    # Two events of one key in one batch occur in either order.
    pairs = [[(event, batch) for event, batch in run if event in (5, 6)] for run in runs]
    together = {(a, b) for (a, first), (b, second) in pairs if first == second}
    assert together == {(5, 6), (6, 5)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "count", [SAMPLE, pytest.param(ORDERS, marks=pytest.mark.long)], ids=["sample", "all"]
)
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, SCD1),
        ({"scd_type": ScdType.TWO}, SCD2),
        (
            {"scd_type": ScdType.TWO, "track_history": TrackHistory(except_columns=("city",))},
            CITY_UNTRACKED,
        ),
    ],
    ids=["scd1", "scd2", "scd2 without city"],
)
def test_documented_rows_are_the_result_of_every_order_of_arrival(
    spark: SparkSession,
    tmp_path: Path,
    parameters: dict[str, Any],
    expected: Sequence[Any],
    count: int,
) -> None:
    runs = spark.createDataFrame(
        arrivals(count), "run INT, arrived ARRAY<STRUCT<pos: INT, batch: INT>>"
    ).repartition(2)
    numbered = [(index, *event) for index, event in enumerate(EVENTS)]
    events = spark.createDataFrame(
        numbered, "pos INT, id INT, name STRING, city STRING, op STRING, seq INT"
    )
    # Neither the explosion nor a broadcast join changes the order of a run's rows.
    exploded = runs.select("run", F.inline("arrived"))
    rows = exploded.join(F.broadcast(events), "pos").persist()
    golden = Golden(spark, tmp_path, **parameters)
    for batch in range(BATCHES):
        df = rows.where(F.col("batch") == batch)
        golden.write(df.select("run", "id", "name", "city", "op", "seq"), batch)
    columns = [c for c in golden.rows().columns if c != "run"]
    tables = (
        golden.rows()
        .groupBy("run")
        .agg(F.sort_array(F.collect_list(F.struct(*columns))).alias("rows"))
    )
    groups = tables.groupBy("rows").count().collect()
    rows.unpersist()
    assert [row["count"] for row in groups] == [count]
    assert [tuple(row) for row in groups[0]["rows"]] == list(expected)


@pytest.mark.parametrize("at", [pytest.param(0, marks=pytest.mark.long), 4, 8])
def test_a_truncate_removes_earlier_rows_whenever_it_arrives(
    spark: SparkSession, tmp_path: Path, at: int
) -> None:
    events = [*EVENTS[:at], TRUNCATE, *EVENTS[at:]]
    golden = Golden(spark, tmp_path, apply_as_truncates="op = 'TRUNCATE'")
    for batch, part in enumerate((events[:5], events[5:])):
        golden.write(spark.createDataFrame([(0, *event) for event in part], SOURCE), batch)
    assert [tuple(row) for row in golden.rows().collect()] == [(0, 125, "Mercedes", "Guadalajara")]
