import json
import os
import signal
import socket
import subprocess
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._local.broker import BrokerHandle, start_broker, stop_broker
from penstock._local.jars import sync
from penstock._local.java import require_java
from penstock._local.lock import parse_lock


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    """One broker for all Kafka tests of a run; every test creates its own topic."""
    directory: Path = tmp_path_factory.mktemp("kafka")
    try:
        yield start_broker(directory)
    finally:
        stop_broker(directory)


class Registry:
    """A running Apicurio registry, which keeps schemas in memory."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"

    def register(self, subject: str, kind: str, schema: str) -> int:
        """Register a schema; returns its id."""
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            data=json.dumps({"schemaType": kind, "schema": schema}).encode(),
            headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])

    def answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/subjects", timeout=5).close()
        except OSError:
            return False
        return True

    def freeze(self) -> None:
        """Let the registry accept connections, but send no responses."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture(scope="session")
def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A real registry, downloaded once into the jar cache (109 MB)."""
    lock = parse_lock((Path(__file__).parent / "registry.lock").read_text(encoding="utf-8"), "4.2")
    (archive,) = sync(lock=lock).paths
    folder = tmp_path_factory.mktemp("registry")
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    (runner,) = folder.glob("*-runner.jar")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(require_java().executable),
                "-Xmx256m",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-Dquarkus.http.host=127.0.0.1",
                f"-Dquarkus.http.port={port}",
                "-jar",
                str(runner),
            ],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    registry = Registry(process, port)
    try:
        deadline, pause = time.monotonic() + 120, threading.Event()
        while not registry.answers():
            assert process.poll() is None, (folder / "registry.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the registry did not start in time"
            pause.wait(0.2)
        yield registry
    finally:
        process.kill()
        process.wait()
