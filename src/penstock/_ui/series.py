"""Metrics of the micro-batches of a dataset over time, in bounded memory."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from penstock._observe.codec import millis
from penstock._observe.events import Event, FlowMetrics, FlowProgress
from penstock._observe.snapshot import known_sum

_MAX_POINTS = 240
_MAX_RECENT = 60
_MAX_JOINED = 90
_MAX_RULES = 63

BatchKey = tuple[str, int | None]


@dataclass(slots=True)
class Point:
    """One micro-batch, or several consecutive ones merged.

    `at` is the end of the last batch, in milliseconds since the epoch, and `lag` the backlog after
    it. A refresh does not report the rows that it read; `rows_in` are the rows that it wrote.
    """

    at: int
    batches: int = 1
    rows_in: int = 0
    rows_out: int | None = None
    busy_ms: int = 0
    slowest_ms: int = 0
    quarantined: int = 0
    lag: int | None = None
    rules: dict[str, list[int]] = field(default_factory=dict)
    is_rolled_up: bool = False

    def absorb(self, later: "Point") -> None:
        self.at = later.at
        self.batches += later.batches
        self.rows_in += later.rows_in
        self.rows_out = known_sum((self.rows_out, later.rows_out))
        self.busy_ms += later.busy_ms
        self.slowest_ms = max(self.slowest_ms, later.slowest_ms)
        self.quarantined += later.quarantined
        self.lag = later.lag if later.lag is not None else self.lag
        for name, (passed, failed) in later.rules.items():
            sums = self.rules.setdefault(name, [0, 0])
            sums[0] += passed
            sums[1] += failed


class Series:
    """The points of one dataset.

    If there are too many, neighbours are merged into points of about the same number of batches:
    sums stay exact, the resolution in time decreases. The two events of a micro-batch, from its
    commit and from its query, share one point.
    """

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._recent: deque[tuple[BatchKey, Point]] = deque(maxlen=_MAX_RECENT)

    def add(self, event: Event, body: FlowProgress, *, since_ms: int | None) -> None:
        """Add a `flow_progress` event with metrics; `since_ms` is for events without a duration."""
        metrics, rolled = body.metrics or FlowMetrics(), body.rolled_up
        at = millis(event.timestamp)
        point = Point(
            at=at,
            batches=1 if rolled is None else rolled.batches,
            rows_in=metrics.num_input_rows or 0,
            rows_out=known_sum((metrics.num_output_rows, metrics.num_upserted_rows)),
            busy_ms=metrics.batch_duration_ms or 0,
            quarantined=metrics.quarantined_records or 0,
            lag=metrics.backlog_records,
            is_rolled_up=rolled is not None,
        )
        if event.origin.batch_id is None:
            point.rows_in = point.rows_in or point.rows_out or 0
            if not point.busy_ms and since_ms is not None:
                point.busy_ms = max(0, at - since_ms)
        longest = rolled.longest_batch_ms if rolled is not None else None
        point.slowest_ms = point.busy_ms if longest is None else longest
        for counts in body.expectations[:_MAX_RULES]:
            counts.add_to(point.rules, counts.name)
        key = (event.origin.flow_name, event.origin.batch_id)
        known = next((recent for other, recent in reversed(self._recent) if other == key), None)
        if known is not None and key[1] is not None and not rolled:
            point.batches = 0
            known.absorb(point)
            return
        self._recent.append((key, point))
        self._points.append(point)
        if len(self._points) > _MAX_POINTS:
            self._join()

    def last_seconds(self) -> float | None:
        busy_ms = self._points[-1].busy_ms if self._points else 0
        return busy_ms / 1000 if busy_ms else None

    def busy_seconds(self) -> float:
        return round(sum(point.busy_ms for point in self._points) / 1000, 3)

    def recent(self) -> list[dict[str, Any]]:
        return [
            {
                "flow": flow,
                "batch_id": batch_id,
                "at": point.at,
                "rows_in": point.rows_in,
                "rows_out": point.rows_out,
                "duration_ms": point.busy_ms,
                "quarantined": point.quarantined,
            }
            for (flow, batch_id), point in reversed(self._recent)
            if not point.is_rolled_up
        ]

    def columns(self) -> dict[str, Any]:
        """The points as columns for a chart, oldest first."""
        points = sorted(self._points, key=lambda point: point.at)
        rules = dict.fromkeys(name for point in points for name in point.rules)
        return {
            "at": [point.at for point in points],
            "rows_per_second": [
                round(point.rows_in * 1000 / point.busy_ms, 1) if point.busy_ms else None
                for point in points
            ],
            "rows_out": [point.rows_out for point in points],
            "batch_seconds": [
                round(point.slowest_ms / 1000, 3) if point.busy_ms else None for point in points
            ],
            "quarantined_per_batch": [
                round(point.quarantined / max(1, point.batches), 1) for point in points
            ],
            "lag": [point.lag for point in points],
            "rules": {
                name: {
                    "passed": [point.rules.get(name, (0, 0))[0] for point in points],
                    "failed": [point.rules.get(name, (0, 0))[1] for point in points],
                }
                for name in rules
            },
        }

    def _join(self) -> None:
        # The newest points are not merged: the second event of their batch may still arrive.
        old, new = self._points[:-_MAX_RECENT], self._points[-_MAX_RECENT:]
        most, batches = 1, sum(point.batches for point in old)
        while batches / most > _MAX_JOINED:
            most *= 2
        joined = old[:1]
        for point in old[1:]:
            if joined[-1].batches + point.batches <= most:
                joined[-1].absorb(point)
            else:
                joined.append(point)
        self._points = joined + new
