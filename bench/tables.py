"""Progress and age of rows of many continuous tables on few cores.

One bronze table reads a topic of the embedded Kafka broker, and all others filter it. Each message
contains the time at which it was due to be sent. The logs and files of all tables are read after
the update has ended: nothing is measured while the pipeline runs.

- `since data`: longest time in seconds that a table had new rows upstream and made no commit,
- `age`: seconds from the due time of a row to its commit, mean and 99th percentile per table, and
  mean of all tables.

The figures are printed for the whole run, including the first batches, and for the time after
`--warm-up`.

    python bench/tables.py [--tables 50] [--rate 50] [--seconds 180] [--warm-up 120]
                           [--cluster]
"""

import argparse
import itertools
import os
import statistics
from collections import defaultdict

import results
from continuous import Commit, Measured, add_options, folder, measure
from writer import percentile, where

PARTS = 7
"""Every table takes the messages of one of so many parts."""
PIPELINE = """
import penstock as dp
from pyspark.sql import functions as F


@dp.table
def bronze():
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "{servers}")
    rows = reader.option("subscribe", "{topic}").option("startingOffsets", "earliest").load()
    fields = F.from_json(F.col("value").cast("string"), "id BIGINT, due DOUBLE, amount DOUBLE")
    return rows.select(fields.alias("row")).select("row.*")


def silver(number):
    @dp.table(name=f"silver_{number:02d}")
    def table():
        return spark.readStream.table("bronze").where(f"id % 7 = {number % 7}")


for number in range({silver}):
    silver(number)
"""


def row(number: int) -> dict[str, float]:
    """A message."""
    return {"id": number, "amount": number % 1000 / 10}


def waits(commits: list[Commit], available: float, until: float) -> list[tuple[float, float]]:
    """End and duration of each time without a commit.

    Args:
        commits: Commits of one table, which always had unread rows.
        available: Timestamp at which the first of these rows could be read.
        until: End of the measurement.
    """
    times = [available, *(c.at for c in commits if available < c.at < until), until]
    return [(after, after - before) for before, after in itertools.pairwise(times)]


def report(
    group: str,
    title: str,
    tables: dict[str, list[Commit]],
    since: float,
    until: float,
    spent: float,
) -> None:
    """Print the figures of the time from `since` to `until`."""
    bronze = tables["bronze"]
    if not bronze:
        raise SystemExit("bronze has no rows")
    longest: dict[str, float] = {}
    ages: dict[str, float] = {}
    oldest: dict[str, float] = {}
    batches: dict[str, int] = {}
    for name, commits in tables.items():
        first = min(bronze[0].due) if name == "bronze" else bronze[0].at
        ended = [wait for end, wait in waits(commits, first, until) if end > since]
        longest[name] = max(ended)
        mine = [c for c in commits if since < c.at <= until]
        batches[name] = len(mine)
        if rows := [c.at - due for c in mine for due in c.due]:
            ages[name] = statistics.fmean(rows)
            oldest[name] = percentile(rows, 0.99)
    worst = max(longest, key=lambda name: longest[name])
    total = sum(batches.values())
    silver = [age for name, age in ages.items() if name != "bronze"]
    print(
        f"{title}: {until - since:.0f} s, {total} batches, {spent / max(1, total):.3f} CPU-s each"
    )
    print(
        f"    batches per table: {min(batches.values())} to {max(batches.values())}, "
        f"bronze {batches['bronze']}; without one: {len(tables) - len(ages)}"
    )
    print(f"    longest time without a commit since data: {longest[worst]:.1f} s ({worst})")
    if silver:
        results.record(
            group,
            f"age of rows, {title}",
            f"mean of all tables {statistics.fmean(ages.values()):.2f} s, first table "
            f"{ages.get('bronze', 0):.2f} s, others {min(silver):.2f} to {max(silver):.2f} s; 99th "
            f"percentile at most {max(oldest.values()):.2f} s; longest time without a commit "
            f"{longest[worst]:.1f} s",
        )


def check_rows(tables: dict[str, list[Commit]]) -> None:
    """Check that each table has its rows of bronze up to some point, without duplicates."""
    bronze = sorted(number for commit in tables["bronze"] for number in commit.ids)
    if bronze != list(range(len(bronze))):
        missing = sorted(set(range(bronze[-1])) - set(bronze))
        duplicates = sorted({a for a, b in itertools.pairwise(bronze) if a == b})
        raise SystemExit(
            f"bronze does not hold every message once: {len(missing)} of {len(bronze)} are missing "
            f"{missing[:20]}, and {len(duplicates)} are duplicates {duplicates[:20]}"
        )
    for name, commits in tables.items():
        if name != "bronze":
            ids = sorted(number for commit in commits for number in commit.ids)
            part = int(name.rpartition("_")[2]) % PARTS
            if ids != list(range(part, part + PARTS * len(ids), PARTS)):
                raise SystemExit(f"{name} does not hold every row once")


def report_phases(measured: Measured) -> None:
    """Print the durations of the phases of a batch, as Spark reports them."""
    spent: dict[str, list[float]] = defaultdict(list)
    for progress in measured.progress():
        for phase, milliseconds in progress["durationMs"].items():
            spent[phase].append(milliseconds)
    shown = [f"{phase} {statistics.median(times):.0f}" for phase, times in sorted(spent.items())]
    print(f"    milliseconds of a batch, medians: {', '.join(shown)}")


def main() -> None:
    """Run the pipeline, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=50)
    add_options(parser, rate=50)
    options = parser.parse_args()
    with folder(options) as root:
        pipeline = PIPELINE.replace("{silver}", str(options.tables - 1))
        measured = measure(root, options, pipeline, options.tables, row)
        tables, until = measured.commits(), measured.until
        check_rows(tables)
        group = (
            f"{options.tables} tables, {options.rate:g} rows per second from Kafka{where(options)}"
        )
        print(
            f"\n{group}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()}; "
            f"stopped in {measured.stop_seconds:.1f} s"
        )
        first, then = measured.spent
        whole = sum(first.values()) + sum(then.values())
        report(group, "from the first message on", tables, measured.began, until, whole)
        report(group, "after the warm-up", tables, measured.since, until, sum(then.values()))
        seconds = until - measured.since
        shares = ", ".join(f"{name} {value / seconds:.0%}" for name, value in then.items())
        print(f"    of a core: {shares}")
        report_phases(measured)


if __name__ == "__main__":
    main()
