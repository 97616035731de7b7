"""Kafka's admin client, in Spark's JVM: topics, their ids, offsets and settings."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock._model.exception_text import first_line
from penstock.errors import ConnectorError

TIMEOUT_MS = 15_000
NO_BROKER = "Timed out waiting for a node assignment"

TopicPartition = tuple[str, int]
"""Topic and number of the partition."""


@dataclass(frozen=True)
class KafkaOptions:
    """Options of a stream as passed to Spark, including secrets; never shown."""

    options: Mapping[str, str] = field(repr=False)

    def get(self, name: str) -> str | None:
        """The value of an option (case-insensitive)."""
        return next((v for k, v in self.options.items() if k.lower() == name.lower()), None)

    @property
    def servers(self) -> str:
        return self.get("kafka.bootstrap.servers") or ""

    @property
    def place(self) -> str:
        """The addresses of the brokers as a string that does not depend on their order."""
        return ",".join(sorted({server.strip() for server in self.servers.split(",")}))

    @property
    def tolerates_loss(self) -> bool:
        """Whether the query continues if rows were lost."""
        return (self.get("failOnDataLoss") or "true").lower() == "false"


class KafkaAdmin:
    """An open client for the brokers of one stream; raises `Py4JError` if they do not respond."""

    def __init__(self, spark: SparkSession, options: KafkaOptions, client: Any) -> None:
        self._jvm: Any = spark._jvm
        self._options = options
        self._client = client

    def topics(self) -> list[str]:
        """The topics that the stream reads now."""
        if names := self._options.get("subscribe"):
            return [name.strip() for name in names.split(",") if name.strip()]
        if text := self._options.get("assign"):
            return list(json.loads(text))
        # A Java pattern, found anywhere in the name, as in Spark's `SubscribePatternStrategy`.
        text = self._options.get("subscribePattern") or ""
        pattern = self._jvm.java.util.regex.Pattern.compile(text)
        names = self._client.listTopics().names().get()
        return [name for name in names if pattern.matcher(name).find()]

    def topic_ids(self) -> dict[str, str]:
        """Kafka's ids of the existing topics, by name."""
        names = self.topics()
        futures = self._client.describeTopics(names).topicNameValues()
        ids: dict[str, str] = {}
        for topic in names:
            try:
                ids[topic] = str(futures.get(topic).get().topicId().toString())
            except Py4JError as error:
                # A topic that does not exist yet is left out; the others are still returned.
                if NO_BROKER in first_line(error):
                    raise
        return ids

    def partitions(self) -> list[TopicPartition]:
        """The partitions that the stream reads now."""
        if text := self._options.get("assign"):
            return [(topic, number) for topic, ns in json.loads(text).items() for number in ns]
        return self._existing()

    def absent(self) -> list[str]:
        """Partitions of `assign` that their topics do not have."""
        existing = self._existing()
        return [f"{topic}-{n}" for topic, n in self.partitions() if (topic, n) not in existing]

    def _existing(self) -> list[TopicPartition]:
        names = self.topics()
        described = self._client.describeTopics(names).allTopicNames().get()
        return [
            (topic, int(info.partition()))
            for topic in names
            for info in described.get(topic).partitions()
        ]

    def offsets(
        self,
        partitions: Sequence[TopicPartition],
        at: str | int,
        on_error: Callable[[Py4JError], None] | None = None,
    ) -> dict[TopicPartition, int]:
        """One offset of each partition; with `on_error`, partitions that fail are left out.

        `at` is `earliest`, `latest` (the offset of the next record), or milliseconds since 1970:
        the offset of the first record that is not older, -1 if there is none.
        """
        specs = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        spec = specs.forTimestamp(at) if isinstance(at, int) else getattr(specs, at)()
        wanted = self._jvm.java.util.HashMap()
        of_java = self._jvm.org.apache.kafka.common.TopicPartition
        known = {partition: of_java(*partition) for partition in partitions}
        for java in known.values():
            wanted.put(java, spec)
        answer = self._client.listOffsets(wanted)
        offsets: dict[TopicPartition, int] = {}
        for partition, java in known.items():
            try:
                offsets[partition] = int(answer.partitionResult(java).get().offset())
            except Py4JError as error:
                if on_error is None:
                    raise
                on_error(error)
        return offsets

    def topic_configs(self, topics: Sequence[str]) -> Mapping[str, Any]:
        """Java's future of the settings of each topic."""
        configs = self._jvm.org.apache.kafka.common.config
        kind = getattr(configs, "ConfigResource$Type").TOPIC
        resources = {topic: configs.ConfigResource(kind, topic) for topic in topics}
        answers = self._client.describeConfigs(list(resources.values())).values()
        return {topic: answers.get(resource) for topic, resource in resources.items()}


def client_properties(spark: SparkSession, options: KafkaOptions, timeout_ms: int) -> Any:
    """Java's `Properties` for a client of the brokers of a stream."""
    jvm: Any = spark._jvm
    properties = jvm.java.util.Properties()
    for name, value in options.options.items():
        if name.lower().startswith("kafka."):
            properties.put(name[len("kafka.") :].lower(), value)  # as Spark does
    properties.put("default.api.timeout.ms", str(timeout_ms))
    properties.put("request.timeout.ms", str(timeout_ms))
    return properties


@contextlib.contextmanager
def admin_of(
    spark: SparkSession, options: KafkaOptions, timeout_ms: int = TIMEOUT_MS
) -> Iterator[KafkaAdmin]:
    """A client for the brokers of a stream, closed at the end."""
    jvm: Any = spark._jvm
    properties = client_properties(spark, options, timeout_ms)
    client = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    try:
        yield KafkaAdmin(spark, options, client)
    finally:
        client.close(jvm.java.time.Duration.ZERO)


def topic_offsets(
    spark: SparkSession, options: KafkaOptions, at: str | int
) -> dict[str, dict[str, int]]:
    """An offset of each partition of a stream's topics; `at` as for `KafkaAdmin.offsets`.

    Raises:
        ConnectorError: `KAFKA_NOT_ANSWERING`.
    """
    try:
        with admin_of(spark, options) as admin:
            offsets = admin.offsets(admin.partitions(), at)
    except Py4JError as error:
        raise ConnectorError(
            "KAFKA_NOT_ANSWERING",
            f"the offsets of the flow's topics could not be read from Kafka: {first_line(error)}",
            hint="check that the brokers are running and that the user may describe the topics",
        ) from error
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, number), offset in offsets.items():
        by_topic.setdefault(topic, {})[str(number)] = offset
    return by_topic
