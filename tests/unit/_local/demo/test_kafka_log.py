"""Reading offsets while the broker starts, with a stub of the Kafka client."""

from types import SimpleNamespace

import pytest

from penstock._local.demo import kafka_log
from penstock._local.demo.kafka_log import read_ranges
from penstock.errors import SetupError


class KafkaException(Exception):
    pass


class StartingConsumer:
    """A consumer whose first calls fail with these errors."""

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors
        self.is_closed = False

    def list_topics(self, topic: str, timeout: float):
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={1: None, 0: None})})

    def get_watermark_offsets(self, partition: tuple[str, int], timeout: float, cached: bool):
        if self.errors:
            name = self.errors.pop(0)
            raise KafkaException(SimpleNamespace(name=lambda: name))
        return partition[1], 10

    def poll(self, seconds: float) -> None:
        assert seconds < 1

    def close(self) -> None:
        self.is_closed = True


def ranges(monkeypatch: pytest.MonkeyPatch, consumer: StartingConsumer, seconds: float):
    client = SimpleNamespace(
        TopicPartition=lambda topic, partition: (topic, partition), KafkaException=KafkaException
    )
    monkeypatch.setattr(kafka_log, "import_client", lambda: client)
    monkeypatch.setattr(kafka_log, "open_consumer", lambda kafka, servers: consumer)
    try:
        return read_ranges("b:1", "orders", timeout_seconds=seconds)
    finally:
        assert consumer.is_closed


def test_offsets_are_read_again_when_a_partition_has_no_leader_yet(monkeypatch):
    consumer = StartingConsumer(["NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"])
    assert ranges(monkeypatch, consumer, 20.0) == {0: (0, 10), 1: (1, 10)}


@pytest.mark.parametrize("name", ["NOT_LEADER_FOR_PARTITION", "_TRANSPORT"])
def test_errors_are_reported_when_they_are_fatal_or_after_the_timeout(monkeypatch, name):
    consumer = StartingConsumer([name] * 10_000)
    with pytest.raises(SetupError) as raised:
        ranges(monkeypatch, consumer, -1.0)
    assert raised.value.condition == "BROKER_UNREACHABLE"
    assert len(consumer.errors) == 9_999
