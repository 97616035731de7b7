"""The example with a real registry: several formats and versions in one topic, and failures."""

import io
import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import fastavro
import pytest
from confluent_kafka import Producer
from example_project import Example

from penstock._local.broker import BrokerHandle, ensure_topic
from penstock._observe.events import Event, UpdateState
from penstock.errors import DefinitionError
from penstock.parsing import SchemaRegistry, debezium, parse_confluent
from penstock.parsing.protobuf import compile_files, message_class

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PAYMENT_1 = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "id", "type": "int"}, {"name": "amount", "type": "double"}],
}
PAYMENT_2 = {
    **PAYMENT_1,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": "double"},
        {"name": "currency", "type": "string", "default": "EUR"},
    ],
}
PROTO = """
syntax = "proto3";
package shop;
message Refund { int64 id = 1; }
message Payment { int64 id = 1; double amount = 2; string currency = 3; }
"""
JSON_SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "amount": {"type": "number"}},
}


def avro(schema: dict, **row: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\x00" + struct.pack(">I", schema_id) + body


def produce(broker: BrokerHandle, *values: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all"})
    for value in values:
        producer.produce("payments", value, partition=0)
    assert producer.flush(30) == 0


def test_rows_are_decoded_by_their_own_schema_and_none_is_lost(
    kafka_broker, schema_registry, spark, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    example = Example("schema_registry", tmp_path, spark)
    ensure_topic(kafka_broker.bootstrap_servers, "payments")
    register = schema_registry.register
    first = register("payments-value", "AVRO", json.dumps(PAYMENT_1))
    second = register("payments-value", "AVRO", json.dumps(PAYMENT_2))
    proto = register("payments-proto-value", "PROTOBUF", PROTO)
    plain = register("payments-json-value", "JSON", json.dumps(JSON_SCHEMA))
    payment = message_class(compile_files(PROTO, {}), "shop.Payment")
    message = payment(id=3, amount=3.5, currency="SEK").SerializeToString()
    good = avro(PAYMENT_2, id=2, amount=2.5, currency="USD")
    produce(
        kafka_broker,
        framed(first, avro(PAYMENT_1, id=1, amount=1.5)),
        framed(second, good),
        framed(proto, b"\x02\x02" + message),
        framed(plain, b'{"id": 4, "amount": 4.25}'),
        framed(second, good[:4]),
        framed(first, good),
        framed(987_654, good),
        framed(proto, b"\x02\x0a" + message),
        framed(plain, b'{"id": "five"}'),
        b'{"id": 6}',
        None,
    )
    configuration = {
        "shop.bootstrap.servers": kafka_broker.bootstrap_servers,
        "registry.url": schema_registry.url,
        "registry.timeout.seconds": "1",
    }
    assert example.run(configuration).state is UpdateState.COMPLETED
    rows = example.table("payments").orderBy("id").collect()
    assert [(row.id, row.amount, row.currency) for row in rows] == [
        (1, 1.5, "EUR"),
        (2, 2.5, "USD"),
        (3, 3.5, "SEK"),
        (4, 4.25, None),
    ]
    reasons = {row["offset"]: row["_parse_error"] for _, row in example.quarantined("payments")}
    assert reasons == {
        4: f"the payload ends too early for its Avro schema (schema {second})",
        5: f"4 bytes are left over after the Avro record (schema {first})",
        6: "the registry has no schema with id 987654",
        7: f"its schema has no message [5] (schema {proto})",
        8: "values do not fit: id: 'five' is not an integer",
        9: "the payload does not begin with a schema id",
        10: "the payload is NULL",
    }

    # A schema that no worker has cached, and a registry that does not respond.
    newest = json.loads(json.dumps(PAYMENT_2))
    newest["fields"].append({"name": "by", "type": "string", "default": ""})
    third = register("payments-later-value", "AVRO", json.dumps(newest))
    produce(kafka_broker, framed(third, avro(newest, id=7, amount=7.5, currency="EUR", by="me")))
    answered: list[str] = []

    def answer_again(event: Event) -> None:
        if event.error is not None:
            answered.append(event.error.condition)
            schema_registry.thaw()

    schema_registry.freeze()
    try:
        result = example.run(configuration, on_event=answer_again)
    finally:
        schema_registry.thaw()
    assert set(answered) == {"SCHEMA_REGISTRY_UNREACHABLE"}
    assert result.state is UpdateState.COMPLETED
    assert [row.id for row in example.table("payments").orderBy("id").collect()] == [1, 2, 3, 4, 7]

    registry = SchemaRegistry(schema_registry.url)
    bronze = example.table("payments_bronze").where("offset < 2")
    by_subject = parse_confluent(bronze, registry=registry, subject="payments-json-value")
    assert [tuple(row) for row in by_subject.select("id", "amount").collect()] == [
        (1, 1.5),
        (2, 2.5),
    ]
    assert registry.latest("payments-proto-value").kind == "PROTOBUF"
    with pytest.raises(DefinitionError, match="no subject 'none'"):
        parse_confluent(bronze, registry=registry, subject="none")


def optional(name: str, kind: str, /, **more: object) -> dict:
    return {"name": name, "type": ["null", {"type": kind, **more}], "default": None}


CUSTOMER = {
    "type": "record",
    "name": "Value",
    "namespace": "shop.public.customers",
    "fields": [
        {"name": "id", "type": "long"},
        optional("price", "bytes", logicalType="decimal", precision=10, scale=2),
        optional(
            "any_scale",
            "record",
            name="VariableScaleDecimal",
            namespace="io.debezium.data",
            fields=[{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
        ),
        optional("born", "int", **{"connect.name": "io.debezium.time.Date"}),
        optional("at", "long", **{"connect.name": "io.debezium.time.MicroTimestamp"}),
        optional("seen", "string", **{"connect.name": "io.debezium.time.ZonedTimestamp"}),
        optional("connect", "long", logicalType="timestamp-millis"),
    ],
}
POSITION = [optional("lsn", "long"), optional("txId", "long"), {"name": "ts_ms", "type": "long"}]


def envelope(customer: dict) -> dict:
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.customers",
        "fields": [
            {"name": "before", "type": ["null", customer], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": {"type": "record", "name": "Source", "fields": POSITION}},
            {"name": "op", "type": "string"},
        ],
    }


def test_events_of_debezium_are_decoded_by_their_own_schema(schema_registry, spark):
    with_note = {**CUSTOMER, "fields": [*CUSTOMER["fields"], optional("note", "string")]}
    old, new = envelope(CUSTOMER), envelope(with_note)
    subject = "shop.public.customers-value"
    first = schema_registry.register(subject, "AVRO", json.dumps(old))
    second = schema_registry.register(subject, "AVRO", json.dumps(new))
    full = {
        "id": 1,
        "price": Decimal("-12.50"),
        "any_scale": {"scale": 1, "value": b"\x04\xe2"},
        "born": -1,
        "at": 1_767_225_600_123_456,
        "seen": "2026-01-01T00:00:00Z",
        "connect": datetime(2026, 1, 1, tzinfo=UTC),
    }

    def event(op: str, lsn: int, **images: object) -> dict:
        return {"source": {"lsn": lsn, "txId": 5, "ts_ms": 1000}, "op": op, **images}

    payloads = [
        framed(first, avro(old, **event("c", 1, after=full))),
        framed(second, avro(new, **event("u", 2, after={"id": 1, "note": "new"}))),
        framed(second, avro(new, **event("d", 3, before={"id": 1}))),
        None,
        framed(second, b"x"),
    ]
    rows = debezium(
        spark.createDataFrame([(payload,) for payload in payloads], "value BINARY"),
        schema="id BIGINT NOT NULL, price DECIMAL(10, 2), any_scale DECIMAL(10, 1), born DATE, "
        "at TIMESTAMP_NTZ, seen TIMESTAMP, connect TIMESTAMP, note STRING",
        registry=SchemaRegistry(schema_registry.url),
    ).collect()
    assert [(row._op, row.id, row.note) for row in rows] == [
        ("c", 1, None),
        ("u", 1, "new"),
        ("d", 1, None),
        (None, None, None),
    ]
    assert [row._sequence and row._sequence.position for row in rows] == [1, 2, 3, None]
    assert rows[3]._parse_error.endswith(f"(schema {second})")
    row = rows[0]
    assert (row.price, row.any_scale, str(row.born)) == (
        Decimal("-12.50"),
        Decimal("125.0"),
        "1969-12-31",
    )
    assert row["at"].isoformat() == "2026-01-01T00:00:00.123456"
    assert row.seen.timestamp() == row.connect.timestamp() == 1_767_225_600
