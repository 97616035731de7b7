"""Spark's Kafka source in pipelines: offsets, lost rows, recreated topics, TLS."""

import socket
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from example_project import Example
from made_events import details
from secure_broker import SecureListener, start_secure_broker
from update_project import ContinuousRun, Project

from penstock._local.broker import BrokerHandle, ensure_topic, stop_broker
from penstock._observe.codec import details_of
from penstock._observe.events import Event, Level, UpdateState
from penstock._runtime.update import UpdateResult
from penstock.errors import ConnectorError, FlowError
from penstock.sources.base import Read
from penstock.sources.kafka import source as kafka
from penstock.sources.kafka.options import prepare_source_options, refuse_misspelt
from penstock.testing.streams import flow_named

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

HUB_KEY = "aGlkZGVuLWtleQ=="


def produce(
    broker: BrokerHandle, topic: str, *values: str, partition: int = 0, **more: Any
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=partition, **more)
    assert producer.flush(30) == 0


def admin(broker: BrokerHandle) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def read(spark, broker: BrokerHandle, **options: str) -> list[str]:
    all_options = {"kafka.bootstrap.servers": broker.bootstrap_servers, **options}
    prepared = prepare_source_options(all_options, streaming=False)
    df = spark.read.format("kafka").options(**prepared).load()
    return sorted(row.value for row in df.selectExpr("cast(value AS STRING) AS value").collect())


def test_flow_fails_at_its_start_if_no_broker_responds(spark, monkeypatch):
    monkeypatch.setattr(kafka, "admin_of", partial(kafka.admin_of, timeout_ms=1000))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        for chosen in ({"subscribe": "silent"}, {"subscribePattern": "sil.*"}):
            options = {"kafka.bootstrap.servers": servers, **chosen}
            read = Read(spark=spark, format="kafka", options=options, load=lambda _: spark.range(0))
            opened = kafka.KafkaSource().open(read)
            with pytest.raises(FlowError, match=f"brokers {servers} of kafka sil") as caught:
                opened.check_identity({}, flow_named("f"), "t")
            error = caught.value
            assert (error.condition, error.retryable) == ("KAFKA_NOT_ANSWERING", True)
            assert opened.new_identities({}) == {}


def test_starting_and_ending_offsets_limit_the_records(kafka_broker, spark):
    for topic in ("places-a", "places-b"):
        ensure_topic(kafka_broker.bootstrap_servers, topic, 2)
    for at, value in enumerate(["a0", "a1", "a2", "a3"]):
        produce(
            kafka_broker, "places-a", value, timestamp=1_000_000 + at * 1000, headers={"n": b"1"}
        )
    produce(kafka_broker, "places-a", "b0", partition=1, timestamp=1_000_000)
    produce(kafka_broker, "places-b", "c0", timestamp=1_000_000)
    cases: list[tuple[dict[str, str], list[str]]] = [
        ({"subscribe": "places-a"}, ["a0", "a1", "a2", "a3", "b0"]),
        (
            {"subscribe": "places-a,places-b", "minPartitions": "4"},
            ["a0", "a1", "a2", "a3", "b0", "c0"],
        ),
        ({"subscribePattern": "places-[b-z]"}, ["c0"]),
        ({"assign": '{"places-a": [1]}'}, ["b0"]),
        (
            {
                "subscribe": "places-a",
                "startingOffsets": '{"places-a": {"0": 1, "1": 1}}',
                "endingOffsets": '{"places-a": {"0": 3, "1": -1}}',
            },
            ["a1", "a2"],
        ),
        (
            {
                "assign": '{"places-a": [0]}',
                "startingOffsetsByTimestamp": '{"places-a": {"0": 1001000}}',
                "endingOffsetsByTimestamp": '{"places-a": {"0": 1003000}}',
            },
            ["a1", "a2"],
        ),
        (
            {
                "subscribe": "places-a",
                "startingTimestamp": "1002000",
                "startingOffsetsByTimestampStrategy": "latest",
            },
            ["a2", "a3"],
        ),
    ]
    for options, expected in cases:
        assert read(spark, kafka_broker, **options) == expected, options
    refuse_misspelt({"subscribe": "x", "kafka.acks": "1", "kafka.Group.Id": "y"}, spark._jvm)
    with pytest.raises(ConnectorError, match=r"did you mean `kafka\.compression\.type`"):
        refuse_misspelt({"kafka.compresion.type": "zstd"}, spark._jvm)
    df = spark.read.format("kafka").options(
        **prepare_source_options(
            {
                "kafka.bootstrap.servers": kafka_broker.bootstrap_servers,
                "assign": '{"places-a": [0]}',
                "includeHeaders": "true",
            },
            streaming=False,
        )
    )
    assert bytes(df.load().head().headers[0].value) == b"1"


