import pytest

from penstock.errors import ConnectorError
from penstock.sources.kafka.options import prepare_sink_options, prepare_source_options

MINIMAL = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def refused(options: dict[str, str], *, streaming: bool = True) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        prepare_source_options(options, streaming=streaming)
    return caught.value


def test_defaults_are_set_for_missing_options() -> None:
    assert prepare_source_options(MINIMAL) == {
        **MINIMAL,
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
        "kafka.default.api.timeout.ms": "30000",
        "kafkaConsumer.pollTimeoutMs": "60000",
    }


def test_user_options_override_defaults_in_any_case() -> None:
    own = {
        **MINIMAL,
        "FAILONDATALOSS": "false",
        "kafka.isolation.level": "read_uncommitted",
        "Kafka.Default.Api.Timeout.Ms": "40000",
        "kafkaconsumer.polltimeoutms": "120000",
    }
    assert prepare_source_options(own) == own


def test_longer_requests_keep_the_timeouts_of_kafka_and_spark() -> None:
    prepared = prepare_source_options({**MINIMAL, "kafka.request.timeout.ms": "60000"})
    assert not prepared.keys() & {"kafka.default.api.timeout.ms", "kafkaConsumer.pollTimeoutMs"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "none"),
        ({"subscribe": "a", "subscribePattern": "a.*"}, "subscribe and subscribePattern"),
        ({"subscribe": "a", "ASSIGN": '{"a":[0]}'}, "subscribe and assign"),
    ],
)
def test_subscription_is_refused_when_it_is_not_exactly_one(
    options: dict[str, str], said: str
) -> None:
    error = refused({"kafka.bootstrap.servers": "h:1", **options})
    assert error.condition == "KAFKA_SUBSCRIPTION_INVALID"
    assert said in error.message


def test_subscription_is_refused_when_it_is_empty() -> None:
    assert refused({**MINIMAL, "subscribe": " "}).condition == "KAFKA_SUBSCRIPTION_INVALID"


@pytest.mark.parametrize("servers", [None, "", "  "])
def test_source_and_sink_are_refused_when_servers_are_missing(servers: str | None) -> None:
    options = {} if servers is None else {"kafka.bootstrap.servers": servers}
    assert refused({**options, "subscribe": "a"}).condition == "KAFKA_BOOTSTRAP_SERVERS_MISSING"
    with pytest.raises(ConnectorError, match="KAFKA_BOOTSTRAP_SERVERS_MISSING"):
        prepare_sink_options(options)


@pytest.mark.parametrize(
    ("typo", "nearest"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("failOnDataloss_", "failOnDataLoss"),
        ("includeHeader", "includeHeaders"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("sasl.jaas.config", "kafka.sasl.jaas.config"),
        ("Security.Protocol", "kafka.security.protocol"),
    ],
)
def test_an_option_is_refused_with_the_nearest_name_when_spark_would_ignore_it(
    typo: str, nearest: str
) -> None:
    error = refused({**MINIMAL, typo: "x-secret"})
    assert error.condition == "KAFKA_OPTION_UNKNOWN"
    assert nearest in (error.hint or "")
    assert "x-secret" not in str(error)


@pytest.mark.parametrize("name", ["myTeamLabel", "kafka.some.future.option", "serviceCredential"])
def test_unknown_option_without_a_similar_name_is_accepted(name: str) -> None:
    assert prepare_source_options({**MINIMAL, name: "v"})[name] == "v"


def test_every_option_of_the_source_is_accepted() -> None:
    options = {
        **MINIMAL,
        "startingOffsets": "latest",
        "startingOffsetsByTimestampStrategy": "latest",
        "kafkaConsumer.pollTimeoutMs": "100",
        "fetchOffset.numRetries": "3",
        "fetchOffset.retryIntervalMs": "10",
        "maxOffsetsPerTrigger": "100",
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "15m",
        "minPartitions": "3",
        "maxRecordsPerPartition": "100",
        "groupIdPrefix": "p",
        "kafka.group.id": "g",
        "includeHeaders": "true",
    }
    assert prepare_source_options(options).items() >= options.items()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("kafka.auto.offset.reset", "startingOffsets"),
        ("kafka.key.deserializer", "cast"),
        ("kafka.Value.Deserializer", "cast"),
        ("kafka.enable.auto.commit", "checkpoint"),
        ("databricks.serviceCredential", "kafka.sasl"),
    ],
)
def test_a_source_option_is_refused_when_spark_refuses_it(name: str, instead: str) -> None:
    error = refused({**MINIMAL, name: "v"})
    assert error.condition == "KAFKA_OPTION_REFUSED"
    assert instead in (error.hint or "")


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_ending_offsets_are_refused_when_the_source_is_a_stream(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "1"}.get(name, '{"orders":{"0":1}}')
    assert refused({**MINIMAL, name: value}).condition == "KAFKA_OPTION_REFUSED"
    assert name in prepare_source_options({**MINIMAL, name: value}, streaming=False)


