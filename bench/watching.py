"""The cost of monitoring: a running pipeline, in turns with all monitoring and without any.

A continuous update reads small files into bronze and silver, as fast as it can. After every
`--batches` batches, monitoring is switched on or off. If it is on, secrets in each event are
masked, and the event is passed to the event log, the status file, metrics, lineage, traces and
alerts; the dashboard sends it to a browser's stream, Prometheus scrapes, and a receiver gets the
exports. If it is off, events are discarded, and the other processes are suspended. Consecutive
turns form a pair, so that other load on the machine affects both.

The script prints the ratios of the pairs with the interval of 95 % of the resampled pairs, and the
processor time of all monitoring, which is also reliable if other load makes the intervals wide.
With `--null`, monitoring stays on: the figures show the noise.

    python bench/watching.py [--seconds 300] [--batches 2] [--rows 300] [--null]
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from results import cpu_seconds

from penstock._observe.bus import EventBus, Subscriber
from penstock._observe.events import CreateUpdate, Event, FlowProgress, StreamProgress
from penstock._observe.log import event_directory
from penstock._project.spec import load_settings
from penstock._ui import serving
from penstock._ui.recording import WatchedLog
from penstock._update import UpdateOptions, run_update

SCRAPE_SECONDS = 5.0
WATCHING = ("lineage", "traces", "metrics", "alerts")
"""First words of the names of threads that are there for watchers only."""
SETTINGS = """
name: watching
metrics:
  port: 0
lineage:
  transport:
    type: http
    url: {receiver}
opentelemetry:
  endpoint: {receiver}
  interval_seconds: 5
alerts:
  rules:
    - {{name: bad rows, failure_rate: 0.5}}
    - {{name: stuck, no_progress_seconds: 900}}
    - {{name: late, backlog: 1000000}}
"""
PIPELINE = """
import penstock as dp
from pyspark.sql import functions as F

ROWS = "id BIGINT, product STRING, amount DOUBLE, ts TIMESTAMP"


@dp.table
def bronze():
    reader = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    return reader.json("data")


@dp.table
@dp.expect("has a product", "product IS NOT NULL")
@dp.expect_or_drop("positive amount", "amount > 0")
def silver():
    return dp.read_stream("bronze").withColumn("day", F.to_date("ts"))
"""


@dataclass
class Batch:
    """A micro-batch of bronze, with its start and end as Unix time."""

    began: float
    ended: float
    rows: int


@dataclass
class Turn:
    """Some batches with or without monitoring, and the CPU time of each process meanwhile."""

    watched: bool
    began: float
    ended: float
    cpu: dict[str, float]
    batches: list[Batch]

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.batches)

    @property
    def rows_per_second(self) -> float:
        return self.rows / sum(one.ended - one.began for one in self.batches)


class SwitchedBus(EventBus):
    """The bus of the update. If off, events are discarded. Measures the time of each subscriber."""

    def __init__(self) -> None:
        super().__init__()
        self.is_on = True
        self.batches: list[Batch] = []
        self.batch_ended = threading.Event()
        self.waited: list[float] = []
        self.spent: dict[str, float] = defaultdict(float)
        self.events: dict[str, int] = defaultdict(int)
        self.seen: dict[str, Any] = {}

    def subscribe(self, subscriber: Subscriber) -> None:
        name = type(subscriber).__name__

        def timed(event: Event) -> None:
            began = time.thread_time()
            subscriber(event)
            self.spent[name] += time.thread_time() - began

        super().subscribe(timed)

    def emit(self, event: Event) -> None:
        self._keep(event)
        if not self.is_on:
            return
        began, at = time.thread_time(), time.perf_counter()
        super().emit(event)
        self.spent["all"] += time.thread_time() - began
        version = event.body.table_version if isinstance(event.body, FlowProgress) else None
        if event.origin.flow_name == "bronze" and version is not None:
            # The only event that a batch of bronze waits for: its writer emits it after the commit.
            self.waited.append(time.perf_counter() - at)
        self.events[event.event_type] += 1

    def _keep(self, event: Event) -> None:
        body = event.body
        if isinstance(body, CreateUpdate):
            self.seen.update(body.properties)
        if isinstance(body, StreamProgress) and event.origin.flow_name == "bronze":
            progress: Any = body.progress_json
            began = datetime.fromisoformat(progress["timestamp"]).timestamp()
            took = progress["durationMs"]["triggerExecution"] / 1000
            if progress["numInputRows"]:
                self.batches.append(Batch(began, began + took, progress["numInputRows"]))
                self.batch_ended.set()


# -- the other side of the network ----------------------------------------------------------------


def watchers() -> None:
    """Receive exports, scrape metrics, and read the stream of the dashboard, in a separate process.

    Prints the address of the receiver. Each line of the input is a JSON object with addresses to
    read. Returns at the end of the input.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)

    def follow(address: str) -> None:
        with urllib.request.urlopen(address) as stream:
            while stream.readline():
                pass

    def scrape(address: str) -> None:
        pause = threading.Event()
        while not pause.wait(SCRAPE_SECONDS):
            urllib.request.urlopen(address).read()

    for line in sys.stdin:
        wanted = json.loads(line)
        threading.Thread(target=follow, args=(wanted["stream"],), daemon=True).start()
        threading.Thread(target=scrape, args=(wanted["metrics"],), daemon=True).start()


