"""Batches of changed keys v a handwritten MERGE, each in its own table.

- `merge`: `DeltaTable.merge` with update and insert, in Penstock's session,
- `update`: a flow in update mode,
- `cdc 1`, `cdc 2`: auto CDC flows of type 1 and 2, with their state.

All tables start with the same rows in files of the same size. In each round, all sides get a batch
with the same random keys, in random order: one file, which each side reads. With `--batches`, the
flows then continue without `merge`, and the first and last 50 batches of each are compared.

    python bench/upserts.py [--rows 1000000] [--keys 1000] [--rounds 7] [--warm-up 6]
                            [--batches 1000] [--s3] [--cluster]
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import results
from writer import KEYS, make_session, small_cluster, where

FILES = 8
SIDES = ("merge", "update", "cdc 1", "cdc 2")
TITLES = {"update": "update mode", "cdc 1": "auto CDC type 1", "cdc 2": "auto CDC type 2"}
COLUMNS = "id BIGINT, seq BIGINT, name STRING, amount DOUBLE"


class Tables:
    """The four tables, and the functions that write a batch into each."""

    def __init__(self, spark: Any, place: str, inbox: Path, rows: int, keys: int) -> None:
        self.spark, self.place, self.rows, self.keys = spark, place, rows, keys
        self.inbox = inbox
        inbox.mkdir()
        self.random = random.Random(7)
        self.sequence = 0
        self.prepared: dict[str, Callable[[Any], Any]] = {}
        self.write: dict[str, Callable[[Any, int], Any]] = {
            "merge": self._merge,
            "update": self._upserter().write,
            "cdc 1": self._cdc("1").write,
            "cdc 2": self._cdc("2").write,
        }
        first = self._frame(f"SELECT id, 0L AS seq FROM RANGE({rows})").repartition(FILES)
        first.write.format("delta").save(f"{place}/merge")
        for side in SIDES[1:]:
            self.write[side](self.query(side, first), 0)

    def _frame(self, sql: str) -> Any:
        names = "id", "seq", "concat('name-', id % 1000) AS name", "CAST(id AS DOUBLE) AS amount"
        return self.spark.sql(sql).selectExpr(*names)

    def query(self, side: str, df: Any) -> Any:
        """A batch with the columns that the query of a flow adds."""
        return self.prepared[side](df) if side in self.prepared else df

    def batch(self) -> Any:
        """Rows with random keys of the table and a higher sequence."""
        self.sequence += 1
        chosen = self.random.sample(range(self.rows), self.keys)
        columns = {
            "id": chosen,
            "seq": [self.sequence] * len(chosen),
            "name": [f"new-{key}" for key in chosen],
            "amount": [key + 0.5 for key in chosen],
        }
        file = self.inbox / f"{self.sequence}.parquet"
        pq.write_table(pa.table(columns), file)
        return self.spark.read.schema(COLUMNS).parquet(str(file))

    def check(self) -> None:
        """Check that all sides have the same rows."""
        totals = {}
        for side in SIDES:
            table = self.spark.read.format("delta").load(f"{self.place}/{side}".replace(" ", "_"))
            if side == "cdc 2":
                table = table.where("__END_AT IS NULL")
            row = table.selectExpr("count(*)", "count(DISTINCT id)", "sum(seq)").first()
            totals[side] = tuple(row)
        if len(set(totals.values())) > 1:
            sys.exit(f"the tables differ: {totals}")
        print(f"all tables have the same {totals['merge'][0]:,} rows")

    def _merge(self, df: Any, number: int) -> None:
        from delta.tables import DeltaTable

        table = DeltaTable.forPath(self.spark, f"{self.place}/merge").alias("t")
        merge = table.merge(df.alias("s"), "t.id = s.id AND s.seq > t.seq")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def _options(self, name: str) -> dict[str, Any]:
        from penstock._tables.files import StorageFiles
        from penstock._tables.layout import TableRef
        from penstock._tables.write.decision import DecisionFile

        files = StorageFiles(self.spark)
        return {
            "flow": name,
            "app_id": f"bench/{name}/writer/1",
            "target": TableRef(f"{self.place}/{name}", name),
            "decisions": DecisionFile(files, f"{self.place}/checkpoints/{name}/decision.json"),
        }

    def _upserter(self) -> Any:
        from penstock._tables.write.prepare import prepare_table
        from penstock._tables.write.table_spec import TableSpec
        from penstock._tables.write.upsert import UpsertWriter

        options = self._options("update")
        schema = self.spark.createDataFrame([], COLUMNS).schema
        prepare_table(self.spark, options["target"], TableSpec(schema=schema))
        return UpsertWriter(self.spark, keys=["id"], **options)

    def _cdc(self, scd_type: str) -> Any:
        from penstock._model.cdc import CdcSpec, ScdType
        from penstock._model.origin import SourceLocation
        from penstock._tables.layout import TableRef
        from penstock._tables.write.cdc_events import TargetShape, resolve
        from penstock._tables.write.cdc_writer import CdcWriter, split_events
        from penstock._tables.write.prepare import prepare_table
        from penstock._tables.write.table_spec import TableSpec

        name, origin = f"cdc_{scd_type}", SourceLocation("bench/upserts.py", 1)
        options = self._options(name)
        spec = CdcSpec(source="s", keys=("id",), sequence_by="seq", scd_type=ScdType(scd_type))
        empty = self.spark.createDataFrame([], COLUMNS)
        events = resolve(empty, spec, TargetShape.of([spec]), flow=name, origin=origin)
        prepare_table(self.spark, options["target"], TableSpec(schema=events.target_schema()))

        def prepared(df: Any) -> Any:
            return split_events(df, events, [], quarantine=False, origin=origin).df

        self.prepared[f"cdc {scd_type}"] = prepared
        split = split_events(empty, events, [], quarantine=False, origin=origin)
        state = TableRef(f"{self.place}/{name}_state", f"{name}_state")
        return CdcWriter(self.spark, state=state, events=events, split=split, **options)


def timed(tables: Tables, side: str, df: Any, number: int) -> float:
    query = tables.query(side, df)
    started = time.perf_counter()
    tables.write[side](query, number)
    return time.perf_counter() - started


def compare(group: str, tables: Tables, rounds: int, warm_up: int) -> int:
    """Print seconds and ratios; return the number of the last batch."""
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(1, warm_up + rounds + 1):
        df = tables.batch()
        order = list(SIDES)
        tables.random.shuffle(order)
        for side in order:
            spent = timed(tables, side, df, number)
            if number > warm_up:
                times[side].append(spent)
    for side in SIDES[1:]:
        results.compare(group, TITLES[side], times[side], "MERGE", times["merge"])
    return warm_up + rounds


def more_batches(group: str, tables: Tables, last: int, batches: int) -> None:
    times: dict[str, list[float]] = {side: [] for side in SIDES[1:]}
    for number in range(last + 1, last + batches + 1):
        df = tables.batch()
        for side, spent in times.items():
            spent.append(timed(tables, side, df, number))
        if number % 100 == 0:
            shown = ", ".join(f"{s} {statistics.median(t[-50:]):.3f} s" for s, t in times.items())
            print(f"batch {number}: {shown}", flush=True)
    size = min(50, batches // 2)
    for side, spent in times.items():
        first, end = statistics.median(spent[:size]), statistics.median(spent[-size:])
        results.record(
            group,
            f"{TITLES[side]}, {batches:,} more batches",
            f"first {size} {first:.2f} s, last {size} {end:.2f} s, ratio {end / first:.2f}, "
            f"longest {max(spent):.2f} s",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=6, help="rounds that are not measured")
    parser.add_argument("--batches", type=int, default=0)
    parser.add_argument("--s3", action="store_true", help="tables on a server with the API of S3")
    parser.add_argument("--cluster", action="store_true", help="two workers with one core each")
    arguments = parser.parse_args()
    from penstock._spark.call_sites import own_columns

    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-upserts-")))
        place, port = str(root / "tables"), 0
        if arguments.s3:
            from s3_double import S3Double

            os.environ.update(KEYS)
            server = S3Double(root / "moto.log")
            stack.callback(server.stop)
            place, port = "s3a://lake/upserts", server.port
        master = stack.enter_context(small_cluster(root / "cluster")) if arguments.cluster else None
        uri = place if port else root.as_uri()
        spark = make_session("penstock", root, uri, port, master=master)
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        stack.enter_context(own_columns())
        tables = Tables(spark, place, root / "inbox", arguments.rows, arguments.keys)
        group = f"{arguments.keys:,} random keys of {arguments.rows:,} rows{where(arguments)}"
        print(group, flush=True)
        last = compare(group, tables, arguments.rounds, arguments.warm_up)
        tables.check()
        if arguments.batches:
            more_batches(group, tables, last, arguments.batches)


if __name__ == "__main__":
    main()
