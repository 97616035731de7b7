"""Debezium's envelopes of both connectors, in every encoding of the converters."""

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from penstock import parsing
from penstock.errors import DefinitionError

SCHEMA = """
id BIGINT NOT NULL, name STRING, price DECIMAL(10, 2), born DATE, at TIMESTAMP_NTZ, seen TIMESTAMP,
raw BINARY, tags ARRAY<STRING>, n INT
"""
POSTGRES = {
    "version": "3.0.5.Final",
    "connector": "postgresql",
    "name": "shop",
    "snapshot": "false",
}
POSTGRES |= {"db": "shop", "schema": "public", "table": "customers", "xmin": None}
MYSQL = {"version": "2.7.3.Final", "connector": "mysql", "name": "shop", "snapshot": "false"}
MYSQL |= {"db": "shop", "table": "customers", "server_id": 223344, "thread": 36, "query": None}
ROW = {"id": 1, "name": "Anne", "price": "BOI=", "born": -1, "at": 1_767_225_600_123_456}
ROW |= {"seen": "2026-01-01T00:00:00.5Z", "raw": "AP8=", "tags": ["a"], "n": 7}
ABSENT = "__debezium_unavailable_value"


def postgres(op: object, lsn: object, **more: object) -> dict:
    source = {**POSTGRES, "ts_ms": 1_767_225_600_000, "txId": 555, "lsn": lsn}
    source["sequence"] = f'[null,"{lsn}"]'
    return {"before": None, "after": None, "source": source, "op": op, "ts_ms": 1, **more}


def mysql(op: str, pos: int, row: int = 0, gtid: str | None = None, **more: object) -> dict:
    source = {**MYSQL, "ts_ms": 1_767_225_600_000, "gtid": gtid, "row": row, "pos": pos}
    source["file"] = "mysql-bin.000012"
    return {"before": None, "after": None, "source": source, "op": op, **more}


def with_schema(envelope: object) -> dict:
    fields = [{"type": "string", "optional": False, "field": "op"}]
    return {"schema": {"type": "struct", "fields": fields, "name": "Envelope"}, "payload": envelope}


def changes(spark, *messages: object, **options) -> list:
    """The rows of messages, which are bytes, None, or values to encode as JSON."""
    values = [m if m is None or isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
    rows = [(number, bytearray(v) if v is not None else None) for number, v in enumerate(values)]
    df = spark.createDataFrame(rows, "number INT, value BINARY")
    parsed = parsing.debezium(df, **{"schema": SCHEMA, **options})
    return parsed.orderBy("number").collect()


def test_events_of_postgresql_become_rows_of_the_table(spark):
    change, moved = postgres("u", 42, after=ROW), {**ROW, "id": 2}
    rows = changes(
        spark,
        postgres("r", 41, after=ROW),
        with_schema({**change, "transaction": {"id": "555:42", "total_order": 1}}),
        postgres("d", 43, before={"id": 1, "name": None}),
        None,
        postgres("c", 43, after=moved),
        {key: value for key, value in postgres("t", 44).items() if key not in ("before", "after")},
    )
    assert [(row.number, row.id, row._op, tuple(row._sequence)) for row in rows] == [
        (0, 1, "r", (0, 41, -1)),
        (1, 1, "u", (0, 42, 1)),
        (2, 1, "d", (0, 43, 0)),
        (4, 2, "c", (0, 43, 0)),
        (5, None, "t", (0, 44, 0)),
    ]
    assert [row._parse_error for row in rows] == [None] * 5
    assert [row._transaction for row in rows] == ["555", "555:42", "555", "555", "555"]
    row = rows[0]
    assert (row.name, row.price, row.born) == ("Anne", Decimal("12.50"), date(1969, 12, 31))
    assert row["at"].isoformat() == "2026-01-01T00:00:00.123456"
    assert row.seen.timestamp() == datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC).timestamp()
    assert (bytes(row.raw), row.tags, row.n) == (b"\x00\xff", ["a"], 7)
    assert row._changed_at.timestamp() == 1_767_225_600
    assert row[-2:] == (None, None)
    assert rows[1][1:10] == row[1:10]


