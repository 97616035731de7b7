"""Writes a roll-up of segments: drops the details of old micro-batches and keeps their sums.

The lines are read twice. `survey` finds the lines that are kept regardless of age; `write` copies
the oldest segments. States, errors, definitions and unknown events are copied unchanged, in order.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import BinaryIO

from penstock._observe.codec import event_of_line
from penstock._observe.events import DatasetDefinition, FlowProgress, FlowStatus, RolledUp
from penstock._observe.rollup import (
    Counts,
    Recorded,
    counts_of,
    measured_line,
    measured_of,
    merged,
    recorded_of,
)
from penstock._observe.state import MATERIALIZED_VIEW

NEWEST = 128
"""Number of the newest events with counts that are kept per flow (a micro-batch has two, and pages
show 60), and of the newest refreshes that are kept per materialized view."""

_FLOW = re.compile(rb'"flow_name":("(?:[^"\\]|\\.)*")')
_HOUR = re.compile(rb'"timestamp":"(.{13})')  # 2026-11-22T09
_TYPE = re.compile(rb'"event_type":"(\w+)"\}\n?\Z')
_ENDING = 40
_STREAM, _LAG, _PROGRESS = b"stream_progress", b"lag_progress", b"flow_progress"
_DEFINITION, _PLANNED = b"dataset_definition", b"planning_information"
_COUNTED = b"flow_progress with counts"
_ROLLED = b'"rolled_up":{'
_COUNTS = b'"message":"","level":"INFO",'
_METRICS = b'"metrics":{'
_MOST_WAITING = 4 << 20
_LINES = 16
_WORK_SECONDS = 0.004
_REST = 3


class Stopped(Exception):
    """Raised if the work is stopped early."""


class Pace:
    """Works for some milliseconds, then pauses three times as long; raises `Stopped` on `stop`.

    Pauses release the GIL to the update: a low thread priority alone does not.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._began = time.perf_counter()
        self._calls = 0

    def __call__(self) -> None:
        """Call once per line."""
        self._calls += 1
        if self._calls % _LINES:
            return
        worked = time.perf_counter() - self._began
        if worked < _WORK_SECONDS:
            return
        # Capped, because the thread may also have waited for a CPU.
        if self._stop.wait(_REST * min(worked, 2 * _WORK_SECONDS)):
            raise Stopped
        self._began = time.perf_counter()


@dataclass
class Survey:
    """Lines that are kept: the numbers in `staying` and the `newest` events with counts per flow.

    `counted` is the number of events with counts per flow, `planned` the number of refreshes.
    """

    staying: set[int] = field(default_factory=set)
    counted: Counter[bytes] = field(default_factory=Counter)
    planned: Counter[bytes] = field(default_factory=Counter)
    newest: int = NEWEST


def survey(lines: Iterable[bytes], *, pace: Pace) -> Survey:
    result = Survey()
    last: dict[tuple[bytes, bytes], int] = {}
    for number, line in enumerate(lines):
        pace()
        kind, flow = _kind_of(line)
        if kind == _COUNTED:
            result.counted[flow] += 1
            if b'"table_version"' in line:
                last[kind, flow] = number
        elif kind in (_STREAM, _LAG) and _ROLLED not in line:
            last[kind, flow] = number
        elif kind == _PLANNED:
            result.planned[flow] += 1
    result.staying = set(last.values())
    return result


def write(lines: Iterable[bytes], out: BinaryIO, surveyed: Survey, *, pace: Pace) -> None:
    """Write a roll-up of `lines`, the first of the surveyed lines, to `out`."""
    writer = _Writer(out, surveyed)
    for number, line in enumerate(lines):
        pace()
        writer.take(number, line)
    writer.close_groups()


