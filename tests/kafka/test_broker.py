import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock._cli.main import main
from penstock._local import process
from penstock._local.broker import (
    BrokerHandle,
    broker_status,
    ensure_topic,
    start_broker,
    stop_broker,
)
from penstock._local.broker_files import read_state, write_state
from penstock.errors import SetupError

pytestmark = pytest.mark.kafka


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A folder for a separate broker; its name must be escaped in property files."""
    made = tmp_path / "a, bröker"
    yield made
    stop_broker(made)


def _produce(broker: BrokerHandle, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all"})
    failures = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda e, _: failures.append(e))
    assert producer.flush(30) == 0
    assert failures == [None] * len(values)


def _consume(broker: BrokerHandle, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "test"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def _started(pid: int) -> str:
    return process.start_time(pid) or ""


def test_records_are_consumed_in_the_order_they_were_produced(kafka_broker: BrokerHandle) -> None:
    ensure_topic(kafka_broker.bootstrap_servers, "round-trip")
    values = [f"{number}".encode() for number in range(500)]
    _produce(kafka_broker, "round-trip", values)
    assert _consume(kafka_broker, "round-trip", 500) == values


def test_existing_topic_is_not_changed(kafka_broker: BrokerHandle) -> None:
    assert ensure_topic(kafka_broker.bootstrap_servers, "three", 3) == 3
    assert ensure_topic(kafka_broker.bootstrap_servers, "three", 5) == 3


def test_error_has_the_reason_when_the_name_of_a_topic_is_refused(
    kafka_broker: BrokerHandle,
) -> None:
    with pytest.raises(SetupError) as caught:
        ensure_topic(kafka_broker.bootstrap_servers, "not a topic!")
    assert caught.value.condition == "TOPIC_FAILED"


def test_command_creates_a_topic_unless_it_exists(
    kafka_broker: BrokerHandle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--dir", str(kafka_broker.directory)]
    for partitions in ("3", "5"):
        assert main(["broker", "topic", "made.here", "--partitions", partitions, *folder]) == 0
        assert capsys.readouterr().out == "topic made.here has 3 partitions\n"
    assert main(["broker", "topic", "x", "--dir", str(tmp_path)]) == 3
    assert "penstock broker start" in capsys.readouterr().err


def test_second_start_returns_the_running_broker(kafka_broker: BrokerHandle) -> None:
    assert start_broker(kafka_broker.directory) == kafka_broker
    assert broker_status(kafka_broker.directory) == kafka_broker


def test_other_processes_can_stop_the_broker_after_its_starter_ended(
    directory: Path,
) -> None:
    program = (
        "import sys, pathlib; from penstock._local.broker import start_broker;"
        "print(start_broker(pathlib.Path(sys.argv[1])).pid)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    pid = int(result.stdout)
    assert result.stderr == ""
    assert broker_status(directory).pid == pid
    # The state as if the starter was killed before it could record the process.
    state = read_state(directory)
    assert state is not None
    write_state(directory, replace(state, pid=0, started=""))
    assert broker_status(directory).pid == pid
    assert start_broker(directory).pid == pid
    assert stop_broker(directory) is True
    assert process.start_time(pid) is None
    assert stop_broker(directory) is False


def test_records_and_address_survive_when_the_broker_is_killed(directory: Path) -> None:
    first = start_broker(directory)
    ensure_topic(first.bootstrap_servers, "kept")
    values = [f"{number}".encode() for number in range(1000)]
    _produce(first, "kept", values)
    started = _started(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    assert process.wait_gone(first.pid, started, 10)
    assert broker_status(directory) is None
    second = start_broker(directory)
    assert second.pid != first.pid
    assert second.bootstrap_servers == first.bootstrap_servers
    assert _consume(second, "kept", 1000) == values
    assert stop_broker(directory)
    assert process.start_time(second.pid) is None


@pytest.mark.long
def test_broker_moves_to_other_ports_when_its_own_are_taken(directory: Path) -> None:
    first = start_broker(directory)
    ensure_topic(first.bootstrap_servers, "kept")
    _produce(first, "kept", [b"one"])
    stop_broker(directory)
    host, _, port = first.bootstrap_servers.partition(":")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, int(port)))
        taken.listen()
        second = start_broker(directory)
        assert second.bootstrap_servers != first.bootstrap_servers
        assert _consume(second, "kept", 1) == [b"one"]


def test_last_log_lines_are_shown_when_the_broker_dies(directory: Path) -> None:
    with pytest.raises(SetupError) as caught:
        start_broker(directory, properties={"log.segment.bytes": "not a number"})
    assert caught.value.condition == "BROKER_FAILED"
    assert "log.segment.bytes" in caught.value.message
    assert str(directory / "broker.log") in (caught.value.hint or "")
    assert broker_status(directory) is None


def test_jvm_is_ended_when_the_broker_is_not_ready_in_time(directory: Path) -> None:
    start_broker(directory)
    stop_broker(directory)
    with pytest.raises(SetupError) as caught:
        start_broker(directory, timeout_seconds=0.3)
    assert caught.value.condition == "BROKER_TIMEOUT"
    assert broker_status(directory) is None


def test_start_is_refused_when_the_directory_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError) as caught:
        start_broker(tmp_path / "file")
    assert caught.value.condition == "BROKER_DIRECTORY_UNUSABLE"


@pytest.mark.long
def test_broker_has_its_own_process_group(directory: Path) -> None:
    handle = start_broker(directory)
    assert os.getpgid(handle.pid) == handle.pid
