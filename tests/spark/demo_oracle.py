"""A second pipeline in plain Python: the expected rows of the demo's tables from the Kafka log.

It does not depend on Spark, micro-batches or watermarks: it processes all messages together. If
several messages have the same order, any of them may be the row, because that depends on the
micro-batches; everything else must be equal.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from penstock._local.demo.folders import TOPIC, DemoFolders
from penstock._local.demo.kafka_log import Ranges, import_client, open_consumer, unreachable
from penstock._local.demo.tables import opened, read_rows

Row = dict[str, Any]
Position = tuple[int, int]

_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_TEXTS = ("order_id", "customer_id", "product", "currency")
_CENT = Decimal("0.01")
_BRONZE = ("key", "value", "topic", "partition", "offset", "timestamp", "ingest_time", "date")
_SILVER = (
    *("order_id", "customer_id", "product", "quantity", "unit_price", "amount", "currency"),
    *("event_time", "_corrupt_record", "topic", "partition", "offset", "timestamp"),
)
_JSON = json.JSONDecoder(parse_float=Decimal)
_SHOWN = 20
_TIMEOUT_SECONDS = 20.0
_BATCH = 1_000


@dataclass(frozen=True, kw_only=True)
class Record:
    """A message in the topic."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The expected result of a message that is not a duplicate.

    Attributes:
        row: Its row in silver or in quarantine.
        broken: Names of the drop rules that it violates, in the order of their declaration.
        order: Messages with the same order are duplicates.
    """

    row: Row
    broken: tuple[str, ...]
    order: str


@dataclass(frozen=True, kw_only=True)
class DemoTables:
    """Rows of the demo's tables, as read from their files."""

    bronze: Sequence[Row] = ()
    silver: Sequence[Row] = ()
    quarantine: Sequence[Row] = ()
    revenue: Sequence[Row] = ()
    customers: Sequence[Row] = ()


@dataclass
class _Report:
    lines: list[str] = field(default_factory=list)

    def expect(self, holds: bool, line: str) -> None:
        if not holds:
            self.lines.append(line)


def read_tables(folders: DemoFolders) -> DemoTables:
    """All rows of the demo's tables, without Spark."""
    return DemoTables(
        bronze=_read(folders.table("orders_bronze"), _BRONZE),
        silver=_read(folders.table("orders"), _SILVER),
        quarantine=_read(
            folders.quarantine("orders"), (*_SILVER, "_failed_rules", "_row", "_source")
        ),
        revenue=_read(
            folders.table("revenue_5m"), ("start", "end", "product", "orders", "revenue")
        ),
        customers=_read(
            folders.table("customer_totals"), ("customer_id", "orders", "revenue", "last_order")
        ),
    )


def differences(records: Iterable[Record], tables: DemoTables, *, gold: bool = True) -> list[str]:
    """Compare the tables with the log, row by row.

    Args:
        records: The whole log; all of it has been processed.
        tables: The tables that the pipeline wrote.
        gold: Whether to compare the gold tables, too.

    Returns:
        One line per difference, limited for each kind; empty if there is no difference.
    """
    log = {(record.partition, record.offset): record for record in records}
    report = _Report()
    _compare_bronze(log, tables.bronze, report)
    judged = {position: judge(record) for position, record in log.items()}
    _compare_outcomes(judged, tables, report)
    if gold:
        expected = [judged[_position(row)].row for row in tables.silver if _position(row) in judged]
        _compare_rows("revenue_5m", revenue_of(expected), tables.revenue, report)
        _compare_rows("customer_totals", customers_of(expected), tables.customers, report)
    return report.lines


def judge(record: Record) -> Judged:
    """The expected result of the pipeline for a message."""
    text = (record.value or b"").decode("utf-8", errors="replace")
    content, corrupt = _parse(text)
    arrived = _time(record.timestamp_ms)
    price, amount = _money(content.get("unit_price")), _money(content.get("amount"))
    quantity = content.get("quantity")
    row: Row = {
        **{name: content.get(name) for name in _TEXTS},
        "quantity": quantity,
        "unit_price": price,
        "amount": amount,
        "event_time": _event_time(content.get("event_time"), arrived),
        "_corrupt_record": corrupt,
        "topic": TOPIC,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": arrived,
    }
    passed = {
        "valid_json": row["order_id"] is not None and corrupt is None,
        "amount_positive": amount is not None and amount > 0,
        "amount_matches": (
            amount is not None
            and price is not None
            and quantity is not None
            and amount == quantity * price
        ),
        "not_too_late": row["event_time"] >= arrived - timedelta(minutes=9),
    }
    return Judged(
        row=row,
        broken=tuple(rule for rule, holds in passed.items() if not holds),
        order=row["order_id"] or f"{TOPIC}-{record.partition}-{record.offset}",
    )


def _parse(text: str) -> tuple[Mapping[str, Any], str | None]:
    if not text.strip():
        return {}, None
    try:
        # Like Spark's parser, ignore the text after the value.
        content, _ = _JSON.raw_decode(text.lstrip())
    except ValueError:
        return {}, text
    return (content, None) if isinstance(content, dict) else ({}, text)


def _money(value: Any) -> Decimal | None:
    return None if value is None else Decimal(value).quantize(_CENT)


def _event_time(claimed: Any, arrived: datetime) -> datetime:
    if isinstance(claimed, str) and _ISO.fullmatch(claimed):
        try:
            time = datetime.fromisoformat(claimed)
        except ValueError:
            return arrived
        if time <= arrived + timedelta(minutes=1):
            return time
    return arrived