class _Writer:
    """Writes lines in order, and each group (of one flow and hour) as one line."""

    def __init__(self, out: BinaryIO, surveyed: Survey) -> None:
        self._out = out
        self._surveyed = surveyed
        self._hour = b""
        self._waiting: list[tuple[int, bytes]] = []
        self._bytes = 0
        self._counts: dict[bytes, tuple[int, bytes, Counts]] = {}
        self._measured: dict[bytes, tuple[int, Recorded, RolledUp]] = {}
        self._counted: Counter[bytes] = Counter()
        self._newest: dict[tuple[str, bytes], int] = {}
        self._started: set[tuple[str, bytes]] = set()
        self._replaced: set[str] = set()
        self._planned: Counter[bytes] = Counter()
        self._past: set[bytes] = set()
        """Flows of views whose current refresh is dropped."""

    def take(self, number: int, line: bytes) -> None:
        kind, flow = _kind_of(line)
        if kind == _PLANNED:
            self._plan(number, line, flow)
            return
        if kind not in (_STREAM, _LAG, _PROGRESS, _COUNTED):
            if kind == _DEFINITION:
                self._define(line)
            self._keep(number, line)
            return
        if kind == _PROGRESS and flow in self._past and _is_of_refresh(line):
            return
        match = _HOUR.search(line)
        hour = match[1] if match is not None else b""
        if hour != self._hour:
            self.close_groups()
            self._hour = hour
        if kind in (_STREAM, _LAG):
            self._measure(number, line, flow)
        else:
            self._progress(number, line, flow, is_counted=kind == _COUNTED)

    def close_groups(self) -> None:
        """Write the pending lines; each group at the position of its last line."""
        self._waiting += [_line_of(*group) for group in self._counts.values()]
        for number, last, rolled in self._measured.values():
            self._waiting.append((number, measured_line(last, rolled)))
        self._counts.clear()
        self._measured.clear()
        for _, line in sorted(self._waiting, key=lambda line: line[0]):
            self._out.write(line)
        self._waiting.clear()
        self._bytes = 0

    def _keep(self, number: int, line: bytes) -> None:
        self._waiting.append((number, line))
        self._bytes += len(line)
        if self._bytes > _MOST_WAITING:
            self.close_groups()

    def _define(self, line: bytes) -> None:
        event = event_of_line(line)
        body = event.body if event is not None else None
        # A refresh replaces the counts of the previous one: they are not added up.
        if isinstance(body, DatasetDefinition) and body.kind == MATERIALIZED_VIEW and event:
            self._replaced.add(event.origin.dataset_name)

    def _plan(self, number: int, line: bytes, flow: bytes) -> None:
        """Take the first event of a refresh; old refreshes of materialized views are dropped.

        A flow with `replace_where` has such events as well, but its counts are added up.
        """
        self._planned[flow] += 1
        is_old = self._surveyed.planned[flow] - self._planned[flow] >= self._surveyed.newest
        event = event_of_line(line) if is_old else None
        if event is not None and event.origin.dataset_name in self._replaced:
            self._past.add(flow)
        else:
            self._past.discard(flow)
            self._keep(number, line)

    def _measure(self, number: int, line: bytes, flow: bytes) -> None:
        recorded = None if number in self._surveyed.staying else recorded_of(line)
        measured = measured_of(recorded) if recorded is not None else None
        if recorded is None or measured is None:
            self._keep(number, line)
            return
        if flow in self._measured:
            _, _, before = self._measured[flow]
            measured = merged(before, measured)
        self._measured[flow] = number, recorded, measured

    def _progress(self, number: int, line: bytes, flow: bytes, *, is_counted: bool) -> None:
        recorded = recorded_of(line)
        body = counts_of(recorded) if is_counted else None
        is_new, has_started = self._know(recorded, flow)
        self._counted[flow] += is_counted
        newest = self._surveyed.counted[flow] - self._counted[flow] < self._surveyed.newest
        stays = newest or not has_started or number in self._surveyed.staying
        if (
            recorded is None
            or body is None
            or stays
            or recorded.event.origin.dataset_name in self._replaced
        ):
            # A group must not extend across a state event.
            self._close(flow)
            self._keep(number, line)
            return
        if flow in self._counts and not self._counts[flow][2].fits(recorded):
            self._close(flow)
        group = self._counts[flow][2] if flow in self._counts else Counts(recorded)
        group.add(recorded, body, is_new=is_new)
        self._counts[flow] = number, line, group

    def _know(self, recorded: Recorded | None, flow: bytes) -> tuple[bool, bool]:
        """Whether readers count the event as a new batch, and whether its flow had started."""
        body = recorded.event.body if recorded is not None else None
        if recorded is None or not isinstance(body, FlowProgress):
            return False, False
        origin = recorded.event.origin
        key = (origin.dataset_name or origin.sink_name, flow)
        has_started = key in self._started
        if body.status in (FlowStatus.STARTING, FlowStatus.RUNNING):
            self._started.add(key)
        if body.metrics is None or origin.batch_id is None:
            return False, has_started
        newest = self._newest.get(key, -1)
        self._newest[key] = max(origin.batch_id, newest)
        return origin.batch_id > newest, has_started

    def _close(self, flow: bytes) -> None:
        if flow in self._counts:
            self._keep(*_line_of(*self._counts.pop(flow)))


def _line_of(number: int, line: bytes, group: Counts) -> tuple[int, bytes]:
    # A single event is kept unchanged: it has more detail than its roll-up.
    return number, line if group.added == 1 else group.line()


def _kind_of(line: bytes) -> tuple[bytes, bytes]:
    """Type and flow of an event, found in its line without parsing the JSON."""
    ending = _TYPE.search(line, max(0, len(line) - _ENDING))
    kind = ending[1] if ending is not None else b""
    if kind == _PROGRESS and _METRICS in line and _COUNTS in line:
        kind = _COUNTED
    flow = _FLOW.search(line)
    return kind, flow[1] if flow is not None else b""


def _is_of_refresh(line: bytes) -> bool:
    """Whether a line has the counts of a refresh or reports its completion."""
    event = event_of_line(line)
    if event is None or event.error is not None or not isinstance(event.body, FlowProgress):
        return False
    is_complete = event.body.status in (FlowStatus.COMPLETED, FlowStatus.IDLE)
    return event.body.metrics is not None or is_complete
