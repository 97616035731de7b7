"""A Kafka client for the embedded broker: readiness and topics."""

import threading
import time
from typing import Any

from penstock._model.extras import import_extra
from penstock.errors import SetupError

_POLL_SECONDS = 0.05


def import_admin() -> Any:
    return import_extra(
        "confluent_kafka.admin",
        extra="kafka",
        feature="the embedded broker",
        package="confluent-kafka",
    )


def admin_client(bootstrap_servers: str) -> Any:
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "log_level": 0,  # a broker that is about to listen is no reason to write to the terminal
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
    }
    return import_admin().AdminClient(settings)


def answers(admin: Any, cluster_id: str) -> bool:
    """Whether the broker of this cluster, and no other one, responds."""
    try:
        metadata = admin.list_topics(timeout=1.0)
    except Exception:  # the client library has one exception for everything: not ready yet
        return False
    return bool(metadata.brokers) and metadata.cluster_id == cluster_id


def ensure_topic(
    bootstrap_servers: str, topic: str, partitions: int = 1, *, timeout_seconds: float = 30.0
) -> int:
    """Create a topic unless it exists, and wait until it has leaders.

    Returns its number of partitions; an existing topic is not changed.
    """
    admin = admin_client(bootstrap_servers)
    deadline = time.monotonic() + timeout_seconds
    known = _partitions(admin, topic)
    if known:
        return known
    new_topic = import_admin().NewTopic(topic, num_partitions=partitions, replication_factor=1)
    future = admin.create_topics([new_topic], operation_timeout=timeout_seconds)[topic]
    try:
        future.result(timeout_seconds)
    except Exception as error:
        if not _already_exists(error):
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
        f"the topic {topic!r} got no leader within {timeout_seconds:g} s",
        hint="see the broker's log",
    )


def _partitions(admin: Any, topic: str) -> int:
    """Number of partitions of a topic; 0 while it is unknown or a partition has no leader."""
    try:
        metadata = admin.list_topics(timeout=5.0).topics.get(topic)
    except Exception:  # as above
        return 0
    if metadata is None or metadata.error is not None:
        return 0
    leaders = [partition.leader for partition in metadata.partitions.values()]
    return len(leaders) if all(leader >= 0 for leader in leaders) else 0


def _already_exists(error: Exception) -> bool:
    cause = error.args[0] if error.args else None
    return getattr(cause, "name", lambda: "")() == "TOPIC_ALREADY_EXISTS"
