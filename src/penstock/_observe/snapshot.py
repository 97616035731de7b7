"""An immutable view of an update for the terminal and the dashboard."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from penstock._observe.events import TERMINAL_STATES, ErrorInfo, FlowStatus, UpdateState
from penstock._observe.spark_progress import watermark_delay, watermark_of
from penstock._observe.state import ENDED, ObservedDataset, ObservedFlow, ObservedUpdate

Number = TypeVar("Number", int, float)

_RATE_AGE_SECONDS = 30.0
STATE_ORDER = (
    FlowStatus.FAILED,
    FlowStatus.RUNNING,
    FlowStatus.STARTING,
    FlowStatus.QUEUED,
    FlowStatus.IDLE,
    FlowStatus.SKIPPED,
    FlowStatus.STOPPED,
    FlowStatus.COMPLETED,
    FlowStatus.EXCLUDED,
)
"""States by priority: a dataset has the first of these that one of its flows has."""


@dataclass(frozen=True, kw_only=True)
class RuleView:
    name: str
    dataset: str
    passed: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class DatasetView:
    """One table, view or sink, with the sums of its flows; `flows` are their names.

    `display` is the shortest unique suffix of its name. `rows` of a materialized view are those of
    the latest refresh; `None` if they are not counted. `rows_per_second` is the rate of the last
    batches, `None` if they are old; `lag` is from the last batch or a later measurement. `dropped`
    includes quarantined rows; `last_error` may have been followed by a restart. `early_watermark`
    is a watermark that is ahead of the clock.
    """

    name: str
    display: str
    kind: str
    state: FlowStatus
    rows: int | None
    rows_per_second: float | None
    batch_seconds: float | None
    quarantined: int
    dropped: int
    late: int
    early_watermark: datetime | None
    duplicates: int
    deleted: int
    lag: int | None
    last_error: ErrorInfo | None
    duration_seconds: float | None
    rules: tuple[RuleView, ...]
    flows: tuple[str, ...]

    @property
    def discarded(self) -> int:
        return rows_discarded(self.dropped, self.quarantined)


@dataclass(frozen=True, kw_only=True)
class UpdateView:
    """The state of an update; its duration is from its first event to its end, or to now."""

    pipeline_name: str
    update_id: str
    state: UpdateState | None
    message: str
    started: datetime | None
    duration_seconds: float
    error: ErrorInfo | None
    datasets: tuple[DatasetView, ...]
    warnings: tuple[str, ...]
    properties: Mapping[str, Any]

    @property
    def has_ended(self) -> bool:
        return self.state in TERMINAL_STATES

    @property
    def rows(self) -> int | None:
        """Written rows; `None` if they are not counted for any dataset."""
        return known_sum(dataset.rows for dataset in self.datasets) if self.datasets else 0


def update_view(update: ObservedUpdate, now: datetime | None = None) -> UpdateView:
    """An immutable view for rendering; durations of running flows extend to `now`. Thread-safe."""
    now = now or datetime.now(UTC)
    with update.lock:
        datasets = [dataset for dataset in update.datasets.values() if not dataset.is_hidden]
        shown = short_names([dataset.name for dataset in datasets])
        end, started = update.ended or now, update.started
        return UpdateView(
            pipeline_name=update.pipeline_name,
            update_id=update.update_id,
            state=update.state,
            message=update.message,
            started=started,
            duration_seconds=max(0.0, (end - started).total_seconds()) if started else 0.0,
            error=update.error,
            datasets=tuple(
                _dataset_view(dataset, shown[dataset.name], end) for dataset in datasets
            ),
            warnings=tuple(update.warnings),
            properties=dict(update.properties),
        )


def _dataset_view(dataset: ObservedDataset, display: str, now: datetime) -> DatasetView:
    flows = dataset.flows.values()
    states = {flow.state for flow in flows}
    if dataset.is_excluded or not states:
        states.add(FlowStatus.EXCLUDED if dataset.is_excluded else FlowStatus.QUEUED)
    durations = [
        max(0.0, ((flow.ended or now) - flow.started).total_seconds())
        for flow in flows
        if flow.started is not None
    ]
    reports = [flow.progress for flow in flows]
    errors = [flow.last_error for flow in flows if flow.last_error is not None]

    def count(name: str) -> int:
        return sum(flow.count(name) for flow in flows)

    return DatasetView(
        name=dataset.name,
        display=display,
        kind=dataset.kind,
        state=next(state for state in STATE_ORDER if state in states),
        rows=known_sum(flow.rows for flow in flows) if flows else 0,
        rows_per_second=known_sum(_rows_per_second(flow, now) for flow in flows),
        batch_seconds=max(
            (flow.recent[-1][1] / 1000 for flow in flows if flow.recent), default=None
        ),
        quarantined=count("quarantined_records"),
        dropped=count("dropped_records"),
        late=count("late_records"),
        early_watermark=next(
            (watermark_of(p) for p in reports if (watermark_delay(p) or 0) < 0), None
        ),
        duplicates=count("duplicate_records"),
        deleted=count("num_deleted_rows"),
        lag=known_sum(flow.backlog for flow in flows),
        last_error=errors[-1] if errors else None,
        duration_seconds=max(durations, default=None),
        rules=tuple(
            RuleView(name=name, dataset=owner, passed=passed, failed=failed)
            for (owner, name), (passed, failed) in dataset.rules.items()
        ),
        flows=tuple(dataset.flows),
    )


def _rows_per_second(flow: ObservedFlow, now: datetime) -> float | None:
    last = flow.last_batch_at
    is_fresh = last is not None and abs((now - last).total_seconds()) <= _RATE_AGE_SECONDS
    spent_ms = sum(milliseconds for _, milliseconds in flow.recent)
    if not spent_ms or not (is_fresh or flow.state in ENDED):
        return None
    return sum(rows for rows, _ in flow.recent) * 1000 / spent_ms


def rows_discarded(dropped: int, quarantined: int) -> int:
    """Dropped rows that are in no quarantine; `dropped` includes quarantined rows."""
    return max(0, dropped - quarantined)


def known_sum(values: Iterable[Number | None]) -> Number | None:
    """The sum of the values that are not `None`; `None` if there are no such values."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def short_names(names: list[str]) -> dict[str, str]:
    """Shortest unique suffix of each dotted name, ignoring case."""
    shared = Counter(ending for name in names for ending in _endings(name.lower()))
    return {
        name: next((ending for ending in _endings(name) if shared[ending.lower()] == 1), name)
        for name in names
    }


def last_part(name: str) -> str:
    return _endings(name)[0]


def _endings(name: str) -> list[str]:
    parts = re.split(r"\.(?=(?:[^`]*`[^`]*`)*[^`]*$)", name)  # not within backticks
    return [".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
