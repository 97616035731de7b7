import json
from collections import Counter
from datetime import UTC, datetime

import pytest
from demo_oracle import Record, judge

from penstock._local.demo import orders
from penstock._local.demo.account import order_id
from penstock._local.demo.orders import Kind, Message, OrderStream

COUNT = 20_000
STREAM = OrderStream(run_id="r1", rate=500.0, start_ms=1_790_000_000_000)


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return [STREAM.message(index) for index in range(COUNT)]


@pytest.fixture(scope="module")
def kinds() -> list[Kind]:
    return [STREAM.kind(index) for index in range(COUNT)]


def share_of(matching: int, among: int) -> float:
    return matching / among


def test_messages_are_equal_when_seed_run_and_index_are_equal(messages: list[Message]) -> None:
    again = OrderStream(run_id="r1", rate=500.0, start_ms=1_790_000_000_000)
    indices = [19_999, 0, 7, 12_345]
    assert [again.message(index) for index in indices] == [messages[index] for index in indices]


@pytest.mark.parametrize("change", [{"seed": 1}, {"run_id": "r2"}])
def test_messages_differ_when_seed_or_run_differ(
    messages: list[Message], change: dict[str, object]
) -> None:
    other = OrderStream(**{"run_id": "r1", "rate": 500.0, "start_ms": 1_790_000_000_000, **change})
    assert sum(other.message(i).value == messages[i].value for i in range(200)) < 10


def test_order_ids_of_two_runs_differ() -> None:
    second = OrderStream(run_id="r2", rate=500.0)
    first_ids = {order_id(STREAM.message(index).value) for index in range(500)} - {None}
    second_ids = {order_id(second.message(index).value) for index in range(500)} - {None}
    assert first_ids and second_ids and not first_ids & second_ids


def test_shares_of_invalid_messages_are_as_documented(
    messages: list[Message], kinds: list[Kind]
) -> None:
    counts = Counter(kinds)
    assert share_of(counts[Kind.MALFORMED], COUNT) == pytest.approx(0.01, abs=0.003)
    assert share_of(counts[Kind.DUPLICATE], COUNT) == pytest.approx(0.02, abs=0.004)
    observed: Counter[str] = Counter()
    for message, kind in zip(messages, kinds, strict=True):
        if kind is not Kind.ORDER:
            continue
        order = json.loads(message.value)
        observed["unknown customer"] += order["customer_id"].startswith("X")
        amount, right = order["amount"], order["quantity"] * order["unit_price"]
        observed["no amount"] += amount is None
        observed["wrong amount"] += amount is not None and abs(amount - right) > 0.001
        observed["negative amount"] += amount is not None and amount < 0
        observed[time_class(order.get("event_time"), message.timestamp_ms)] += 1
    total = counts[Kind.ORDER]
    expected = {
        "unknown customer": 0.005,
        "no amount": 0.003,
        "wrong amount": 0.01,
        "negative amount": 0.005,
        "late": 0.05,
        "corrupt": 0.002,
        "none": 0.001,
        "future": 0.002,
        "stale": 0.002,
    }
    for name, share in expected.items():
        assert share_of(observed[name], total) == pytest.approx(share, rel=0.5), name


def time_class(event_time: str | None, due_ms: int) -> str:
    if event_time is None:
        return "none"
    try:
        timestamp = datetime.strptime(event_time, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return "corrupt"
    late = due_ms / 1000 - timestamp.timestamp()
    if late < -60:
        return "future"
    if late > 3000:
        return "stale"
    assert late <= orders.MAX_LATENESS_SECONDS + 0.001
    return "late" if late > 0.5 else "on time"


def test_duplicate_repeats_a_recent_order(messages: list[Message], kinds: list[Kind]) -> None:
    last_seen: dict[bytes, Message] = {}
    repeated = 0
    for message, kind in zip(messages, kinds, strict=True):
        if kind is Kind.DUPLICATE and message.value in last_seen:
            original = last_seen[message.value]
            repeated += 1
            assert original.key == message.key
            lag = (message.timestamp_ms - original.timestamp_ms) / 1000
            assert 0 < lag <= orders.MAX_DUPLICATE_SECONDS
        elif kind is Kind.ORDER:
            assert message.value not in last_seen
            last_seen[message.value] = message
    assert repeated == kinds.count(Kind.DUPLICATE) > 300


@pytest.mark.parametrize("rate", [1.0, 0.01])
def test_duplicate_is_close_to_its_original_when_the_rate_is_low(rate: float) -> None:
    slow = OrderStream(run_id="slow", rate=rate)
    first: dict[str, int] = {}
    for index in range(1500):
        message = slow.message(index)
        order = order_id(message.value)
        if order is not None:
            lag = message.timestamp_ms - first.setdefault(order, message.timestamp_ms)
            assert lag <= orders.MAX_DUPLICATE_SECONDS * 1000


def test_malformed_messages_have_no_order_id(messages: list[Message], kinds: list[Kind]) -> None:
    broken = [m.value for m, kind in zip(messages, kinds, strict=True) if kind is Kind.MALFORMED]
    assert all(order_id(value) is None for value in broken)
    assert b"" in broken
    assert any(value.startswith(b"\xff\xfe") for value in broken)
    assert any(value.startswith(b'{"order_id":') for value in broken)


def test_duplicate_violates_the_same_expectations_as_its_original(
    messages: list[Message],
) -> None:
    by_value: dict[bytes, set[tuple[str, ...]]] = {}
    for offset, message in enumerate(messages):
        record = Record(
            partition=0,
            offset=offset,
            timestamp_ms=message.timestamp_ms,
            key=message.key,
            value=message.value,
        )
        if order_id(message.value) is not None:
            by_value.setdefault(message.value, set()).add(judge(record).broken)
    assert all(len(outcomes) == 1 for outcomes in by_value.values())
    assert {rule for outcomes in by_value.values() for broken in outcomes for rule in broken} == {
        "amount_positive",
        "amount_matches",
        "not_too_late",
    }


def test_due_times_follow_the_rate() -> None:
    assert [STREAM.due_ms(index) - STREAM.start_ms for index in (0, 1, 500, 750)] == [
        0,
        2,
        1000,
        1500,
    ]