def test_latest_is_refused_as_a_start_when_the_source_is_a_batch() -> None:
    error = refused({**MINIMAL, "startingOffsets": "latest"}, streaming=False)
    assert error.condition == "KAFKA_OFFSETS_INVALID"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('{"orders": {"0": }}', "line 1, column 18"),
        ('{\n"orders": {"0" 5}}', "line 2, column 16"),
        ("newest", "line 1, column 1"),
    ],
)
def test_offsets_are_refused_with_the_position_when_they_are_not_json(
    text: str, position: str
) -> None:
    error = refused({**MINIMAL, "startingOffsets": text})
    assert error.condition == "KAFKA_OFFSETS_INVALID"
    assert position in error.message


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"orders": 5}',
        '{"orders": {"x": 5}}',
        '{"a": {"0": "5"}}',
        '{"a": {"0": true}}',
    ],
)
def test_offsets_are_refused_when_their_form_is_wrong(text: str) -> None:
    error = refused({**MINIMAL, "startingOffsets": text})
    assert error.condition == "KAFKA_OFFSETS_INVALID"


def test_valid_offsets_and_assignments_are_accepted() -> None:
    options = {
        "kafka.bootstrap.servers": "h:1",
        "assign": '{"orders": [0, 1]}',
        "startingOffsets": '{"orders": {"0": 23, "1": -2}}',
    }
    assert prepare_source_options(options).items() >= options.items()


@pytest.mark.parametrize("text", ['{"orders": 0}', '{"orders": [-1]}', "orders"])
def test_assignment_is_refused_when_its_form_is_wrong(text: str) -> None:
    error = refused({"kafka.bootstrap.servers": "h:1", "assign": text})
    assert error.condition == "KAFKA_OFFSETS_INVALID"


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many"])
def test_a_limit_is_refused_when_it_is_not_a_positive_number(value: str) -> None:
    error = refused({**MINIMAL, "maxOffsetsPerTrigger": value})
    assert error.condition == "KAFKA_OPTION_INVALID"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.config.providers", "file"),
        ("kafka.config.providers.file.class", "x.Y"),
        ("kafka.Config.Providers", "file"),
        ("kafka.interceptor.classes", "x.Y"),
        ("kafka.sasl.login.class", "x.Y"),
        ("kafka.sasl.login.callback.handler.class", "x.Y"),
        ("kafka.sasl.client.callback.handler.class", "x.Y"),
        ("kafka.listener.name.secure.plain.sasl.server.callback.handler.class", "x.Y"),
        ("kafka.sasl.jaas.config", "com.sun.security.auth.module.JndiLoginModule required;"),
        ("kafka.sasl.jaas.config", "com.sun.security.auth.module.LdapLoginModule required;"),
        (
            "kafka.sasl.jaas.config",
            "org.apache.kafka.common.security.plain.PlainLoginModule required;"
            "com.sun.security.auth.module.JndiLoginModule required x=1;",
        ),
        (
            "kafka.sasl.jaas.config",
            'org.apache.kafka.common.security.plain.PlainLoginModule required; /* " */'
            ' com.sun.security.auth.module.JndiLoginModule required; /* " */',
        ),
        (
            "kafka.sasl.jaas.config",
            "org.apache.kafka.common.security.plain.PlainLoginModule required x='\n;"
            "com.sun.security.auth.module.JndiLoginModule required;'",
        ),
        ("kafka.sasl.jaas.config", ""),
    ],
)
def test_client_option_that_could_load_other_code_is_refused(name: str, value: str) -> None:
    error = refused({**MINIMAL, name: value})
    assert error.condition == "KAFKA_OPTION_UNSAFE"
    with pytest.raises(ConnectorError, match="KAFKA_OPTION_UNSAFE"):
        prepare_sink_options({"kafka.bootstrap.servers": "h:1", name: value})


