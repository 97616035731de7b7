"""Kill the demo and an auto CDC flow with SIGKILL at random times; then compare every row.

A sitting starts in an empty folder and ends with a comparison with the Kafka log. Its result is one
line of a file, so that 500 kills can be spread over several sittings; `--table` writes the content
of the file into docs/reliability.md.

    export PYTHONPATH=tests/spark:tests/s3
    python tests/chaos/sitting.py --kills 25 [--seed 7] [--record FILE] [--without DEFENCE]
    python tests/chaos/sitting.py --kills 35 --cluster [--s3]
    python tests/chaos/sitting.py --table

`--without decision` or `--without fence` switches a defence off and kills at a point where it is
needed: such a sitting must detect wrong rows, and fails if it does not. `--cluster` runs the
pipeline on a standalone cluster of two workers, and kills executors and the driver. `--s3` puts
tables, checkpoints, state and events on S3, where 2 % of the requests fail.
"""

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from demo_oracle import Record, differences, judge, read_records, read_tables
from pipeline_process import children
from s3_storage import S3Storage

from penstock._local.broker import broker_status, ensure_topic, start_broker, stop_broker
from penstock._local.cluster import cluster_status, start_cluster, stop_cluster
from penstock._local.demo.account import take_account
from penstock._local.demo.folders import PARTITIONS, TOPIC, DemoFolders
from penstock._local.demo.kafka_log import read_ranges
from penstock._local.demo.orders import OrderStream
from penstock._local.demo.producer import OrderProducer
from penstock._local.demo.tables import opened, read_rows

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("sittings.jsonl")
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- sittings -->", "<!-- end of sittings -->"
KINDS = {"group": 4, "jvm": 2, "python": 2, "broker": 2}
"""What is killed, and how often in ten: the process group, one of its two processes, or Kafka."""
KINDS_ON_CLUSTER = {"executor": 6, "driver": 1}
RATE = 100.0
SECONDS = 240.0
LEFT_OVER_SECONDS = 30.0
CONTROLS = {
    "decision": ("after_quarantine_commit", "coins"),
    "fence": ("after_target_commit", "orders_bronze"),
}
"""Defence to the point at which a kill needs it, and a flow that comes there."""

PIPELINE = '''

# -- beside the demo: auto CDC, and a table whose rule every process has in another way ---------

from pathlib import Path

for kind in (1, 2):
    dp.create_streaming_table(f"customers_{kind}")
    dp.create_auto_cdc_flow(
        target=f"customers_{kind}",
        source="customer_changes",
        keys=["customer_id"],
        sequence_by=F.struct("timestamp", "partition", "offset"),
        stored_as_scd_type=kind,
    )


@dp.temporary_view
def customer_changes() -> DataFrame:
    """Every message that names a customer is a change of this customer."""
    text = F.make_valid_utf8(F.col("value").cast("string"))
    return (
        spark.readStream.table("orders_bronze")
        .withColumn("order", F.from_json(text, ORDER))
        .where("order.customer_id IS NOT NULL")
        .select("order.customer_id", "timestamp", "partition", "offset")
    )


@dp.table
@dp.expect_or_drop("coin", f"pmod(offset, 5) <> {len([*Path().glob('run-*.log')]) % 5}")
def coins() -> DataFrame:
    """A batch that is judged twice is judged in two ways."""
    return spark.readStream.table("orders_bronze").select("partition", "offset")
'''


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition became true in time."""
    pause, deadline = threading.Event(), time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.05)
    return True


def session_members(session: int) -> dict[int, str]:
    """Running processes of a session, with their names."""
    members = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if int(fields[3]) == session and fields[0] != "Z":
            members[int(place.name)] = name
    return members


class Pipeline:
    """`penstock run` in a separate session."""

    def __init__(self, root: Path, *arguments: str, **environment: str) -> None:
        self._log = root / f"run-{time.time_ns()}.log"
        self.started = time.time()
        self.killed_java = 0
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=root,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def java(self) -> int:
        """The process id of Spark's JVM."""
        pids: list[int] = []

        def is_there() -> bool:
            pids[:] = [p for p, name in session_members(self.process.pid).items() if "java" in name]
            return bool(pids)

        if not wait_until(is_there, 30):
            raise SystemExit(f"no Java process:\n{self.output}")
        return pids[0]

    def has_recovered(self) -> bool:
        """Whether the process has restarted Spark by itself."""
        members = session_members(self.process.pid)
        java = {pid for pid, name in members.items() if "java" in name}
        return bool(self.killed_java and self.process.poll() is None and java - {self.killed_java})

    def is_gone(self) -> bool:
        return self.process.poll() is not None and not session_members(self.process.pid)

    def end(self) -> None:
        """Kill all remaining processes of the session."""
        for pid in session_members(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)


