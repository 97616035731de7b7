"""A consumer without duplicates. In production, store `seen` together with the results."""

from collections.abc import Iterator

from confluent_kafka import Consumer


def messages(servers: str, topic: str, seen: set[bytes], *, idle_seconds: float) -> Iterator[bytes]:
    """Yield the values of messages with new ids until no message arrives for `idle_seconds`."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "example", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        while (message := consumer.poll(idle_seconds)) is not None:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            row_id = dict(message.headers())["penstock-id"]
            if row_id not in seen:
                seen.add(row_id)
                yield message.value()
    finally:
        consumer.close()
