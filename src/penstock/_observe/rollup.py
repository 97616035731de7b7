"""Rolls up many micro-batches into one event with their sums, so that totals stay correct.

Only exact sums are rolled up; for other events `counts_of` and `measured_of` return `None`. The
sums have the fields of a single batch; fields of roll-ups only are below `rolled_up`
(docs/event-log.md).
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock._observe.codec import encode, event_json, event_of, object_of_line
from penstock._observe.events import (
    Event,
    ExpectationCounts,
    FlowMetrics,
    FlowProgress,
    FlowStatus,
    LagProgress,
    RolledUp,
    StreamProgress,
)
from penstock._observe.log import place_of
from penstock._observe.rule_counts import rule_batches
from penstock._observe.spark_progress import dropped_by_watermark, durations_of
from penstock._observe.state import BATCH_BUCKETS, bucket_of

ROLLED_UP = "rolled_up"
_BOUNDS = (*(str(bound) for bound in BATCH_BUCKETS), "+Inf")


@dataclass(frozen=True)
class Recorded:
    line: dict[str, Any]
    event: Event
    instance: str
    seq_no: int

    def standing_for(self, batch_id: int | None, body: FlowProgress | StreamProgress) -> bytes:
        """The roll-up line that replaces many lines of which this is the last."""
        # Deterministic, so that a retry after a crash writes the same id.
        name = f"{self.event.id} {body.event_type} {ROLLED_UP}"
        event = replace(
            self.event,
            id=str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
            origin=replace(self.event.origin, batch_id=batch_id),
            body=body,
        )
        return encode(event_json(event, instance=self.instance, seq_no=self.seq_no)) + b"\n"


def recorded_of(line: bytes) -> Recorded | None:
    body = object_of_line(line)
    event, place = event_of(body), place_of(body)
    if body is None or event is None or place is None:
        return None
    return Recorded(body, event, *place)


def counts_of(recorded: Recorded | None) -> FlowProgress | None:
    """The body of an event with the counts of a micro-batch; `None` if it must not be rolled up.

    Events with a message, an error or unknown fields are not rolled up.
    """
    if recorded is None:
        return None
    line, event, body = recorded.line, recorded.event, recorded.event.body
    if event.message or event.error is not None or event.origin.batch_id is None:
        return None
    if not isinstance(body, FlowProgress) or body.metrics is None:
        return None
    again = event_json(event, instance=recorded.instance, seq_no=recorded.seq_no)
    again["schema_version"] = line.get("schema_version")
    is_whole = line.keys() <= again.keys() and all(again[key] == line[key] for key in line)
    return body if is_whole and body.status is FlowStatus.RUNNING else None


@dataclass
class Counts:
    """The counts of consecutive micro-batches of one flow."""

    last: Recorded
    added: int = 0
    batch_id: int = -1
    metrics: dict[str, int] = field(default_factory=dict)
    rules: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    version: int | None = None
    rolled: RolledUp = field(default_factory=lambda: RolledUp(events=0))

    def fits(self, recorded: Recorded) -> bool:
        """Whether an event is of the same flow, dataset and update."""
        mine, other = (replace(each.event.origin, batch_id=None) for each in (self.last, recorded))
        return mine == other

    def add(self, recorded: Recorded, body: FlowProgress, *, is_new: bool) -> None:
        """Add the next event of the flow, which may be a roll-up, with its body from `counts_of`.

        `is_new` means that no event of this or a later batch was recorded before.
        """
        batch_id = recorded.event.origin.batch_id
        assert batch_id is not None
        self.last, self.added = recorded, self.added + 1
        self.batch_id = max(self.batch_id, batch_id)
        for name, count in vars(body.metrics).items():
            if count is not None:
                is_sum = name != "backlog_records"
                self.metrics[name] = count + (self.metrics.get(name, 0) if is_sum else 0)
        for counts in body.expectations:
            counts.add_to(self.rules, (counts.dataset, counts.name))
        if body.table_version is not None:
            self.version = body.table_version
        took = body.metrics.batch_duration_ms if body.metrics is not None else None
        rolled = RolledUp(
            batches=int(is_new),
            rule_batches=rule_batches(body) or None,
            first_batch_id=batch_id,
            since=recorded.line["timestamp"],
            first_table_version=body.table_version,
            longest_batch_ms=took,
            batch_durations=None if took is None else {_BOUNDS[bucket_of(took / 1000)]: 1},
        )
        if body.rolled_up is not None:
            known = {key: value for key, value in vars(body.rolled_up).items() if value is not None}
            rolled = replace(rolled, **{"batch_durations": None, **known})
        self.rolled = merged(self.rolled, rolled)

    def line(self) -> bytes:
        rules = tuple(
            ExpectationCounts(name=name, dataset=owner, passed_records=good, failed_records=bad)
            for (owner, name), (good, bad) in self.rules.items()
        )
        metrics = FlowMetrics(**self.metrics)
        body = FlowProgress(FlowStatus.RUNNING, metrics, rules, self.version, self.rolled)
        return self.last.standing_for(self.batch_id, body)


def measured_of(recorded: Recorded) -> RolledUp | None:
    """The sums of a measurement; `None` if it has invalid values and must be kept."""
    body, since = recorded.event.body, recorded.line["timestamp"]
    if isinstance(body, LagProgress):
        return RolledUp(since=since)
    if not isinstance(body, StreamProgress):
        return None
    if body.rolled_up is not None:
        return body.rolled_up
    try:
        dropped = dropped_by_watermark(body.progress_json or {})
        durations = dict(durations_of(body.progress_json or {}))
    except (TypeError, AttributeError, ValueError):
        return None
    if not all(type(count) is int for count in (*durations.values(), *dropped.values())):
        return None
    return RolledUp(
        batches=1,
        first_batch_id=recorded.event.origin.batch_id,
        since=since,
        durations_ms=durations,
        dropped_by_watermark=dropped,
    )


def measured_line(last: Recorded, rolled: RolledUp) -> bytes:
    """A `stream_progress` event without Spark's progress, for measurements up to the last one."""
    return last.standing_for(last.event.origin.batch_id, StreamProgress(rolled_up=rolled))


def merged(before: RolledUp, later: RolledUp) -> RolledUp:
    """Merge two consecutive roll-ups."""
    first = before if before.first_table_version is not None else later
    return RolledUp(
        events=before.events + later.events,
        batches=before.batches + later.batches,
        rule_batches=(before.rule_batches or 0) + (later.rule_batches or 0) or None,
        first_batch_id=_of_known(min, before.first_batch_id, later.first_batch_id),
        since=before.since or later.since,
        first_table_version=first.first_table_version,
        longest_batch_ms=_of_known(max, before.longest_batch_ms, later.longest_batch_ms),
        batch_durations=_sums(before.batch_durations, later.batch_durations),
        durations_ms=_sums(before.durations_ms, later.durations_ms),
        dropped_by_watermark=_sums(before.dropped_by_watermark, later.dropped_by_watermark),
    )


def _of_known(choose: Callable[..., int | None], *values: int | None) -> int | None:
    return choose((value for value in values if value is not None), default=None)


def _sums(
    before: Mapping[str, int] | None, later: Mapping[str, int] | None
) -> Mapping[str, int] | None:
    if before is None or later is None:
        return before or later
    return {name: before.get(name, 0) + later.get(name, 0) for name in {**before, **later}}
