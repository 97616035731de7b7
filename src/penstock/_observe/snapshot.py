"""An update at one moment, frozen: what a terminal or a dashboard shows of its state."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock._observe.events import TERMINAL_STATES, ErrorInfo, FlowStatus, UpdateState
from penstock._observe.state import ENDED, ObservedDataset, ObservedFlow, ObservedUpdate

_RATE_AGE_SECONDS = 30.0
_STATE_ORDER = (
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
"""A dataset shows the first of these that one of its flows has."""


@dataclass(frozen=True, kw_only=True)
class RuleView:
    """Counts of one rule over the update."""

    name: str
    dataset: str
    passed: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is known of a flow, and of a dataset as the sums of its flows.

    Attributes:
        state: The last status.
        rows: Written so far, inserted and merged; of a materialized view, by the last refresh.
        rows_per_second: Over the last batches; `None` before the first and when they are old.
        batch_seconds: Wall time of the last one.
        quarantined: Rows so far.
        dropped: Rows so far that broke a drop rule, the quarantined ones included.
        late: Rows so far that came after the watermark had passed them.
        duplicates: Rows so far whose key the table had already.
        deleted: Rows so far that auto CDC deleted.
        lag: Rows that wait at the sources, as the last batch saw it.
        last_error: Why it failed or was restarted last.
        duration_seconds: From its start to its end, or to now.
    """

    state: FlowStatus
    rows: int
    rows_per_second: float | None
    batch_seconds: float | None
    quarantined: int
    dropped: int
    late: int
    duplicates: int
    deleted: int
    lag: int | None
    last_error: ErrorInfo | None
    duration_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class FlowView(Figures):
    """One flow.

    Attributes:
        name: Of the flow.
        target: Name of the dataset or sink, as the events have it.
        batches: Finished micro-batches and refreshes.
        batch_id: The newest one, if it had an id.
    """

    name: str
    target: str
    batches: int
    batch_id: int | None


@dataclass(frozen=True, kw_only=True)
class DatasetView(Figures):
    """One table, view or sink.

    Attributes:
        name: As the events have it.
        display: The shortest ending of the name that no other dataset shares.
        kind: `streaming table`, `materialized view`, `sink`, or empty when not known.
        rules: Its expectations that were evaluated.
        flows: Its flows, in the order of their events.
    """

    name: str
    display: str
    kind: str
    rules: tuple[RuleView, ...]
    flows: tuple[FlowView, ...]


@dataclass(frozen=True, kw_only=True)
class UpdateView:
    """One update at one moment.

    Attributes:
        pipeline_name: Label of the pipeline.
        update_id: Of the update.
        state: `None` before the first event that says it.
        message: Of the last change of state.
        started: Time of the first event.
        duration_seconds: From there to the end, or to now.
        error: Why the update failed, if it did.
        datasets: In the order in which the events named them.
        warnings: The newest messages of level WARN.
        properties: The body of `create_update`.
    """

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
        """Whether the update is in a final state."""
        return self.state in TERMINAL_STATES


def update_view(update: ObservedUpdate, now: datetime | None = None) -> UpdateView:
    """A frozen copy for rendering; any thread may call.

    Args:
        update: Its state.
        now: The time that durations of what still runs extend to.
    """
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


def _flow_view(flow: ObservedFlow, now: datetime) -> FlowView:
    last = flow.last_batch_at
    is_fresh = last is not None and (now - last).total_seconds() <= _RATE_AGE_SECONDS
    spent_ms = sum(milliseconds for _, milliseconds in flow.recent)
    rate = None
    if spent_ms and (is_fresh or flow.state in ENDED):
        rate = sum(rows for rows, _ in flow.recent) * 1000 / spent_ms
    duration = None
    if flow.started is not None:
        duration = max(0.0, ((flow.ended or now) - flow.started).total_seconds())
    return FlowView(
        name=flow.name,
        target=flow.target,
        state=flow.state,
        batches=flow.batches or 0,
        batch_id=flow.batch_id,
        rows=flow.rows,
        rows_per_second=rate,
        batch_seconds=flow.recent[-1][1] / 1000 if flow.recent else None,
        quarantined=flow.count("quarantined_records"),
        dropped=flow.count("dropped_records"),
        late=flow.count("late_records"),
        duplicates=flow.count("duplicate_records"),
        deleted=flow.count("num_deleted_rows"),
        lag=flow.backlog,
        last_error=flow.last_error,
        duration_seconds=duration,
    )


def _dataset_view(dataset: ObservedDataset, display: str, now: datetime) -> DatasetView:
    flows = tuple(_flow_view(flow, now) for flow in dataset.flows.values())
    states = {flow.state for flow in flows}
    if dataset.is_excluded or not states:
        states.add(FlowStatus.EXCLUDED if dataset.is_excluded else FlowStatus.QUEUED)
    rates = [flow.rows_per_second for flow in flows if flow.rows_per_second is not None]
    lags = [flow.lag for flow in flows if flow.lag is not None]
    batches = [flow.batch_seconds for flow in flows if flow.batch_seconds is not None]
    durations = [flow.duration_seconds for flow in flows if flow.duration_seconds is not None]
    errors = [flow.last_error for flow in flows if flow.last_error is not None]
    return DatasetView(
        name=dataset.name,
        display=display,
        kind=dataset.kind,
        state=next(state for state in _STATE_ORDER if state in states),
        rows=sum(flow.rows for flow in flows),
        rows_per_second=sum(rates) if rates else None,
        batch_seconds=max(batches) if batches else None,
        quarantined=sum(flow.quarantined for flow in flows),
        dropped=sum(flow.dropped for flow in flows),
        late=sum(flow.late for flow in flows),
        duplicates=sum(flow.duplicates for flow in flows),
        deleted=sum(flow.deleted for flow in flows),
        lag=sum(lags) if lags else None,
        last_error=errors[-1] if errors else None,
        duration_seconds=max(durations) if durations else None,
        rules=tuple(
            RuleView(name=name, dataset=owner, passed=passed, failed=failed)
            for (owner, name), (passed, failed) in dataset.rules.items()
        ),
        flows=flows,
    )


def short_names(names: list[str]) -> dict[str, str]:
    """For each dotted name its shortest ending that no other name shares, whatever its case."""
    shared = Counter(ending for name in names for ending in _endings(name.lower()))
    return {
        name: next((ending for ending in _endings(name) if shared[ending.lower()] == 1), name)
        for name in names
    }


def _endings(name: str) -> list[str]:
    """The last part of a dotted name, its last two parts, and so on."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
