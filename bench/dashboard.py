"""The dashboard over a large log: 200 datasets, 10,000 updates, 20 connected clients.

Prints the time to the first paint, to the complete graph and to the history, the duration of frames
while the graph is zoomed, and the CPU usage of the server while an update runs. Requires Chromium.
"""

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from results import cpu_seconds

from penstock._observe.codec import encode, event_json
from penstock._observe.events import (
    CreateUpdate,
    DatasetDefinition,
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowDefinition,
    FlowMetrics,
    FlowProgress,
    FlowStatus,
    Rule,
    UpdateProgress,
    UpdateState,
)
from penstock._observe.log import EventLog

LAYERS = 8
RULES = 4
MOVES = """() => new Promise((done) => {
  const graph = document.querySelector(".graph");
  const box = graph.getBoundingClientRect();
  const times = [];
  let last = performance.now();
  let n = 0;
  const step = () => {
    const now = performance.now();
    times.push(now - last);
    last = now;
    const init = { deltaY: n % 40 < 20 ? -60 : 60, clientX: box.x + 400, clientY: box.y + 200 };
    graph.dispatchEvent(new WheelEvent("wheel", { ...init, bubbles: true, cancelable: true }));
    if (++n < 120) requestAnimationFrame(step);
    else done(times.slice(5).sort((a, b) => a - b));
  };
  requestAnimationFrame(step);
})"""


