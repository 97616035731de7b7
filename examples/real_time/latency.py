"""Measure the latency from one topic to the other: `python latency.py localhost:9092 verdicts`.

The header `sent-at` of a message contains the timestamp of its input record; its own timestamp is
set when it is sent. Both are based on the clock of this machine.
"""

import sys
from collections.abc import Iterator

from confluent_kafka import Consumer, TopicPartition


def latencies(servers: str, topic: str) -> Iterator[int]:
    """Yield the latency of each message in the topic, in milliseconds."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "latency"})
    try:
        for number in consumer.list_topics(topic, 30).topics[topic].partitions:
            place = TopicPartition(topic, number, 0)
            first, end = consumer.get_watermark_offsets(place, timeout=30)
            consumer.assign([TopicPartition(topic, number, first)])
            at = first
            while at < end:
                message = consumer.poll(30)
                if message is None:
                    raise TimeoutError(topic)
                at = message.offset() + 1
                headers = dict(message.headers() or [])
                yield message.timestamp()[1] - int(headers["sent-at"])
    finally:
        consumer.close()


def summary(found: list[int]) -> str:
    """Median, 99th percentile and maximum."""
    ordered = sorted(found)
    half, most = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"{len(ordered)} messages: median {half} ms, 99% {most} ms, slowest {ordered[-1]} ms"


if __name__ == "__main__":
    sys.stdout.write(summary(list(latencies(*sys.argv[1:3]))) + "\n")
