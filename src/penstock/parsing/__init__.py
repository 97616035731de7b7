"""Payloads to columns, event times with a fallback: functions over DataFrames and Columns.

A payload that cannot be parsed neither fails the query nor is dropped: its row has the reason in
`_parse_error` and the payload in `_raw_payload`, so that
`@dp.expect_or_quarantine("parsed", parsing.PARSED)` moves it to quarantine.
"""

from penstock.parsing.binary import parse_avro, parse_protobuf
from penstock.parsing.confluent import parse_confluent
from penstock.parsing.debezium import CHANGE_COLUMNS, debezium
from penstock.parsing.json_payload import parse_json
from penstock.parsing.outcome import PARSED
from penstock.parsing.registry import SchemaRegistry
from penstock.parsing.schema import schema_from_file, schema_from_sample
from penstock.parsing.time import event_time, with_date_columns

__all__ = [
    "CHANGE_COLUMNS",
    "PARSED",
    "SchemaRegistry",
    "debezium",
    "event_time",
    "parse_avro",
    "parse_confluent",
    "parse_json",
    "parse_protobuf",
    "schema_from_file",
    "schema_from_sample",
    "with_date_columns",
]