@dataclass
class Sitting:
    """The kills and the result of a sitting: one line of the record."""

    seed: int
    without: str
    began: str
    kills: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    cluster: bool = False
    s3: bool = False
    left_over: int = 0
    messages: int = 0
    rows_lost: int = 0
    rows_duplicated: int = 0
    other_differences: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (
            self.left_over or self.rows_lost or self.rows_duplicated or self.other_differences
        )


class Chaos:
    """One sitting in one folder."""

    def __init__(self, root: Path, seed: int, without: str, *, cluster: bool, s3: bool) -> None:
        began = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        self.result = Sitting(seed, without, began, cluster=cluster, s3=s3)
        self.kinds = KINDS_ON_CLUSTER if cluster else KINDS
        self.dice = random.Random(seed)
        self.root, self.without = root, without
        self.environment = {"PENSTOCK_TEST_WITHOUT": without} if without else {}
        self.places = DemoFolders(root)
        self.pipeline: Pipeline | None = None
        self.s3 = S3Storage(root) if s3 else None
        if self.s3 is not None:
            self.environment |= self.s3.environment

    # -- kills ---------------------------------------------------------------------------------

    def run(self, kills: int) -> Sitting:
        """Kill this many times, process all remaining rows, and compare."""
        broker = start_broker(self.places.broker, properties={"log.retention.ms": "-1"})
        try:
            if self.result.cluster:
                self.environment["PENSTOCK_MASTER"] = start_cluster(self.places.cluster).master
            ensure_topic(broker.bootstrap_servers, TOPIC, PARTITIONS)
            self.places.write_project(broker.bootstrap_servers)
            with (self.root / "pipeline.py").open("a", encoding="utf-8") as source:
                source.write(PIPELINE)
            stream = OrderStream(run_id=f"chaos-{self.result.seed}", rate=RATE, seed=0)
            sender = OrderProducer(broker.bootstrap_servers, TOPIC, stream, total=None)
            sender.start()
            try:
                for number in range(kills):
                    self.kill(number)
            finally:
                sender.request_stop()
                if self.pipeline is not None:
                    self.pipeline.end()
            sender.join(60)
            self.drain()
            if self.s3 is not None:
                self.s3.copy_to(self.root)
            self.compare(broker.bootstrap_servers)
        finally:
            stop_cluster(self.places.cluster)
            stop_broker(self.places.broker)
            if self.s3 is not None:
                print(f"requests: {dict(self.s3.proxy.counts)}")
                self.s3.stop()
        return self.result

    def kill(self, number: int) -> None:
        kind = self.dice.choices(list(self.kinds), list(self.kinds.values()))[0]
        target = ""
        if self.without:
            # Kill at the point where the defence is needed, in a batch that is not the first.
            kind, target = "group", ":".join((*CONTROLS[self.without], f"{3 + number}+"))
        if self.pipeline is None:
            self.start(target)
        assert self.pipeline is not None
        pipeline = self.pipeline
        if target:
            if not wait_until(lambda: pipeline.process.poll() is not None, SECONDS):
                raise SystemExit(f"{target} was not met:\n{pipeline.output}")
        else:
            self.await_commit(pipeline.started)
            # Around the start of the next flows and batches, or later, among many batches.
            threading.Event().wait(self.dice.uniform(0.0, self.dice.choice((1.0, 10.0))))
        killed, pipeline.killed_java = time.time(), 0
        self.send(kind, pipeline)
        since = time.time()
        if kind not in ("broker", "executor"):
            wait_until(lambda: pipeline.is_gone() or pipeline.has_recovered(), LEFT_OVER_SECONDS)
            if not pipeline.has_recovered():
                if left := session_members(pipeline.process.pid):
                    print(f"left over after {kind}: {left}", flush=True)
                    self.result.left_over += len(left)
                pipeline.end()
                since = time.time()
                self.start("")
        self.await_commit(since)
        took = time.time() - killed
        self.result.seconds.append(round(took, 1))
        self.result.kills[kind] = self.result.kills.get(kind, 0) + 1
        print(f"kill {number + 1}: {kind}, next commit after {took:.1f} s", flush=True)
        if self.without:
            self.pipeline.end()
            self.pipeline = None

    def send(self, kind: str, pipeline: Pipeline) -> None:
        """Send SIGKILL; for the broker, return when the new broker is started."""
        match kind:
            case "executor":
                os.kill(self.dice.choice(sorted(self.executors())), signal.SIGKILL)
            case "group" | "driver":
                with contextlib.suppress(ProcessLookupError):  # already killed at a kill point
                    os.killpg(pipeline.process.pid, signal.SIGKILL)
            case "jvm":
                pipeline.killed_java = pipeline.java()
                os.kill(pipeline.killed_java, signal.SIGKILL)
            case "python":
                pipeline.process.kill()
            case "broker":
                broker = broker_status(self.places.broker)
                assert broker is not None
                os.kill(broker.pid, signal.SIGKILL)
                wait_until(lambda: broker_status(self.places.broker) is None, 30)
                start_broker(self.places.broker, properties={"log.retention.ms": "-1"})

    def executors(self) -> list[int]:
        """The child processes of the workers."""
        pids: list[int] = []

        def some() -> bool:
            cluster = cluster_status(self.places.cluster)
            assert cluster is not None
            pids[:] = [child for pid, _ in cluster.processes[1:] for child in children(pid)]
            return bool(pids)

        if not wait_until(some, SECONDS):
            raise SystemExit("no executor")
        return pids

    def start(self, target: str) -> None:
        extra = {"PENSTOCK_KILL_AT": target} if target else {}
        arguments = ["--continuous", *(self.s3.arguments if self.s3 is not None else ())]
        self.pipeline = Pipeline(self.root, *arguments, **self.environment, **extra)

    def await_commit(self, since: float) -> None:
        """Return when a table has a commit after this time."""
        assert self.pipeline is not None
        pipeline = self.pipeline
        logs, before = self.root / "tables", 0 if self.s3 is None else self.s3.commits()

        def has_commit() -> bool:
            if self.s3 is not None:
                return self.s3.commits() > before
            files = logs.glob("**/_delta_log/*.json")
            return any(file.stat().st_mtime > since for file in files)

        if not wait_until(lambda: has_commit() or pipeline.process.poll() is not None, SECONDS):
            raise SystemExit(f"no commit for {SECONDS:g} s:\n{pipeline.output}")
        if not has_commit():
            raise SystemExit(f"the pipeline ended by itself:\n{pipeline.output}")

    # -- the comparison ------------------------------------------------------------------------

    def drain(self) -> None:
        """Run a triggered update that processes the remaining rows."""
        arguments = self.s3.arguments if self.s3 is not None else []
        last = Pipeline(self.root, *arguments, **self.environment)
        try:
            if last.process.wait(SECONDS) != 0 and not self.without:
                raise SystemExit(f"the last update failed:\n{last.output}")
        finally:
            last.end()

    def compare(self, servers: str) -> None:
        ranges = read_ranges(servers, TOPIC)
        records = list(read_records(servers, TOPIC, ranges))
        result = self.result
        result.messages = len(records)
        account = take_account(self.places, ranges)
        result.rows_lost += len(account.lost) + account.pending
        result.rows_duplicated += len(account.duplicated)
        result.other_differences += differences(records, read_tables(self.places))[:20]
        if account.foreign:
            result.other_differences.append(f"{len(account.foreign)} rows of no message")
        log = [(record.partition, record.offset) for record in records]
        coins = self.rows("coins", "partition", "offset")
        coins += self.rows("coins_quarantine", "partition", "offset")
        self.count("coins", log, coins)
        self.compare_customers(records)

    def compare_customers(self, records: Iterable[Record]) -> None:
        """Expect one version of a customer per message, valid until the next version."""
        changes: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for record in records:
            customer = judge(record).row["customer_id"]
            if customer is not None:
                place = (record.timestamp_ms, record.partition, record.offset)
                changes[customer].append(place)
        versions = []
        for customer, places in changes.items():
            places.sort()
            ends = [*[place[1:] for place in places[1:]], None]
            versions += [(customer, *p[1:], e) for p, e in zip(places, ends, strict=True)]
        rows = [
            (customer, partition, offset, end and (end["partition"], end["offset"]))
            for customer, partition, offset, end in self.rows(
                "customers_2", "customer_id", "partition", "offset", "__END_AT"
            )
        ]
        self.count("customers_2", versions, rows)
        newest = [(customer, *places[-1][1:]) for customer, places in changes.items()]
        self.count(
            "customers_1", newest, self.rows("customers_1", "customer_id", "partition", "offset")
        )

    def count(self, table: str, expected: list[Any], rows: list[Any]) -> None:
        wanted, held = Counter(expected), Counter(rows)
        lost, added = wanted - held, held - wanted
        if lost or added:
            print(f"{table}: lost {list(lost)[:5]}, duplicated or wrong {list(added)[:5]}")
        self.result.rows_lost += lost.total()
        self.result.rows_duplicated += added.total()

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        listed = read_rows(opened(self.places.table(table)), columns).to_pylist()
        return [tuple(row[column] for column in columns) for row in listed]


