"""Valid and invalid payloads of every kind, and the example pipeline that parses them."""

import base64
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import fastavro
import pytest
from example_project import Example
from pyspark.sql import functions as F

from penstock import parsing
from penstock._observe.events import UpdateState
from penstock.errors import DefinitionError

SCHEMA = (
    "id BIGINT NOT NULL, name STRING, n STRUCT<x: INT>, at TIMESTAMP, list ARRAY<INT>, "
    "deep STRUCT<in: STRUCT<k: INT NOT NULL>>"
)
NOT_ONE = "the payload is not one JSON value"
# Payload, reason, parsed id.
JSON_CASES = [
    (b'{"id": 1, "name": "a", "n": {"x": 1}, "list": [1, 2]}', None, 1),
    (b'  {"id": 2, "at": "2026-01-01T00:00:00+01:00"}\n', None, 2),
    (b'{"id": 3, "name": 5, "more": {"y": [1]}}', None, 3),
    (b'{"id": 4, "name": "' + b"x" * 2_000_000 + b'"}', None, 4),
    (None, "the payload is NULL", None),
    (b"", "the payload is empty", None),
    (b" \n", "the payload is empty", None),
    (b'{"id": 5', NOT_ONE, None),
    (b'{"id": 6} rubbish', NOT_ONE, 6),
    (b'{"id": 7}{"id": 8}', NOT_ONE, 7),
    (b'{"id": 9},{"id": 10}]', NOT_ONE, 9),
    (b'[{"id": 11}]', "the payload is a JSON array, not an object", None),
    (b"null", "the payload is a JSON value, not an object", None),
    (b'"text"', "the payload is a JSON value, not an object", None),
    (b'{"id": 12, "name": "\xff"}', "the payload is not UTF-8", 12),
    (b'{"id": 13, "at": "soon"}', "values do not fit: at TIMESTAMP", 13),
    (b'{"id": 14, "n": {"x": "q"}, "list": [1, "x"]}', None, 14),
    (b'{"id": "15"}', "values do not fit: id BIGINT; NULL or missing: id", None),
    (b'{"name": "b"}', "NULL or missing: id", None),
    (b'{"id": 16, "deep": {"in": {"k": null}}}', "NULL or missing: deep.in.k", 16),
    (b'{"id": 17, "deep": {"in": null}}', None, 17),
    (b'{"id": 99999999999999999999}', "values do not fit: id BIGINT; NULL or missing: id", None),
]
JSON_CASES[16] = (JSON_CASES[16][0], "values do not fit: n.x INT, list ARRAY<INT>", 14)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
PROTO = 'syntax = "proto3"; package shop; message Order { int64 id = 1; repeated string tags = 2; }'


def avro(**row: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), row)
    return out.getvalue()


def test_json_payload_gives_columns_or_a_reason_and_the_raw_payload(spark):
    rows = [(number, case[0]) for number, case in enumerate(JSON_CASES)]
    df = spark.createDataFrame(rows, "number INT, value BINARY").repartition(2)
    by_number = {row.number: row for row in parsing.parse_json(df, schema=SCHEMA).collect()}
    for number, (payload, reason, key) in enumerate(JSON_CASES):
        row = by_number[number]
        assert (row._parse_error, row.id) == (reason, key), payload[:40]
        assert row._raw_payload == (None if reason is None else payload)
    assert by_number[0].asDict(recursive=True)["n"] == {"x": 1}
    assert by_number[1]["at"].timestamp() == datetime(2025, 12, 31, 23, tzinfo=UTC).timestamp()
    assert by_number[2].name == "5"
    assert len(by_number[3].name) == 2_000_000


DECIMALS = (
    "id STRING, amount DECIMAL(10, 2), lines ARRAY<STRUCT<price: DECIMAL(8, 2)>>, "
    'rates MAP<STRING, DECIMAL(5, 2)>, list ARRAY<DECIMAL(5, 1)>, `a"b` DECIMAL(3, 0), d DOUBLE'
)
HUGE = "1e300000000"  # Spark's parser would expand all digits


@pytest.mark.parametrize(
    "payload",
    [
        f'{{"amount": {HUGE}}}',
        f'{{"amount":-{HUGE.upper()}}}',
        f'{{"amount": "{HUGE}"}}',
        '{"amount": "1E+300000000"}',
        "{'amount': ' 1.5e-300000000 '}",
        f'{{"amount": {HUGE}, "amount": 1}}',
        f'{{"amount": "{HUGE}", "amount": "1"}}',
        f'{{"note": "x", "unknown": [{HUGE}]}}',
        f'{{"lines": [{{"price": 1}}, {{"price": "{HUGE}"}}]}}',
        f'{{"rates": {{"a": 1, "b": "{HUGE}"}}}}',
        f'{{"list": [1, "{HUGE}"]}}',
        f'{{"a\\"b": "{HUGE}"}}',
        f'{{"id": "{"x" * 300_000}", "amount": {HUGE}}}',
    ],
)
@pytest.mark.timeout(60)
def test_number_with_a_huge_exponent_is_an_error_of_its_row(spark, payload):
    rows = [(payload,), ('{"id": "5e12345", "amount": 12.5}',)]
    df = parsing.parse_json(spark.createDataFrame(rows, "value STRING"), schema=DECIMALS)
    bad, good = df.collect()
    assert bad._parse_error == "a number has an exponent of more than three digits"
    assert bad._raw_payload == payload.encode()
    assert (good.id, good.amount, good._parse_error) == ("5e12345", Decimal("12.50"), None)


