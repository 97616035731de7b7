"""Events: what happened, as frozen data in the shape of the Lakeflow event log.

An event is made by the room where the thing happened, goes over the bus (`_observe.bus`) and ends
in the event log (`_observe.log`), on the terminal and, later, on the dashboard. Whoever makes an
event redacts it: no secret enters here.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

Details = Mapping[str, Any]


class Level(StrEnum):
    """Severity; METRICS events are for machines only."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"
    METRICS = "METRICS"


class UpdateState(StrEnum):
    """States of an update, in Lakeflow's words."""

    CREATED = "CREATED"
    INITIALIZING = "INITIALIZING"
    RESETTING = "RESETTING"
    SETTING_UP_TABLES = "SETTING_UP_TABLES"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class FlowStatus(StrEnum):
    """States of a flow within an update."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    STOPPED = "STOPPED"
    IDLE = "IDLE"
    EXCLUDED = "EXCLUDED"


@dataclass(frozen=True, kw_only=True)
class EventOrigin:
    """What an event is about. Empty fields are left out of the JSON form."""

    pipeline_name: str = ""
    update_id: str = ""
    dataset_name: str = ""
    flow_name: str = ""
    sink_name: str = ""
    batch_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class ErrorInfo:
    """An error, redacted and ready for JSON."""

    condition: str
    class_name: str
    message: str
    fatal: bool = True


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event.

    Attributes:
        event_type: Lakeflow's name: `update_progress`, `flow_progress`, ...
        message: One line for people.
        details: JSON-ready; its single top-level key is the event type.
        timestamp: Wall clock, UTC.
    """

    event_type: str
    message: str
    origin: EventOrigin
    details: Details
    level: Level = Level.INFO
    maturity_level: str = "STABLE"
    error: ErrorInfo | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, kw_only=True)
class ExpectationCounts:
    """Passed and failed rows of one rule in one micro-batch."""

    name: str
    dataset: str
    passed_records: int
    failed_records: int


@dataclass(frozen=True, kw_only=True)
class FlowMetrics:
    """Figures of one micro-batch or one refresh; `None` = not known.

    Attributes:
        num_output_rows: Rows written to the target.
        num_upserted_rows: Rows merged into the target by an update-mode flow; of a CDC flow the
            upserts that it applied.
        num_deleted_rows: Deletes that a CDC flow applied.
        num_input_rows: Rows that came in.
        batch_duration_ms: Wall time of the whole micro-batch.
        backlog_records: Rows (Kafka: offsets) that wait at the sources.
        dropped_records: Rows that broke a drop rule.
        quarantined_records: Those of them that are kept in quarantine.
        late_records: Rows that came after the watermark had passed them.
        duplicate_records: Rows whose key the table had already.
    """

    num_output_rows: int | None = None
    num_upserted_rows: int | None = None
    num_deleted_rows: int | None = None
    num_input_rows: int | None = None
    batch_duration_ms: int | None = None
    backlog_records: int | None = None
    dropped_records: int | None = None
    quarantined_records: int | None = None
    late_records: int | None = None
    duplicate_records: int | None = None


def update_progress(
    origin: EventOrigin, state: UpdateState, message: str, *, error: ErrorInfo | None = None
) -> Event:
    """The update entered a state."""
    return Event(
        event_type="update_progress",
        message=message,
        origin=origin,
        details={"update_progress": {"state": state.value}},
        level=Level.ERROR if state is UpdateState.FAILED else Level.INFO,
        error=error,
    )


def flow_progress(
    origin: EventOrigin,
    status: FlowStatus,
    message: str,
    *,
    metrics: FlowMetrics | None = None,
    expectations: Sequence[ExpectationCounts] = (),
    table_version: int | None = None,
    error: ErrorInfo | None = None,
) -> Event:
    """A flow entered a state, or finished a micro-batch (`RUNNING` with metrics).

    Args:
        origin: Carries flow, dataset and, for a micro-batch, the batch id.
        status: The state.
        message: One line for people.
        metrics: Figures of the micro-batch.
        expectations: Counts per rule of the micro-batch: sum them over events.
        table_version: Delta version that the micro-batch made in the target.
        error: Why the flow failed.
    """
    body: dict[str, Any] = {"status": status.value}
    if metrics is not None:
        body["metrics"] = {
            key: value
            for key in (
                "num_output_rows",
                "num_upserted_rows",
                "num_deleted_rows",
                "num_input_rows",
                "batch_duration_ms",
                "backlog_records",
            )
            if (value := getattr(metrics, key)) is not None
        }
        quality: dict[str, Any] = {}
        for key in (
            "dropped_records",
            "quarantined_records",
            "late_records",
            "duplicate_records",
        ):
            if (count := getattr(metrics, key)) is not None:
                quality[key] = count
        if expectations:
            quality["expectations"] = [
                {
                    "name": counts.name,
                    "dataset": counts.dataset,
                    "passed_records": counts.passed_records,
                    "failed_records": counts.failed_records,
                }
                for counts in expectations
            ]
        if quality:
            body["data_quality"] = quality
    if table_version is not None:
        body["table_version"] = table_version
    return Event(
        event_type="flow_progress",
        message=message,
        origin=origin,
        details={"flow_progress": body},
        level=Level.ERROR if status is FlowStatus.FAILED else Level.INFO,
        error=error,
    )


