import json
from typing import Any

import pytest

from penstock._local.demo.account import Account, MessageId, order_id, take_account


def message(order: str) -> bytes:
    return json.dumps({"order_id": order}).encode()


def row(order: str | None, partition: int, offset: int, **more: Any) -> dict[str, Any]:
    return {"order_id": order, "partition": partition, "offset": offset, **more}


@pytest.fixture
def processed(tables: Any, bronze: Any) -> Any:
    """Six messages: two orders, an invalid one, a malformed one, and two duplicates."""
    tables.add(
        "orders_bronze",
        [
            bronze(0, 0, message("a")),
            bronze(0, 1, message("b")),
            bronze(0, 2, b"{broken"),
            bronze(1, 0, message("bad")),
        ],
    )
    tables.add("orders_bronze", [bronze(0, 3, message("a")), bronze(1, 1, message("bad"))])
    tables.add("orders", [row("a", 0, 0), row("b", 0, 1)])
    tables.add("orders_quarantine", [row("bad", 1, 0), row(None, 0, 2)])
    tables.commit_silver(2)
    return tables


RANGES = {0: (0, 4), 1: (0, 2)}


def test_account_balances_when_every_message_is_in_one_table(processed: Any) -> None:
    account = take_account(processed.folders, RANGES)
    assert account.balanced
    figures = (account.read, account.silver, account.quarantined, account.duplicates)
    assert figures == (6, 2, 2, 2)
    assert account.pending == 0 and account.findings() == []


def test_account_is_empty_when_topic_and_tables_are_empty(tables: Any) -> None:
    account = take_account(tables.folders, {0: (0, 0)})
    assert account.balanced and account.read == 0


def test_messages_are_pending_when_bronze_has_not_read_them(processed: Any) -> None:
    account = take_account(processed.folders, {0: (0, 9), 1: (0, 2), 2: (0, 1)})
    assert account.balanced
    assert (account.read, account.pending) == (12, 6)


def test_messages_are_pending_when_silver_has_not_committed_their_version(
    processed: Any, bronze: Any
) -> None:
    processed.add("orders_bronze", [bronze(0, 4, message("c")), bronze(0, 5, message("a"))])
    account = take_account(processed.folders, {0: (0, 6), 1: (0, 2)})
    assert account.balanced and account.pending == 2


def test_row_counts_as_silver_when_its_batch_is_written_but_not_committed(
    processed: Any, bronze: Any
) -> None:
    processed.add("orders_bronze", [bronze(0, 4, message("c")), bronze(0, 5, message("d"))])
    processed.add("orders", [row("c", 0, 4)])
    account = take_account(processed.folders, {0: (0, 6), 1: (0, 2)})
    assert account.balanced
    assert (account.silver, account.pending) == (3, 1)


def test_messages_after_the_end_offset_are_ignored(processed: Any) -> None:
    account = take_account(processed.folders, {0: (0, 3), 1: (0, 1)})
    assert account.balanced
    assert (account.read, account.duplicates) == (4, 0)


@pytest.mark.parametrize("value", [message("never seen"), b"{broken too", b"", b"[]"])
def test_message_is_lost_when_silver_has_passed_it_without_a_row(
    processed: Any, bronze: Any, value: bytes
) -> None:
    processed.add("orders_bronze", [bronze(0, 4, value)])
    processed.commit_silver(3, batch=1)
    account = take_account(processed.folders, {0: (0, 5), 1: (0, 2)})
    assert not account.balanced
    assert account.lost == (MessageId(0, 4),)
    assert "1 lost (partition:offset): 0:4" in account.findings()[0]


def test_the_account_does_not_balance_when_the_figures_do_not_add_up() -> None:
    figures = {"silver": 1, "quarantined": 1, "duplicates": 1, "pending": 1}
    assert Account(read=4, **figures).balanced
    assert not Account(read=5, **figures).balanced


@pytest.mark.parametrize(
    ("table", "second", "duplicated"),
    [
        ("orders", row("b", 0, 1), MessageId(0, 1)),
        ("orders_quarantine", row(None, 0, 2), MessageId(0, 2)),
        ("orders_quarantine", row("b", 0, 1), MessageId(0, 1)),
        ("orders", row("a", 0, 3), MessageId(0, 3)),
    ],
    ids=["same row", "no order id", "silver and quarantine", "row of a duplicate order"],
)
def test_message_is_duplicated_when_it_has_a_second_row(
    processed: Any, table: str, second: dict[str, Any], duplicated: MessageId
) -> None:
    processed.add(table, [second])
    account = take_account(processed.folders, RANGES)
    assert not account.balanced and account.duplicated == (duplicated,)


def test_message_is_duplicated_when_bronze_has_two_rows_of_it(processed: Any, bronze: Any) -> None:
    processed.add("orders_bronze", [bronze(0, 1, message("b"))])
    account = take_account(processed.folders, RANGES)
    assert not account.balanced and account.duplicated == (MessageId(0, 1),)


def test_row_is_foreign_when_the_topic_has_no_such_message(processed: Any) -> None:
    processed.add("orders", [row("z", 5, 0)])
    account = take_account(processed.folders, RANGES)
    assert not account.balanced and account.foreign == (MessageId(5, 0),)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"order_id":"a"}', "a"),
        (b'{"order_id":5}', None),
        (b"{}", None),
        (b"\xff{}", None),
        (b"", None),
        (None, None),
    ],
)
def test_order_id_is_read_only_when_it_is_a_string(
    value: bytes | None, expected: str | None
) -> None:
    assert order_id(value) == expected
