"""Kafka topics as sinks: at least once, with an id per message to recognize duplicates."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock._model.dataset import SinkFacts
from penstock._model.flow import Flow, OutputMode
from penstock._model.lineage import LineageSource
from penstock._model.similar import nearest
from penstock._model.trigger import TriggerKind
from penstock._tables.kill_points import kill_point
from penstock.errors import ConnectorError, FlowError
from penstock.sinks.base import (
    BatchSink,
    OpenedSink,
    Sink,
    SinkCommit,
    StreamSink,
    Write,
    check_names,
    option,
)
from penstock.sources.kafka.options import (
    SERVERS,
    at_mapped_servers,
    prepare_sink_options,
    refuse_misspelt,
)

ROW_ID_HEADER = "penstock-id"
_ROW_IDS = "rowIds"
_SENT = ("topic", "partition", "key", "value", "headers")
_TEXT = ("string", "binary")
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "row_id": _TEXT,
}
_NO_TOPIC = re.compile(r"Topic (\S+) not present in metadata after \d+ ms")
_NOT_CONFIRMED = re.compile(r"Expiring \d+ record\(s\) for \S+ ms has passed since batch creation")
# Errors of Kafka and Spark about messages for which a retry cannot succeed.
_REFUSED = re.compile(
    r"(?<=RecordTooLargeException: ).+|(?<=InvalidRecordException: ).+|Invalid topics: \[.*?\]"
    r"|Partition \d+ of topic \S+ with partition count \d+ is not present|Invalid partition: -\d+"
    r"|The Kafka message data sent to the producer contains a null topic"
    r"|NullPointerException.*\s+at org\.apache\.spark\.sql\.kafka010\.KafkaRowWriter\."
)


class KafkaSink(Sink):
    """Kafka topics, written by Spark's Kafka connector."""

    formats = ("kafka",)
    refused_modes: ClassVar[Mapping[OutputMode, str]] = {
        OutputMode.COMPLETE: "a topic only grows, so every batch would send the whole result again"
    }
    instead = 'output_mode="update" sends the groups that changed'

    def facts(self, options: Mapping[str, str]) -> SinkFacts:
        topic, servers = option(options, "topic"), option(options, SERVERS)
        row_ids = option(options, _ROW_IDS).strip().lower()
        location = None
        if topic and servers and "${" not in servers:
            location = LineageSource(namespace=f"kafka://{servers}", name=topic)
        return SinkFacts(
            location=location,
            triggers=frozenset({TriggerKind.CONTINUOUS, TriggerKind.REAL_TIME}),
            needs_batches="the ids of its messages are assigned per batch: remove `rowIds`"
            if row_ids == "true"
            else "",
            unbatched_warning=""
            if row_ids
            else f"messages have no header `{ROW_ID_HEADER}`, because there are no batches; after "
            'a crash some are sent again, and duplicates cannot be identified (set "rowIds": '
            '"false" in the sink to accept this)',
        )

    def map_options(
        self, options: Mapping[str, str], map_path: Callable[[str], str]
    ) -> dict[str, str]:
        return at_mapped_servers(options, map_path)

    def endpoints(self, options: Mapping[str, str]) -> Sequence[str]:
        servers = option(options, SERVERS)
        return [servers] if servers else []

    def check_options(self, options: Mapping[str, str]) -> dict[str, str]:
        return prepare_sink_options(options)

    def check_query(
        self, options: Mapping[str, str], columns: Mapping[str, str], mode: OutputMode
    ) -> None:
        if SparkContext._jvm is not None:  # needed for Kafka's option names
            refuse_misspelt(options, SparkContext._jvm)
        problems = [
            f"column `{name}` is {kind}, not {' or '.join(_COLUMNS[name])}"
            for name, kind in columns.items()
            if kind not in _COLUMNS.get(name, (kind,))
        ]
        if "value" not in columns:
            near = nearest("value", map(str.lower, columns))
            also = f"; {near} is spelled differently" if near else ""
            problems.append(f"there is no column `value`{also}")
        if not option(options, "topic").strip() and "topic" not in columns:
            problems.append("neither option `topic` nor a column `topic` names the topic")
        if problems:
            raise ConnectorError(
                "KAFKA_COLUMNS_INVALID",
                f"the Kafka sink cannot send these rows: {'; '.join(problems)}",
                hint="pack a row with F.to_json(F.struct('*')).alias('value')",
            )

    def open(self, write: Write) -> OpenedSink:
        check_names(write.schema)
        has_ids = option(write.options, _ROW_IDS).strip().lower() != "false"
        options = {k: v for k, v in write.options.items() if k.lower() != _ROW_IDS.lower()}
        if write.has_batches and has_ids:
            return KafkaSinkWriter(options, flow=write.flow.name, epoch=write.epoch)
        return StreamSink(write.format, options)

    def explain(self, text: str, flow: Flow, batch_id: int | None) -> FlowError | None:
        batch = "" if batch_id is None else f" in batch {batch_id}"
        if (refused := _REFUSED.search(text)) is not None:
            condition, reason = "SINK_ROWS_REFUSED", refused[0]
            hint = "declare an expectation on the table that the flow reads, which drops such rows"
            if reason.startswith("NullPointerException"):
                reason = "a header, or the key of a header, is NULL"
            if "RecordTooLargeException" in text:
                hint += ', such as "octet_length(value) < 1000000"; or allow larger messages: '
                hint += "`kafka.max.request.size` and `kafka.buffer.memory` of the sink (bytes), "
                hint += "and `max.message.bytes` of the topic"
            message = f"Kafka does not accept a message{batch}: {reason}"
            hint += ". Other messages of the batch may have been sent, and are sent again"
        elif (expired := _NOT_CONFIRMED.search(text)) is not None:
            condition = "KAFKA_NOT_ANSWERING"
            message = f"the brokers did not confirm messages{batch}: {expired[0]}"
            hint = (
                "check that they run, and that the executors can connect to them; the batch is "
                "sent again, so some messages may be duplicated in the topic. "
                "`kafka.delivery.timeout.ms` is how long a message waits for its confirmation"
            )
        elif (topic := _NO_TOPIC.search(text)) is not None:
            condition = "SINK_TOPIC_NOT_FOUND"
            message = f"topic {topic[1]!r} is not known to the brokers{batch}: {topic[0]}"
            hint = (
                "create it: `penstock broker topic NAME` on the embedded broker, `kafka-topics.sh "
                "--create` elsewhere; or check whether the brokers respond"
            )
        else:
            return None
        return FlowError(
            condition,
            f"flow {flow.name!r}: {message}",
            flow=flow.name,
            batch_id=batch_id,
            retryable=refused is None,
            origin=flow.origin,
            hint=hint,
        )


