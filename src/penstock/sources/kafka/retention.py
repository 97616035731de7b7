"""When Kafka removes rows that a flow has not read yet. Pure: time and figures are passed in.

Kafka deletes whole segments: one is due when its newest record is older than `retention.ms`, or
when the partition is larger than `retention.bytes` without it. So a time by age is the earliest
possible one. By size nothing is known in advance; what is measured is how fast the start of the
partition has been moving lately.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_WINDOW_SECONDS = 1800.0


class Loss(StrEnum):
    """What becomes of the unread rows of a partition; the worst last."""

    NONE = "none"
    """There are none, or nothing ever removes them."""
    UNKNOWN = "unknown"
    EXPECTED = "expected"
    """In so many seconds, unless they are read before."""
    HAPPENED = "happened"
    """Some are gone."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What a topic's settings say: whether, by age (ms) and by bytes of a partition, records go.

    -1 for never. `deletes` is False for a topic that is only compacted.
    """

    deletes: bool
    milliseconds: int
    size: int

    def as_json(self) -> dict[str, Any]:
        """For the event; what never happens is `None`."""
        return {
            "deletes": self.deletes,
            "seconds": None if self.milliseconds < 0 else self.milliseconds / 1000,
            "bytes": None if self.size < 0 else self.size,
        }


@dataclass
class StartRate:
    """How fast the first offset of a partition moves."""

    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, earliest: int) -> None:
        """Remember where the partition begins now."""
        self.seen.append((now, earliest))
        while len(self.seen) > 2 and now - self.seen[0][0] > _WINDOW_SECONDS:
            self.seen.popleft()

    @property
    def offsets_per_second(self) -> float | None:
        """`None` while it has not moved."""
        (begin, first), (end, last) = self.seen[0], self.seen[-1]
        return (last - first) / (end - begin) if last > first and end > begin else None


@dataclass(frozen=True, kw_only=True)
class Risk:
    """What is known about the loss of a partition's unread rows.

    `seconds` until the oldest may be removed, `None` if never or unknown, by `age` or `size`;
    `lost_records` are offsets that are gone, `None` if unknown.
    """

    loss: Loss
    seconds: float | None = None
    by: str | None = None
    lost_records: int | None = 0


def risk_of(
    offset: int,
    *,
    earliest: int | None,
    latest: int | None,
    oldest_ms: int | None,
    retention: Retention | None,
    now_ms: int,
    start_rate: float | None,
) -> Risk:
    """What becomes of the rows of a partition from the first unread `offset` on.

    `latest` is the offset after the last record, `start_rate` how fast `earliest` moves, in offsets
    per second; `None` if it does not.
    """
    if earliest is None or latest is None:
        return Risk(loss=Loss.UNKNOWN, lost_records=None)
    if earliest > offset:
        return Risk(loss=Loss.HAPPENED, seconds=0.0, lost_records=earliest - offset)
    if latest <= offset:
        return Risk(loss=Loss.NONE)
    if retention is None:
        return Risk(loss=Loss.UNKNOWN)
    if not retention.deletes or (retention.milliseconds < 0 and retention.size < 0):
        return Risk(loss=Loss.NONE)
    known: list[tuple[float, str]] = []
    if retention.milliseconds >= 0 and oldest_ms is not None:
        left = (oldest_ms + retention.milliseconds - now_ms) / 1000
        known.append((round(max(0.0, left), 1), "age"))
    if retention.size >= 0 and start_rate:
        known.append((round((offset - earliest) / start_rate, 1), "size"))
    if not known:
        return Risk(loss=Loss.UNKNOWN)
    seconds, by = min(known)
    return Risk(loss=Loss.EXPECTED, seconds=seconds, by=by)
