"""A demo as a user starts it, in a separate session, and the tables that it wrote."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from demo_oracle import DemoTables, Judged, differences, judge, read_records, read_tables

from penstock._local.broker import broker_status, start_broker, stop_broker
from penstock._local.demo.folders import TOPIC, DemoFolders
from penstock._local.demo.kafka_log import read_ranges

POLL_SECONDS = 0.05
NO_JAVA_SECONDS = 6.0
"""Processor time that a command without a Java process stays below, and one with Spark never."""


def children_cpu_seconds() -> float:
    """Processor time of the child processes that have ended, without time of waiting."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class DemoProcess:
    """`penstock demo` in the background; its output is in a file."""

    def __init__(
        self, directory: Path, log: Path, *arguments: str, environment: Mapping[str, str] = {}
    ) -> None:
        self.log = log
        command = [sys.executable, "-m", "penstock", "demo", "--storage", str(directory)]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=log.parent,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came true before the process ended or the time was over."""
        deadline = time.monotonic() + seconds
        pause = threading.Event()
        while time.monotonic() < deadline and self._process.poll() is None:
            if condition():
                return True
            pause.wait(POLL_SECONDS)
        return False

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill_group(self) -> None:
        """Send SIGKILL to Python and Spark's JVM; return when all of them have ended."""
        deadline = time.monotonic() + 30
        pause = threading.Event()
        while time.monotonic() < deadline:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.wait(30)
                return
            self._process.poll()
            pause.wait(POLL_SECONDS)
        raise AssertionError(f"the process group {self.pid} does not end")


def kill_broker(directory: Path) -> None:
    """Send SIGKILL to the embedded broker, if it runs."""
    broker = broker_status(DemoFolders(directory).broker)
    if broker is not None:
        os.kill(broker.pid, signal.SIGKILL)


def next_batch(directory: Path, flow: str) -> int:
    """The micro-batch that a flow runs, or repeats, at its next start."""
    state = json.loads((directory / "state" / "flows" / f"{flow}.json").read_text())
    checkpoint = next((directory / "checkpoints").glob(f"*/{state['epoch']}"))
    commits = (checkpoint / "commits").iterdir()
    return 1 + max((int(file.name) for file in commits if file.name.isdecimal()), default=-1)


def compare_with_log(directory: Path) -> tuple[list[str], DemoTables, list[Judged]]:
    """Compare every row with the Kafka log; also returns the tables and the expected results."""
    places = DemoFolders(directory)
    broker = start_broker(places.broker)
    try:
        ranges = read_ranges(broker.bootstrap_servers, TOPIC)
        records = list(read_records(broker.bootstrap_servers, TOPIC, ranges))
    finally:
        stop_broker(places.broker)
    tables = read_tables(places)
    return differences(records, tables), tables, [judge(record) for record in records]


def account_in(output: str) -> dict[str, int]:
    """The figures that the demo printed."""
    lines = re.findall(r"^  [=+ ]*(\w+) +([\d,]+)  ", output, re.MULTILINE)
    return {name: int(figure.replace(",", "")) for name, figure in lines}
