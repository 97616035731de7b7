"""The account of the demo: every message of the Kafka log must be in exactly one place.

`read = silver + quarantined + duplicates + pending`. Each figure is counted independently: `read`
from offsets of the broker, rows from the files of the tables, duplicates from the messages. None is
the difference of two others, so a lost or a duplicated message is detected.
"""

import json
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._local.demo.folders import DemoFolders
from penstock._local.demo.kafka_log import Ranges
from penstock._local.demo.tables import opened, read_rows

_OFFSET_BITS = 48
_SHOWN = 10
_COORDINATES = ("partition", "offset")


@dataclass(frozen=True, order=True)
class MessageId:
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True, kw_only=True)
class Account:
    read: int  # messages in the Kafka log
    silver: int  # rows of the table
    quarantined: int  # rows in its quarantine
    duplicates: int  # messages that repeat an order in one of the two
    pending: int  # messages that the flows have not read
    lost: tuple[MessageId, ...] = ()  # messages that the flows have read, but which are in no table
    duplicated: tuple[MessageId, ...] = ()  # messages or orders with more than one row
    foreign: tuple[MessageId, ...] = ()  # rows of no message in the log

    @property
    def balanced(self) -> bool:
        accounted = self.silver + self.quarantined + self.duplicates + self.pending
        return self.read == accounted and not (self.lost or self.duplicated or self.foreign)

    def findings(self) -> list[str]:
        """Problems, one line per kind, with the coordinates of the first messages."""
        kinds = (
            ("lost", self.lost),
            ("duplicated", self.duplicated),
            ("not from Kafka", self.foreign),
        )
        lines = []
        for kind, messages in kinds:
            if messages:
                shown = ", ".join(map(str, messages[:_SHOWN]))
                more = ", ..." if len(messages) > _SHOWN else ""
                lines.append(f"{len(messages)} {kind} (partition:offset): {shown}{more}")
        return lines


def take_account(folders: DemoFolders, ranges: Ranges) -> Account:
    """Count the messages of the log, up to `ranges`, in the demo's tables.

    Safe while the pipeline runs: a message that is not yet processed counts as pending.
    """
    # What a flow has committed is read before the tables: they can only be ahead of it.
    consumed = folders.consumed_version("orders")
    silver = read_rows(opened(folders.table("orders")), (*_COORDINATES, "order_id"))
    quarantine = read_rows(opened(folders.quarantine("orders")), (*_COORDINATES, "order_id"))
    table = opened(folders.table("orders_bronze"))
    bronze = _codes(read_rows(table, _COORDINATES))
    if table is not None and consumed:
        table.load_as_version(min(consumed - 1, table.version()))
    old = read_rows(table if consumed else None, (*_COORDINATES, "value"))

    log = _all_codes(ranges)
    settled = np.concatenate([_codes(silver), _codes(quarantine)])
    orders = [
        order for rows in (silver, quarantine) for order in rows.column("order_id").to_pylist()
    ]

    unsettled = old.filter(pa.array(~np.isin(_codes(old), settled)))
    accepted = set(orders) - {None}
    values = unsettled.column("value").to_pylist()
    is_repeat = np.array([order_id(value) in accepted for value in values], dtype=bool)
    left = _codes(unsettled)
    foreign = np.setdiff1d(np.concatenate([bronze, settled]), log)
    # Messages that came after `ranges` was read are not foreign.
    foreign = foreign[~_beyond(foreign, ranges)]
    waiting = np.concatenate([np.setdiff1d(log, bronze), np.setdiff1d(bronze, _codes(old))])
    in_log = np.isin(settled, log)
    silver_rows = int(in_log[: silver.num_rows].sum())
    return Account(
        read=len(log),
        silver=silver_rows,
        quarantined=int(in_log.sum()) - silver_rows,
        duplicates=int(np.isin(left[is_repeat], log).sum()),
        pending=int((~np.isin(np.intersect1d(waiting, log), settled)).sum()),
        lost=_messages(np.intersect1d(left[~is_repeat], log)),
        duplicated=_messages(
            np.concatenate([_repeated(bronze), _repeated(settled), _same_order(orders, settled)])
        ),
        foreign=_messages(foreign),
    )


def order_id(value: bytes | None) -> str | None:
    """The order id of a message; `None` if it is not a JSON object or has no id."""
    try:
        content: Any = json.loads((value or b"").decode("utf-8", errors="replace"))
    except ValueError:
        return None
    order = content.get("order_id") if isinstance(content, dict) else None
    return order if isinstance(order, str) else None


def _codes(rows: pa.Table) -> Any:
    partition, offset = (rows.column(name).cast(pa.int64()).to_numpy() for name in _COORDINATES)
    return (partition << _OFFSET_BITS) | offset


def _all_codes(ranges: Ranges) -> Any:
    parts = [
        (partition << _OFFSET_BITS) + np.arange(begin, end, dtype=np.int64)
        for partition, (begin, end) in ranges.items()
    ]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _beyond(codes: Any, ranges: Ranges) -> Any:
    late = np.zeros(len(codes), dtype=bool)
    for partition, (_, end) in ranges.items():
        late |= (codes >> _OFFSET_BITS == partition) & (codes & ((1 << _OFFSET_BITS) - 1) >= end)
    return late


def _repeated(codes: Any) -> Any:
    values, counts = np.unique(codes, return_counts=True)
    return values[counts > 1]


def _same_order(orders: list[str | None], codes: Any) -> Any:
    seen: set[str | None] = set()
    again = []
    for order, code in sorted(zip(orders, codes, strict=True), key=itemgetter(1)):
        if order is not None and order in seen:
            again.append(code)
        seen.add(order)
    return np.array(again, dtype=np.int64)


def _messages(codes: Any) -> tuple[MessageId, ...]:
    mask = (1 << _OFFSET_BITS) - 1
    return tuple(
        MessageId(int(code) >> _OFFSET_BITS, int(code) & mask) for code in np.unique(codes)
    )
