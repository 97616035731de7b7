import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import fastavro
import pytest
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

from penstock.errors import DefinitionError
from penstock.parsing.avro import PayloadError, decode_avro, struct_of_avro
from penstock.parsing.binary import _decode_all, not_empty
from penstock.parsing.confluent import decode_json, read_indexes, struct_of_json_schema
from penstock.parsing.fit import compile_fit
from penstock.parsing.protobuf import (
    compile_files,
    decode_protobuf,
    message_at,
    struct_of_message,
)
from penstock.parsing.schema import schema_from_file

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "amount",
            "type": [
                "null",
                {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            ],
        },
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
ROW = {
    "id": 1,
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "amount": Decimal("12.50"),
    "state": "PAID",
    "before": "NEW",
    "tags": {"a": "b"},
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other { string text = 1; }
message Order {
  int64 id = 1;
  optional string note = 2;
  google.protobuf.Timestamp at = 3;
  repeated Item items = 4;
  map<string, uint64> counts = 5;
  State state = 6;
  google.protobuf.DoubleValue weight = 7;
  bytes raw = 8;
  message Item { uint32 n = 1; }
  enum State { NEW = 0; PAID = 1; }
}
"""


def encode(schema: dict, row: dict) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def test_avro_schema_becomes_columns():
    assert struct_of_avro(json.dumps(ORDER)).simpleString() == (
        "struct<id:bigint,at:timestamp,amount:decimal(10,2),state:string,before:string,"
        "tags:map<string,string>>"
    )


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "JSONDecodeError"),
        ('{"type": "record", "name": "A"}', "not a record with fields"),
        ('"long"', "not a record"),
        (
            '{"type":"record","name":"A","fields":[{"name":"x","type":["int","string"]}]}',
            "union of several types",
        ),
        (
            '{"type":"record","name":"A","fields":[{"name":"x","type":["null","A"]}]}',
            "contains itself",
        ),
    ],
)
def test_avro_schema_is_refused_when_it_has_no_columns(schema, reason):
    with pytest.raises(DefinitionError, match=reason) as raised:
        struct_of_avro(schema)
    assert raised.value.condition == "PAYLOAD_SCHEMA_INVALID"


def test_avro_payload_is_refused_when_truncated_or_too_long():
    schema, payload = json.dumps(ORDER), encode(ORDER, ROW)
    assert decode_avro(payload, schema) == ROW
    for end in range(len(payload)):
        with pytest.raises(PayloadError):
            decode_avro(payload[:end], schema)
    with pytest.raises(PayloadError, match="3 bytes are left over"):
        decode_avro(payload + b"abc", schema)


def test_avro_payload_is_read_with_defaults_and_aliases_of_the_reader():
    reader = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "number", "aliases": ["id"], "type": "double"},
            {"name": "channel", "type": "string", "default": "web"},
            {"name": "raw", "type": ["bytes", "null"], "default": "abcd\u00ff"},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
                "default": "\u0000\u0096",
            },
            {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1},
        ],
    }
    read = decode_avro(encode(ORDER, ROW), json.dumps(ORDER), json.dumps(reader))
    defaults = {"raw": b"abcd\xff", "price": Decimal("1.50"), "day": date(1970, 1, 2)}
    assert read == {"number": 1.0, "channel": "web", **defaults}
    bad = {**reader, "fields": [{"name": "missing", "type": "string"}]}
    with pytest.raises(PayloadError, match="not match its Avro schema"):
        decode_avro(encode(ORDER, ROW), json.dumps(ORDER), json.dumps(bad))


def test_avro_schema_can_reference_other_schemas():
    item = '{"type":"record","name":"Item","namespace":"shop","fields":[{"name":"n","type":"int"}]}'
    order = (
        '{"type":"record","name":"Order","fields":'
        '[{"name":"items","type":{"type":"array","items":"shop.Item"}}]}'
    )
    assert struct_of_avro(order, (item,)).simpleString() == "struct<items:array<struct<n:int>>>"
    payload = b"\x02\x0a\x00"
    assert decode_avro(payload, order, references=(item,)) == {"items": [{"n": 5}]}
    later = json.loads(order)
    later["fields"].append({"name": "note", "type": "string", "default": "none"})
    both = {"references": (item,), "reader_references": (item,)}
    read = decode_avro(payload, order, json.dumps(later), **both)
    assert read == {"items": [{"n": 5}], "note": "none"}


def test_deeply_nested_avro_payload_is_refused_and_does_not_end_the_process():
    node = ["null", {"type": "array", "items": "Node"}]
    fields = [{"name": "id", "type": "int"}, {"name": "children", "type": node}]
    schema = json.dumps({"type": "record", "name": "Node", "fields": fields})
    level = b"\x00\x02\x02"
    assert decode_avro(level + b"\x02\x00\x00", schema) == {
        "id": 0,
        "children": [{"id": 1, "children": None}],
    }
    with pytest.raises(PayloadError, match="nested too deeply"):
        decode_avro(level * 100_000, schema)
    with pytest.raises(PayloadError, match="ends too early"):
        decode_avro(level + b"\x02", schema)


def protobuf_order() -> tuple[bytes, bytes]:
    from penstock.parsing.protobuf import message_class

    files = compile_files(PROTO, {})
    order = message_class(files, "shop.Order")(
        id=7, items=[{"n": 2**32 - 1}], counts={"a": 2**64 - 1}, state=1, raw=b"\x00"
    )
    order.at.seconds, order.at.nanos = 1_767_225_600, 5_000
    order.weight.value = 1.5
    return files, order.SerializeToString()


def test_protobuf_message_becomes_columns_and_a_record():
    files, payload = protobuf_order()
    assert struct_of_message(files, "shop.Order").simpleString() == (
        "struct<id:bigint,note:string,at:timestamp,items:array<struct<n:bigint>>,"
        "counts:map<string,decimal(20,0)>,state:string,weight:double,raw:binary>"
    )
    assert decode_protobuf(payload, files, "shop.Order", strict=True) == {
        "id": 7,
        "note": None,
        "at": datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=UTC),
        "items": [{"n": 2**32 - 1}],
        "counts": {"a": 2**64 - 1},
        "state": "PAID",
        "weight": 1.5,
        "raw": b"\x00",
    }
    assert message_at(files, [1]) == "shop.Order"
    assert message_at(files, [1, 0]) == "shop.Order.Item"
    with pytest.raises(PayloadError):
        message_at(files, [5])


@pytest.mark.parametrize("payload", [b"\x08", b"\xff\xff\xff", b"\xa2\x06\x01a", b"\x12\xff\x01"])
def test_protobuf_payload_is_refused_when_truncated_or_of_another_type(payload):
    files, _ = protobuf_order()
    with pytest.raises(PayloadError, match=r"not a shop\.Order"):
        decode_protobuf(payload, files, "shop.Order")


def test_protobuf_fields_of_a_newer_schema_are_an_error_only_when_strict():
    files, payload = protobuf_order()
    newer = payload + b"\xa0\x06\x01"
    assert decode_protobuf(newer, files, "shop.Order")["id"] == 7
    with pytest.raises(PayloadError, match="unknown fields 100"):
        decode_protobuf(newer, files, "shop.Order", strict=True)


def test_protobuf_schema_is_refused_when_invalid_recursive_or_without_the_message():
    files = compile_files('syntax = "proto3"; message Node { Node next = 1; }', {})
    with pytest.raises(DefinitionError, match="there are Node"):
        struct_of_message(files, "Tree")
    with pytest.raises(DefinitionError, match="contains itself"):
        struct_of_message(files, "Node")
    with pytest.raises(DefinitionError, match="not a FileDescriptorSet"):
        struct_of_message(b"rubbish", "Node")
    with pytest.raises(DefinitionError, match="cannot compile"):
        compile_files("no proto", {})
    with pytest.raises(DefinitionError, match="outside of its folder"):
        compile_files(PROTO, {"../up.proto": ""})


def test_a_number_that_python_cannot_represent_is_an_error_of_its_row():
    schema = StructType([StructField("x", DoubleType())])
    rows = _decode_all([b'{"x":1e9999999999999999999}', b'{"x":1.5}'], schema, decode_json)
    text = StructType([StructField("x", StringType())])
    nested = b'{"x":' + b"[" * 600 + b"]" * 600 + b"}"
    assert _decode_all([nested], text, decode_json).to_pylist()[0]["error"]
    assert rows.to_pylist() == [
        {"record": None, "error": "values do not fit: a number or a time is out of range"},
        {"record": {"x": 1.5}, "error": None},
    ]


def test_named_avro_types_with_a_logical_type_can_be_reused():
    money = {"type": "fixed", "name": "money", "size": 8, "logicalType": "decimal"}
    money |= {"precision": 10, "scale": 2}
    uuid = {"type": "fixed", "name": "uuid", "size": 16, "logicalType": "uuid"}
    fields = [("a", money), ("b", "money"), ("id", uuid)]
    record = {"name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    text = json.dumps({"type": "record", **record})
    struct = struct_of_avro(text)
    assert struct.simpleString() == "struct<a:decimal(10,2),b:decimal(10,2),id:binary>"
    payload = (125).to_bytes(8, "big") + (250).to_bytes(8, "big") + b"u" * 16
    assert compile_fit(struct)(decode_avro(payload, text)) == {
        "a": Decimal("1.25"),
        "b": Decimal("2.50"),
        "id": b"u" * 16,
    }


def test_an_empty_payload_is_an_error_except_for_protobuf():
    schema = StructType([StructField("x", DoubleType())])
    files = compile_files('syntax = "proto3"; message Point { double x = 1; }', {})
    rows = _decode_all([b"", None], schema, lambda p: decode_protobuf(p, files, "Point"))
    assert rows.to_pylist() == [
        {"record": {"x": 0.0}, "error": None},
        {"record": None, "error": "the payload is NULL"},
    ]
    rows = _decode_all([b"", b'{"x":1}'], schema, lambda p: decode_json(not_empty(p)))
    assert rows.to_pylist() == [
        {"record": None, "error": "the payload is empty"},
        {"record": {"x": 1.0}, "error": None},
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"\x00rest", ([0], 1)), (b"\x02\x02", ([1], 2)), (b"\x04\x02\x80\x02", ([1, 128], 4))],
)
def test_message_indexes_are_zigzag_numbers(body, expected):
    assert read_indexes(body) == expected


@pytest.mark.parametrize("body", [b"", b"\x80", b"\x02", b"\x01", b"\xfe\xff\xff\xff\x0f"])
def test_message_indexes_are_refused_when_truncated_or_invalid(body):
    with pytest.raises(PayloadError):
        read_indexes(body)


def test_json_schema_becomes_columns():
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": ["null", "string"], "format": "date-time"},
            "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "items": {
                "type": "array",
                "items": {"type": "object", "properties": {"n": {"type": "number"}}},
            },
            "labels": {"type": "object"},
        },
    }
    assert struct_of_json_schema(json.dumps(schema)).simpleString() == (
        "struct<id:bigint,at:timestamp,note:string,items:array<struct<n:double>>,"
        "labels:map<string,string>>"
    )
    with pytest.raises(DefinitionError, match=r"\$ref"):
        struct_of_json_schema('{"type":"object","properties":{"a":{"$ref":"#/b"}}}')


def test_schema_is_read_from_files(tmp_path: Path):
    avro, spark, broken = tmp_path / "a.avsc", tmp_path / "a.json", tmp_path / "b.json"
    avro.write_text(json.dumps(ORDER))
    spark.write_text(struct_of_avro(json.dumps(ORDER)).json())
    broken.write_text("{}")
    assert schema_from_file(avro) == schema_from_file(spark)
    for path in (broken, tmp_path / "missing.ddl"):
        with pytest.raises(DefinitionError, match=path.name):
            schema_from_file(path)
