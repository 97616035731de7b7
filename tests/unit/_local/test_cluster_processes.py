"""Start of a cluster, with Python programs instead of Spark's master and workers."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock._local import cluster, process
from penstock._local.cluster import start_cluster, stop_cluster

# The pause lets a second caller start before the master of the first one runs.
PROGRAM = """
import sys, threading
pause = threading.Event()
pause.wait(0.3)
print("Starting Spark master at spark://127.0.0.1:7077", flush=True)
print("Successfully registered with master", flush=True)
pause.wait(60)
"""


@pytest.fixture
def spawned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the Spark classes that were started."""
    classes: list[str] = []
    children = []

    def spawn(directory: Path, log: Path, main: str, *arguments: str) -> int:
        classes.append(main.rpartition(".")[2])
        with log.open("wb") as output:
            child = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=directory, stdout=output)
        children.append(child)
        return child.pid

    monkeypatch.setattr(cluster, "_spawn", spawn)
    yield classes
    for child in children:
        child.kill()
        child.wait()


def test_one_master_is_started_when_two_callers_start_a_cluster_concurrently(
    tmp_path: Path, spawned: list[str]
) -> None:
    masters = []
    begin = threading.Barrier(2)

    def start() -> None:
        begin.wait()
        masters.append(start_cluster(tmp_path, workers=1).processes[0])

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert spawned == ["Master", "Worker"]
    assert len(masters) == 2 and len(set(masters)) == 1
    assert stop_cluster(tmp_path)


def test_next_start_ends_the_processes_of_an_incomplete_start(
    tmp_path: Path, spawned: list[str]
) -> None:
    old = start_cluster(tmp_path, workers=1)
    # The starting process was killed before it knew the address of the master.
    cluster._write(replace(old, master=""))
    new = start_cluster(tmp_path, workers=1)
    assert spawned == ["Master", "Worker"] * 2
    assert not any(process.is_same(*identity) for identity in old.processes)
    assert all(process.is_same(*identity) for identity in new.processes)
    assert stop_cluster(tmp_path)