def test_strings_that_resemble_huge_numbers_are_unchanged(spark):
    strings = [
        *("5e12345", "3f5e9999", "1e300000000", 'a, 5e12345 ] "amount": "1e99999"', "it's 5e12345"),
        *("\\ 5e12345", "x" * 300_000 + "5e12345", "'5e12345"),
    ]
    payloads = [(json.dumps({"id": text, "amount": 1, "rates": {"5e12345": 2}}),)
                for text in strings]  # fmt: skip
    payloads += [('{"d": 1e10, "amount": 1e2, "id": "z"}',), ('{"amount": "1e3", "id": "y"}',)]
    df = parsing.parse_json(spark.createDataFrame(payloads, "value STRING"), schema=DECIMALS)
    rows = df.collect()
    assert [row._parse_error for row in rows] == [None] * len(payloads)
    assert [row.id for row in rows] == [*strings, "z", "y"]
    assert [row.amount for row in rows] == [*[Decimal("1.00")] * 8, Decimal(100), Decimal(1000)]


def test_json_fields_that_are_not_in_the_schema_are_kept_or_refused(spark):
    df = spark.createDataFrame([(1, '{"id": 1, "b": {"c": 2}}')], "key INT, payload STRING")
    lenient = parsing.parse_json(df, "payload", schema="id INT", extra_fields="keep").head()
    assert lenient._extra_fields == {"b": '{"c":2}'}
    strict = parsing.parse_json(df, "payload", schema="id INT", extra_fields="error", into="order")
    assert strict.columns == ["key", "order", "_parse_error", "_raw_payload"]
    assert strict.head()._parse_error == "unknown fields: b"
    for wrong, condition in (
        ({"column": "value", "schema": "id INT"}, "PAYLOAD_COLUMN_INVALID"),
        ({"column": "key", "schema": "id INT"}, "PAYLOAD_COLUMN_INVALID"),
        ({"column": "payload", "schema": "id"}, "PAYLOAD_SCHEMA_INVALID"),
        ({"column": "payload", "schema": "KEY INT"}, "PARSED_COLUMN_EXISTS"),
        ({"column": "payload", "schema": "a INT", "extra_fields": "x"}, "INVALID_PARAMETER"),
    ):
        with pytest.raises(DefinitionError) as raised:
            parsing.parse_json(df, **wrong)
        assert raised.value.condition == condition
        assert raised.value.origin is not None


def test_avro_and_protobuf_payloads_give_columns_or_a_reason_and_the_raw_payload(spark):
    from penstock.parsing.protobuf import compile_files

    at = datetime(2026, 1, 1, tzinfo=UTC)
    good = avro(id=1, at=at, tags={"a": "b"})
    payloads = [good, good[:6], good + b"xy", b"", None, avro(id=2**40, at=at, tags={})]
    df = spark.createDataFrame([(p,) for p in payloads], "value BINARY")
    parsed = parsing.parse_avro(df, avro_schema=json.dumps(AVRO), schema="id INT, tags STRING")
    assert [tuple(row) for row in parsed.collect()] == [
        (1, '{"a": "b"}', None, None),
        (None, None, "the payload ends too early for its Avro schema", good[:6]),
        (None, None, "2 bytes are left over after the Avro record", good + b"xy"),
        (None, None, "the payload is empty", b""),
        (None, None, "the payload is NULL", None),
        (
            None,
            None,
            "values do not fit: id: 1099511627776 is not an integer of 32 bits",
            payloads[-1],
        ),
    ]
    row = parsing.parse_avro(df, avro_schema=json.dumps(AVRO)).head()
    assert (row.id, row.tags, row["at"].timestamp()) == (1, {"a": "b"}, at.timestamp())

    files = compile_files(PROTO, {})
    df = spark.createDataFrame([(b"\x08\x05\x12\x01a",), (b"\x08",)], "value BINARY")
    parsed = parsing.parse_protobuf(df, descriptor=files, message="shop.Order")
    rows = parsed.collect()
    assert (rows[0].id, rows[0].tags, rows[0]._parse_error) == (5, ["a"], None)
    assert "not a shop.Order" in rows[1]._parse_error
    # A recursive message is read with the columns of the schema.
    files = compile_files('syntax = "proto3"; message Node { int64 n = 1; Node next = 2; }', {})
    df = spark.createDataFrame([(b"\x08\x05\x12\x02\x08\x06",)], "value BINARY")
    listed = "n BIGINT, next STRUCT<n: BIGINT>"
    nodes = parsing.parse_protobuf(df, descriptor=files, message="Node", schema=listed)
    assert (nodes.head().n, nodes.head().next.n) == (5, 6)
    for more in ({"message": "Node"}, {"message": "Tree", "schema": listed}):
        with pytest.raises(DefinitionError, match=r"contains itself|there are Node"):
            parsing.parse_protobuf(df, descriptor=files, **more)


