"""Offsets in a checkpoint: how far each shard was read, and which records the last batch had.

Kinesis has no end offsets. A micro-batch ends at the last record that the driver saw, and its
offset has the first and the last record of each shard and the number of rows: so a batch that is
read again returns the same rows, or shows exactly how many are missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

_ROOT = "kinesis"
_TOLERANT = "tolerant"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard as Kinesis lists it; `first` is the lowest sequence number that it can have."""

    id: str
    parents: tuple[str, ...] = ()
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a shard was read; times in milliseconds since 1970.

    Attributes:
        after: Sequence number of the last record that was read.
        since: If nothing was read yet, the time of the first record; `None` means the oldest one.
        first: Sequence number of the first record of the batch that ended at `after`.
        rows: Number of rows of the shard in this batch.
        closed: Whether the shard has ended and was read to its end.
        seen: Time up to which all records that had arrived were read.
        lost: Set if records before a batch were removed unread: the sequence number after which
            they were missing; `?` if nothing was read before.
    """

    after: str | None = None
    since: int | None = None
    first: str | None = None
    rows: int = 0
    closed: bool = False
    seen: int = 0
    lost: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that are set, so that checkpoints of many shards stay small."""
        empty = Position()
        return {name: value for name, value in vars(self).items() if value != getattr(empty, name)}


@dataclass(frozen=True)
class Offset:
    """Positions by stream and shard; `tolerant` if the query continues when rows are gone."""

    streams: Mapping[str, Mapping[str, Position]] = field(default_factory=dict)
    tolerant: bool = field(default=False, compare=False)

    def get(self, stream: str, shard: str) -> Position | None:
        return self.streams.get(stream, {}).get(shard)

    def with_(self, stream: str, positions: Mapping[str, Position]) -> "Offset":
        return replace(self, streams={**self.streams, stream: dict(positions)})

    def to_json(self) -> dict[str, Any]:
        """For Spark's checkpoint; the same text for the same positions."""
        streams = {
            stream: {shard: shards[shard].to_json() for shard in sorted(shards)}
            for stream, shards in sorted(self.streams.items())
        }
        return {_ROOT: streams, **({_TOLERANT: True} if self.tolerant else {})}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Offset":
        return Offset(
            {
                stream: {shard: Position(**fields) for shard, fields in shards.items()}
                for stream, shards in value[_ROOT].items()
            },
            tolerant=bool(value.get(_TOLERANT)),
        )


def is_offset(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether an offset of a progress report is that of a Kinesis source."""
    return isinstance(value, Mapping) and _ROOT in value and set(value) <= {_ROOT, _TOLERANT}


@dataclass(frozen=True, kw_only=True)
class ShardRange:
    """Records of a shard that belong to a micro-batch, by their first and last sequence number."""

    stream: str
    shard: str
    first: str
    last: str
    rows: int

    @staticmethod
    def of(stream: str, shard: str, position: Position) -> "ShardRange":
        """The records of the batch that ended at a position."""
        first, last, rows = position.first, position.after, position.rows
        assert first is not None and last is not None
        return ShardRange(stream=stream, shard=shard, first=first, last=last, rows=rows)


def ranges(start: Offset, end: Offset) -> list[ShardRange]:
    """The ranges of the micro-batch between two successive offsets, by stream and shard."""
    ranges = []
    for stream, shards in sorted(end.streams.items()):
        for shard, position in sorted(shards.items()):
            before = start.get(stream, shard)
            if position.after is None or position.first is None:
                continue
            if before is None or before.after != position.after:
                ranges.append(ShardRange.of(stream, shard, position))
    return ranges


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """A stream's positions, compared with the shards that it has now.

    Attributes:
        ready: Shards to read from: not at their end, and no parent has unread records.
        gone: Shards that were not read to their end and no longer exist.
        recreated: A shard whose sequence numbers begin after what was read: it is another stream.
    """

    positions: Mapping[str, Position]
    ready: Sequence[str]
    gone: Sequence[str]
    recreated: str | None = None


def reconcile(known: Mapping[str, Position], shards: Iterable[Shard], now: int) -> Reconciled:
    """Add new shards, remove old ones, and order parents before their children.

    A shard that appears while a stream is read has only unread records: it is read from its oldest
    record, after a *checkpointed* batch has read its parents to their ends, so that the records of
    a key are in order, batch by batch. Closed shards are listed, too.
    """
    listed = {shard.id: shard for shard in shards}
    for name, shard in listed.items():
        before = known.get(name)
        if before is not None and before.after is not None and int(before.after) < shard.first:
            return Reconciled(positions=known, ready=(), gone=(), recreated=name)
    positions: dict[str, Position] = {}
    gone = []
    for name, position in known.items():
        if name in listed:
            positions[name] = position
        elif not position.closed:
            gone.append(name)
            positions[name] = replace(position, closed=True, lost=position.after or "?")
    for name in listed:
        if name not in positions:
            positions[name] = Position(seen=now)
    ready = [
        name
        for name, position in sorted(positions.items())
        if not position.closed
        and all(positions[p].closed for p in listed[name].parents if p in positions)
    ]
    return Reconciled(positions=positions, ready=ready, gone=gone)
