import pytest

from penstock._model.flow import OutputMode
from penstock.errors import ConnectorError
from penstock.sinks.options import check_sink, mode_refusal, modes_taken

KAFKA = {"kafka.bootstrap.servers": "h:1", "topic": "t"}
JDBC = {"url": "jdbc:postgresql://h/d", "dbtable": "t"}
HEADERS = "array<struct<key:string,value:binary>>"


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
    assert OutputMode.APPEND in modes_taken(kind)
    assert OutputMode.UPDATE not in modes_taken(kind)
    assert "table of the pipeline" in mode_refusal(kind, OutputMode.UPDATE)[1]
    if kind != "delta":
        assert "every version" in mode_refusal(kind, OutputMode.COMPLETE)[0]
        assert "withWatermark" in mode_refusal(kind, OutputMode.COMPLETE)[1]


def test_other_sinks_take_every_mode_and_kafka_takes_changes():
    assert set(modes_taken("console")) == set(modes_taken("jdbc")) == set(OutputMode)
    assert modes_taken("kafka") == (OutputMode.APPEND, OutputMode.UPDATE)


@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.COMPLETE])
def test_rows_that_change_are_refused_when_the_jdbc_sink_only_adds(mode: OutputMode):
    error = refused("jdbc", JDBC, mode, a="int")
    assert error.condition == "SINK_MODE_NOT_SUPPORTED"
    assert "upsert" in (error.hint or "")


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
