"""Whole updates of one pipeline file: `penstock run` v Spark's own `spark-pipelines run`.

Both run the same source file over the same 20,000 JSON rows, in turns, each round in empty folders:
a first update, an update without new data, and a dry run. The script prints the elapsed seconds per
side and the ratio of each round. Spark's engine writes Parquet (its default, the cheaper format),
Penstock writes Delta.

    python bench/update.py [--rounds 3] [--rows 20000] [--tables 3] [--cluster]

Requires the `bench` extra: Spark's engine uses gRPC, also on one machine.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import results
from writer import small_cluster, where

PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F

DATA = "{data}"
SCHEMA = "id BIGINT, product STRING, amount DOUBLE, ts STRING"


@dp.table
def bronze():
    return spark.readStream.schema(SCHEMA).json(DATA)


@dp.table
def silver():
    return spark.readStream.table("bronze").where("amount > 0").withColumn(
        "event_time", F.to_timestamp("ts")
    )


@dp.materialized_view
def gold():
    return spark.read.table("silver").groupBy("product").agg(F.sum("amount").alias("revenue"))


def more(number):
    @dp.table(name=f"silver_{{number:02d}}")
    def table():
        return spark.readStream.table("bronze").where(f"id % 7 = {{number % 7}}")


for number in range({more}):
    more(number)
"""
STEPS = ("first update", "nothing new", "dry run")


def make_data(folder: Path, rows: int) -> None:
    """Write the rows as four files of JSON lines."""
    folder.mkdir(parents=True)
    for part in range(4):
        lines = (
            json.dumps(
                {
                    "id": i,
                    "product": f"p{i % 50}",
                    "amount": (i % 1000) / 10,
                    "ts": f"2026-01-{1 + i % 28:02d}T00:00:00Z",
                }
            )
            for i in range(part, rows, 4)
        )
        (folder / f"part-{part}.json").write_text("\n".join(lines), encoding="utf-8")


def make_project(root: Path, data: Path, tables: int) -> None:
    """Write a project that both tools accept."""
    (root / "transformations").mkdir(parents=True)
    source = PIPELINE.format(data=data.as_uri(), more=tables - 3)
    # Spark injects the session since 4.2; the import works with linters and both engines.
    (root / "transformations" / "tables.py").write_text(
        "from pyspark.sql import SparkSession\n\nspark = SparkSession.active()\n" + source,
        encoding="utf-8",
    )
    (root / "spark-pipeline.yml").write_text(
        f"name: bench\nstorage: {(root / 'storage').as_uri()}\n"
        "libraries:\n  - glob:\n      include: transformations/**\n",
        encoding="utf-8",
    )


def timed(command: list[str], folder: Path, env: dict[str, str]) -> float:
    """Elapsed seconds of a command, which must succeed."""
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited {done.returncode}:\n{done.stdout[-4000:]}")
    return seconds


def commands(side: str, master: str | None) -> tuple[list[str], list[str], list[str]]:
    """The commands for the first update, the update without new data, and the dry run."""
    scripts = Path(sys.executable).parent
    if side == "penstock":
        conf = ["--conf", f"spark.master={master}"] if master else []
        run = [str(scripts / "penstock"), "run", *conf]
        return run, run, [str(scripts / "penstock"), "dry-run"]
    # Spark's engine starts its Connect server with this master, in the API mode "connect".
    conf = ["--remote", master] if master else []
    # A catalog that persists after the process: without it, the second run fails.
    conf += ["--conf", "spark.sql.catalogImplementation=hive"]
    base = [str(scripts / "spark-pipelines")]
    run = [*base, "run", *conf]
    return run, run, [*base, "dry-run", *conf]


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--tables", type=int, default=3, help="at least three")
    parser.add_argument("--cluster", action="store_true", help="two workers with one core each")
    arguments = parser.parse_args()
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "NO_COLOR": "1"}
    if arguments.cluster:
        env |= {"SPARK_API_MODE": "connect", "SPARK_LOCAL_IP": "127.0.0.1"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    seconds: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
        folder = Path(scratch) / "cluster"
        master = stack.enter_context(small_cluster(folder)) if arguments.cluster else None
        make_data(Path(scratch) / "data", arguments.rows)
        for round_number in range(arguments.rounds):
            order = ("spark", "penstock") if round_number % 2 else ("penstock", "spark")
            for side in order:
                root = Path(scratch) / f"{side}-{round_number}"
                make_project(root, Path(scratch) / "data", arguments.tables)
                for step, command in zip(STEPS, commands(side, master), strict=True):
                    took = timed(command, root, env)
                    seconds.setdefault((side, step), []).append(took)
                    print(
                        f"round {round_number + 1} {side:9s} {step:13s} {took:6.1f} s", flush=True
                    )
    group = f"whole updates, {arguments.rows:,} rows, {arguments.tables} tables{where(arguments)}"
    for step in STEPS:
        ours, theirs = seconds["penstock", step], seconds["spark", step]
        results.compare(group, step, ours, "`spark-pipelines run`", theirs)


if __name__ == "__main__":
    main()
