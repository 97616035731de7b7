"""Spark's JVM is killed, as by the kernel when memory runs out: the update ends with an error."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock._runtime.lease import Lease

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(600)]

SOURCE = """\
import penstock as dp
import threading
from pathlib import Path
from pyspark.sql import functions as F

folder = str(Path.cwd())


@dp.table
def bronze():
    while not Path("analysed").exists():
        Path("analysing").touch()
        spark.range(1).count()
    return spark.readStream.schema("id BIGINT").json("in")


@F.udf(returnType="BIGINT", useArrow=False)
def held(number):
    while Path(folder, "hold").exists():
        Path(folder, "holding").touch()
        threading.Event().wait(0.05)
    return number


@dp.table
def silver():
    return dp.read_stream("bronze").select(held("id").alias("id"))
"""
VIEWS = """\
import penstock as dp


@dp.materialized_view(spark_conf={"pipelines.trigger.interval": "1 hour"})
def silver():
    return spark.read.schema("id BIGINT").json("in")
"""
SECONDS = 10.0
NO_RETRY = ("--conf", "pipelines.numUpdateRetryAttempts=0")


class Run:
    """A continuous update in a separate process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.log = folder / "run.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", "--continuous", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def jvm(self) -> int | None:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in children.read_text().split():
            with contextlib.suppress(OSError):
                if b"PythonGatewayServer" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
        return None

    def wait_for(self, condition: Callable[[], object], seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)

    def has(self, pattern: str) -> bool:
        return any(self.folder.glob(pattern))

    def kill_jvm(self) -> float:
        jvm = self.jvm()
        assert jvm is not None
        os.kill(jvm, signal.SIGKILL)
        return time.monotonic()

    def rows(self) -> list[int]:
        try:
            table = DeltaTable(str(self.folder / TABLES / "silver"))
        except TableNotFoundError:
            return []
        return sorted(table.to_pyarrow_table()["id"].to_pylist())

    def events(self) -> list[dict[str, Any]]:
        files = sorted((self.folder / ".penstock/events").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(json.dumps({"id": 1}))
    runs: list[Run] = []

    def run(*arguments: str, source: str = SOURCE, files: tuple[str, ...] = ("analysed",)) -> Run:
        (tmp_path / "shop.py").write_text(source, encoding="utf-8")
        for name in files:
            (tmp_path / name).touch()
        runs.append(Run(tmp_path, *arguments))
        return runs[-1]

    yield run
    for started in runs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.process.pid, signal.SIGKILL)


TABLES = ".penstock/tables/spark_catalog/default"


def stopping(run: Run) -> bool:
    """Stop an update whose batch is blocked; returns whether it is being stopped."""
    if run.has("holding") and not run.has("stop_requested"):
        os.kill(run.process.pid, signal.SIGTERM)
        (run.folder / "stop_requested").touch()
    return "STOPPING" in run.log.read_text()


PHASES: dict[str, tuple[str, tuple[str, ...], Callable[[Run], object]]] = {
    "start": ("JVM_START_FAILED", ("analysed",), Run.jvm),
    "analysis": ("JVM_DIED", (), lambda run: run.has("analysing")),
    "set up": ("JVM_DIED", ("analysed",), lambda run: run.has(f"{TABLES}/bronze/_delta_log")),
    "batch": ("JVM_DIED", ("analysed", "hold"), lambda run: run.has("holding")),
    "idle": ("JVM_DIED", ("analysed",), lambda run: run.rows() == [1]),
    "stop": ("JVM_DIED", ("analysed", "hold"), stopping),
}


@pytest.mark.parametrize(
    "phase",
    [name if name == "set up" else pytest.param(name, marks=pytest.mark.long) for name in PHASES],
)
def test_update_ends_immediately_when_the_jvm_is_killed(start: Start, phase: str) -> None:
    condition, files, is_there = PHASES[phase]
    run = start(*NO_RETRY, files=files)
    run.wait_for(lambda: run.jvm() is not None and is_there(run))
    check_end(run, run.kill_jvm(), condition)


@pytest.mark.long
def test_update_ends_immediately_when_the_jvm_is_killed_between_refreshes(start: Start) -> None:
    run = start(*NO_RETRY, source=VIEWS)
    run.wait_for(lambda: run.rows() == [1] and "COMPLETED" in json.dumps(run.events()))
    check_end(run, run.kill_jvm(), "JVM_DIED")


def check_end(run: Run, killed: float, condition: str) -> None:
    code = run.process.wait(60)
    seconds = time.monotonic() - killed
    printed = run.log.read_text()
    assert code == (3 if condition == "JVM_START_FAILED" else 1), printed
    assert seconds < SECONDS, printed
    print(f"exit code {code} after {seconds:.1f} s, {condition}")
    assert f"[{condition}]" in printed
    assert "bug in Penstock" not in printed
    assert "a new update starts" not in printed
    if condition == "JVM_DIED":
        assert "signal 9" in printed
    with Lease.acquire(run.folder / ".penstock/state/pipeline.lock", holder={}):
        pass  # the lease was released


@pytest.mark.long
def test_continuous_update_restarts_when_the_jvm_is_killed_in_a_batch(start: Start) -> None:
    run = start("--full-refresh", "silver", "--refresh", "bronze", files=("analysed", "hold"))
    run.wait_for(lambda: run.has("holding"))
    first = run.jvm()
    run.kill_jvm()
    (run.folder / "hold").unlink()
    run.wait_for(lambda: run.rows() == [1])
    assert run.jvm() not in (None, first)
    (run.folder / "in" / "b.json").write_text(json.dumps({"id": 2}))
    run.wait_for(lambda: run.rows() == [1, 2])
    os.killpg(run.process.pid, signal.SIGTERM)
    assert run.process.wait(60) == 130
    assert run.rows() == [1, 2]
    events = run.events()
    created = [e["details"]["create_update"] for e in events if e["event_type"] == "create_update"]
    assert [(c.get("cause"), c["full_refresh_selection"]) for c in created] == [
        (None, ["silver"]),
        ("RETRY_ON_FAILURE", []),
    ]
    assert "JVM_DIED" in json.dumps(events)
    assert "a new update starts in" in run.log.read_text()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("submit", [(), ("--conf", "spark.submit.deployMode=client")])
def test_signal_to_the_whole_group_stops_gracefully(
    start: Start, number: signal.Signals, submit: tuple[str, ...]
) -> None:
    run = start(*submit, files=("analysed", "hold"))
    run.wait_for(lambda: run.has("holding"))
    os.killpg(run.process.pid, number)
    run.wait_for(lambda: "STOPPING" in run.log.read_text())
    (run.folder / "hold").unlink()
    assert run.process.wait(60) == 130
    printed = run.log.read_text()
    assert "JVM_DIED" not in printed
    assert "update stopped" in printed
    assert run.rows() == [1]
