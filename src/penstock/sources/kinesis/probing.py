"""The driver reads the shards to decide where a micro-batch ends.

The end of a shard is found only by reading it, and each shard may be read only five times per
second. So the driver reads the records of a batch once and passes them to the tasks; only a batch
that another process planned is read again, record for record, by its offsets.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from penstock.errors import ConnectorError
from penstock.sources.kinesis.client import KinesisClient, Record
from penstock.sources.kinesis.offsets import Offset, Position, Shard, ShardRange, reconcile
from penstock.sources.kinesis.options import KinesisOptions
from penstock.sources.kinesis.reading import (
    RETENTION_MILLIS,
    Row,
    ShardReading,
    rows_lost,
    rows_of,
    until,
)

# How often the offset of a shard without records is updated, so that it does not look old.
_SEEN_MILLIS = 3600 * 1000
_MAX_THREADS = 16

Place = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class _Fetched:
    position: Position
    rows: list[Row]
    iterator: str | None
    behind_millis: int
    done: bool


class Prober:
    """Reads shards for one query, from offset to offset. Used by one thread at a time."""

    def __init__(self, options: KinesisOptions, client: KinesisClient) -> None:
        self._options = options
        self._client = client
        self._iterators: dict[Place, tuple[Position, str]] = {}
        self._batches: list[tuple[Offset, dict[ShardRange, list[Row]]]] = []
        self._shards: dict[str, tuple[float, list[Shard]]] = {}
        self._now = 0
        self._last_fetch = 0.0
        self._paced: dict[Place, float] = {}
        self.behind_millis: dict[Place, int] = {}
        """How far each shard's last read was behind its end."""
        self._until: int | None = None
        self._done: set[Place] = set()
        self._pause = threading.Event()
        self._lock = threading.Lock()
        self._size = 0

    def initial(self) -> Offset:
        """Where a query without a checkpoint begins."""
        start = self._options.start
        offset = Offset()
        for stream in self._options.streams:
            shards = self._list(stream, fresh=True)
            parents = {parent for shard in shards for parent in shard.parents}
            positions = {}
            for shard in shards:
                if start.kind == "at_timestamp":
                    position = Position(since=start.millis, seen=self._now)
                elif start.kind == "trim_horizon":
                    position = Position(seen=self._now)
                elif shard.id in parents:
                    position = Position(closed=True)
                else:
                    # Until a record is read, only this iterator has the exact position.
                    position = Position(since=self._now, seen=self._now)
                    iterator = self._client.latest(stream, shard.id)
                    self._iterators[stream, shard.id] = (position, iterator)
                positions[shard.id] = position
            offset = offset.with_(stream, positions)
        return offset

    def end_with_what_is_there(self) -> int:
        """Read nothing that arrives later, so that `advance` ends; returns the time (ms)."""
        for stream in self._options.streams:
            self._list(stream, fresh=True)
        # The server's time is in whole seconds.
        self._until = self._now + 999
        return self._until

    def advance(self, start: Offset) -> Offset:
        """Read the next records and return the new offset; equal to `start` if nothing changed."""
        self._wait_for_turn()
        end = replace(start, tolerant=not self._options.fails_on_loss)
        ready: list[Place] = []
        for stream in self._options.streams:
            known = start.streams.get(stream, {})
            shards = reconcile(known, self._list(stream), self._now)
            if shards.recreated is not None:
                raise ConnectorError(
                    "STREAM_RECREATED",
                    f"stream {stream!r} was deleted and recreated: the sequence numbers of its "
                    f"shard {shards.recreated} start after the position that was read",
                )
            if shards.gone and self._options.fails_on_loss:
                raise rows_lost(stream, ", ".join(shards.gone), "it was closed and has expired")
            end = end.with_(stream, shards.positions)
            ready += [(stream, shard) for shard in shards.ready]
        ready = [place for place in ready if place not in self._done]
        rows: dict[ShardRange, list[Row]] = {}
        self._size = 0
        for place, fetched in self._fetch_all(ready, end):
            stream, shard = place
            before = end.streams[stream][shard]
            if fetched.iterator is not None:
                self._iterators[place] = (fetched.position, fetched.iterator)
            if fetched.done:
                self._done.add(place)
            if fetched.position.closed:
                self.behind_millis.pop(place, None)
            else:
                self.behind_millis[place] = fetched.behind_millis
            if fetched.position == before:
                continue
            end = end.with_(stream, {**end.streams[stream], shard: fetched.position})
            if fetched.rows:
                rows[ShardRange.of(stream, shard, fetched.position)] = fetched.rows
        # The last one may not have been planned yet; what was before it, has been.
        self._batches = [*self._batches[-1:], (end, rows)] if end != start else self._batches
        return end

    def rows(self, end: Offset, part: ShardRange) -> list[Row] | None:
        """The rows that were read for a micro-batch; `None` if another process read them."""
        for offset, rows in self._batches:
            if offset == end:
                return rows.get(part)
        return None

    def forget(self, end: Offset) -> None:
        """Drop the rows of a finished micro-batch."""
        self._batches = [(offset, rows) for offset, rows in self._batches if offset != end]

    def _list(self, stream: str, *, fresh: bool = False) -> list[Shard]:
        at, shards = self._shards.get(stream, (0.0, []))
        now = time.monotonic()
        if fresh or not shards or now - at >= self._options.shard_interval_seconds:
            shards, self._now = self._client.shards(stream)
            self._shards[stream] = (now, shards)
        return shards

    def _wait_for_turn(self) -> None:
        """Limit requests: Spark polls every 10 ms, but a shard allows five reads per second."""
        self._wait_until(self._last_fetch + self._options.fetch_period_seconds)
        self._last_fetch = time.monotonic()

    def _wait_until(self, moment: float) -> None:
        wait = moment - time.monotonic()
        if wait > 0:
            self._pause.wait(wait)

    def _fetch_all(self, places: Sequence[Place], offset: Offset) -> list[tuple[Place, _Fetched]]:
        with ThreadPoolExecutor(_MAX_THREADS) as pool:
            fetched = pool.map(lambda place: self._fetch(place, offset), places)
            return list(zip(places, fetched, strict=True))

    def _fetch(self, place: Place, offset: Offset) -> _Fetched:
        stream, shard = place
        position = offset.streams[stream][shard]
        deadline = time.monotonic() + self._options.fetch_seconds
        limit = self._options.records_per_fetch
        reading = ShardReading(self._client, stream, shard, position, limit)
        self._wait_until(self._paced.get(place, 0.0))
        kept = self._iterators.pop(place, None)
        if kept is not None and kept[0] == position:
            reading.iterator = kept[1]
        rows: list[Row] = []
        last: Record | None = None
        first: Record | None = None
        while True:
            began = time.monotonic()
            page = reading.next_page()
            records = page.records if self._until is None else until(page.records, self._until)
            cut = len(records) < len(page.records)
            size = 0
            for record in records:
                size += len(record.data) + len(record.key)
                rows += rows_of(stream, shard, record)
            if records:
                first, last = first or records[0], records[-1]
            pace = max(self._options.fetch_period_seconds, size / self._options.fetch_rate)
            self._paced[place] = began + pace
            with self._lock:
                self._size += size
                full = self._size >= self._options.buffer_bytes
            caught_up = page.behind_millis == 0 if self._until is None else page.at_end
            if cut or full or page.next is None or caught_up or self._paced[place] > deadline:
                break
            self._wait_until(self._paced[place])
        if reading.removed and page.now - position.seen > RETENTION_MILLIS:
            if self._options.fails_on_loss:
                raise rows_lost(stream, shard, f"the records after {position.after} have expired")
            position = replace(position, lost=position.after)
        else:
            position = replace(position, lost=None) if last is not None else position
        seen = page.now if page.at_end else (last.arrival_millis if last else position.seen)
        closed = page.next is None and not cut
        if last is not None and first is not None:
            position = replace(
                position, after=last.number, first=first.number, rows=len(rows), since=None,
                closed=closed, seen=seen,
            )  # fmt: skip
        elif closed or seen - position.seen > _SEEN_MILLIS:
            position = replace(position, closed=closed, seen=seen)
        return _Fetched(
            position=position,
            rows=rows,
            iterator=None if cut else page.next,
            behind_millis=page.behind_millis,
            done=cut or (self._until is not None and caught_up),
        )