# -- the record ---------------------------------------------------------------------------------


def percentile(values: list[float], share: float) -> float:
    """The smallest value that is not exceeded by this share of the values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def table_of(sittings: list[dict[str, Any]]) -> str:
    """The results of the sittings as a Markdown table."""
    lines = [
        "| | Kills | Of which | Messages | Lost | Duplicated | Other differences "
        "| Left-over processes | Kill to next commit: median, p95 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    chosen = [s for s in sittings if not s["without"]]
    places = {
        "all defences": (False, False),
        "cluster of two workers": (True, False),
        "cluster, storage on S3": (True, True),
        "storage on S3": (False, True),
    }
    groups = {
        title: [s for s in chosen if (s.get("cluster", False), s.get("s3", False)) == place]
        for title, place in places.items()
    }
    for name in CONTROLS:
        groups[f"without `{name}`"] = [s for s in sittings if s["without"] == name]
    for title, group in groups.items():
        if not group:
            continue
        kinds = Counter[str]()
        for sitting in group:
            kinds.update(sitting["kills"])
        seconds = [value for s in group for value in s["seconds"]]
        cells = [
            title,
            kinds.total(),
            ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()),
            sum(s["messages"] for s in group),
            sum(s["rows_lost"] for s in group),
            sum(s["rows_duplicated"] for s in group),
            sum(len(s["other_differences"]) for s in group),
            sum(s["left_over"] for s in group),
            f"{percentile(seconds, 0.5):.1f} s, {percentile(seconds, 0.95):.1f} s",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    seeds = ", ".join(str(s["seed"]) for s in chosen)
    return "\n".join([*lines, "", f"Seeds of the sittings: {seeds}."])


def write_table(record: Path) -> None:
    """Write the table into the page."""
    text = record.read_text(encoding="utf-8") if record.exists() else ""
    sittings = [json.loads(line) for line in text.splitlines()]
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table_of(sittings)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=None, help="by default a new one")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--without", choices=CONTROLS, default="")
    parser.add_argument("--cluster", action="store_true", help="two workers; kill executors")
    parser.add_argument("--s3", action="store_true", help="storage on S3, with failing requests")
    parser.add_argument("--table", action="store_true", help="only write the table of the record")
    parser.add_argument("--keep", type=Path, help="keep everything in this folder")
    options = parser.parse_args()
    if options.table:
        write_table(options.record)
        return
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    root = options.keep or Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    root.mkdir(parents=True, exist_ok=True)
    try:
        chaos = Chaos(root.resolve(), seed, options.without, cluster=options.cluster, s3=options.s3)
        result = chaos.run(options.kills)
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    with options.record.open("a", encoding="utf-8") as record:
        record.write(json.dumps(asdict(result)) + "\n")
    print(json.dumps(asdict(result), indent=1))
    if result.is_clean == bool(options.without):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