def test_event_time_is_the_first_candidate_with_a_valid_value(spark):
    cases = [
        ("2026-01-01T10:00:00+02:00", 0, "2026-01-01 08:00:00", "p.at"),
        ("1767225600", None, "2026-01-01 00:00:00", "p.at"),
        ("1767225600123", None, "2026-01-01 00:00:00.123", "p.at"),
        ("1767225600123456", None, "2026-01-01 00:00:00.123456", "p.at"),
        ("1767225600123456789", None, "2026-01-01 00:00:00.123456", "p.at"),
        ("31.12.2025 23:30", None, "2025-12-31 23:30:00", "p.at"),
        ("20251231233015", None, "2025-12-31 23:30:15", "p.at"),
        ("soon", 1767225600000, "2026-01-01 00:00:00", "n"),
        ("9" * 19, 1767225600, "2026-01-01 00:00:00", "n"),
        ("2031-01-01", None, "2026-06-01 00:00:00", "arrived"),
        (None, None, "2026-06-01 00:00:00", "arrived"),
    ]
    df = spark.createDataFrame(
        [(number, (case[0],), case[1]) for number, case in enumerate(cases)],
        "number INT, p STRUCT<at: STRING>, n BIGINT",
    ).withColumn("arrived", F.lit("2026-06-01").cast("timestamp"))
    timed = parsing.event_time(
        df,
        ["p.at", "n"],
        formats=["dd.MM.yyyy HH:mm", "yyyyMMddHHmmss"],
        fallback="arrived",
        max_future_seconds=60,
    )
    dated = parsing.with_date_columns(timed).orderBy("number")
    times = dated.select(F.col("event_time").cast("string"), "event_time_source").collect()
    assert [tuple(row) for row in times] == [case[2:] for case in cases]
    assert tuple(dated.select("date", "hour").head()) == (date(2026, 1, 1), 8)
    for wrong in ({"candidates": []}, {"candidates": ["p"]}, {"candidates": ["p.x"]}):
        with pytest.raises(DefinitionError, match="no event time"):
            parsing.event_time(df, **wrong)


def test_schema_is_read_from_a_sample_or_a_file(spark, tmp_path: Path):
    sample = tmp_path / "sample.jsonl"
    sample.write_text('{"a": 1, "b": {"c": 1.5}}\n{"a": 2, "z": "x"}\n')
    inferred = parsing.schema_from_sample(sample)
    assert inferred.simpleString() == "struct<a:bigint,b:struct<c:double>,z:string>"
    ddl = tmp_path / "orders.ddl"
    ddl.write_text("-- orders\na BIGINT, -- the key\nb STRUCT<c: DOUBLE>, z STRING\n")
    assert parsing.schema_from_file(ddl) == inferred
    for wrong in ("[]", "{", "{}", []):
        with pytest.raises(DefinitionError, match="the sample"):
            parsing.schema_from_sample(wrong)


def test_example_quarantines_payloads_that_cannot_be_parsed_with_a_reason(
    spark, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    example = Example("payloads", tmp_path, spark)
    assert example.run().state is UpdateState.COMPLETED
    orders = example.table("orders").orderBy("id").collect()
    assert [row.id for row in orders] == [1, 2, 3, 4, 12]
    assert (orders[0].amount, orders[0].customer.country) == (Decimal("12.50"), "FI")
    assert [(str(row.date), row.hour) for row in orders[:4]] == [
        ("2026-01-05", hour) for hour in (8, 10, 10, 10)
    ]
    assert orders[3]._extra_fields == {"coupon": "WINTER"}
    reasons = {
        (tuple(rules), row["_parse_error"]): row for rules, row in example.quarantined("orders")
    }
    assert set(reasons) == {
        (("parsed",), "values do not fit: amount DECIMAL(10,2)"),
        (("parsed", "has a time"), NOT_ONE),
        (("parsed",), "NULL or missing: id"),
        (("parsed",), NOT_ONE),
        (("parsed", "has a time"), "the payload is a JSON array, not an object"),
        (("has a time",), None),
    }
    cut = reasons[("parsed", "has a time"), NOT_ONE]
    lines = (tmp_path / "data/orders/2026-01-05.txt").read_bytes().splitlines()
    assert base64.b64decode(cut["_raw_payload"]) == lines[5]
    assert example.run().state is UpdateState.COMPLETED
    assert example.table("orders").count() + len(example.quarantined("orders")) == len(lines)
