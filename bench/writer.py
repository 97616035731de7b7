"""The writer: small batches v Spark's own Delta sink, and the cost of rules and quarantine.

Three processes run blocks of batches in turns, so that a slower machine affects all of them:

- `penstock`: Penstock's writer in Penstock's session,
- `native tuned`: Spark's Delta sink in Penstock's session,
- `native`: Spark's Delta sink in a default session of `SparkSession.builder`.

A batch is one file of 1,000 rows of a stream; its time is Spark's own `triggerExecution`. The first
batch of each block, which starts the query, and the warm-up blocks are not measured. Then rows of
twelve columns, about 300 bytes each, are written with 20 rules and quarantine, and without rules,
in turns in one process.

With `--s3`, tables and checkpoints are on a local server with the API of S3 (moto, as in the
tests), and the writes with and without rules run in turns on the disk and on that server.

    python bench/writer.py [--blocks 6] [--rounds 9] [--warm-up 2] [--rows 200000] [--s3]
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import results

DOUBLES = Path(__file__).resolve().parents[1] / "tests" / "s3"
sys.path.append(str(DOUBLES))
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "not-a-secret-at-all"}

BATCHES = 7
BATCH_ROWS = 1_000
RULES = 20
SIDES = ("penstock", "native tuned", "native")
RIVALS = ("Delta sink in Penstock's session", "Delta sink in a default session")
PLACES = {"disk": "disk", "s3": "a local S3 server"}
COLUMNS = (
    "id",
    "id % 97 AS customer",
    "concat('product-', id % 50) AS product",
    "CAST((id * 7919) % 10000 AS DOUBLE) / 100 AS amount",
    "id % 7 AS quantity",
    "timestamp_seconds(1767225600 + id) AS ordered_at",
    "sha2(CAST(id AS STRING), 256) AS session",
    "concat('street ', (id * 31) % 9973, ', ', (id * 17) % 89989, ' town ', id % 311) AS address",
    "concat('customer.', (id * 104729) % 1000003, '@example.com') AS email",
    "CASE WHEN id % 11 = 0 THEN NULL ELSE md5(CAST(id * 3 AS STRING)) END AS voucher",
    "array('web', 'phone', 'shop')[CAST(id % 3 AS INT)] AS channel",
    "repeat(chr(CAST(97 + id % 26 AS INT)), CAST(id % 60 AS INT)) AS note",
)


# -- one process per side -----------------------------------------------------------------------


def make_session(side: str, root: Path, place: str, port: int, *, master: str | None = None) -> Any:
    """Penstock's session, or a session as in Delta's quickstart."""
    from penstock._local.jars import SPARK_JAR_SETS, class_path

    conf: dict[str, Any] = {}
    sets: tuple[str, ...] = SPARK_JAR_SETS
    if port:
        from s3_double import settings_of

        conf, sets = settings_of(port), (*sets, "s3")
    jars = [str(jar) for jar in class_path(sets)]
    if side != "native":
        from penstock._spark.session import SessionOptions, build_session

        return build_session(
            SessionOptions(
                app_name="bench",
                storage_root=place,
                master=master,
                configuration=conf,
                jars=tuple(jars),
                log_file=str(root / f"{side}.log"),
            )
        )
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[*]")
        .config(map=conf)
        .config("spark.driver.extraClassPath", ":".join(jars))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.warehouse.dir", str(root / "warehouse"))
        .getOrCreate()
    )


def where(arguments: argparse.Namespace) -> str:
    """Part of the names of measurements: whether a cluster or a server is used."""
    cluster = " on a standalone cluster of two workers" if arguments.cluster else ""
    return f"{cluster} on a local S3 server" if getattr(arguments, "s3", False) else cluster


@contextlib.contextmanager
def small_cluster(folder: Path) -> Iterator[str]:
    """The URL of the master of a standalone cluster with two workers of one core each."""
    from penstock._local.cluster import start_cluster, stop_cluster

    try:
        yield start_cluster(folder, workers=2, cores=1, memory="1g").master
    finally:
        stop_cluster(folder)


class Side:
    """A streaming query that is restarted for each block."""

    def __init__(self, side: str, root: Path, port: int) -> None:
        self.side = side
        self.root = root
        self.places = {"disk": root.as_uri()}
        if port:
            self.places["s3"] = f"s3a://lake/{root.name}"
        self.place = list(self.places.values())[-1]
        self.spark = make_session(side, root, self.place, port)
        self.spark.sparkContext.setLogLevel("ERROR")
        self.inbox = root / "inbox"
        self.inbox.mkdir()
        self.table = f"{self.place}/table"
        self.block_number = 0
        self._writer: Any = None

    def block(self) -> list[float]:
        """Seconds of the batches of one block."""
        for number in range(BATCHES):
            first = (self.block_number * BATCHES + number) * BATCH_ROWS
            lines = (
                json.dumps({"id": i, "product": f"p{i % 50}", "amount": i % 1000 / 10})
                for i in range(first, first + BATCH_ROWS)
            )
            name = f"{self.block_number:05d}-{number:03d}.json"
            (self.root / name).write_text("\n".join(lines), encoding="utf-8")
            (self.root / name).rename(self.inbox / name)
        self.block_number += 1
        rows = (
            self.spark.readStream.schema("id BIGINT, product STRING, amount DOUBLE")
            .option("maxFilesPerTrigger", 1)
            .json(str(self.inbox))
        )
        stream = rows.writeStream.option("checkpointLocation", f"{self.place}/checkpoint")
        stream = stream.trigger(availableNow=True)
        if self.side == "penstock":
            query = stream.foreachBatch(self._write(rows)).start()
        else:
            query = stream.format("delta").start(self.table)
        query.awaitTermination()
        done = [p for p in query.recentProgress if p["numInputRows"] == BATCH_ROWS]
        assert len(done) == BATCHES, f"{len(done)} batches"
        return [p["durationMs"]["triggerExecution"] / 1000 for p in done[1:]]

    def _write(self, rows: Any) -> Any:
        from penstock._tables.layout import TableRef
        from penstock._tables.write.prepare import prepare_table
        from penstock._tables.write.table_spec import TableSpec
        from penstock._tables.write.writer import FlowWriter

        if self._writer is None:
            target = TableRef(self.table, "bench")
            prepare_table(self.spark, target, TableSpec(schema=rows.schema))
            self._writer = FlowWriter(
                self.spark, flow="bench", app_id="bench/bench/writer/1", target=target
            )
        return self._writer.write

    def rules(self, warm_up: int, rounds: int, count: int) -> dict[str, list[float]]:
        """Seconds of writes of `count` rows with and without rules, in turns."""
        from penstock._model.expectation import Expectation, OnViolation
        from penstock._model.origin import SourceLocation
        from penstock._tables.files import StorageFiles
        from penstock._tables.layout import TableRef
        from penstock._tables.write.decision import DecisionFile
        from penstock._tables.write.prepare import prepare_quarantine, prepare_table
        from penstock._tables.write.table_spec import TableSpec
        from penstock._tables.write.writer import FlowWriter
        from penstock.quality.split import split_rows

        data = str(self.root / "rows")
        made = self.spark.range(count).selectExpr(*COLUMNS)
        made.repartition(2).write.format("parquet").save(data)
        df = self.spark.read.parquet(data)
        bounds = [
            f"amount >= {n / 10}" if n % 2 else f"quantity + customer < {120 - n}"
            for n in range(RULES)
        ]
        rules = [
            Expectation(
                name=f"rule_{n}",
                condition=text,
                on_violation=OnViolation.DROP,
                origin=SourceLocation("bench/writer.py", 1),
            )
            for n, text in enumerate(bounds)
        ]
        kinds = [(place, kind) for place in self.places for kind in ("rules", "plain")]
        seconds: dict[str, list[float]] = {f"{place} {kind}": [] for place, kind in kinds}
        writers = {}
        for place, kind in kinds:
            name, folder = f"{place} {kind}", self.places[place]
            target = TableRef(f"{folder}/{kind}", kind)
            state = prepare_table(self.spark, target, TableSpec(schema=df.schema))
            if kind == "plain":
                writers[name] = (
                    FlowWriter(self.spark, flow=name, app_id=f"bench/{name}", target=target),
                    df,
                )
                continue
            quarantine = TableRef(f"{folder}/{kind}_quarantine", f"{kind}_quarantine")
            prepare_quarantine(self.spark, quarantine, state)
            split = split_rows(df, rules, quarantine=True)
            assert split is not None
            writer = FlowWriter(
                self.spark,
                flow=name,
                app_id=f"bench/{name}",
                target=target,
                split=split,
                quarantine=quarantine,
                decisions=DecisionFile(StorageFiles(self.spark), f"{folder}/decision.json"),
            )
            writers[name] = (writer, split.df)
        for turn in range(warm_up + rounds):
            for name, (writer, rows) in writers.items():
                started = time.perf_counter()
                result = writer.write(rows, turn)
                if turn >= warm_up:
                    seconds[name].append(time.perf_counter() - started)
                assert result.rows_written + result.rows_quarantined == count
                assert (result.rows_quarantined > 0) == name.endswith("rules")
        return seconds


def work(side: str, root: Path, port: int) -> None:
    """Run commands from standard input, and print the results to standard output."""
    worker = Side(side, root, port)
    for line in sys.stdin:
        command, *numbers = line.split()
        answer = worker.block() if command == "block" else worker.rules(*map(int, numbers))
        print(json.dumps(answer), flush=True)


# -- the comparison -----------------------------------------------------------------------------


class Process:
    """The process of one side, which waits for commands."""

    def __init__(self, side: str, root: Path, port: int) -> None:
        root.mkdir()
        self._log = (root / "stderr.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", side, "--root", root, "--port", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **KEYS, "PYSPARK_PYTHON": sys.executable},
        )

    def ask(self, command: str) -> Any:
        """Run a command and return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(command, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"a side ended:\n{self._log.read()[-4000:]}")
        return json.loads(line)

    def end(self) -> None:
        """End the process, and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._log.close()


def percentile(values: list[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def compare_batches(processes: dict[str, Process], blocks: int, warm_up: int, place: str) -> None:
    """Run the blocks in turns and print the comparisons."""
    times: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for number in range(warm_up + blocks):
        order = SIDES if number % 2 else SIDES[::-1]
        for side in order:
            block = processes[side].ask("block")
            if number >= warm_up:
                times[side].append(block)
                print(f"block {number} {side:14s} {statistics.median(block):.3f} s", flush=True)
    print(f"\nwarm batches, {blocks} blocks of {BATCHES - 1}")
    for side in SIDES:
        every = [value for block in times[side] for value in block]
        print(
            f"{side}: median {statistics.median(every):.3f} s, p99 {percentile(every, 0.99):.3f} s"
        )
    medians = {side: [statistics.median(block) for block in times[side]] for side in SIDES}
    for side, rival in zip(SIDES[1:], RIVALS, strict=True):
        group = f"batch of {BATCH_ROWS:,} rows, tables on {place}"
        results.compare(group, "append", medians["penstock"], rival, medians[side])


def compare_rules(process: Process, warm_up: int, rounds: int, count: int) -> None:
    """Print the cost of rules."""
    seconds = process.ask(f"rules {warm_up} {rounds} {count}")
    for place in dict.fromkeys(name.split()[0] for name in seconds):
        rules, plain = seconds[f"{place} rules"], seconds[f"{place} plain"]
        group = f"{count:,} rows of 300 bytes, tables on {PLACES[place]}"
        name = f"{RULES} rules and quarantine"
        results.compare(group, name, rules, "without rules", plain)


def main() -> None:
    """Run both comparisons, or one side of the first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warm-up", type=int, default=2, help="blocks that are not measured")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a write with rules")
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.root, arguments.port)
        return
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        port = 0
        if arguments.s3:
            from s3_double import S3Double

            server = S3Double(scratch / "moto.log")
            stack.callback(server.stop)
            port = server.port
        roots = {side: scratch / side.replace(" ", "-") for side in SIDES}
        processes = {side: Process(side, root, port) for side, root in roots.items()}
        try:
            place = PLACES["s3" if arguments.s3 else "disk"]
            compare_batches(processes, arguments.blocks, arguments.warm_up, place)
            for side in SIDES[1:]:
                processes.pop(side).end()
            warm_up = arguments.warm_up + 1  # writes instead of blocks
            compare_rules(processes["penstock"], warm_up, arguments.rounds, arguments.rows)
        finally:
            for process in processes.values():
                process.end()


if __name__ == "__main__":
    main()