# -- the measurement ------------------------------------------------------------------------------


def java_process() -> int:
    """The Java process that is a child of this process."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if name == "java" and int(rest.split()[1]) == os.getpid():
            return int(place.name)
    raise SystemExit("no Java process")


def watching_threads() -> float:
    """CPU time of the threads of this process that are only used for monitoring."""
    ticks = 0
    for thread in threading.enumerate():
        if thread.name.split()[0] in WATCHING:
            try:
                text = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
            except OSError:
                continue
            ticks += sum(map(int, text.rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(
    bus: SwitchedBus, processes: dict[str, int], switch: Callable[[bool], None], options: Any
) -> list[Turn]:
    """Run turns with and without monitoring for `options.seconds`."""
    processes = {"driver": os.getpid(), "java": java_process(), **processes}

    def used() -> dict[str, float]:
        found = {name: cpu_seconds(pid) for name, pid in processes.items()}
        return {**found, "watching threads": watching_threads(), "emitting": bus.spent["all"]}

    turns: list[Turn] = []
    ends = time.monotonic() + options.seconds
    while time.monotonic() < ends or len(turns) % 2:
        # watched, not, not, watched, ...
        watched = len(turns) % 4 in (0, 3)
        if not options.null:
            switch(watched)
        before, began, count = used(), time.time(), len(bus.batches)
        while len(bus.batches) < count + options.batches:
            bus.batch_ended.clear()
            if not bus.batch_ended.wait(60):
                raise SystemExit("no batch for a minute: no more files?")
        after, batches = used(), bus.batches[count : count + options.batches]
        cpu = {name: after[name] - before[name] for name in before}
        turns.append(Turn(watched, began, time.time(), cpu, batches))
    switch(True)
    return turns


def resampled(pairs: list[Any], figure: Callable[[list[Any]], float]) -> str:
    """A figure of the pairs, and the interval of 95 % of the figures of resampled pairs."""
    dice = random.Random(7)
    found = sorted(figure(dice.choices(pairs, k=len(pairs))) for _ in range(2000))
    return f"{figure(pairs):.3f} ({found[50]:.3f} to {found[-51]:.3f})"


def tell(bus: SwitchedBus, turns: list[Turn]) -> None:
    """Print all figures."""
    pairs = [
        (first, second) if first.watched else (second, first)
        for first, second in zip(turns[::2], turns[1::2], strict=True)
    ]

    def speed(some: list[tuple[Turn, Turn]]) -> float:
        logs = [math.log(on.rows_per_second / off.rows_per_second) for on, off in some]
        return math.exp(statistics.median(logs))

    def pipeline_cpu(some: list[tuple[Turn, Turn]]) -> float:
        def per_row(side: int) -> float:
            mine = [pair[side] for pair in some]
            cpu = sum(turn.cpu["driver"] + turn.cpu["java"] for turn in mine)
            return cpu / sum(turn.rows for turn in mine)

        return per_row(0) / per_row(1)

    took = [one.ended - one.began for turn in turns for one in turn.batches]
    print(
        f"{len(pairs)} pairs of turns with {len(turns[0].batches)} batches each; batches of "
        f"{bus.batches[-1].rows} rows take {statistics.median(took):.2f} s; "
        f"load {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores"
    )
    print(f"rows per second, watched / not: {resampled(pairs, speed)}")
    print(f"CPU of driver and Java per row, watched / not: {resampled(pairs, pipeline_cpu)}")
    waited = statistics.fmean(bus.waited)
    print(
        f"a batch waits {waited * 1000:.1f} ms for its event: "
        f"{waited / statistics.fmean(took):.4f} of its time"
    )
    watched = [turn for turn in turns if turn.watched]
    seconds = sum(turn.ended - turn.began for turn in watched)
    cpu = {name: sum(turn.cpu[name] for turn in watched) for name in watched[0].cpu}
    watching = sum(cpu[name] for name in cpu if name not in ("driver", "java"))
    rest = cpu["driver"] + cpu["java"] - cpu["emitting"] - cpu["watching threads"]
    print(f"CPU of all that watches / of the pipeline: {watching / rest:.4f}")
    for name, spent in cpu.items():
        print(f"    {name}: {spent / seconds:.2%} of a core")
    events = sum(bus.events.values())
    inner = sum(spent for name, spent in bus.spent.items() if name != "all")
    print(f"an event takes {bus.spent['all'] / events * 1e6:.0f} µs of the thread that emits it")
    shares = {**bus.spent, "masking of secrets": bus.spent["all"] - inner}
    shares.pop("all")
    for name, spent in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"    {name}: {spent / events * 1e6:.0f} µs")


def make_project(root: Path, options: Any, receiver: str) -> None:
    """Write a project, with more small files than can be read in the time."""
    (root / "data").mkdir()
    (root / "pipeline.yaml").write_text(SETTINGS.format(receiver=receiver), encoding="utf-8")
    (root / "pipeline.py").write_text(PIPELINE, encoding="utf-8")
    for number in range(int((options.seconds + options.warm_up) * 8)):
        lines = (
            json.dumps(
                {
                    "id": number * options.rows + at,
                    "product": f"p{at % 50}",
                    "amount": at % 100 - 1,
                    "ts": f"2026-01-{1 + at % 28:02d}T00:00:00Z",
                }
            )
            for at in range(options.rows)
        )
        (root / "data" / f"{number:06d}.json").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--warm-up", type=float, default=40, help="seconds before the measurement")
    parser.add_argument("--batches", type=int, default=2, help="between two switches of monitoring")
    parser.add_argument("--rows", type=int, default=300, help="rows of a file, which is a batch")
    parser.add_argument("--null", action="store_true", help="do not switch monitoring off")
    parser.add_argument("--watchers", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watchers:
        watchers()
        return
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    started: list[subprocess.Popen[str]] = []
    try:
        run(root, options, started)
    finally:
        for process in started:
            process.kill()
            process.wait()
        shutil.rmtree(root, ignore_errors=True)


def run(root: Path, options: Any, started: list["subprocess.Popen[str]"]) -> None:
    """Start all processes, run the update, and print the figures."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "text": True, "start_new_session": True}
    others = subprocess.Popen(
        [sys.executable, __file__, "--watchers"], stdout=subprocess.PIPE, **pipes
    )
    started.append(others)
    assert others.stdout is not None
    make_project(root, options, others.stdout.readline().strip())
    settings = load_settings(root)
    log = WatchedLog(label=settings.name, directory=event_directory(settings))
    with serving.listen(serving.DEFAULT_HOST, 0) as found:
        address = serving.address_of(found, serving.DEFAULT_HOST, None)
        command = serving.companion_command(log, found.fileno(), settings.storage, settings.root)
        dashboard = subprocess.Popen(command, pass_fds=(found.fileno(),), **pipes)
        started.append(dashboard)
    bus = SwitchedBus()
    measured: list[Turn] = []

    def switch(watched: bool) -> None:
        bus.is_on = watched
        # Only processes that this script has started.
        for process in (dashboard, others):
            process.send_signal(signal.SIGCONT if watched else signal.SIGSTOP)

    def control(update: Any) -> None:
        try:
            pause = threading.Event()
            until = time.monotonic() + options.warm_up
            with urllib.request.urlopen(address + "api/pipelines") as answer:
                key = json.loads(answer.read())["pipelines"][0]["key"]
            watched = {
                "stream": f"{address}api/pipelines/{key}/stream",
                "metrics": bus.seen["metrics_url"],
            }
            assert others.stdin is not None
            others.stdin.write(json.dumps(watched) + "\n")
            others.stdin.flush()
            while not bus.batches:
                pause.wait(0.5)
            pause.wait(until - time.monotonic())
            processes = {"dashboard": dashboard.pid, "scraper and receivers": others.pid}
            measured.extend(measure(bus, processes, switch, options))
        finally:
            update.request_stop()

    def begin(update: Any) -> None:
        threading.Thread(target=control, args=(update,), daemon=True).start()

    run_update(settings, UpdateOptions(continuous=True), bus=bus, on_running=begin)
    tell(bus, measured)


if __name__ == "__main__":
    main()
