"""A shard whose iterator returns no records, after a gap or because its position has expired."""

from datetime import UTC, datetime
from typing import Any

from penstock.sources.kinesis.client import Page, Record
from penstock.sources.kinesis.offsets import Position
from penstock.sources.kinesis.reading import ShardReading

DAYS = 3 * 24 * 3600 * 1000


class Pages:
    """A client that returns a fixed page for each iterator."""

    def __init__(self, **pages: Page) -> None:
        self._pages = pages

    def iterator(self, stream: str, shard: str, position: Position) -> str:
        return "oldest" if position.after is None else "at"

    def page(self, iterator: str, limit: int) -> Page:
        return self._pages[iterator]


def page(*numbers: int, next: str | None = None, behind: int = 0) -> Page:
    records = tuple(
        Record(key="k", data=b"x", number=str(number), arrival=datetime(2026, 1, 1, tzinfo=UTC))
        for number in numbers
    )
    return Page(records=records, next=next, behind_millis=behind, now=0)


def reading(client: Any) -> ShardReading:
    return ShardReading(client, "orders", "s0", Position(after="5"), 10)


def numbers(page: Page) -> list[int]:
    return [int(record.number) for record in page.records]


def test_reading_continues_after_a_gap_when_the_last_record_still_exists():
    client = Pages(
        at=page(5, next="gap", behind=DAYS),
        gap=page(next="after", behind=DAYS),
        oldest=page(3, 4, 5, next="other", behind=DAYS),
        after=page(6, 7),
    )
    reader = reading(client)
    assert numbers(reader.next_page()) == []
    assert numbers(reader.next_page()) == [6, 7]
    assert not reader.removed


def test_reading_starts_at_the_oldest_record_when_its_position_expired():
    client = Pages(at=page(next="at", behind=DAYS), oldest=page(8, 9))
    reader = reading(client)
    assert numbers(reader.next_page()) == [8, 9]
    assert reader.removed


def test_no_record_is_read_twice_when_the_oldest_are_behind_a_gap():
    client = Pages(
        at=page(next="at", behind=DAYS),
        oldest=page(next="later", behind=DAYS),
        later=page(4, 5, 6),
    )
    reader = reading(client)
    assert numbers(reader.next_page()) == []
    assert numbers(reader.next_page()) == [6]
    assert not reader.removed