def _compare_bronze(log: Mapping[Position, Record], rows: Sequence[Row], report: _Report) -> None:
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        counts[_bronze_row(row)] += 1
        report.expect(row["ingest_time"] is not None, f"bronze {_position(row)}: no ingest time")
    expected = Counter(
        (
            *(record.key, record.value or b"", TOPIC, record.partition, record.offset),
            _time(record.timestamp_ms),
            _time(record.timestamp_ms).date().isoformat(),
        )
        for record in log.values()
    )
    _compare_counts("orders_bronze", expected, counts, report)


def _bronze_row(row: Row) -> tuple[Any, ...]:
    value = row["value"] or b""
    names = ("topic", "partition", "offset", "timestamp")
    return (row["key"], value, *(row[name] for name in names), str(row["date"]))


def _compare_outcomes(
    judged: Mapping[Position, Judged], tables: DemoTables, report: _Report
) -> None:
    outcomes: dict[str, list[Position]] = defaultdict(list)
    for table, rows in (("orders", tables.silver), ("orders_quarantine", tables.quarantine)):
        for row in rows:
            position = _position(row)
            if position not in judged:
                report.expect(False, f"{table} {position}: comes from no message")
                continue
            verdict = judged[position]
            outcomes[verdict.order].append(position)
            plain = {name: row[name] for name in _SILVER}
            report.expect(
                plain == verdict.row, f"{table} {position}: {plain} instead of {verdict.row}"
            )
            broken = tuple(row.get("_failed_rules") or ())
            report.expect(
                broken == verdict.broken,
                f"{table} {position}: violated rules {broken} instead of {verdict.broken}",
            )
            if table == "orders_quarantine":
                source = {"topic": TOPIC, "partition": position[0], "offset": position[1]}
                report.expect(
                    json.loads(row["_source"]) == source, f"{table} {position}: wrong source"
                )
    for order in {verdict.order for verdict in judged.values()}:
        positions = outcomes.get(order, [])
        report.expect(len(positions) == 1, f"order {order} has {len(positions)} rows: {positions}")


def revenue_of(rows: Sequence[Row]) -> list[Row]:
    """`revenue_5m` for these rows of silver."""
    groups: dict[tuple[Any, ...], list[Decimal | None]] = defaultdict(list)
    for row in rows:
        time = row["event_time"]
        start = time.replace(minute=time.minute // 5 * 5, second=0, microsecond=0)
        groups[start, row["product"]].append(row["amount"])
    return [
        {
            "start": start,
            "end": start + timedelta(minutes=5),
            "product": product,
            "orders": len(amounts),
            "revenue": _sum(amounts),
        }
        for (start, product), amounts in groups.items()
    ]


def customers_of(rows: Sequence[Row]) -> list[Row]:
    """`customer_totals` for these rows of silver."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["customer_id"]].append(row)
    return [
        {
            "customer_id": customer,
            "orders": len(own),
            "revenue": _sum([row["amount"] for row in own]),
            "last_order": max(row["event_time"] for row in own),
        }
        for customer, own in groups.items()
    ]


def _sum(amounts: Sequence[Decimal | None]) -> Decimal | None:
    """The sum as in SQL: without NULLs, and NULL if all values are NULL."""
    present = [amount for amount in amounts if amount is not None]
    return sum(present, Decimal(0)) if present else None


def _compare_rows(
    table: str, expected: Sequence[Row], actual: Sequence[Row], report: _Report
) -> None:
    _compare_counts(
        table,
        Counter(tuple(sorted(row.items())) for row in expected),
        Counter(tuple(sorted(row.items())) for row in actual),
        report,
    )


def _compare_counts(
    table: str,
    expected: Counter[tuple[Any, ...]],
    actual: Counter[tuple[Any, ...]],
    report: _Report,
) -> None:
    """Report missing and unexpected rows, with the number of occurrences."""
    for kind, rows in (("missing", expected - actual), ("too much", actual - expected)):
        for row, count in list(rows.items())[:_SHOWN]:
            report.expect(False, f"{table}: {count} time(s) {kind}: {row}")
        report.expect(len(rows) <= _SHOWN, f"{table}: {len(rows)} different rows {kind} in all")


def _position(row: Row) -> Position:
    return row["partition"], row["offset"]


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


def _read(table: Any, columns: Sequence[str]) -> list[Row]:
    rows: list[Row] = read_rows(opened(table), columns).to_pylist()
    return rows


def read_records(bootstrap_servers: str, topic: str, ranges: Ranges) -> Iterator[Record]:
    """Read all messages of these ranges, per partition in order.

    Raises:
        SetupError: `BROKER_UNREACHABLE`.
        MissingExtraError: `MISSING_EXTRA`.
    """
    kafka = import_client()
    consumer = open_consumer(kafka, bootstrap_servers)
    remaining = {partition: end for partition, (begin, end) in ranges.items() if end > begin}
    try:
        consumer.assign(
            [kafka.TopicPartition(topic, number, ranges[number][0]) for number in remaining]
        )
        while remaining:
            messages = consumer.consume(_BATCH, timeout=_TIMEOUT_SECONDS)
            if not messages:
                raise unreachable(bootstrap_servers, f"no messages in {_TIMEOUT_SECONDS:g} s")
            for message in messages:
                if message.error() is not None:
                    raise unreachable(bootstrap_servers, str(message.error()))
                partition, offset = message.partition(), message.offset()
                if offset < ranges[partition][1]:
                    yield Record(
                        partition=partition,
                        offset=offset,
                        timestamp_ms=message.timestamp()[1],
                        key=message.key(),
                        value=message.value(),
                    )
                if offset + 1 >= ranges[partition][1]:
                    remaining.pop(partition, None)
    except kafka.KafkaException as error:
        raise unreachable(bootstrap_servers, str(error)) from error
    finally:
        consumer.close()
