"""A continuous pipeline that reads Kafka, for the benchmarks that measure the age of rows.

Each message contains the time at which it was due to be sent. The age of a row is the time from
then to its commit. The logs and files of the tables are read after the update has ended: nothing is
measured while the pipeline runs.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from writer import small_cluster

TOPIC = "rows"
SETTINGS = "name: tables\nstorage: {storage}\nmaster: {master}\n"


class Sender:
    """Sends messages at a fixed rate on a separate thread; `row` creates each from its number."""

    def __init__(self, servers: str, rate: float, row: Callable[[int], dict[str, Any]]) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
        self._rate = rate
        self._row = row
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        began, number = time.time(), 0
        while not self._ended.is_set():
            due = began + number / self._rate
            self._ended.wait(max(0.0, due - time.time()))
            row = self._row(number) | {"due": due}
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
        at: Timestamp of the commit.
        due: Timestamps at which its rows were due to be sent.
        ids: Numbers of the rows.
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
            if file and file["dataChange"]:  # otherwise a compaction
                rows = pq.ParquetFile(table / unquote(file["path"])).read(columns=["id", "due"])
                ids += rows.column("id").to_pylist()
                due += rows.column("due").to_pylist()
        if ids:
            commits.append(Commit(log.stat().st_mtime, due, ids))
    return commits


@dataclass(frozen=True)
class Measured:
    """One run of a pipeline.

    Attributes:
        storage: Storage root of the pipeline.
        tables: Folders of the tables by name.
        began: Timestamp of the first message.
        since: End of the warm-up.
        until: End of the measurement.
        spent: CPU time of the processes from `began` to `since` and from `since` to `until`.
        stop_seconds: Duration of the stop.
    """

    storage: Path
    tables: dict[str, Path]
    began: float
    since: float
    until: float
    spent: tuple[dict[str, float], dict[str, float]]
    stop_seconds: float

    def commits(self) -> dict[str, list[Commit]]:
        """The commits of all tables, which have the columns `id` and `due`."""
        return {name: read_commits(table) for name, table in self.tables.items()}

    def progress(self) -> list[dict[str, Any]]:
        """Spark's progress reports of the batches after the warm-up."""
        reports = []
        for log in (self.storage / "events").glob("**/*.jsonl"):
            for line in log.read_text(encoding="utf-8").splitlines():
                event = json.loads(line)
                if event["event_type"] != "stream_progress":
                    continue
                report = event["details"]["stream_progress"]["progress_json"]
                at = datetime.fromisoformat(report["timestamp"]).timestamp()
                if self.since < at < self.until:
                    reports.append(report)
        return reports


def cpu_seconds(pid: int) -> dict[str, float]:
    """CPU time of a process and of its Java process."""
    spent = {"driver": 0.0, "java": 0.0}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            head, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if int(place.name) == pid:
            spent["driver"] = seconds
        elif head == "java" and int(fields[1]) == pid:
            spent["java"] = seconds
    return spent


def measure(
    root: Path,
    options: argparse.Namespace,
    pipeline: str,
    tables: int,
    row: Callable[[int], dict[str, Any]],
) -> Measured:
    """Start the broker, the pipeline and the sender; stop the pipeline; read its tables.

    Args:
        root: An empty folder.
        options: Options of `add_options`.
        pipeline: Source of the pipeline, with `{servers}` and `{topic}`.
        tables: Number of its tables.
        row: Creates a message from its number.
    """
    from penstock._local.broker import ensure_topic, start_broker, stop_broker

    with contextlib.ExitStack() as stack:
        broker = start_broker(root / "broker")
        stack.callback(stop_broker, root / "broker")
        if options.cluster:
            master = stack.enter_context(small_cluster(root / "cluster"))
        else:
            master = f"local[{options.cores}]"
        ensure_topic(broker.bootstrap_servers, TOPIC)
        project = root / "project"
        project.mkdir()
        storage = root / "storage"
        (project / "pipeline.yaml").write_text(
            SETTINGS.format(storage=storage.as_uri(), master=master), encoding="utf-8"
        )
        source = pipeline.replace("{servers}", broker.bootstrap_servers).replace("{topic}", TOPIC)
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
                await_tables(update, storage, tables, output)
                sender = Sender(broker.bootstrap_servers, options.rate, row)
                began = time.time()
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
    folders = {log.parent.name: log.parent for log in storage.glob("**/_delta_log")}
    if len(folders) != tables:
        raise SystemExit(f"{len(folders)} tables: {sorted(folders)}")
    spent = (
        {name: middle[name] - before[name] for name in middle},
        {name: after[name] - middle[name] for name in after},
    )
    return Measured(storage, folders, began, at_middle, until, spent, stop_seconds)


def await_tables(update: "subprocess.Popen[Any]", storage: Path, count: int, output: Any) -> None:
    """Wait until all tables exist and bronze has started."""
    deadline = time.monotonic() + 240
    pause = threading.Event()
    while len(list(storage.glob("**/_delta_log"))) < count or not list(
        storage.glob("checkpoints/**/metadata")
    ):
        if update.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the tables were not created:\n{tail(output)}")
        pause.wait(0.2)


def wait_for_end(update: "subprocess.Popen[Any]", seconds: float, output: Any) -> None:
    """Let the update run for some time."""
    try:
        code = update.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise SystemExit(f"the update ended with {code}:\n{tail(output)}")


def tail(output: Any) -> str:
    """The end of the output of the pipeline."""
    output.seek(0)
    return str(output.read()[-4000:])


def add_options(parser: argparse.ArgumentParser, rate: float) -> None:
    """Add the options of `measure`."""
    parser.add_argument("--rate", type=float, default=rate, help="rows per second")
    parser.add_argument("--seconds", type=float, default=180, help="after the warm-up")
    parser.add_argument("--warm-up", type=float, default=120, help="from the first message on")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--cluster", action="store_true", help="two workers with one core each")
    parser.add_argument("--keep", type=Path, help="keep tables and logs in this folder")


@contextlib.contextmanager
def folder(options: argparse.Namespace) -> Iterator[Path]:
    """An empty folder, removed after use unless it is kept."""
    root = options.keep or Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    root.mkdir(exist_ok=True)
    try:
        yield root.resolve()
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
