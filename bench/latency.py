"""Age of rows from Kafka in Delta tables, and duration of the batches of a windowed aggregate.

The first pipeline is one table with an expectation and a quarantine. The second computes windows of
ten seconds over a hundred keys, in update mode. Both get 500 messages per second.

    python bench/latency.py [--rate 500] [--seconds 180] [--warm-up 120]
"""

import argparse
import statistics
from pathlib import Path

import results
from continuous import add_options, folder, measure
from writer import where

KEYS = 100
READ = """
import penstock as dp
from pyspark.sql import functions as F


def rows():
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "{servers}")
    read = reader.option("subscribe", "{topic}").option("startingOffsets", "earliest").load()
    fields = F.from_json(
        F.col("value").cast("string"), "id BIGINT, key INT, due DOUBLE, amount DOUBLE"
    )
    return read.select(fields.alias("row")).select("row.*")

"""
QUARANTINE = (
    READ
    + """
@dp.table(quarantine=True)
@dp.expect_or_drop("positive", "amount > 0")
def orders():
    return rows()
"""
)
WINDOWS = (
    READ
    + """
@dp.table(output_mode="update")
def totals():
    at = F.timestamp_seconds("due")
    grouped = rows().withColumn("at", at).withWatermark("at", "10 seconds").groupBy(
        F.window("at", "10 seconds"), "key"
    )
    total = grouped.agg(F.sum("amount").alias("amount"))
    return total.select("window", "key", "amount")
"""
)


def message(number: int) -> dict[str, float]:
    """A row; every tenth violates the rule."""
    return {"id": number, "key": number % KEYS, "amount": number % 10}


def record(options: argparse.Namespace, name: str, seconds: list[float]) -> None:
    """Print the mean, the median, the 99th percentile and the longest of these times."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    group = f"{options.rate:g} messages per second from Kafka for {options.seconds:g} s"
    results.record(
        group + where(options),
        name,
        f"mean {statistics.fmean(seconds):.2f} s, median {cuts[49]:.2f} s, "
        f"99th percentile {cuts[98]:.2f} s, longest {max(seconds):.2f} s",
    )


def age_of_rows(root: Path, options: argparse.Namespace) -> None:
    """Times from the due time of a message to the commit of its row."""
    measured = measure(root, options, QUARANTINE, 2, message)
    tables = measured.commits()
    ids = sorted(i for commits in tables.values() for c in commits for i in c.ids)
    if ids != list(range(len(ids))):
        raise SystemExit("table and quarantine do not hold every message once")
    for name, commits in sorted(tables.items()):
        within = [c for c in commits if measured.since < c.at < measured.until]
        ages = [c.at - due for c in within for due in c.due]
        record(options, f"age of rows in {name}", ages)


def time_of_windows(root: Path, options: argparse.Namespace) -> None:
    """Times of the batches that merge windows into a table."""
    measured = measure(root, options, WINDOWS, 1, message)
    times = [
        report["durationMs"]["triggerExecution"] / 1000
        for report in measured.progress()
        if report["numInputRows"]
    ]
    record(options, "a batch of windows in update mode", times)


def main() -> None:
    """Run both pipelines, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, rate=500)
    parser.add_argument("--only", choices=["age", "windows"])
    options = parser.parse_args()
    for name, run in (("age", age_of_rows), ("windows", time_of_windows)):
        if options.only in (None, name):
            with folder(options) as root:
                run(root, options)


if __name__ == "__main__":
    main()
