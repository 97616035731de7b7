"""Checks of a sink's options and of the query that writes to it, without connections."""

from collections.abc import Mapping

import pytest

from penstock._model.flow import Flow, OutputMode
from penstock._model.lineage import LineageSource
from penstock._model.origin import SourceLocation
from penstock._model.trigger import TriggerKind
from penstock.errors import ConnectorError
from penstock.sinks.registry import sink_of

KAFKA = {"kafka.bootstrap.servers": "h:1", "topic": "t"}
JDBC = {"url": "jdbc:postgresql://h/d", "dbtable": "t"}
HEADERS = "array<struct<key:string,value:binary>>"


def check_sink(
    kind: str, options: Mapping[str, str], columns: Mapping[str, str], mode: OutputMode
) -> None:
    sink = sink_of(kind)
    sink.check_query(sink.check_options(options), columns, mode)


def refused(kind: str, options: dict[str, str], mode: OutputMode, **columns: str) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        check_sink(kind, options, columns, mode)
    return caught.value


def test_valid_sinks_pass():
    for mode in OutputMode:
        check_sink("kafka", KAFKA, {"value": "binary", "key": "string", "extra": "int"}, mode)
        check_sink("Console", {}, {"a": "int"}, mode)
        check_sink("something_else", {"a": "b"}, {}, mode)
        check_sink("jdbc", {**JDBC, "mode": "upsert", "keys": "a"}, {"a": "int"}, mode)
    columns = {"value": "string", "headers": HEADERS, "topic": "string", "partition": "int"}
    check_sink("kafka", {"kafka.bootstrap.servers": "h:1"}, columns, OutputMode.APPEND)
    check_sink("parquet", {"path": "x"}, {}, OutputMode.APPEND)
    check_sink("delta", {"tablename": "x"}, {}, OutputMode.COMPLETE)


@pytest.mark.parametrize("kind", ["parquet", "JSON", "csv", "orc", "delta"])
def test_file_and_delta_sinks_refuse_update_mode_with_an_alternative(kind: str):
    sink = sink_of(kind)
    assert OutputMode.APPEND in sink.modes
    assert OutputMode.UPDATE not in sink.modes
    assert "table of the pipeline" in sink.instead
    if kind != "delta":
        assert "every version" in sink.refused_modes[OutputMode.COMPLETE]
        assert "withWatermark" in sink.instead


def test_kafka_accepts_update_mode_and_console_and_jdbc_every_mode():
    assert set(sink_of("console").modes) == set(sink_of("jdbc").modes) == set(OutputMode)
    assert sink_of("kafka").modes == (OutputMode.APPEND, OutputMode.UPDATE)


@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.COMPLETE])
def test_jdbc_sink_in_append_mode_refuses_update_and_complete_output(mode: OutputMode):
    error = refused("jdbc", JDBC, mode, a="int")
    assert error.condition == "SINK_MODE_NOT_SUPPORTED"
    assert "upsert" in (error.hint or "")


def test_masked_columns_must_be_columns_of_the_query():
    def options(mask: str) -> dict[str, str]:
        return {"url": "https://h/x", "mask": mask}

    columns = {"Card": "string", "items": "array<struct<card:string>>", "a.b": "int"}
    check_sink("webhook", options("card, Items.card, a.b"), columns, OutputMode.APPEND)
    error = refused("webhook", options("card,crad"), OutputMode.APPEND, **columns)
    assert error.condition == "SINK_OPTION_INVALID"
    assert "option `mask` names crad" in error.message


def test_path_is_required_and_checkpoint_location_is_refused():
    assert refused("json", {}, OutputMode.APPEND).condition == "SINK_OPTION_MISSING"
    assert refused("delta", {"path": " "}, OutputMode.APPEND).condition == "SINK_OPTION_MISSING"
    options = {"path": "x", "CheckpointLocation": "y"}
    assert refused("csv", options, OutputMode.APPEND).condition == "SINK_OPTION_REFUSED"


def test_all_columns_that_kafka_cannot_send_are_reported_together():
    error = refused(
        "kafka",
        {"kafka.bootstrap.servers": "h:1", "topic": " "},
        OutputMode.APPEND,
        Value="string",
        key="bigint",
        headers="map<string,string>",
        partition="bigint",
        row_id="int",
    )
    assert error.condition == "KAFKA_COLUMNS_INVALID"
    for problem in (
        "`key` is bigint",
        "`headers` is map",
        "`partition` is bigint",
        "`row_id` is int",
    ):
        assert problem in error.message
    assert "no column `value`" in error.message
    assert "topic" in error.message
    error = refused("kafka", {**KAFKA, "rowIds": "yes"}, OutputMode.APPEND, value="string")
    assert error.condition == "KAFKA_OPTION_INVALID"


def test_foreach_as_a_format_is_refused_with_a_hint():
    for kind in ("foreach", "foreachBatch"):
        error = refused(kind, {}, OutputMode.APPEND, a="int")
        assert error.condition == "SINK_FORMAT_NOT_SUPPORTED"
        assert "foreach_row" in str(error.hint)


