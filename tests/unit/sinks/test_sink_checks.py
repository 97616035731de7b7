"""What a flow and its sink must agree on: literal options and columns, nothing is connected to."""

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


def test_sound_sinks_pass():
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
def test_modes_are_refused_with_the_alternative_when_a_sink_does_not_have_them(kind: str):
    sink = sink_of(kind)
    assert OutputMode.APPEND in sink.modes
    assert OutputMode.UPDATE not in sink.modes
    assert "table of the pipeline" in sink.instead
    if kind != "delta":
        assert "every version" in sink.refused_modes[OutputMode.COMPLETE]
        assert "withWatermark" in sink.instead


def test_other_sinks_take_every_mode_and_kafka_takes_changes():
    assert set(sink_of("console").modes) == set(sink_of("jdbc").modes) == set(OutputMode)
    assert sink_of("kafka").modes == (OutputMode.APPEND, OutputMode.UPDATE)


@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.COMPLETE])
def test_rows_that_change_are_refused_when_the_jdbc_sink_only_adds(mode: OutputMode):
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


def test_places_must_be_given_and_checkpoints_not():
    assert refused("json", {}, OutputMode.APPEND).condition == "SINK_OPTION_MISSING"
    assert refused("delta", {"path": " "}, OutputMode.APPEND).condition == "SINK_OPTION_MISSING"
    given = {"path": "x", "CheckpointLocation": "y"}
    assert refused("csv", given, OutputMode.APPEND).condition == "SINK_OPTION_REFUSED"


def test_everything_that_kafka_cannot_send_is_reported_at_once():
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
    for said in ("`key` is bigint", "`headers` is map", "`partition` is bigint", "`row_id` is int"):
        assert said in error.message
    assert "no column `value`" in error.message
    assert "topic" in error.message
    assert refused("kafka", {**KAFKA, "rowIds": "yes"}, OutputMode.APPEND, value="string")


def test_foreach_is_no_format_and_the_way_is_named():
    for kind in ("foreach", "foreachBatch"):
        error = refused(kind, {}, OutputMode.APPEND, a="int")
        assert error.condition == "SINK_FORMAT_NOT_SUPPORTED"
        assert "foreach_row" in str(error.hint)


def test_facts_are_read_off_options_whatever_they_say():
    kafka = sink_of("Kafka").facts({**KAFKA, "Topic": "t"})
    assert kafka.location == LineageSource(namespace="kafka://h:1", name="t")
    assert kafka.triggers == {TriggerKind.CONTINUOUS, TriggerKind.REAL_TIME}
    assert "penstock-id" in kafka.unbatched_warning
    assert not kafka.needs_batches and not kafka.is_keyed
    assert "assigned per batch" in sink_of("kafka").facts({"ROWIDS": " True"}).needs_batches
    known = sink_of("kafka").facts({"rowIds": "false"})
    assert not known.needs_batches and not known.unbatched_warning
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


def test_paths_and_brokers_of_another_platform_are_replaced_whatever_the_case_of_the_option():
    def mapped(location: str) -> str:
        return {"/mnt/out": "/here", "kafka://far:1": "kafka://near:2"}.get(location, location)

    for kind in ("json", "delta", "unheard_of"):
        options = sink_of(kind).map_options({"Path": "/mnt/out", "other": "/mnt/out"}, mapped)
        assert options == {"Path": "/here", "other": "/mnt/out"}
    brokers = sink_of("kafka").map_options({"Kafka.Bootstrap.Servers": "far:1"}, mapped)
    assert sink_of("kafka").endpoints(brokers) == ["near:2"]
    assert sink_of("kafka").endpoints({}) == sink_of("json").endpoints({"path": "x"}) == []


def test_a_missing_topic_is_named():
    text = (
        "Py4JJavaError: An error occurred while calling o1.save.\n: "
        "org.apache.spark.SparkException: Job aborted: "
        "org.apache.kafka.common.errors.TimeoutException: Topic no.such-topic not "
        "present in metadata after 20000 ms."
    )
    flow = Flow(name="f", target="t", function=lambda: None, origin=SourceLocation("a.py", 1))
    error = sink_of("kafka").explain(text, flow, 2)
    assert error is not None
    assert (error.condition, error.retryable) == ("SINK_TOPIC_NOT_FOUND", True)
    assert "topic 'no.such-topic' is not known to the brokers in batch 2" in error.message
    assert "penstock broker topic" in (error.hint or "")
    assert sink_of("kafka").explain("another failure", flow, None) is None
    assert sink_of("json").explain(text, flow, 2) is None