def test_events_of_mysql_are_ordered_by_file_position_and_row(spark):
    later = mysql("u", 9, 1, gtid="3E11FA47:23", after={"id": 1, "at": 1_767_225_600_123})
    newer = mysql("d", 4, before={"id": 1})
    newer["source"]["file"] = "mysql-bin.1000000"
    rows = changes(
        spark, mysql("u", 9, after={"id": 1}), later, newer, mysql("r", 9, after={"id": 1})
    )
    order = sorted(rows, key=lambda row: row._sequence)
    assert [row.number for row in order] == [3, 0, 1, 2]
    assert tuple(rows[1]._sequence) == (12, 9, 1)
    assert rows[1]._transaction == "3E11FA47:23"
    assert rows[1]["at"].isoformat() == "2026-01-01T00:00:00.123000"
    # All changes of a compressed transaction have the same position.
    ordered = mysql("u", 9, after={"id": 1}, transaction={"id": "t", "total_order": 3})
    assert tuple(changes(spark, ordered)[0]._sequence) == (12, 9, 3)
    # Microseconds, such as those of DATETIME(6), are not read as milliseconds.
    snapshot = mysql("r", 9, after=ROW)
    assert changes(spark, snapshot)[0]._parse_error == (
        "values do not fit: at: 1767225600123456 is not a time before the year 10000"
    )
    micros = changes(spark, snapshot, timestamp_units={"at": "micros"})[0]
    assert micros["at"].isoformat() == "2026-01-01T00:00:00.123456"


def test_messages_without_a_row_change_are_skipped(spark):
    message = {**postgres("m", 50), "message": {"prefix": "foo", "content": "Ymfy"}}
    begin = {"status": "BEGIN", "id": "555", "event_count": None, "data_collections": None}
    ddl = {"source": MYSQL, "databaseName": "shop", "ddl": "ALTER TABLE ...", "tableChanges": []}
    end = with_schema({**begin, "status": "END", "event_count": 2})
    assert changes(spark, None, message, begin, end, ddl, with_schema(ddl)) == []


def test_unavailable_postgresql_values_are_not_columns_to_update(spark):
    raw, event = base64.b64encode(ABSENT.encode()).decode(), {**ROW, "name": ABSENT}
    rows = changes(
        spark,
        postgres("u", 1, after=event),
        postgres("u", 2, after={**event, "raw": raw, "tags": [ABSENT]}),
        postgres("u", 3, after=ROW),
        postgres("c", 4, after=event),
    )
    updated = ["id", "price", "born", "at", "seen", "raw", "tags", "n"]
    assert rows[0]._columns_to_update == updated
    assert rows[1]._columns_to_update == [name for name in updated if name not in ("raw", "tags")]
    assert rows[2]._columns_to_update is None
    # After a change of the key there is no stored value.
    assert (rows[3]._columns_to_update, rows[3].name) == (None, ABSENT)


def test_unavailable_postgresql_arrays_and_hstores_are_not_columns_to_update(spark):
    encoded = base64.b64encode(ABSENT.encode()).decode()
    unavailable = {
        "numbers": list(ABSENT.encode()),
        "raws": [encoded],
        "ids": ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
        "pairs": {ABSENT: ABSENT},
        "hstore": json.dumps({ABSENT: ABSENT}, separators=(",", ":")),
    }
    schema = "id INT, numbers ARRAY<BIGINT>, raws ARRAY<BINARY>, ids ARRAY<STRING>, "
    schema += "pairs MAP<STRING, STRING>, hstore STRING"
    (row,) = changes(spark, postgres("u", 1, after={"id": 1, **unavailable}), schema=schema)
    assert row._columns_to_update == ["id"]


def unscaled(number: int) -> str:
    size = (number.bit_length() + 8) // 8
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


NUMBERS = (0, 1, -1, 127, 128, -128, -129, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64)
NUMBERS += (10**38 - 1, -(10**38) + 1, 2**64 - 1, -(2**64))


