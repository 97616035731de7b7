"""Records of one shard, page by page, and the rows of a planned range of it."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from penstock.errors import ConnectorError
from penstock.sources.kinesis.client import IteratorExpired, KinesisClient, NotInShard, Page, Record
from penstock.sources.kinesis.offsets import Position, ShardRange
from penstock.sources.kinesis.options import KinesisOptions

# Kinesis keeps records for at least a day.
RETENTION_MILLIS = 24 * 3600 * 1000

Row = tuple[str, bytes, str, str, str, datetime]

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST = 16


def unpack(partition_key: str, data: bytes) -> list[tuple[str, bytes]]:
    """Partition key and data of each row of a record; one that is not packed stays as it is.

    A record that the Kinesis Producer Library packed begins with four magic bytes and ends with the
    MD5 digest of a protobuf message in between, with a table of partition keys (field 1) and the
    records (field 3), each with the index of its key (field 1) and its data (field 3).
    """
    if not data.startswith(_MAGIC) or len(data) < len(_MAGIC) + _DIGEST:
        return [(partition_key, data)]
    message, digest = data[len(_MAGIC) : -_DIGEST], data[-_DIGEST:]
    if hashlib.md5(message, usedforsecurity=False).digest() != digest:
        return [(partition_key, data)]
    try:
        keys: list[str] = []
        packed: list[bytes] = []
        for number, value in _fields(message):
            if number == 1 and isinstance(value, bytes):
                keys.append(value.decode())
            elif number == 3 and isinstance(value, bytes):
                packed.append(value)
        return [_row(record, keys) for record in packed]
    except (ValueError, IndexError):
        return [(partition_key, data)]


def _row(record: bytes, keys: list[str]) -> tuple[str, bytes]:
    index, data = 0, b""
    for number, value in _fields(record):
        if number == 1 and isinstance(value, int):
            index = value
        elif number == 3 and isinstance(value, bytes):
            data = value
    return keys[index], data


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            number, at = _varint(message, at)
            yield tag >> 3, number
        elif kind == 2:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise ValueError("a field is cut off")
            yield tag >> 3, message[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {kind} is not expected")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


class ShardReading:
    """Pages of a shard after a position; detects whether Kinesis still has the position.

    Attributes:
        removed: Whether the last record that was read, and possibly later ones, were removed.
        skips_position: Whether pages begin after the record at the position.
    """

    def __init__(
        self, client: KinesisClient, stream: str, shard: str, position: Position, limit: int
    ) -> None:
        self.iterator: str | None = None
        self.removed = False
        self.skips_position = True
        self._client = client
        self._stream = stream
        self._shard = shard
        self._position = position
        self._expected: str | None = None
        self._limit = limit
        self._has_looked = False
        self._above: int | None = None
        self._is_judged = False

    def next_page(self) -> Page:
        try:
            page = self._client.page(self._opened(), self._limit)
        except IteratorExpired:
            self.iterator = None
            page = self._client.page(self._opened(), self._limit)
        self.iterator = page.next
        if not page.records and page.behind_millis >= RETENTION_MILLIS and not self._has_looked:
            page = self._from_the_oldest(page)
        if self._above is not None:
            page = self._without_what_was_read(page, self._above)
        if self._expected is not None:
            if page.records and page.records[0].number == self._expected:
                if self.skips_position:
                    page = replace(page, records=page.records[1:])
                self._expected = None
                if not page.records and page.next is not None:
                    return self.next_page()
            elif page.records or page.behind_millis == 0 or page.next is None:
                self._expected, self.removed = None, True
        if page.records:
            self.skips_position = True
            self._position = replace(self._position, after=page.records[-1].number)
        return page

    def records(self) -> Iterator[Record]:
        """All records up to the end of the shard."""
        is_at_end = False
        while not is_at_end:
            page = self.next_page()
            yield from page.records
            is_at_end = page.next is None or page.at_end

    def _from_the_oldest(self, page: Page) -> Page:
        """Read the oldest records: at an expired position, pages stay empty, as in a gap."""
        self._has_looked = True
        after = self._position.after
        if after is None:
            self.iterator = self._client.iterator(self._stream, self._shard, self._position)
            return self.next_page()
        oldest = self._client.page(self._oldest(), self._limit)
        if oldest.records and int(oldest.records[0].number) <= int(after):
            return page
        self.iterator, self._expected = oldest.next, None
        self._above = int(after) - (0 if self.skips_position else 1)
        return oldest

    def _without_what_was_read(self, page: Page, above: int) -> Page:
        kept = tuple(record for record in page.records if int(record.number) > above)
        if not self._is_judged and (page.records or page.behind_millis == 0 or page.next is None):
            self._is_judged, self.removed = True, len(kept) == len(page.records)
        return replace(page, records=kept)

    def _opened(self) -> str:
        if self.iterator is not None:
            return self.iterator
        try:
            # At the last record, not after it, to detect whether it still exists.
            iterator = self._client.iterator(self._stream, self._shard, self._position)
            self._expected = self._position.after
        except NotInShard:
            iterator = self._oldest()
            self.removed = True
        return iterator

    def _oldest(self) -> str:
        return self._client.iterator(self._stream, self._shard, Position())


def until(records: tuple[Record, ...], millis: int) -> tuple[Record, ...]:
    """The records before the first one that arrived after a time."""
    for index, record in enumerate(records):
        if record.arrival_millis > millis:
            return records[:index]
    return records


def rows_of(stream: str, shard: str, record: Record) -> list[Row]:
    """The rows of a record, in the order of the source's columns."""
    return [
        (key, data, stream, shard, record.number, record.arrival)
        for key, data in unpack(record.key, record.data)
    ]


def read_range(client: KinesisClient, options: KinesisOptions, part: ShardRange) -> Iterator[Row]:
    """The same rows of a range as when it was planned; `SOURCE_ROWS_LOST` if some are missing."""
    last = int(part.last)
    # At the first record itself: a range does not have the number of the record before it.
    reading = ShardReading(
        client, part.stream, part.shard, Position(after=part.first), options.records_per_fetch
    )
    reading.skips_position = False
    count = 0
    for record in reading.records():
        if int(record.number) > last:
            break
        rows = rows_of(part.stream, part.shard, record)
        count += len(rows)
        yield from rows
        if int(record.number) == last:
            break
    if count != part.rows and options.fails_on_loss:
        raise rows_lost(
            part.stream,
            part.shard,
            f"a micro-batch that is read again has {count} of {part.rows} rows",
        )


def read_now(
    client: KinesisClient,
    options: KinesisOptions,
    place: tuple[str, str],
    position: Position,
    end: int,
) -> Iterator[Row]:
    """The rows of a shard that arrived until a time, in milliseconds since 1970."""
    stream, shard = place
    reading = ShardReading(client, stream, shard, position, options.records_per_fetch)
    for record in reading.records():
        if record.arrival_millis > end:
            return
        yield from rows_of(stream, shard, record)


def rows_lost(stream: str, shard: str, why: str) -> ConnectorError:
    """The error for rows that can no longer be read."""
    return ConnectorError(
        "SOURCE_ROWS_LOST",
        f"rows of shard {shard} of stream {stream!r} may have been removed before they were "
        f"read: {why}",
    )
