"""Kafka's side of the lag: first and last offsets, age of what is unread, retention."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from penstock.sources.kafka.reader import KafkaRead
from penstock.sources.kafka.retention import Retention, StartRate, risk_of

_TIMEOUT_MS = 5000
_SILENT_SECONDS = 5.0
_CONFIG_SECONDS = 300.0
_READ_PARTITIONS = 64
_READ_SECONDS = 3.0
_SUBSCRIPTION = re.compile(r"KafkaV2\[(Subscribe|SubscribePattern|Assign)\[(.*)\]\]$")

Place = tuple[str, int]
"""Topic and partition."""


class KafkaLag:
    """Measures the streams from Kafka of one flow. One thread at a time.

    Costs two requests to the brokers, and one record of each partition whose oldest unread record
    is another one than the last time; never more than a few seconds.

    Args:
        spark: Its JVM has the Kafka client.
        reads: The flow's streams.
        now_ms: The time as Kafka's timestamps have it.
        silent: Brokers that did not answer, and until when nobody asks them again; one for all
            flows, so that they do not wait for the same brokers one after the other.
    """

    def __init__(
        self,
        spark: SparkSession,
        reads: Sequence[KafkaRead],
        now_ms: Callable[[], int] = lambda: round(time.time() * 1000),
        silent: dict[str, float] | None = None,
    ) -> None:
        self._silent = silent if silent is not None else {}
        self._failed: Py4JJavaError | None = None
        self._jvm: Any = spark._jvm
        self._reads = list(reads)
        self._now_ms = now_ms
        self._retention: dict[str, tuple[float, Retention | None]] = {}
        self._rates: dict[Place, StartRate] = {}
        self._oldest: dict[Place, tuple[int, int | None]] = {}

    def measure(self, description: str, offsets: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
        """What is known about one source; what is not is `None`.

        Args:
            description: Spark's name of the source.
            offsets: The first unread offset by topic and partition, as in a progress report.
        """
        read = self._read_of(description)
        places = {
            (topic, int(number)): offset
            for topic, partitions in offsets.items()
            for number, offset in partitions.items()
        }
        earliest: dict[Place, int] = {}
        latest: dict[Place, int] = {}
        retention: dict[str, Retention | None] = {}
        problem: str | None = None
        servers = "" if read is None else read.option("kafka.bootstrap.servers") or ""
        if read is not None and places:
            if time.monotonic() >= self._silent.get(servers, 0.0):
                self._failed = None
                with self._noting_failure(), self._admin(read) as admin:
                    earliest, latest = self._bounds(admin, places)
                    if latest:
                        retention = self._retentions(admin, sorted(offsets))
                if not latest and self._failed is not None:
                    problem = _problem(servers, self._failed)
                # Who refuses this flow may serve the others: only silence is about all of them.
                if problem == _no_answer(servers):
                    self._silent[servers] = time.monotonic() + _SILENT_SECONDS
            else:
                problem = _no_answer(servers)
        unread = {
            place: max(offset, earliest[place])
            for place, offset in places.items()
            if latest.get(place, 0) > offset and place in earliest
        }
        if read is not None and unread:
            self._read_oldest(read, unread, latest)
        partitions = [
            self._partition(place, offset, earliest, latest, retention.get(place[0]))
            for place, offset in sorted(places.items())
        ]
        shown = {
            topic: None if found is None else found.as_json() for topic, found in retention.items()
        }
        return {
            "kind": "kafka",
            "partitions": partitions,
            "retention": shown,
            "problem": problem,
        }

    def _partition(
        self,
        place: Place,
        offset: int,
        earliest: Mapping[Place, int],
        latest: Mapping[Place, int],
        retention: Retention | None,
    ) -> dict[str, Any]:
        begin, end = earliest.get(place), latest.get(place)
        rate = None
        if begin is not None:
            moving = self._rates.setdefault(place, StartRate())
            moving.note(time.monotonic(), begin)
            rate = moving.offsets_per_second
        oldest = None
        if begin is not None and end is not None and end > offset:
            at, stamp = self._oldest.get(place, (-1, None))
            oldest = stamp if at == max(offset, begin) else None
        now = self._now_ms()
        risk = risk_of(
            offset,
            earliest=begin,
            latest=end,
            oldest_ms=oldest,
            retention=retention,
            now_ms=now,
            start_rate=rate,
        )
        behind = None if oldest is None else round(max(0, now - oldest) / 1000, 1)
        return {
            "topic": place[0],
            "partition": str(place[1]),
            "offset": offset,
            "earliest_offset": begin,
            "latest_offset": end,
            "records": None if end is None else max(0, end - offset),
            "seconds_behind": 0.0 if end is not None and end <= offset else behind,
            "seconds_to_loss": risk.seconds,
            "loss": risk.loss.value,
            "loss_by": risk.by,
            "lost_records": risk.lost_records,
        }

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            self._failed = error
        except Py4JError:
            self._failed = None  # the JVM is going down

    # -- the client ----------------------------------------------------------------------------

    def _read_of(self, description: str) -> KafkaRead | None:
        if len(self._reads) == 1:
            return self._reads[0]
        match = _SUBSCRIPTION.match(description)
        if match is None:
            return None
        kind, text = match.groups()
        option = kind[0].lower() + kind[1:]
        given = [read for read in self._reads if read.option(option) is not None]
        topics = {name.strip() for name in text.split(",")}
        for read in given:
            wanted = read.option(option) or ""
            if kind == "Subscribe" and {name.strip() for name in wanted.split(",")} == topics:
                return read
            if kind == "SubscribePattern" and wanted == text:
                return read
        return given[0] if len(given) == 1 else None

    def _properties(self, read: KafkaRead, **more: str) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, value in read.options.items():
            if name.lower().startswith("kafka."):
                properties.put(name[len("kafka.") :], value)
        properties.put("default.api.timeout.ms", str(_TIMEOUT_MS))
        properties.put("request.timeout.ms", str(_TIMEOUT_MS))
        for name, value in more.items():
            properties.put(name.replace("_", "."), value)
        return properties

    @contextlib.contextmanager
    def _admin(self, read: KafkaRead) -> Iterator[Any]:
        clients = self._jvm.org.apache.kafka.clients.admin
        admin = clients.AdminClient.create(self._properties(read))
        try:
            yield admin
        finally:
            admin.close(self._jvm.java.time.Duration.ZERO)

    def _topic_partition(self, place: Place) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(*place)

    def _bounds(
        self, admin: Any, places: Mapping[Place, int]
    ) -> tuple[dict[Place, int], dict[Place, int]]:
        """The first and the next offset of each partition that there is."""
        specs = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        known = {place: self._topic_partition(place) for place in places}
        answers = []
        for spec in (specs.earliest(), specs.latest()):
            wanted = self._jvm.java.util.HashMap()
            for partition in known.values():
                wanted.put(partition, spec)
            answers.append(admin.listOffsets(wanted))
        found: list[dict[Place, int]] = []
        for answer in answers:
            offsets: dict[Place, int] = {}
            for place, partition in known.items():
                # A partition that is gone must not hide the others.
                with self._noting_failure():
                    offsets[place] = int(answer.partitionResult(partition).get().offset())
            found.append(offsets)
        return found[0], found[1]

    def _retentions(self, admin: Any, topics: Sequence[str]) -> dict[str, Retention | None]:
        now = time.monotonic()
        due = [
            topic
            for topic in topics
            if now - self._retention.get(topic, (float("-inf"), None))[0] > _CONFIG_SECONDS
        ]
        if due:
            configs = self._jvm.org.apache.kafka.common.config
            kind = getattr(configs, "ConfigResource$Type").TOPIC
            resources = {topic: configs.ConfigResource(kind, topic) for topic in due}
            wanted = self._jvm.java.util.ArrayList()
            for resource in resources.values():
                wanted.add(resource)
            answers = admin.describeConfigs(wanted).values()
            for topic, resource in resources.items():
                found = None
                with contextlib.suppress(Py4JError, ValueError, AttributeError):
                    found = _retention(answers.get(resource).get())
                self._retention[topic] = (now, found)
        return {topic: self._retention[topic][1] for topic in topics}

    def _read_oldest(
        self, read: KafkaRead, unread: Mapping[Place, int], latest: Mapping[Place, int]
    ) -> None:
        """Learn the timestamps of records by reading these records, and no others."""
        new = [place for place, at in unread.items() if self._oldest.get(place, (-1,))[0] != at]
        new.sort(key=lambda place: unread[place] - latest[place])
        chosen = {place: self._topic_partition(place) for place in new[:_READ_PARTITIONS]}
        if not chosen:
            return
        with contextlib.suppress(Py4JError), self._consumer(read) as consumer:
            wanted = self._jvm.java.util.ArrayList()
            for partition in chosen.values():
                wanted.add(partition)
            consumer.assign(wanted)
            for place, partition in chosen.items():
                consumer.seek(partition, unread[place])
            waiting = dict(chosen)
            deadline = time.monotonic() + _READ_SECONDS
            while waiting and time.monotonic() < deadline:
                records = consumer.poll(self._jvm.java.time.Duration.ofMillis(300)).iterator()
                while records.hasNext():
                    record = records.next()
                    place = (str(record.topic()), int(record.partition()))
                    partition = waiting.pop(place, None)
                    if partition is None:
                        continue
                    stamp = int(record.timestamp())
                    self._oldest[place] = (unread[place], stamp if stamp >= 0 else None)
                    done = self._jvm.java.util.ArrayList()
                    done.add(partition)
                    consumer.pause(done)

    @contextlib.contextmanager
    def _consumer(self, read: KafkaRead) -> Iterator[Any]:
        # As little as the brokers give: one batch of records at a time.
        properties = self._properties(
            read,
            enable_auto_commit="false",
            auto_offset_reset="none",
            allow_auto_create_topics="false",
            max_poll_records="1",
            max_partition_fetch_bytes="65536",
            fetch_max_bytes="1048576",
        )
        properties.remove("group.id")
        bytes_of = self._jvm.org.apache.kafka.common.serialization.ByteArrayDeserializer
        consumer = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(
            properties, bytes_of(), bytes_of()
        )
        try:
            yield consumer
        finally:
            consumer.close(self._jvm.java.time.Duration.ZERO)


def _no_answer(servers: str) -> str:
    return f"no broker of {servers} answers"


def _problem(servers: str, failed: Py4JJavaError) -> str:
    """Why nothing is known of a topic; brokers that are gone are told from those that refuse."""
    found, cause = failed.java_exception, failed.java_exception.getCause()
    while cause is not None:
        found, cause = cause, cause.getCause()
    name = str(found.getClass().getSimpleName())
    if name in _NO_ANSWER:
        return _no_answer(servers)
    return f"the brokers of {servers} refuse: {name}: {found.getMessage()}"


_NO_ANSWER = frozenset({"TimeoutException", "DisconnectException", "ConnectException"})


def _retention(config: Any) -> Retention:
    return Retention(
        deletes="delete" in str(config.get("cleanup.policy").value()),
        milliseconds=int(config.get("retention.ms").value()),
        size=int(config.get("retention.bytes").value()),
    )
