"""Many continuous tables on few cores: does every one make progress, and how old are its rows?

One bronze table reads a topic of the embedded Kafka broker, all others filter it. Every message
carries the time at which it was due to be sent; a row is as old as that when its commit is written.
After the end the logs and files of all tables are read: nothing is measured while it runs.

- `since data`: seconds that a table had new rows upstream and made no commit, the longest,
- `age`: seconds from the due time of a row to its commit, mean per table, and of all tables.

Printed for the whole run, first batches included, and for the time after `--warm-up`.

    python bench/tables.py [--tables 50] [--rate 50] [--seconds 180] [--warm-up 60]
"""

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

TOPIC = "rows"
PARTS = 7
"""Every table takes the messages of one of so many parts."""
SETTINGS = "name: tables\nstorage: {storage}\nmaster: local[{cores}]\n"
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
    @dp.table(name=f"silver_{{number:02d}}")
    def table():
        return spark.readStream.table("bronze").where(f"id % {parts} = {{number % {parts}}}")


for number in range({silver}):
    silver(number)
"""


class Sender:
    """Sends messages at a fixed rate, on a thread of its own."""

    def __init__(self, servers: str, rate: float) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
        self._rate = rate
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        began, number = time.time(), 0
        while not self._ended.is_set():
            due = began + number / self._rate
            self._ended.wait(max(0.0, due - time.time()))
            row = {"id": number, "due": due, "amount": number % 1000 / 10}
            self._producer.produce(TOPIC, json.dumps(row).encode())
            self._producer.poll(0)
            number += 1

    def end(self) -> None:
        """Stop sending."""
        self._ended.set()
        self._thread.join()
        self._producer.flush(10)


@dataclass(frozen=True)
class Commit:
    """A commit that added rows.

    Attributes:
        at: When it was written.
        due: When each of its rows was due to be sent.
        ids: Their numbers.
    """

    at: float
    due: list[float]
    ids: list[int]


def read_commits(table: Path) -> list[Commit]:
    """The commits of a table, oldest first."""
    commits = []
    for log in sorted((table / "_delta_log").glob("*.json")):
        due, ids = [], []
        for line in log.read_text(encoding="utf-8").splitlines():
            file = json.loads(line).get("add")
            if file and file["dataChange"]:  # else compacted
                rows = pq.ParquetFile(table / unquote(file["path"])).read(columns=["id", "due"])
                ids += rows.column("id").to_pylist()
                due += rows.column("due").to_pylist()
        if ids:
            commits.append(Commit(log.stat().st_mtime, due, ids))
    return commits


def waits(commits: list[Commit], available: float, until: float) -> list[tuple[float, float]]:
    """When each time without a commit ended, and how long it was.

    Args:
        commits: Of one table; there were rows for it all the time.
        available: When the first of them could be read.
        until: End of the measurement.
    """
    times = [available, *(c.at for c in commits if available < c.at < until), until]
    return [(after, after - before) for before, after in itertools.pairwise(times)]


def cpu_seconds(pid: int) -> dict[str, float]:
    """CPU time of a process and of its Java process."""
    found = {"driver": 0.0, "java": 0.0}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            head, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if int(place.name) == pid:
            found["driver"] = spent
        elif head == "java" and int(fields[1]) == pid:
            found["java"] = spent
    return found


def report(
    title: str, tables: dict[str, list[Commit]], since: float, until: float, spent: float
) -> None:
    """Print the figures of the time from `since` to `until`."""
    bronze = tables["bronze"]
    if not bronze:
        raise SystemExit("bronze has no rows")
    longest: dict[str, float] = {}
    ages: dict[str, float] = {}
    batches: dict[str, int] = {}
    for name, commits in tables.items():
        first = min(bronze[0].due) if name == "bronze" else bronze[0].at
        ended = [wait for end, wait in waits(commits, first, until) if end > since]
        longest[name] = max(ended)
        mine = [c for c in commits if since < c.at <= until]
        batches[name] = len(mine)
        if rows := [c.at - due for c in mine for due in c.due]:
            ages[name] = statistics.fmean(rows)
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
        print(
            f"    age of rows: mean of all tables {statistics.fmean(ages.values()):.2f} s, bronze "
            f"{ages.get('bronze', 0):.2f} s, others {min(silver):.2f} to {max(silver):.2f} s",
            flush=True,
        )


def report_phases(events: Path, since: float, until: float) -> None:
    """Print where the time of a batch goes, as Spark reports it."""
    spent: dict[str, list[float]] = defaultdict(list)
    for log in events.glob("**/*.jsonl"):
        for line in log.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event_type"] != "stream_progress":
                continue
            progress = event["details"]["stream_progress"]["progress_json"]
            if since < datetime.fromisoformat(progress["timestamp"]).timestamp() < until:
                for phase, milliseconds in progress["durationMs"].items():
                    spent[phase].append(milliseconds)
    shown = [f"{phase} {statistics.median(times):.0f}" for phase, times in sorted(spent.items())]
    print(f"    milliseconds of a batch, medians: {', '.join(shown)}")


def check_rows(tables: dict[str, list[Commit]]) -> None:
    """Every table has the rows of bronze that are its own, none twice, up to some point."""
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


def run(root: Path, options: argparse.Namespace) -> None:
    """Start broker, sender and pipeline; stop the pipeline; read the tables."""
    from penstock._local.broker import ensure_topic, start_broker, stop_broker

    broker = start_broker(root / "broker")
    try:
        ensure_topic(broker.bootstrap_servers, TOPIC)
        project = root / "project"
        project.mkdir()
        storage = root / "storage"
        (project / "pipeline.yaml").write_text(
            SETTINGS.format(storage=storage.as_uri(), cores=options.cores), encoding="utf-8"
        )
        source = PIPELINE.format(
            servers=broker.bootstrap_servers, topic=TOPIC, parts=PARTS, silver=options.tables - 1
        )
        (project / "pipeline.py").write_text(source, encoding="utf-8")
        command = [str(Path(sys.executable).with_name("penstock")), "run", "--continuous"]
        with (root / "output.log").open("w+") as output:
            update = subprocess.Popen(
                command,
                cwd=project,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "NO_COLOR": "1"},
            )
            sender = None
            try:
                await_tables(update, storage, options.tables, output)
                sender, began = Sender(broker.bootstrap_servers, options.rate), time.time()
                before = cpu_seconds(update.pid)
                wait_for_end(update, options.warm_up, output)
                middle, at_middle = cpu_seconds(update.pid), time.time()
                wait_for_end(update, options.seconds, output)
                after, until = cpu_seconds(update.pid), time.time()
            finally:
                if sender is not None:
                    sender.end()
                stopping = time.time()
                update.send_signal(signal.SIGTERM)
                try:
                    update.wait(120)
                finally:
                    update.kill()
            if update.returncode not in (0, 130, 143):
                raise SystemExit(f"exit code {update.returncode}:\n{tail(output)}")
        stop_seconds = time.time() - stopping
    finally:
        stop_broker(root / "broker")
    tables = {
        folder.parent.name: read_commits(folder.parent) for folder in storage.glob("**/_delta_log")
    }
    if len(tables) != options.tables:
        raise SystemExit(f"{len(tables)} tables: {sorted(tables)}")
    check_rows(tables)
    print(
        f"\n{options.tables} tables, {options.rate:g} rows per second, {options.cores} cores; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()}; stopped in {stop_seconds:.1f} s"
    )
    spent = {name: after[name] - middle[name] for name in after}
    whole = sum(after.values()) - sum(before.values())
    report("from the first message on", tables, began, until, whole)
    report("after the warm-up", tables, at_middle, until, sum(spent.values()))
    seconds = until - at_middle
    shares = ", ".join(f"{name} {value / seconds:.0%}" for name, value in spent.items())
    print(f"    of a core: {shares}")
    report_phases(storage / "events", at_middle, until)


def await_tables(update: "subprocess.Popen[Any]", storage: Path, count: int, output: Any) -> None:
    """Return when all tables are there and bronze has started."""
    deadline = time.monotonic() + 240
    pause = threading.Event()
    while len(list(storage.glob("**/_delta_log"))) < count or not list(
        storage.glob("checkpoints/**/metadata")
    ):
        if update.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the tables were not made:\n{tail(output)}")
        pause.wait(0.2)


def wait_for_end(update: "subprocess.Popen[Any]", seconds: float, output: Any) -> None:
    """Let the update run for some time."""
    try:
        code = update.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise SystemExit(f"the update ended with {code}:\n{tail(output)}")


def tail(output: Any) -> str:
    """The end of what the pipeline printed."""
    output.seek(0)
    return str(output.read()[-4000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--rate", type=float, default=50, help="rows per second")
    parser.add_argument("--seconds", type=float, default=180, help="after the warm-up")
    parser.add_argument("--warm-up", type=float, default=60, help="from the first message on")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="keep tables and logs in this folder")
    options = parser.parse_args()
    root = options.keep or Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    root.mkdir(exist_ok=True)
    try:
        run(root.resolve(), options)
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
