"""The embedded Kafka broker: one JVM in KRaft mode, with its own directory.

The directory contains its data, configuration and log, and `broker.json` with its process and
ports, with which any process can use and stop the broker.
"""

import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock._local import process
from penstock._local.broker_files import (
    LOG_FILE,
    BrokerState,
    configuration,
    formatted_cluster_id,
    new_state,
    read_log,
    read_state,
    trim_log,
    write_configuration,
    write_state,
)
from penstock._local.jars import class_path
from penstock._local.java import require_java
from penstock._model.extras import import_extra
from penstock.errors import SetupError

_START_SECONDS = 60.0
_PORT_ATTEMPTS = 3
_POLL_SECONDS = 0.05
_TOPIC_SECONDS = 30.0
_SHOWN_LOG_LINES = 15
_MARKER = "-Dpenstock.broker.directory="
# The C1 compiler only: half the startup time, and fast enough for one machine.
_JVM_OPTIONS = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_CLASHES = ("Address already in use", "BindException", "Socket server failed to bind")


@dataclass(frozen=True, kw_only=True)
class BrokerHandle:
    """A running broker."""

    bootstrap_servers: str
    pid: int
    directory: Path


def start_broker(
    directory: Path,
    *,
    properties: Mapping[str, str] | None = None,
    timeout_seconds: float = _START_SECONDS,
) -> BrokerHandle:
    """Start the directory's broker unless it is running, and wait until it responds.

    Data and, if they are free, ports of an earlier broker are reused. `properties` apply to a new
    start only. The broker runs in a separate session, so that Ctrl-C and the end of the caller do
    not stop it.
    """
    import_admin()
    directory = directory.absolute()
    deadline = time.monotonic() + timeout_seconds
    timeout = partial(_timeout, directory, 0, "be started by another process")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with process.start_lock(directory, deadline, timeout):
            state = _running(directory)
            if state is not None:
                _wait_ready(directory, state, offset=0, deadline=deadline)
                return _handle(directory, state)
            return _start(directory, _java_command(directory), properties or {}, deadline)
    except OSError as error:
        raise SetupError(
            "BROKER_DIRECTORY_UNUSABLE",
            f"the broker cannot use {directory}: {error.strerror or error}",
            hint="make it writable, free some disk space, or choose another folder",
        ) from error


def stop_broker(directory: Path) -> bool:
    """Stop the broker and wait until its process has ended; its data is kept.

    It is killed if it does not end in time. Returns whether a broker was running.
    """
    directory = directory.absolute()
    state = _running(directory)
    if state is None:
        return False
    process.end(state.pid, state.started)
    with suppress(OSError):  # a record that cannot be written is recognised as stale
        write_state(directory, replace(state, pid=0, started=""))
    return True


def broker_status(directory: Path) -> BrokerHandle | None:
    """The directory's broker if it is running."""
    directory = directory.absolute()
    state = _running(directory)
    return _handle(directory, state) if state is not None else None


def _start(
    directory: Path,
    command: list[str],
    properties: Mapping[str, str],
    deadline: float,
) -> BrokerHandle:
    earlier = read_state(directory)
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        state = new_state(directory, earlier, keep_ports=attempt == 1)
        write_configuration(directory, {**configuration(state), **properties})
        write_state(directory, state)
        offset = trim_log(directory)
        if formatted_cluster_id(directory) is None:
            _format(directory, command, state, offset, deadline)
        child = _spawn(directory, [*command, "kafka.Kafka", "server.properties"], own_group=True)
        started = process.start_time(child.pid)
        try:
            state = replace(state, pid=child.pid, started=started or "")
            write_state(directory, state)
            _wait_ready(directory, state, offset=offset, deadline=deadline)
        except BaseException as error:
            process.end(state.pid, state.started)
            clash = any(text in read_log(directory, offset) for text in _CLASHES)
            if isinstance(error, SetupError) and clash and attempt < _PORT_ATTEMPTS:
                continue
            raise
        return _handle(directory, state)
    raise AssertionError("the last attempt returns or raises")


def _format(
    directory: Path, command: list[str], state: BrokerState, offset: int, deadline: float
) -> None:
    """Format the data directory with Kafka's storage tool, which writes the feature levels."""
    arguments = ["--ignore-formatted", "--cluster-id", state.cluster_id]
    tool = ["kafka.tools.StorageTool", "format", *arguments, "--config", "server.properties"]
    child = _spawn(directory, [*command, *tool], own_group=False)
    try:
        status = child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise _timeout(directory, offset, "format its data folder") from error
    finally:
        child.kill()
        child.wait()
    if status != 0:
        raise _failed(directory, offset, f"the storage tool ended with status {status}")


def _spawn(directory: Path, command: list[str], *, own_group: bool) -> subprocess.Popen[bytes]:
    with (directory / LOG_FILE).open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own command
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=own_group,
        )


