"""Spark's JVM is killed, as the kernel does when memory runs out: the update ends and says so."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock._runtime.lease import Lease

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(600)]

SOURCE = """\
import penstock as dp
from pathlib import Path


@dp.table
def bronze():
    while not Path("analysed").exists():
        Path("analysing").touch()
        spark.range(1).count()
    return spark.readStream.schema("id BIGINT").json("in")


@dp.table
def silver():
    return dp.read_stream("bronze")
"""
SECONDS = 10.0


class Run:
    """A continuous update in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "run.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", "--continuous"],
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


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "shop.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(json.dumps({"id": 1}))
    started = Run(tmp_path)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.process.pid, signal.SIGKILL)


TABLES = ".penstock/tables/spark_catalog/default"
PHASES: dict[str, tuple[str, Callable[[Run], object]]] = {
    "start": ("JVM_START_FAILED", Run.jvm),
    "analysis": ("JVM_DIED", lambda run: run.has("analysing")),
    "set up": ("JVM_DIED", lambda run: run.has(f"{TABLES}/bronze/_delta_log")),
    "batch": ("JVM_DIED", lambda run: run.has(f"{TABLES}/silver/part-*")),
}


@pytest.mark.parametrize(
    "phase",
    [name if name == "set up" else pytest.param(name, marks=pytest.mark.long) for name in PHASES],
)
def test_update_ends_at_once_when_the_jvm_is_killed(run: Run, phase: str) -> None:
    condition, is_there = PHASES[phase]
    if phase != "analysis":
        (run.folder / "analysed").touch()
    run.wait_for(lambda: run.jvm() is not None and is_there(run))
    jvm = run.jvm()
    assert jvm is not None
    killed = time.monotonic()
    os.kill(jvm, signal.SIGKILL)
    code = run.process.wait(60)
    assert time.monotonic() - killed < SECONDS
    printed = run.log.read_text()
    assert code == (3 if phase == "start" else 1), printed
    assert f"[{condition}]" in printed
    assert "bug in Penstock" not in printed
    if phase != "start":
        assert "signal 9" in printed
    with Lease.acquire(run.folder / ".penstock/state/pipeline.lock", holder={}):
        pass  # the lease is free
