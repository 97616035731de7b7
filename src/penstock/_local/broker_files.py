"""The files of one embedded broker: its configuration, and the record of its running process."""

import base64
import json
import os
import random
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.errors import SetupError

LOG_FILE = "broker.log"
_STATE_FILE = "broker.json"
_OLD_LOG_FILE = "broker.log.1"
_LOG_LIMIT_BYTES = 8 * 1024 * 1024
_HOST = "127.0.0.1"
_FIRST_PORT = 15_000
_PORT_CANDIDATES = 1_000
# The default of Linux; other systems begin higher.
_OUTGOING_PORT = 32_768

# Paths are relative to the broker's directory, which is its working directory: a comma or a
# character outside of Latin-1 in an absolute path would break a properties file.
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAIN",
    "log.dirs": "data",
    "auto.create.topics.enable": "false",
    # One broker holds every internal topic.
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Few threads and small buffers: the machine is shared with Spark.
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "log.segment.bytes": "16777216",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "metadata.max.idle.interval.ms": "0",
    # After a kill the controller waits this long before it lets the broker register again.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Retention uses the timestamps of records: an old timestamp would delete the segment.
    "log.retention.ms": "-1",
}
_LOG4J = """\
appender.console.type=Console
appender.console.name=Console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{yyyy-MM-dd HH:mm:ss,SSS} %p %c{1}: %m%n
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=Console
"""


@dataclass(frozen=True, kw_only=True)
class BrokerState:
    cluster_id: str
    port: int
    controller_port: int
    pid: int = 0  # 0 if stopped
    started: str = ""  # see `process.start_time`

    @property
    def bootstrap_servers(self) -> str:
        return f"{_HOST}:{self.port}"


def read_state(directory: Path) -> BrokerState | None:
    try:
        return BrokerState(**json.loads((directory / _STATE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_state(directory: Path, state: BrokerState) -> None:
    _replace(directory / _STATE_FILE, json.dumps(asdict(state), indent=2) + "\n")


def new_state(directory: Path, earlier: BrokerState | None, *, keep_ports: bool) -> BrokerState:
    """The state of the next start: cluster id of the data, and earlier ports if they are free."""
    cluster_id = formatted_cluster_id(directory) or (earlier.cluster_id if earlier else None)
    if earlier and keep_ports and are_free(earlier.port, earlier.controller_port):
        port, controller_port = earlier.port, earlier.controller_port
    else:
        port, controller_port = free_ports()
    return BrokerState(
        cluster_id=cluster_id or _new_cluster_id(), port=port, controller_port=controller_port
    )


def configuration(state: BrokerState) -> dict[str, str]:
    return {
        **_PROPERTIES,
        "controller.quorum.voters": f"1@{_HOST}:{state.controller_port}",
        "listeners": f"PLAIN://{_HOST}:{state.port},CONTROLLER://{_HOST}:{state.controller_port}",
        "advertised.listeners": f"PLAIN://{_HOST}:{state.port}",
    }


def write_configuration(directory: Path, settings: Mapping[str, str]) -> None:
    text = "".join(f"{key}={value}\n" for key, value in settings.items())
    _replace(directory / "server.properties", text)
    _replace(directory / "log4j2.properties", _LOG4J)


def trim_log(directory: Path) -> int:
    """Rotate a large log; return the offset of the next line."""
    log = directory / LOG_FILE
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return 0
    if size <= _LOG_LIMIT_BYTES:
        return size
    log.replace(directory / _OLD_LOG_FILE)
    return 0


def read_log(directory: Path, offset: int) -> str:
    with suppress(OSError), (directory / LOG_FILE).open("rb") as log:
        log.seek(offset)
        return log.read().decode("utf-8", errors="replace")
    return ""


def are_free(*ports: int) -> bool:
    for port in ports:
        try:
            with socket.socket() as probe:
                # As Kafka binds: lingering connections of an earlier broker do not block a port.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def free_ports() -> tuple[int, int]:
    """Two free ports of the loopback address.

    They are below the range of outgoing connections: while the broker is down, a client that
    reconnects could otherwise get the broker's port as its local port.
    """
    candidates = random.sample(range(_FIRST_PORT, _first_outgoing_port()), _PORT_CANDIDATES)
    free = (port for port in candidates if are_free(port))
    try:
        return next(free), next(free)
    except StopIteration:
        raise SetupError(
            "BROKER_FAILED",
            f"no port of {_HOST} is free",
            hint=f"allow programs to listen on {_HOST}: Spark and the broker need it",
        ) from None


def _first_outgoing_port() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        return max(int(text.split()[0]), _FIRST_PORT + _PORT_CANDIDATES)
    except (OSError, ValueError):
        return _OUTGOING_PORT


def formatted_cluster_id(directory: Path) -> str | None:
    try:
        text = (directory / "data" / "meta.properties").read_text(encoding="utf-8")
    except OSError:
        return None
    ids = [line.partition("=")[2] for line in text.splitlines() if line.startswith("cluster.id=")]
    return ids[0].strip() if ids else None


def _new_cluster_id() -> str:
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # The storage tool would parse a leading dash as an option.
        if not text.startswith("-"):
            return text


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