@pytest.mark.parametrize(
    ("prefix", "value"),
    [
        (
            "kafkashaded.",
            "org.apache.kafka.common.security.plain.PlainLoginModule required"
            ' username="u" password="kafka;shaded x";',
        ),
        ("shadedmskiam.", "software.amazon.msk.auth.iam.IAMLoginModule required;"),
    ],
)
def test_shaded_prefix_of_a_login_module_is_removed(prefix: str, value: str) -> None:
    name = "kafka.sasl.jaas.config"
    assert prepare_source_options({**MINIMAL, name: f"{prefix}{value}"})[name] == value


@pytest.mark.parametrize("prefix", ["", "kafkashaded.", "shadedmskiam."])
def test_known_callback_handlers_are_accepted(prefix: str) -> None:
    name = "kafka.sasl.client.callback.handler.class"
    handler = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    prepared = prepare_source_options({**MINIMAL, name: f"{prefix}{handler}"})
    assert prepared[name] == handler


def test_error_about_a_jaas_config_has_no_secret() -> None:
    error = refused({**MINIMAL, "kafka.sasl.jaas.config": 'x.Y required password="canary-7";'})
    assert "canary-7" not in str(error)


@pytest.mark.parametrize(
    "name",
    [
        "kafka.key.serializer",
        "kafka.value.serializer",
        "kafka.transactional.id",
        "checkpointLocation",
    ],
)
def test_sink_option_set_by_penstock_is_refused(name: str) -> None:
    with pytest.raises(ConnectorError, match="KAFKA_OPTION_REFUSED"):
        prepare_sink_options({"kafka.bootstrap.servers": "h:1", name: "v"})


@pytest.mark.parametrize("topic", ["a b", "orders!", "t" * 250])
def test_sink_is_refused_when_its_topic_cannot_exist(topic: str) -> None:
    with pytest.raises(ConnectorError, match="KAFKA_OPTION_INVALID"):
        prepare_sink_options({"kafka.bootstrap.servers": "h:1", "topic": topic})


def test_valid_sink_options_are_unchanged() -> None:
    options = {"kafka.bootstrap.servers": "h:1", "topic": "t", "kafka.acks": "all"}
    all_options = {**options, "kafka.max.block.ms": "1000"}
    assert prepare_sink_options(all_options) == all_options
    assert prepare_sink_options(options) == {**options, "kafka.max.block.ms": "20000"}


def test_sink_that_would_not_notice_lost_messages_is_refused() -> None:
    with pytest.raises(ConnectorError, match="lost silently"):
        prepare_sink_options({"kafka.bootstrap.servers": "h:1", "Kafka.Acks": "0"})


@pytest.mark.parametrize("value", ["", "soon", "-5s", "5 weeks"])
def test_invalid_delay_is_refused(value: str) -> None:
    error = refused({**MINIMAL, "minOffsetsPerTrigger": "5", "maxTriggerDelay": value})
    assert error.condition == "KAFKA_OPTION_INVALID"
    prepare_source_options({**MINIMAL, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "5m"})


def test_minimum_above_the_maximum_of_offsets_is_refused() -> None:
    error = refused({**MINIMAL, "minOffsetsPerTrigger": "50", "maxOffsetsPerTrigger": "5"})
    assert "above" in error.message


@pytest.mark.parametrize(
    ("name", "offset", "streaming", "said"),
    [
        ("startingOffsets", -1, False, "-1 (latest)"),
        ("endingOffsets", -2, False, "-2 (earliest)"),
        ("startingOffsets", -3, True, "cannot be -3"),
    ],
)
def test_offset_that_cannot_be_a_start_or_end_is_refused(
    name: str, offset: int, streaming: bool, said: str
) -> None:
    all_options = {**MINIMAL, name: f'{{"orders": {{"0": {offset}}}}}'}
    error = refused(all_options, streaming=streaming)
    assert error.condition == "KAFKA_OFFSETS_INVALID"
    assert said in error.message


@pytest.mark.parametrize(
    "name", ["failOnDataLoss", "includeHeaders", "startingOffsetsByTimestampStrategy"]
)
def test_unknown_value_of_an_option_is_refused(name: str) -> None:
    assert refused({**MINIMAL, name: "no"}).condition == "KAFKA_OPTION_INVALID"
