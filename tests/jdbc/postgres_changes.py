"""The changes of one table in PostgreSQL's log, as events in the format of Debezium.

The changes are decoded by the server's `pgoutput`, which Debezium uses as well: log positions, key
changes and omitted large values are those of the server.
"""

import base64
import json
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from database_tables import Tables

COLUMNS = ("id", "name", "price", "born", "at", "seen", "note")
PLACEHOLDER = "__debezium_unavailable_value"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


class ChangeLog:
    """A replication slot for one table that starts at the current position of the log."""

    def __init__(self, tables: Tables, table: str) -> None:
        self._tables, self._table = tables, table
        tables.execute(f"CREATE PUBLICATION {table}_changes FOR TABLE {table}")
        tables.query(f"SELECT pg_create_logical_replication_slot('{table}_slot', 'pgoutput')")

    def snapshot(self) -> list[str]:
        """The current rows of the table as events of a snapshot."""
        columns = ", ".join(f"{name}::text" for name in COLUMNS)
        rows = self._tables.query(f"SELECT {columns} FROM {self._table}")
        ((position,),) = self._tables.query("SELECT pg_current_wal_lsn()::text")
        lsn = _lsn(str(position))
        return [_event("r", lsn, None, after=dict(zip(COLUMNS, row, strict=True))) for row in rows]

    def events(self) -> list[str | None]:
        """All later changes in the order of their commits; `None` is a tombstone."""
        slot = self._table + "_slot"
        options = f"'proto_version', '1', 'publication_names', '{self._table}_changes'"
        ((text,),) = self._tables.query(
            "SELECT string_agg(lsn || ' ' || xid || ' ' || encode(data, 'hex'), chr(10)) "
            f"FROM pg_logical_slot_get_binary_changes('{slot}', NULL, NULL, {options})"
        )
        self._tables.query(f"SELECT pg_drop_replication_slot('{slot}')")
        events: list[str | None] = []
        for line in str(text).splitlines():
            lsn, xid, data = line.split()
            events += _decoded(_lsn(lsn), int(xid), bytes.fromhex(data))
        return events


def _decoded(lsn: int, xid: int, data: bytes) -> Iterator[str | None]:
    kind = data[:1]
    if kind not in (b"I", b"U", b"D"):
        return
    tuples = dict(_tuples(data, 5))
    old, new = tuples.get(b"K"), tuples.get(b"N")
    if kind == b"I":
        yield _event("c", lsn, xid, after=new)
    elif kind == b"U" and old is None:
        assert new is not None
        yield _event("u", lsn, xid, after=new)
    else:
        yield _event("d", lsn, xid, before=old)
        yield None
        if new is not None:
            yield _event("c", lsn, xid, after=new)


def _tuples(data: bytes, at: int) -> Iterator[tuple[bytes, Row]]:
    """The old key (`K`) and the new row (`N`) of a message."""
    while at < len(data):
        kind, values = data[at : at + 1], []
        (count,) = struct.unpack_from(">H", data, at + 1)
        at += 3
        for _ in range(count):
            state, at = data[at : at + 1], at + 1
            value = PLACEHOLDER if state == b"u" else None
            if state == b"t":
                (size,) = struct.unpack_from(">I", data, at)
                value = data[at + 4 : at + 4 + size].decode()
                at += 4 + size
            values.append(value)
        yield kind, dict(zip(COLUMNS, values, strict=True))


def _event(
    op: str, lsn: int, xid: int | None, *, before: Row | None = None, after: Row | None = None
) -> str:
    source = {"version": "3.0.5.Final", "connector": "postgresql", "name": "shop", "lsn": lsn}
    source |= {"snapshot": str(op == "r").lower(), "ts_ms": 1_767_225_600_000, "txId": xid}
    images = {"before": before and _image(before), "after": after and _image(after)}
    envelope = {**images, "source": source, "op": op, "ts_ms": 1_767_225_600_100}
    # With and without a schema; a real connector writes only one of these formats.
    return json.dumps({"schema": {"type": "struct"}, "payload": envelope} if lsn % 16 else envelope)


def _image(row: Row) -> Row:
    """The values of a row in Debezium's default modes."""
    image = dict(row)
    for name, convert in _CONVERT.items():
        if image[name] is not None:
            image[name] = convert(image[name])
    return image


def _unscaled(text: str) -> str:
    number = int(Decimal(text).scaleb(4))
    size = (number.bit_length() + 8) // 8
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def _micros(text: str) -> int:
    since = datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


_CONVERT = {
    "id": int,
    "price": _unscaled,
    "born": lambda text: (date.fromisoformat(text) - _EPOCH.date()).days,
    "at": _micros,
    "seen": lambda text: datetime.fromisoformat(text).astimezone(UTC).isoformat(),
}


def _lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)
