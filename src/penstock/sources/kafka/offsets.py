"""Offsets of the topics of a stream: the first, the next, and the first at or after a moment."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from penstock._model.exception_text import first_line
from penstock.errors import ConnectorError
from penstock.sources.kafka.reader import KafkaRead, admin_of, topics_of


class TopicOffsets:
    """Asks the brokers about the topics of a flow's streams.

    Args:
        spark: Its JVM has the Kafka client.
        reads: The streams.
    """

    def __init__(self, spark: SparkSession, reads: Sequence[KafkaRead]) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._reads = reads

    def earliest(self) -> dict[str, dict[str, int]]:
        """The first offset that each partition still has."""
        return self._offsets("earliest")

    def latest(self) -> dict[str, dict[str, int]]:
        """The offset of the next record of each partition."""
        return self._offsets("latest")

    def at(self, moment_ms: int) -> dict[str, dict[str, int]]:
        """The first offset whose record is not older; the next one where there is no such."""
        found, ends = self._offsets("timestamp", moment_ms), self.latest()
        return {
            topic: {
                number: offset if offset >= 0 else ends.get(topic, {}).get(number, 0)
                for number, offset in partitions.items()
            }
            for topic, partitions in found.items()
        }

    def _offsets(self, kind: str, moment_ms: int = 0) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for read in self._reads:
            try:
                with admin_of(self._spark, read) as admin:
                    found |= self._of_read(admin, read, kind, moment_ms)
            except Exception as error:
                if "Py4J" not in type(error).__name__:
                    raise
                raise ConnectorError(
                    "KAFKA_NOT_ANSWERING",
                    "Kafka did not say which offsets the topics of the flow have: "
                    + first_line(error),
                    hint="look whether the brokers run and the user may describe the topics",
                ) from error
        return found

    def _of_read(
        self, admin: Any, read: KafkaRead, kind: str, moment_ms: int
    ) -> dict[str, dict[str, int]]:
        specs = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        spec = specs.forTimestamp(moment_ms) if kind == "timestamp" else getattr(specs, kind)()
        partition_of = self._jvm.org.apache.kafka.common.TopicPartition
        names = self._jvm.java.util.ArrayList()
        for topic in topics_of(admin, read):
            names.add(topic)
        described = admin.describeTopics(names).allTopicNames().get()
        wanted = self._jvm.java.util.HashMap()
        places = []
        for topic in names:
            for info in described.get(topic).partitions():
                places.append(partition_of(topic, int(info.partition())))
                wanted.put(places[-1], spec)
        answer = admin.listOffsets(wanted)
        found: dict[str, dict[str, int]] = {}
        for place in places:
            offset = int(answer.partitionResult(place).get().offset())
            found.setdefault(str(place.topic()), {})[str(place.partition())] = offset
        return found
