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
from penstock._tables.cdc_events import TargetShape, resolve
from penstock._tables.cdc_writer import CdcWriter, split_events
from penstock._tables.layout import TableRef
from penstock._tables.prepare import TableSpec, prepare_table

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
    """A target; its key has the number of the run before the documented key."""

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


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("parameters", "wanted"),
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
def test_documented_rows_come_out_in_all_orders_of_arrival(
    spark: SparkSession, tmp_path: Path, parameters: dict[str, Any], wanted: Sequence[Any]
) -> None:
    random_ = random.Random(7)
    orders = []
    for run, order in enumerate(itertools.permutations(range(len(EVENTS)))):
        cut = random_.randint(1, len(EVENTS) - 1)
        first = set(order[:cut])
        orders.append((run, [0 if index in first else 1 for index in range(len(EVENTS))]))
    assert len(orders) == 40_320
    arrivals = spark.createDataFrame(orders, "run INT, batches ARRAY<INT>").repartition(2)
    numbered = [(index, *event) for index, event in enumerate(EVENTS)]
    events = spark.createDataFrame(
        numbered, "pos INT, id INT, name STRING, city STRING, op STRING, seq INT"
    )
    exploded = arrivals.select("run", F.posexplode("batches").alias("pos", "batch"))
    rows = exploded.join(F.broadcast(events), "pos").persist()
    golden = Golden(spark, tmp_path, **parameters)
    for batch in range(2):
        df = rows.where(F.col("batch") == batch)
        golden.write(df.select("run", "id", "name", "city", "op", "seq"), batch)
    columns = [c for c in golden.rows().columns if c != "run"]
    tables = (
        golden.rows()
        .groupBy("run")
        .agg(F.sort_array(F.collect_list(F.struct(*columns))).alias("rows"))
    )
    found = tables.groupBy("rows").count().collect()
    rows.unpersist()
    assert [row["count"] for row in found] == [40_320]
    assert [tuple(row) for row in found[0]["rows"]] == list(wanted)


@pytest.mark.parametrize("at", [0, 4, 8])
def test_a_truncate_removes_what_is_before_it_whenever_it_arrives(
    spark: SparkSession, tmp_path: Path, at: int
) -> None:
    events = [*EVENTS[:at], TRUNCATE, *EVENTS[at:]]
    golden = Golden(spark, tmp_path, apply_as_truncates="op = 'TRUNCATE'")
    for batch, part in enumerate((events[:5], events[5:])):
        golden.write(spark.createDataFrame([(0, *event) for event in part], SOURCE), batch)
    assert [tuple(row) for row in golden.rows().collect()] == [(0, 125, "Mercedes", "Guadalajara")]