def definition(event_type: str, origin: EventOrigin, message: str, body: Details) -> Event:
    """A `create_update`, `dataset_definition`, `sink_definition` or `flow_definition` event."""
    return Event(
        event_type=event_type, message=message, origin=origin, details={event_type: dict(body)}
    )


def column_lineage(origin: EventOrigin, body: Details) -> Event:
    """What the columns of a flow's result are made of; see `_model.lineage`."""
    return Event(
        event_type="column_lineage",
        message="",
        origin=origin,
        details={"column_lineage": dict(body)},
        level=Level.METRICS,
    )


def plan_warning(origin: EventOrigin, message: str) -> Event:
    """Something in the plan works now and will hurt later."""
    return Event(
        event_type="plan_warning",
        message=message,
        origin=origin,
        details={"plan_warning": {"message": message}},
        level=Level.WARN,
    )


def hook_progress(
    origin: EventOrigin, message: str, body: Details, error: ErrorInfo | None
) -> Event:
    """What became of an event hook of the user."""
    return Event(
        event_type="hook_progress",
        message=message,
        origin=origin,
        details={"hook_progress": dict(body)},
        level=Level.WARN,
        error=error,
    )


def alert_progress(
    origin: EventOrigin, message: str, body: Details, error: ErrorInfo | None
) -> Event:
    """An alert fired or was resolved, and who was told."""
    return Event(
        event_type="alert_progress",
        message=message,
        origin=origin,
        details={"alert_progress": dict(body)},
        level=Level.WARN if error is not None or body.get("state") == "firing" else Level.INFO,
        error=error,
    )


def source_progress(origin: EventOrigin, message: str, body: Details) -> Event:
    """A source of a running flow does not answer any more, or does again.

    Args:
        origin: Of the flow.
        message: One line.
        body: `state` (`NO_ANSWER`, `ANSWERS`), `source`, `problem`, `since`.
    """
    return Event(
        event_type="source_progress",
        message=message,
        origin=origin,
        details={"source_progress": dict(body)},
        level=Level.WARN if body.get("state") == "NO_ANSWER" else Level.INFO,
    )


def source_rows_lost(
    origin: EventOrigin, message: str, ranges: Sequence[Mapping[str, Any]]
) -> Event:
    """A source no longer had rows that were to be read, and the flow went on without them.

    Args:
        origin: Of the micro-batch.
        message: One line.
        ranges: `topic`, `partition`, `first` and `end` of each range of offsets; `end` is the one
            after the last, `None` if nobody knows. Of Kinesis: `stream`, `shard`, `after`, `rows`.
    """
    return Event(
        event_type="source_rows_lost",
        message=message,
        origin=origin,
        details={"source_rows_lost": {"ranges": [dict(lost) for lost in ranges]}},
        level=Level.WARN,
    )


def stream_progress(origin: EventOrigin, progress_json: Details) -> Event:
    """Spark's own StreamingQueryProgress of one micro-batch."""
    return Event(
        event_type="stream_progress",
        message="",
        origin=origin,
        details={"stream_progress": {"progress_json": dict(progress_json)}},
        level=Level.METRICS,
        maturity_level="EVOLVING",
    )


def lag_progress(origin: EventOrigin, body: Details) -> Event:
    """How far a flow is behind its sources, measured beside its micro-batches.

    Args:
        origin: Of the flow; the batch is the last one that was finished.
        body: `measured_at`, `seconds_behind`, `seconds_to_loss`, `loss` and `sources`.
    """
    return Event(
        event_type="lag_progress",
        message="",
        origin=origin,
        details={"lag_progress": dict(body)},
        level=Level.METRICS,
        maturity_level="EVOLVING",
    )


def backfill_progress(origin: EventOrigin, message: str, body: Details) -> Event:
    """A step of a backfill.

    Args:
        origin: Of the flow; the update is the backfill.
        message: One line.
        body: `backfill_id`, `step` (`planned`, `resumed`, `batch`, `staged`, `done`) and its
            figures.
    """
    return Event(
        event_type="backfill_progress",
        message=message,
        origin=origin,
        details={"backfill_progress": dict(body)},
    )


def migration_progress(origin: EventOrigin, message: str, body: Details) -> Event:
    """A step of a migration.

    Args:
        origin: Of the flow; the update is the migration.
        message: One line.
        body: `migration_id`, `step` (`planned`, `resumed`, `batch`, `built`, `done`, `undone`) and
            its figures.
    """
    return Event(
        event_type="migration_progress",
        message=message,
        origin=origin,
        details={"migration_progress": dict(body)},
    )


def planning_information(origin: EventOrigin, technique: str, reason: str) -> Event:
    """How a materialized view is refreshed: `NO_OP` or `COMPLETE_RECOMPUTE`, and why."""
    return Event(
        event_type="planning_information",
        message=f"{technique} of {origin.dataset_name} ({reason})",
        origin=origin,
        details={
            "planning_information": {
                "technique_information": [
                    {"maintenance_type": f"MAINTENANCE_TYPE_{technique}", "is_chosen": True}
                ],
                "reason": reason,
            }
        },
    )