def _java_command(directory: Path) -> list[str]:
    return [
        str(require_java().executable),
        *_JVM_OPTIONS,
        f"{_MARKER}{directory}",
        "-Dlog4j2.configurationFile=log4j2.properties",
        "-Dkafka.logs.dir=.",
        "-cp",
        ":".join(str(entry) for entry in class_path(["kafka-broker"])),
    ]


def _running(directory: Path) -> BrokerState | None:
    state = read_state(directory)
    if state is None:
        return None
    if state.pid and process.is_same(state.pid, state.started):
        return state
    # The starter may have been killed between starting the broker and recording it.
    orphan = process.find_by_argument(f"{_MARKER}{directory}", "kafka.Kafka")
    started = process.start_time(orphan) if orphan else None
    return replace(state, pid=orphan, started=started) if orphan and started else None


def _handle(directory: Path, state: BrokerState) -> BrokerHandle:
    return BrokerHandle(
        bootstrap_servers=state.bootstrap_servers, pid=state.pid, directory=directory
    )


def _wait_ready(directory: Path, state: BrokerState, *, offset: int, deadline: float) -> None:
    pause = threading.Event()
    admin: Any = None
    while time.monotonic() < deadline:
        if not process.is_same(state.pid, state.started):
            raise _failed(directory, offset, "its process ended")
        if admin is None and _accepts(state.port):
            admin = admin_client(state.bootstrap_servers)
        if admin is not None and answers(admin, state.cluster_id):
            return
        pause.wait(_POLL_SECONDS)
    raise _timeout(directory, offset, "respond")


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _failed(directory: Path, offset: int, reason: str) -> SetupError:
    return SetupError(
        "BROKER_FAILED",
        f"the Kafka broker in {directory} did not start: {reason}{_log_tail(directory, offset)}",
        hint=f"see the log {directory / LOG_FILE}",
    )


def _timeout(directory: Path, offset: int, what: str) -> SetupError:
    return SetupError(
        "BROKER_TIMEOUT",
        f"the Kafka broker in {directory} took too long to {what}{_log_tail(directory, offset)}",
        hint=f"see the log {directory / LOG_FILE}; the machine may be overloaded",
    )


def _log_tail(directory: Path, offset: int) -> str:
    return process.tail(read_log(directory, offset), _SHOWN_LOG_LINES)


def import_admin() -> Any:
    return import_extra(
        "confluent_kafka.admin",
        extra="demo",
        feature="the embedded broker",
        package="confluent-kafka",
    )


def admin_client(bootstrap_servers: str) -> Any:
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "log_level": 0,  # no terminal output about failed connections while the broker starts
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
    }
    return import_admin().AdminClient(settings)


def answers(admin: Any, cluster_id: str) -> bool:
    """Whether the broker of this cluster, and no other one, responds."""
    try:
        metadata = admin.list_topics(timeout=1.0)
    except Exception:  # the client raises one exception type for all errors: not ready yet
        return False
    return bool(metadata.brokers) and metadata.cluster_id == cluster_id


def ensure_topic(bootstrap_servers: str, topic: str, partitions: int = 1) -> int:
    """Create a topic unless it exists, and wait until it has leaders.

    Returns its number of partitions; an existing topic is not changed.
    """
    admin = admin_client(bootstrap_servers)
    deadline = time.monotonic() + _TOPIC_SECONDS
    known = _partitions(admin, topic)
    if known:
        return known
    new_topic = import_admin().NewTopic(topic, num_partitions=partitions, replication_factor=1)
    future = admin.create_topics([new_topic], operation_timeout=_TOPIC_SECONDS)[topic]
    try:
        future.result(_TOPIC_SECONDS)
    except Exception as error:
        cause = error.args[0] if error.args else None
        if getattr(cause, "name", lambda: "")() != "TOPIC_ALREADY_EXISTS":
            raise SetupError(
                "TOPIC_FAILED",
                f"the broker at {bootstrap_servers} did not create the topic {topic!r}: {error}",
                hint="run `penstock broker status`, and see its log",
            ) from error
    pause = threading.Event()
    while time.monotonic() < deadline:
        known = _partitions(admin, topic)
        if known:
            return known
        pause.wait(_POLL_SECONDS)
    raise SetupError(
        "BROKER_TIMEOUT",
        f"the topic {topic!r} got no leader within {_TOPIC_SECONDS:g} s",
        hint="see the broker's log",
    )


def _partitions(admin: Any, topic: str) -> int:
    try:
        metadata = admin.list_topics(timeout=5.0).topics.get(topic)
    except Exception:  # as above
        return 0
    if metadata is None or metadata.error is not None:
        return 0
    leaders = [partition.leader for partition in metadata.partitions.values()]
    return len(leaders) if all(leader >= 0 for leader in leaders) else 0
