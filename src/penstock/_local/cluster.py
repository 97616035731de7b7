"""A standalone Spark cluster on this machine, from the jars of PySpark: one master and workers.

The directory contains their logs, the folders of the executors, and `cluster.json` with the
master's URL and the processes, with which any process can stop the cluster.
"""

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from penstock._local import process
from penstock._local.java import require_java
from penstock._local.repository import spark_jars_directory
from penstock.errors import SetupError

_STATE_FILE = "cluster.json"
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_SHOWN_LOG_LINES = 10
_HOST = "127.0.0.1"
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"(Successfully registered with master)")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A standalone cluster.

    Attributes:
        master: URL of the master, for the setting `master`.
        directory: Logs of the processes, and work folders of the executors.
        processes: Master first, then workers: pid and `process.start_time`.
    """

    master: str
    directory: Path
    processes: tuple[tuple[int, str], ...]

    @property
    def workers(self) -> int:
        """Number of workers that are running."""
        return sum(process.is_same(*item) for item in self.processes[1:])


def start_cluster(
    directory: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g"
) -> Cluster:
    """Start the directory's cluster unless it is running, and wait for its workers to register.

    Args:
        directory: Folder of logs and executors; created.
        workers: Number of workers.
        cores: Concurrent tasks per worker.
        memory: Memory for the executors of a worker, such as `2g`; an executor takes `1g` by
            default.
    """
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)

    def timeout() -> SetupError:
        return SetupError(
            "CLUSTER_FAILED",
            f"another process takes too long to start the cluster in {directory}",
            hint="see the logs in the folder; the machine may be very busy",
        )

    with process.start_lock(directory, time.monotonic() + _START_SECONDS, timeout):
        if (running := cluster_status(directory)) is not None:
            return running
        if (old := _read(directory)) is not None:  # its starter was killed, or its master died
            _end(old)
        return _start(directory, workers, cores, memory)


def _start(directory: Path, workers: int, cores: int, memory: str) -> Cluster:
    deadline = time.monotonic() + _START_SECONDS
    cluster = Cluster(master="", directory=directory, processes=())

    def start(name: str, main: str, *arguments: str) -> Callable[[re.Pattern[str]], str]:
        nonlocal cluster
        log = directory / f"{name}.log"
        pid = _spawn(directory, log, main, *arguments)
        started = (pid, process.start_time(pid) or "")
        cluster = replace(cluster, processes=(*cluster.processes, started))
        _write(cluster)
        return lambda pattern: _await(log, pattern, started, deadline)

    try:
        ports = ("--host", _HOST, "--port", "0", "--webui-port", "0")
        logged = start("master", "org.apache.spark.deploy.master.Master", *ports)
        master = logged(_MASTER_URL)
        cluster = replace(cluster, master=master)
        size = ("--cores", str(cores), "--memory", memory, "--work-dir", str(directory / "work"))
        registrations = [
            start(
                f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *ports, *size, master
            )
            for number in range(1, workers + 1)
        ]
        for logged in registrations:
            logged(_REGISTERED)
    except BaseException:
        _end(cluster)
        raise
    return cluster


def stop_cluster(directory: Path) -> bool:
    """Stop master, workers and executors; returns whether a cluster was running."""
    cluster = _read(directory.absolute())
    if cluster is None:
        return False
    was_running = any(process.is_same(*item) for item in cluster.processes)
    _end(cluster)
    return was_running


def cluster_status(directory: Path) -> Cluster | None:
    """The directory's cluster if its master is running."""
    cluster = _read(directory.absolute())
    is_running = cluster is not None and cluster.master and process.is_same(*cluster.processes[0])
    return cluster if is_running else None


def _spawn(directory: Path, log: Path, main: str, *arguments: str) -> int:
    jars = spark_jars_directory()
    assert jars is not None  # a dependency
    command = [str(require_java().executable), "-Xmx256m", "-XX:+UseSerialGC"]
    command += ["-cp", f"{jars}/*", main, *arguments]
    environment = {
        **os.environ,
        "SPARK_HOME": str(jars.parent),
        "SPARK_LOCAL_IP": _HOST,
        # As `spark-class` does: a worker needs it for the class path of executors.
        "SPARK_SCALA_VERSION": next(jars.glob("spark-core_*.jar")).name.split("_")[1].split("-")[0],
    }
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603 - our own command
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C and the end of the caller do not stop it
        )
    return child.pid


def _await(log: Path, pattern: re.Pattern[str], started: tuple[int, str], deadline: float) -> str:
    pause = threading.Event()
    while True:
        text = log.read_text(encoding="utf-8", errors="replace")
        if match := pattern.search(text):
            return match.group(1)
        is_over = time.monotonic() > deadline
        if is_over or not process.is_same(*started):
            problem = "took too long to start" if is_over else "ended"
            raise SetupError(
                "CLUSTER_FAILED",
                f"the {log.stem} of the cluster in {log.parent} {problem}"
                + process.tail(text, _SHOWN_LOG_LINES),
                hint=f"see the log {log}",
            )
        pause.wait(_POLL_SECONDS)


def _end(cluster: Cluster) -> None:
    for pid, started in reversed(cluster.processes):  # workers stop their executors
        process.end(pid, started)
    (cluster.directory / _STATE_FILE).unlink(missing_ok=True)


def _write(cluster: Cluster) -> None:
    state = {**asdict(cluster), "directory": str(cluster.directory)}
    draft = cluster.directory / f".{_STATE_FILE}.draft"
    draft.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    draft.replace(cluster.directory / _STATE_FILE)


def _read(directory: Path) -> Cluster | None:
    try:
        state = json.loads((directory / _STATE_FILE).read_text(encoding="utf-8"))
        processes = tuple((int(pid), str(started)) for pid, started in state["processes"])
        return Cluster(master=state["master"], directory=directory, processes=processes)
    except (OSError, ValueError, KeyError, TypeError):
        return None