def test_facts_are_read_from_options():
    kafka = sink_of("Kafka").facts({**KAFKA, "Topic": "t"})
    assert kafka.location == LineageSource(namespace="kafka://h:1", name="t")
    assert kafka.triggers == {TriggerKind.CONTINUOUS, TriggerKind.REAL_TIME}
    assert "penstock-id" in kafka.unbatched_warning
    assert not kafka.needs_batches and not kafka.is_keyed
    assert "assigned per batch" in sink_of("kafka").facts({"ROWIDS": " True"}).needs_batches
    without_row_ids = sink_of("kafka").facts({"rowIds": "false"})
    assert not without_row_ids.needs_batches and not without_row_ids.unbatched_warning
    secret = {"kafka.bootstrap.servers": "${secret:A}", "topic": "t"}
    assert sink_of("kafka").facts(secret).location is None

    assert sink_of("jdbc").facts({"Keys": "id"}).is_keyed
    assert not sink_of("jdbc").facts({"keys": ""}).is_keyed
    files = sink_of("json").facts({"PATH": "s3://bucket/out"})
    assert files.location == LineageSource(namespace="s3://bucket", name="out")
    assert files.triggers == frozenset()
    for kind in ("json", "delta", "kafka", "jdbc", "noop", "foreach_batch", "unheard_of"):
        assert sink_of(kind).facts({"path": "${secret:A}"}).location is None
        assert sink_of(kind).facts({}).location is None
    assert [kind for kind in ("memory", "console", "json") if sink_of(kind).is_transient] == [
        "memory"
    ]


def test_paths_and_brokers_are_mapped_for_options_in_any_case():
    def mapped(location: str) -> str:
        return {"/mnt/out": "/here", "kafka://far:1": "kafka://near:2"}.get(location, location)

    for kind in ("json", "delta", "unheard_of"):
        options = sink_of(kind).map_options({"Path": "/mnt/out", "other": "/mnt/out"}, mapped)
        assert options == {"Path": "/here", "other": "/mnt/out"}
    brokers = sink_of("kafka").map_options({"Kafka.Bootstrap.Servers": "far:1"}, mapped)
    assert sink_of("kafka").endpoints(brokers) == ["near:2"]
    assert sink_of("kafka").endpoints({}) == sink_of("json").endpoints({"path": "x"}) == []


def test_error_names_the_missing_topic():
    message = (
        "Py4JJavaError: An error occurred while calling o1.save.\n: "
        "org.apache.spark.SparkException: Job aborted: "
        "org.apache.kafka.common.errors.TimeoutException: Topic no.such-topic not "
        "present in metadata after 20000 ms."
    )
    flow = Flow(name="f", target="t", function=lambda: None, origin=SourceLocation("a.py", 1))
    error = sink_of("kafka").explain(message, flow, 2)
    assert error is not None
    assert (error.condition, error.retryable) == ("SINK_TOPIC_NOT_FOUND", True)
    assert "topic 'no.such-topic' is not known to the brokers in batch 2" in error.message
    assert "penstock broker topic" in (error.hint or "")
    message = "Expiring 55 record(s) for a.b-1:20001 ms has passed since batch creation"
    error = sink_of("kafka").explain(message, flow, 2)
    assert error is not None
    assert (error.condition, error.retryable) == ("KAFKA_NOT_ANSWERING", True)
    assert sink_of("kafka").explain("another failure", flow, None) is None
    assert sink_of("json").explain(message, flow, 2) is None


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        (
            "Caused by: org.apache.kafka.common.errors.RecordTooLargeException: The message is "
            "2000161 bytes when serialized which is larger than 1048576, which is the value of the "
            "max.request.size configuration.\n\tat x",
            "larger than 1048576, which is the value of the max.request.size configuration.",
            "`kafka.max.request.size`",
        ),
        (
            "org.apache.kafka.common.InvalidRecordException: Compacted topic cannot accept message "
            "without key in topic partition t-0\n\tat x",
            "without key in topic partition t-0",
            "declare an expectation",
        ),
        (
            "TimeoutException: Partition 7 of topic t with partition count 2 is not present in "
            "metadata after 20000 ms.",
            "Partition 7 of topic t with partition count 2 is not present",
            "declare an expectation",
        ),
        (
            "The Kafka message data sent to the producer contains a null topic. Use",
            "contains a null topic",
            "declare an expectation",
        ),
        (
            "Caused by: java.lang.NullPointerException\n\tat org.apache.spark.sql.kafka010."
            "KafkaRowWriter.$anonfun$sendRow$1(KafkaWriteTask.scala:109)",
            "the key of a header, is NULL",
            "declare an expectation",
        ),
    ],
)
def test_message_that_kafka_does_not_accept_is_not_sent_again(text: str, reason: str, hint: str):
    flow = Flow(name="f", target="t", function=lambda: None, origin=SourceLocation("a.py", 1))
    error = sink_of("kafka").explain(text, flow, 2)
    assert error is not None
    assert (error.condition, error.retryable) == ("SINK_ROWS_REFUSED", False)
    assert error.message.endswith(reason)
    assert hint in (error.hint or "")