class Pipeline:
    """Writes the event log of an update with many datasets."""

    def __init__(self, directory: Path, datasets: int) -> None:
        self.log = EventLog(directory)
        self.origin = EventOrigin(pipeline_name="large", update_id="f" * 32)
        self.names = [f"table_{number:03d}" for number in range(datasets)]
        self.batch = 0
        width = -(-datasets // LAYERS)
        dice = random.Random(7)
        self.log(Event(self.origin, UpdateProgress(UpdateState.RUNNING), "runs"))
        schema = json.dumps(
            {"type": "struct", "fields": [{"name": f"c{n}", "type": "string"} for n in range(20)]}
        )
        for number, name in enumerate(self.names):
            layer = number // width
            above = self.names[(layer - 1) * width : layer * width] if layer else []
            reads = dice.sample(above, k=min(len(above), dice.choice((1, 1, 2))))
            table = replace(self.origin, dataset_name=f"c.s.{name}")
            declared = DatasetDefinition(
                dataset_type="STREAMING_TABLE",
                schema_json=schema,
                declared_at=f"tables.py:{number}",
                expectations=tuple(
                    Rule(name=f"rule_{n}", condition=f"c{n} IS NOT NULL", action="drop")
                    for n in range(RULES)
                ),
            )
            self.log(Event(table, declared))
            reading = FlowDefinition(
                output_dataset=f"c.s.{name}",
                input_datasets=tuple(f"c.s.{each}" for each in reads),
                external_inputs=() if reads else (f"kafka topic-{number % 5}",),
                flow_type="APPEND",
            )
            self.log(Event(replace(self.origin, flow_name=name), reading))
            flow = replace(table, flow_name=name)
            self.log(Event(flow, FlowProgress(FlowStatus.RUNNING), f"{name} runs"))

    def round(self, share: float) -> int:
        """Write a micro-batch of some of the flows; return the number of events."""
        events = 0
        for name in self.names:
            if random.random() > share:
                continue
            origin = replace(
                self.origin, dataset_name=f"c.s.{name}", flow_name=name, batch_id=self.batch
            )
            rules = tuple(
                ExpectationCounts(
                    name=f"rule_{n}", dataset=f"c.s.{name}", passed_records=99, failed_records=1
                )
                for n in range(RULES)
            )
            written = FlowMetrics(num_output_rows=99, dropped_records=1, quarantined_records=1)
            read = FlowMetrics(num_input_rows=100, batch_duration_ms=700, backlog_records=3)
            self.log(Event(origin, FlowProgress(FlowStatus.RUNNING, written, rules)))
            self.log(Event(origin, FlowProgress(FlowStatus.RUNNING, read)))
            events += 2
        self.batch += 1
        return events


def write_history(directory: Path, updates: int) -> None:
    """Write the logs of many short earlier updates."""
    directory.mkdir(parents=True, exist_ok=True)
    start = datetime.now(UTC) - timedelta(minutes=10 * (updates + 1))
    for number in range(updates):
        began = start + timedelta(minutes=10 * number)
        origin = EventOrigin(pipeline_name="large", update_id=f"{number:032x}")
        last = UpdateState.FAILED if number % 17 == 0 else UpdateState.COMPLETED
        events = [
            Event(origin, CreateUpdate(), "update", timestamp=began),
            Event(origin, UpdateProgress(UpdateState.RUNNING), "runs", timestamp=began),
            Event(origin, UpdateProgress(last), "ended", timestamp=began + timedelta(minutes=2)),
        ]
        lines = [encode(event_json(e, instance="i", seq_no=n)) for n, e in enumerate(events)]
        name = f"{began.strftime('%Y%m%dT%H%M%S%fZ')}-{origin.update_id}.jsonl"
        (directory / name).write_bytes(b"\n".join(lines) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--share", type=float, default=0.1, help="share of active flows")
    parser.add_argument("--screenshot", type=Path)
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        events = Path(scratch) / "events"
        write_history(events, options.updates)
        pipeline = Pipeline(events, options.datasets)
        for _ in range(20):
            pipeline.round(1)
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "ui", "--port", "0", str(events)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            address = ""
            for line in process.stdout or ():
                if found := re.search(r"http://\S+", line):
                    address = found[0]
                    break
            print(f"server ready after {time.monotonic() - began:.2f} s")
            measure(options, process.pid, address, pipeline, browser)
        finally:
            process.terminate()
            process.wait()


def measure(
    options: argparse.Namespace, pid: int, address: str, pipeline: Pipeline, browser: str | None
) -> None:
    """Print all figures of the server."""
    began = time.monotonic()
    urllib.request.urlopen(address + "api/pipelines").read()
    print(f"first list of {options.updates:,} updates: {time.monotonic() - began:.3f} s")
    if browser is not None:
        with sync_playwright() as driver:
            chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            look(options, chromium.new_page(viewport={"width": 1280, "height": 800}), address)
            chromium.close()
    key = json.loads(urllib.request.urlopen(address + "api/pipelines").read())["pipelines"][0][
        "key"
    ]
    received = [0] * options.clients
    stop = threading.Event()

    def watch(number: int) -> None:
        with urllib.request.urlopen(f"{address}api/pipelines/{key}/stream") as stream:
            while not stop.is_set():
                received[number] += len(stream.readline())

    for number in range(options.clients):
        threading.Thread(target=watch, args=(number,), daemon=True).start()
    pause = threading.Event()
    pause.wait(3)
    before, start, count = cpu_seconds(pid), time.monotonic(), sum(received)
    idle_cpu = cpu_seconds(pid)
    pause.wait(5)
    share = (cpu_seconds(pid) - idle_cpu) / 5
    print(f"{options.clients} watchers, nothing happens: {share:.1%} of a core")
    before, start, count, events = cpu_seconds(pid), time.monotonic(), sum(received), 0
    while time.monotonic() < start + options.seconds:
        events += pipeline.round(options.share)
        pause.wait(1)
    took = time.monotonic() - start
    share = (cpu_seconds(pid) - before) / took
    print(
        f"{options.clients} watchers, {events / took:.0f} events/s: {share:.1%} of a core, "
        f"{(sum(received) - count) / took / 1000:.0f} kB/s sent"
    )
    stop.set()


def look(options: argparse.Namespace, page: Any, address: str) -> None:
    """Measure the times for which a browser waits."""
    for name in ("cold", "warm"):
        page.goto("about:blank")
        began = time.monotonic()
        page.goto(address)
        page.wait_for_function(
            f"() => document.querySelectorAll('.card').length >= {options.datasets}"
        )
        took = time.monotonic() - began
        paint = page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
        )
        print(f"{name}: first paint {paint / 1000:.2f} s, whole graph {took:.2f} s")
    times = page.evaluate(MOVES)
    print(
        f"zoom over {options.datasets} cards: median frame {times[len(times) // 2]:.0f} ms, "
        f"95 % {times[int(len(times) * 0.95)]:.0f} ms"
    )
    if options.screenshot:
        page.reload()
        page.wait_for_selector(".card")
        page.wait_for_timeout(500)
        page.screenshot(path=str(options.screenshot))
    began = time.monotonic()
    page.click("nav >> text=Updates")
    page.wait_for_selector(".update:nth-child(1)")
    print(f"history of {options.updates:,} updates: {time.monotonic() - began:.2f} s")


if __name__ == "__main__":
    main()
