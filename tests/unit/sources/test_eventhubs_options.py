import pytest

from penstock._model.redaction import redact
from penstock.errors import ConnectorError
from penstock.sources.kafka.event_hubs import kafka_options, source_options
from penstock.sources.kafka.options import prepare_source_options

STRING = (
    "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=read;"
    "SharedAccessKey=c2VjcmV0LWtleQ==;EntityPath=orders"
)


def options(**changes: str) -> dict[str, str]:
    renamed = {key.replace("_", "."): value for key, value in changes.items()}
    return source_options({"eventhubs.connectionString": STRING, **renamed}, streaming=True)


def test_connection_string_is_enough():
    made = kafka_options(STRING)
    assert made["kafka.bootstrap.servers"] == "shop.servicebus.windows.net:9093"
    assert made["subscribe"] == "orders"
    assert made["kafka.sasl.jaas.config"].endswith(
        f'username="$ConnectionString" password="{STRING}";'
    )
    prepare_source_options(made)
    assert "c2VjcmV0" not in redact(str(made))


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ('{"offset": "-1", "seqNo": -1, "enqueuedTime": null}', ("startingOffsets", "earliest")),
        ('{"offset": "@latest", "seqNo": -1}', ("startingOffsets", "latest")),
        (
            '{"offset": null, "seqNo": -1, "enqueuedTime": "2026-01-01T00:00:00.000Z"}',
            ("startingTimestamp", "1767225600000"),
        ),
    ],
)
def test_starting_position_is_translated(position, expected):
    made = options(eventhubs_startingPosition=position, eventhubs_consumerGroup="$Default")
    name, value = expected
    assert made[name] == value
    # A partition may have no event after the timestamp.
    strategy = "latest" if name == "startingTimestamp" else None
    assert made.get("startingOffsetsByTimestampStrategy") == strategy
    prepare_source_options(made)


def test_limits_and_kafka_options_are_passed_on():
    made = options(maxEventsPerTrigger="50", kafka_request_timeout_ms="9", failOnDataLoss="false")
    assert made["maxOffsetsPerTrigger"] == "50"
    assert made["kafka.request.timeout.ms"] == "9"
    assert made["failOnDataLoss"] == "false"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "nonsense",
        "Endpoint=sb://a.b/;SharedAccessKeyName=x",
        STRING.replace("sb://", "http://"),
        STRING.replace("read", 'r"ead'),
        STRING.replace(";EntityPath=orders", ""),
    ],
)
def test_error_does_not_show_the_connection_string(wrong):
    with pytest.raises(ConnectorError) as raised:
        source_options({"eventhubs.connectionString": wrong}, streaming=True)
    assert raised.value.condition == "EVENTHUBS_CONNECTION_STRING_INVALID"
    assert "c2VjcmV0" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"eventhubs_startingPosition": '{"seqNo": 5}'},
        {"eventhubs_startingPosition": "earliest"},
        {"eventhubs_startingPosition": "[]"},
        {"eventhubs_startingPositions": "{}"},
    ],
)
def test_option_without_a_meaning_in_kafka_is_refused(wrong):
    with pytest.raises(ConnectorError) as raised:
        options(**wrong)
    assert raised.value.condition == "EVENTHUBS_OPTION_INVALID"