def test_decimals_are_read_in_every_mode_of_the_connector(spark):
    schema = {"schema": "id INT, price DECIMAL(38, 4), prices ARRAY<DECIMAL(38, 4)>"}
    expected = [Decimal(f"{number}E-4") for number in NUMBERS]

    def prices(*values: object, **options: str) -> list:
        events = [postgres("c", 1, after={"id": 1, "price": value}) for value in values]
        return [row.price for row in changes(spark, *events, **schema, **options)]

    assert prices(*map(unscaled, NUMBERS)) == expected
    array = postgres("c", 1, after={"id": 1, "prices": [unscaled(-12345), None]})
    assert changes(spark, array, **schema)[0].prices == [Decimal("-1.2345"), None]
    variable = [{"scale": 2, "value": unscaled(-1250)}, {"scale": -3, "value": unscaled(7)}]
    assert prices(*variable) == [Decimal("-12.5"), Decimal(7000)]
    assert prices(*map(str, expected), decimal_handling_mode="string") == expected
    double = prices(-12.5, 1e-3, 7, decimal_handling_mode="double")
    assert double == [Decimal("-12.5"), Decimal("0.001"), Decimal(7)]
    # JSON numbers keep all digits.
    exact = json.dumps(postgres("c", 1, after={"id": 1, "price": "?"})).encode()
    exact = exact.replace(b'"?"', b"1234567890123456789012345678901234.5678")
    row = changes(spark, exact, **schema, decimal_handling_mode="string")[0]
    assert row.price == Decimal("1234567890123456789012345678901234.5678")
    # Too large or invalid values are NULL.
    invalid = [{"scale": 10**9, "value": "BOI="}, {"scale": "2", "value": "BOI="}, {"scale": 2}]
    too_large = prices(unscaled(2**127), unscaled(2**20_000), "12.50", "", *invalid)
    assert too_large == [None] * 7
    assert prices("1e-300000000", "NaN", decimal_handling_mode="string") == [None] * 2


NO_POSITION = {**postgres("u", 1, after=ROW), "source": POSTGRES}
NO_EVENT = "not a change event of Debezium"
CORRUPT = [
    (b'{"op": "c", "after": {"id": 1', "the payload is not one JSON value"),
    (b"\xff", "the payload is not one JSON value"),
    (b"[]", "the payload is not a JSON object"),
    (b"", "the payload is empty"),
    (b"{}", f"{NO_EVENT}: its `op` is None"),
    (json.dumps(ROW).encode(), f"{NO_EVENT}: its `op` is None"),
    (with_schema(5), f"{NO_EVENT}, but a single value"),
    (postgres({"x": 1}, 1), f"{NO_EVENT}: its `op` is {{'x': 1}}"),
    (NO_POSITION, "`source` has neither `lsn` nor `file` and `pos`"),
    ({**postgres("c", 1, after=ROW), "source": 5}, "there is no `source`"),
    (postgres("u", "x", after=ROW), "values do not fit: _sequence.position: 'x' is not an integer"),
    (postgres("u", 1, before=ROW), "there is no `after`"),
    (postgres("d", 1, after=ROW), "there is no `before`"),
    (postgres("c", 1, after=5, transaction=5), "there is no `after`"),
    (postgres("c", 1, after={**ROW, "id": None}), "NULL or missing: id"),
    (postgres("c", 1, after={**ROW, "n": "x"}), "values do not fit: n: 'x' is not an integer"),
    (postgres("c", 1, after={**ROW, "born": 9**9}), "values do not fit: born: 387420489 is not"),
    (postgres("c", 1, after={**ROW, "born": "soon"}), "values do not fit: born: 'soon' is not"),
    (postgres("c", 1, after={**ROW, "at": 1.5}), "values do not fit: at: "),
    (postgres("c", 1, after={**ROW, "price": "12.5"}), "values do not fit: price: '12.5' is not"),
]


def test_corrupt_events_have_a_reason_their_raw_payload_and_no_sequence(spark):
    rows = changes(spark, *[message for message, _ in CORRUPT])
    for row, (message, reason) in zip(rows, CORRUPT, strict=True):
        assert row._parse_error.startswith(reason), row
        assert row._sequence is None
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        assert bytes(row._raw_payload) == raw


def test_invalid_parameters_are_refused(spark):
    df = spark.createDataFrame([("{}",)], "value STRING")
    for invalid, condition in (
        ({"decimal_handling_mode": "exact"}, "INVALID_PARAMETER"),
        ({"timestamp_units": "seconds"}, "INVALID_PARAMETER"),
        ({"timestamp_units": {"x": "millis"}}, "INVALID_PARAMETER"),
        ({"schema": "id INT, v VARIANT"}, "PAYLOAD_SCHEMA_INVALID"),
        ({"schema": "id INT, _op STRING"}, "PARSED_COLUMN_EXISTS"),
    ):
        with pytest.raises(DefinitionError) as raised:
            parsing.debezium(df, **{"schema": SCHEMA, **invalid})
        assert raised.value.condition == condition
