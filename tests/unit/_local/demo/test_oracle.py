import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from demo_oracle import DemoTables, Record, differences, judge

ARRIVED_MS = 1_790_000_000_123
ARRIVED = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ARRIVED_MS)


def record(value: bytes, *, partition: int = 0, offset: int = 0, late_ms: int = 0) -> Record:
    return Record(
        partition=partition,
        offset=offset,
        timestamp_ms=ARRIVED_MS + late_ms,
        key=b"k",
        value=value,
    )


def order(**changes: Any) -> bytes:
    content = {
        "order_id": "o1",
        "customer_id": "C0001",
        "product": "mug",
        "quantity": 2,
        "unit_price": 9.25,
        "amount": 18.5,
        "currency": "EUR",
        "event_time": "2026-09-21T14:13:20.000Z",
        **changes,
    }
    return json.dumps(
        {name: value for name, value in content.items() if value != "ABSENT"}
    ).encode()


def bronze_of(record: Record) -> dict[str, Any]:
    timestamp = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=record.timestamp_ms)
    return {
        "key": record.key,
        "value": record.value,
        "topic": "orders",
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": timestamp,
        "ingest_time": timestamp,
        "date": timestamp.date().isoformat(),
    }


def quarantined(record: Record) -> dict[str, Any]:
    judged = judge(record)
    source = {"topic": "orders", "partition": record.partition, "offset": record.offset}
    return {
        **judged.row,
        "_failed_rules": list(judged.broken),
        "_row": "{}",
        "_source": json.dumps(source),
    }


GOOD = record(order(), offset=0)
AGAIN = record(order(), offset=1, late_ms=5)
BAD = record(order(order_id="o2", amount=-1), offset=2)
BROKEN = record(b"{", offset=3)
LOG = (GOOD, AGAIN, BAD, BROKEN)
WINDOW = datetime(2026, 9, 21, 14, 10, tzinfo=UTC)
RIGHT = DemoTables(
    bronze=[bronze_of(entry) for entry in LOG],
    silver=[judge(GOOD).row],
    quarantine=[quarantined(BAD), quarantined(BROKEN)],
    revenue=[
        {
            "start": WINDOW,
            "end": WINDOW + timedelta(minutes=5),
            "product": "mug",
            "orders": 1,
            "revenue": Decimal("18.50"),
        }
    ],
    customers=[
        {
            "customer_id": "C0001",
            "orders": 1,
            "revenue": Decimal("18.50"),
            "last_order": datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC),
        }
    ],
)


def test_no_difference_is_reported_when_the_tables_are_correct() -> None:
    assert differences(LOG, RIGHT) == []


def test_either_of_two_duplicate_messages_may_be_in_silver() -> None:
    assert differences(LOG, replace(RIGHT, silver=[judge(AGAIN).row])) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"silver": []}, "order o1 has 0 rows"),
        ({"silver": [judge(GOOD).row, judge(AGAIN).row]}, "order o1 has 2 rows"),
        ({"silver": [judge(GOOD).row, judge(GOOD).row]}, "order o1 has 2 rows"),
        ({"silver": [{**judge(GOOD).row, "amount": Decimal("18.51")}]}, "instead of"),
        (
            {"silver": [{**judge(GOOD).row, "timestamp": ARRIVED}, judge(BAD).row]},
            "violated rules ()",
        ),
        ({"silver": [{**judge(GOOD).row, "offset": 9}]}, "comes from no message"),
        ({"quarantine": [quarantined(BAD)]}, "order orders-0-3 has 0 rows"),
        (
            {"quarantine": [{**quarantined(BAD), "_failed_rules": ["amount_positive"]}]},
            "violated rules ('amount_positive',) instead of",
        ),
        ({"quarantine": [{**quarantined(BAD), "_source": "{}"}]}, "wrong source"),
        ({"bronze": [bronze_of(entry) for entry in LOG[1:]]}, "orders_bronze: 1 time(s) missing"),
        ({"bronze": [bronze_of(entry) for entry in (*LOG, GOOD)]}, "orders_bronze: 1 time(s) too"),
        ({"bronze": [{**bronze_of(entry), "key": None} for entry in LOG]}, "orders_bronze"),
        ({"revenue": []}, "revenue_5m: 1 time(s) missing"),
        ({"revenue": [*RIGHT.revenue, *RIGHT.revenue]}, "revenue_5m: 1 time(s) too much"),
        ({"customers": []}, "customer_totals: 1 time(s) missing"),
    ],
)
def test_difference_is_reported_when_a_table_is_wrong(change: dict[str, Any], message: str) -> None:
    lines = differences(LOG, replace(RIGHT, **change))
    assert any(message in line for line in lines), lines


def test_gold_tables_are_not_compared_with_gold_false() -> None:
    assert differences(LOG, replace(RIGHT, revenue=[], customers=[]), gold=False) == []


@pytest.mark.parametrize(
    ("value", "broken"),
    [
        (order(), ()),
        (order(amount=None), ("amount_positive", "amount_matches")),
        (order(amount=-18.5), ("amount_positive", "amount_matches")),
        (order(amount=18.51), ("amount_matches",)),
        (order(quantity=None), ("amount_matches",)),
        (order(amount=0, quantity=0), ("amount_positive",)),
        (order(order_id="ABSENT"), ("valid_json",)),
        (order(event_time="2026-09-21T14:04:20.122Z"), ("not_too_late",)),
        (order(event_time="2026-09-21T14:04:20.123Z"), ()),
        (b"{", ("valid_json", "amount_positive", "amount_matches")),
        (b"", ("valid_json", "amount_positive", "amount_matches")),
    ],
)
def test_violated_expectations_of_a_message_are_listed(
    value: bytes, broken: tuple[str, ...]
) -> None:
    assert judge(record(value)).broken == broken


@pytest.mark.parametrize(
    "event_time",
    ["ABSENT", None, "", "yesterday", "2026-13-45T25:61:00Z", "2026-09-21T14:14:20.124Z", "2039"],
)
def test_event_time_is_the_kafka_timestamp_when_it_is_missing_or_invalid(
    event_time: str | None,
) -> None:
    assert judge(record(order(event_time=event_time))).row["event_time"] == ARRIVED


def test_event_time_is_kept_when_it_is_at_most_a_minute_ahead() -> None:
    event_time = datetime(2026, 9, 21, 14, 14, 20, 123_000, tzinfo=UTC)
    assert (
        judge(record(order(event_time="2026-09-21T14:14:20.123Z"))).row["event_time"] == event_time
    )


def test_message_without_an_order_id_is_no_duplicate() -> None:
    first, second = record(b"{", offset=1), record(b"{", offset=2)
    assert judge(first).order != judge(second).order