def test_lost_rows_are_reported_and_a_recreated_topic_is_an_error(
    kafka_broker, spark, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    example = Example("kafka", tmp_path, spark)
    topic, servers = "shop-orders-eu", kafka_broker.bootstrap_servers
    client = admin(kafka_broker)  # pending calls end with the client

    def run(strict: str, **options: Any) -> UpdateResult:
        conf = {"shop.bootstrap.servers": servers, "shop.fail.on.data.loss": strict}
        return example.run(conf, **options)

    def order(*numbers: int) -> list[str]:
        return [f'{{"id": {n}, "amount": {n}.5}}' for n in numbers]

    def remove_before(offset: int) -> None:
        place = TopicPartition(topic, 0, offset)
        client.delete_records([place])[place].result(30)

    def offsets() -> list[int]:
        return sorted(row.offset for row in example.table("orders_bronze").collect())

    def losses() -> list[Event]:
        return [event for event in example.events if event.event_type == "source_rows_lost"]

    ensure_topic(servers, topic)
    produce(kafka_broker, topic, *order(0, 1), "no order", *order(3, 4), headers={"trace": b"x"})
    assert run("false").state is UpdateState.COMPLETED
    reports = [details_of(e.body) for e in example.events if e.event_type == "stream_progress"]
    progress = [report["stream_progress"]["progress_json"] for report in reports]
    assert [p["numInputRows"] for p in progress if "Kafka" in str(p["sources"])] == [3, 2]
    assert losses() == []
    assert {row.trace for row in example.table("orders").collect()} == {"x"}
    ((rules, row),) = example.quarantined("orders")
    assert (rules, row["offset"]) == (["parsed"], 2)

    produce(kafka_broker, topic, *order(*range(5, 10)))
    remove_before(7)
    assert run("false").state is UpdateState.COMPLETED
    assert offsets() == [0, 1, 2, 3, 4, 7, 8, 9]
    (incident,) = losses()
    assert "shop-orders-eu-0 from 5 to 6" in incident.message
    assert incident.level is Level.WARN
    assert details(incident)["ranges"] == [{"topic": topic, "partition": 0, "first": 5, "end": 7}]

    produce(kafka_broker, topic, *order(10, 11))
    remove_before(11)
    (error,) = run("true").failures
    assert error.condition == "SOURCE_ROWS_LOST"

    client.delete_topics([topic])[topic].result(30)
    ensure_topic(servers, topic)
    produce(kafka_broker, topic, *order(*range(100, 115)))
    for strict in ("true", "false"):
        (error,) = run(strict).failures
        assert error.condition == "TOPIC_RECREATED"
        assert "--full-refresh orders_bronze" in (error.hint or "")
    assert len(offsets()) == 8
    both = ("orders_bronze", "orders")
    assert run("true", full_refresh=both).state is UpdateState.COMPLETED
    assert offsets() == list(range(15))


def test_triggered_update_reads_everything_with_min_offsets_per_trigger(
    kafka_broker, spark, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ensure_topic(kafka_broker.bootstrap_servers, "least")
    produce(kafka_broker, "least", *"abcdefgh")
    options = {
        "kafka.bootstrap.servers": kafka_broker.bootstrap_servers,
        "subscribe": "least",
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "5",
        "maxOffsetsPerTrigger": "5",
    }
    project = Project(tmp_path, spark).source(
        f"""
@dp.table
def letters():
    rows = spark.readStream.format("kafka").options(**{options!r}).load()
    return rows.selectExpr("CAST(value AS STRING) AS letter")
"""
    )
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("letters") == [(letter,) for letter in "abcdefgh"]

    # The offsets as continuous processing writes them, without settings.
    offsets = project.commits_folder("letters").parent / "offsets"
    newest = max(offsets.glob("[0-9]*"), key=lambda file: int(file.name))
    version, _, ends = newest.read_text().split("\n")
    newest.write_text(f"{version}\n\n{ends}")
    produce(kafka_broker, "least", "i")
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("letters") == [(letter,) for letter in "abcdefghi"]


def test_assigned_partition_that_does_not_exist_is_an_error(
    kafka_broker, spark, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ensure_topic(kafka_broker.bootstrap_servers, "short")
    produce(kafka_broker, "short", "a")
    options = {
        "kafka.bootstrap.servers": kafka_broker.bootstrap_servers,
        "assign": '{"short": [0, 3]}',
        "startingOffsets": "earliest",
    }
    project = Project(tmp_path, spark).source(
        f"""
@dp.table
def letters():
    return spark.readStream.format("kafka").options(**{options!r}).load()
"""
    )
    (error,) = project.run().failures
    assert (error.condition, "short-3" in str(error)) == ("SOURCE_TOPIC_NOT_FOUND", True)


def test_topic_that_was_missing_in_an_update_can_be_created_again(
    kafka_broker, spark, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    servers = kafka_broker.bootstrap_servers
    for topic in ("region-a", "region-b"):
        ensure_topic(servers, topic)
        produce(kafka_broker, topic, f"{topic} 1")
    options = {
        "kafka.bootstrap.servers": servers,
        "kafka.metadata.max.age.ms": "500",
        "subscribePattern": "region-.*",
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
    }
    project = Project(tmp_path, spark).source(
        f"""
@dp.table
def regions():
    rows = spark.readStream.format("kafka").options(**{options!r}).load()
    return rows.selectExpr("CAST(value AS STRING) AS value")
"""
    )
    assert project.run().state is UpdateState.COMPLETED
    client = admin(kafka_broker)  # pending calls end with the client
    client.delete_topics(["region-b"])["region-b"].result(30)
    assert project.run().state is UpdateState.COMPLETED
    ensure_topic(servers, "region-b")
    produce(kafka_broker, "region-b", "region-b 2")
    result = project.run()
    assert result.state is UpdateState.COMPLETED, result.failures
    assert sorted(project.rows("regions")) == [
        ("region-a 1",),
        ("region-b 1",),
        ("region-b 2",),
    ]


def test_topic_that_appears_in_an_update_must_not_be_created_again(
    kafka_broker, spark, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    servers = kafka_broker.bootstrap_servers
    ensure_topic(servers, "zone-a")
    produce(kafka_broker, "zone-a", "a 1")
    options = {
        "kafka.bootstrap.servers": servers,
        "kafka.metadata.max.age.ms": "500",
        "subscribePattern": "zone-.*",
        "startingOffsets": "earliest",
    }
    project = Project(tmp_path, spark).source(
        f"""
@dp.table
def zones():
    rows = spark.readStream.format("kafka").options(**{options!r}).load()
    return rows.selectExpr("CAST(value AS STRING) AS value")
"""
    )
    run = ContinuousRun(project)
    run.wait_until(lambda: len(project.rows("zones")) == 1)
    ensure_topic(servers, "zone-b")
    produce(kafka_broker, "zone-b", "b 1", "b 2")
    run.wait_until(lambda: len(project.rows("zones")) == 3)
    run.stop()
    client = admin(kafka_broker)  # pending calls end with the client
    client.delete_topics(["zone-b"])["zone-b"].result(30)
    ensure_topic(servers, "zone-b")
    produce(kafka_broker, "zone-b", "new 1", "new 2", "new 3")
    (error,) = project.run().failures
    assert (error.condition, "'zone-b'" in error.message) == ("TOPIC_RECREATED", True)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory):
    """A broker with TLS and user names; its certificates are created with Java's keytool."""
    folder = tmp_path_factory.mktemp("secure")
    stores = {"storepass": "changeit-broker", "keypass": "changeit-broker"}
    common = [x for name, word in stores.items() for x in (f"-{name}", word)]
    make = ["keytool", "-genkeypair", "-alias", "broker", "-keyalg", "EC", "-validity", "2"]
    subject = ["-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1"]
    keystore = folder / "broker.p12"
    kind = ["-storetype", "PKCS12"]
    subprocess.run([*make, *subject, *kind, "-keystore", str(keystore), *common], check=True)
    certificate = folder / "broker.pem"
    export = ["keytool", "-exportcert", "-rfc", "-alias", "broker", "-file", str(certificate)]
    subprocess.run(
        [*export, "-keystore", str(keystore), "-storepass", stores["storepass"]], check=True
    )
    listener = SecureListener(
        keystore=keystore, keystore_password=stores["storepass"], users={"shop": "plain-word"}
    )
    hub = (
        f"Endpoint=sb://127.0.0.1:{listener.port}/;SharedAccessKeyName=read;"
        f"SharedAccessKey={HUB_KEY};EntityPath=hub"
    )
    listener.users["$ConnectionString"] = hub
    broker = start_secure_broker(folder / "broker", listener)
    try:
        scram = [
            UserScramCredentialUpsertion(
                "shop", ScramCredentialInfo(mechanism, 4096), b"scram-word", b"salt"
            )
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        client = admin(broker)
        for user in scram:
            client.alter_user_scram_credentials([user])["shop"].result(30)
        for topic in ("secured", "hub"):
            ensure_topic(broker.bootstrap_servers, topic)
        produce(broker, "secured", "s0", "s1")
        yield broker, listener, certificate, hub
    finally:
        stop_broker(folder / "broker")


def test_secured_broker_is_read_with_plain_and_scram(secure, spark):
    broker, listener, certificate, _ = secure
    modules = {
        "PLAIN": ("plain.PlainLoginModule", "plain-word"),
        "SCRAM-SHA-256": ("scram.ScramLoginModule", "scram-word"),
        "SCRAM-SHA-512": ("scram.ScramLoginModule", "scram-word"),
    }
    for mechanism, (module, word) in modules.items():
        jaas = (
            f'org.apache.kafka.common.security.{module} required username="shop" password="{word}";'
        )
        options = {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(certificate),
            "subscribe": "secured",
            "kafka.bootstrap.servers": listener.bootstrap_servers,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": mechanism,
            "kafka.sasl.jaas.config": jaas,
        }
        assert read(spark, broker, **options) == ["s0", "s1"], mechanism


def test_event_hub_needs_a_connection_string_only(secure, spark, tmp_path: Path, monkeypatch):
    broker, _, certificate, hub = secure
    monkeypatch.chdir(tmp_path)
    example = Example("event_hubs", tmp_path, spark)
    produce(broker, "hub", '{"id": 1, "level": "high"}', key="k", headers={"trace": b"t1"})
    produce(broker, "hub", '{"id": "one"}')
    secret = tmp_path / ".secrets" / "hub" / "connection"
    secret.parent.mkdir(parents=True)
    secret.write_text(hub)
    conf = {"hub.certificates": str(certificate)}
    assert example.run(conf).state is UpdateState.COMPLETED
    (row,) = example.table("events").collect()
    assert (row.id, row.level, row.partitionKey, row.sequenceNumber) == (1, "high", "k", 0)
    assert row.properties == {"trace": "t1"}
    ((_, bad),) = example.quarantined("events")
    assert bad["_parse_error"].startswith("values do not fit: id BIGINT")

    secret.write_text(hub.replace(HUB_KEY, "d3Jvbmcta2V5"))
    said = " ".join(str(error) for error in example.run(conf).failures)
    assert "uthentication" in said
    assert "d3Jvbmcta2V5" not in said