class KafkaSinkWriter(BatchSink):
    """Sends the batches of one flow.

    Spark's producer confirms each message, but there is no commit per batch: a repeated batch is
    sent again, with the same header `penstock-id` in each message. The id is the column `row_id` if
    the query has one, otherwise `<epoch>/<batch>/<digest>`.
    """

    observes_rows = True

    def __init__(self, options: Mapping[str, str], *, flow: str, epoch: str) -> None:
        self._options = options
        self._flow = flow
        self._epoch = epoch

    def write(self, df: DataFrame, batch_id: int) -> SinkCommit:
        kill_point("before_write", self._flow, batch_id)
        header = F.struct(
            F.lit(ROW_ID_HEADER).alias("key"), row_id(df, self._epoch, batch_id).alias("value")
        )
        headers = F.array(header)
        if "headers" in df.columns:
            own_headers = F.coalesce(
                F.col("headers"), F.array().cast(df.schema["headers"].dataType)
            )
            headers = F.concat(own_headers, headers)
        sent = df.withColumn("headers", headers)
        sent.write.format("kafka").options(**self._options).save()
        kill_point("after_target_commit", self._flow, batch_id)
        return SinkCommit(rows=None)


def row_id(df: DataFrame, epoch: str, batch_id: int) -> Column:
    """The id of a row, which is the same if the batch is run again."""
    if "row_id" in df.columns:
        return F.col("row_id").cast("binary")
    parts = [F.col(name) for name in _SENT if name in df.columns]
    # The hashes skip NULL: without the flags, (1, NULL) and (NULL, 1) would have the same hash.
    parts += [F.isnull(part) for part in parts]
    digest = F.concat(F.hex(F.xxhash64(*parts)), F.hex(F.hash(*parts)))
    return F.concat(F.lit(f"{epoch}/{batch_id}/"), F.lower(digest)).cast("binary")
