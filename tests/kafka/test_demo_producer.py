import threading
import time
import uuid
from collections import Counter

import pytest
from demo_oracle import read_records

from penstock._local.broker import BrokerHandle, ensure_topic
from penstock._local.demo import producer as producer_module
from penstock._local.demo.account import order_id
from penstock._local.demo.kafka_log import read_ranges
from penstock._local.demo.orders import OrderStream
from penstock._local.demo.producer import OrderProducer
from penstock.errors import SetupError

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic(kafka_broker: BrokerHandle) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    ensure_topic(kafka_broker.bootstrap_servers, name, 3)
    return name


def test_every_message_is_in_the_log_once_when_the_producer_has_ended(
    kafka_broker: BrokerHandle, topic: str
) -> None:
    servers = kafka_broker.bootstrap_servers
    stream = OrderStream(run_id="r", rate=5000.0)
    producer = OrderProducer(servers, topic, stream, total=7000)
    assert not producer.finished
    producer.start()
    assert producer.join(60.0)
    assert producer.finished and producer.acknowledged == 7000

    ranges = read_ranges(servers, topic)
    records = list(read_records(servers, topic, ranges))
    assert sum(end - begin for begin, end in ranges.values()) == len(records) == 7000
    assert min(end for _, end in ranges.values()) > 500
    start = min(record.timestamp_ms for record in records)
    sent = OrderStream(run_id="r", rate=5000.0, start_ms=start)
    expected = Counter((m.key, m.value, m.timestamp_ms) for m in map(sent.message, range(7000)))
    assert Counter((r.key, r.value or b"", r.timestamp_ms) for r in records) == expected
    assert len({(record.partition, record.offset) for record in records}) == 7000


def test_timestamps_of_each_partition_are_in_order(kafka_broker: BrokerHandle, topic: str) -> None:
    servers = kafka_broker.bootstrap_servers
    producer = OrderProducer(servers, topic, OrderStream(run_id="r", rate=2000.0), total=2000)
    producer.start()
    assert producer.join(60.0)
    newest: dict[int, int] = {}
    for record in read_records(servers, topic, read_ranges(servers, topic)):
        assert record.timestamp_ms >= newest.get(record.partition, 0)
        newest[record.partition] = record.timestamp_ms


def test_producer_stops_early_on_request(kafka_broker: BrokerHandle, topic: str) -> None:
    servers = kafka_broker.bootstrap_servers
    producer = OrderProducer(servers, topic, OrderStream(run_id="r", rate=50.0), total=None)
    producer.start()
    producer.request_stop()
    assert producer.join(30.0)
    sent = sum(end - begin for begin, end in read_ranges(servers, topic).values())
    assert sent == producer.acknowledged < 50


def test_seconds_before_a_stop_do_not_shorten_the_wait_after_it(monkeypatch) -> None:
    monkeypatch.setattr(producer_module, "_UNACKNOWLEDGED_MS", 100)
    monkeypatch.setattr(producer_module, "_LAST_PATIENCE_SECONDS", 2.0)
    stream = OrderStream(run_id="r", rate=50.0)
    producer = OrderProducer("127.0.0.1:9", "orders", stream, total=None)
    producer.start()
    threading.Event().wait(2.5)
    producer.request_stop()
    stopped = time.monotonic()
    with pytest.raises(SetupError, match="messages were not acknowledged"):
        producer.join(20.0)
    assert time.monotonic() - stopped > 0.99  # the second of two flushes of one second


def test_duplicates_are_sent_to_the_partition_of_their_original(
    kafka_broker: BrokerHandle, topic: str
) -> None:
    servers = kafka_broker.bootstrap_servers
    producer = OrderProducer(servers, topic, OrderStream(run_id="r", rate=5000.0), total=3000)
    producer.start()
    assert producer.join(60.0)
    places: dict[str, set[int]] = {}
    for record in read_records(servers, topic, read_ranges(servers, topic)):
        order = order_id(record.value)
        if order is not None:
            places.setdefault(order, set()).add(record.partition)
    assert all(len(partitions) == 1 for partitions in places.values())


def test_error_names_the_broker_that_does_not_answer() -> None:
    with pytest.raises(SetupError, match="BROKER_UNREACHABLE"):
        read_ranges("127.0.0.1:9", "orders", timeout_seconds=0.5)
