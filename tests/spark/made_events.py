"""Events for tests, from bodies in the JSON form of the event log, whole or in part."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock._observe.bus import EventBus
from penstock._observe.codec import body_of, details_of
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowProgress,
    FlowStatus,
    PlanWarning,
    UpdateProgress,
    UpdateState,
)
from penstock._observe.state import ObservedUpdate

Json = Mapping[str, Any]


def definition(
    event_type: str, origin: EventOrigin, message: str, body: Json, error: ErrorInfo | None = None
) -> Event:
    """An event of any type."""
    return Event(origin, body_of(event_type, {event_type: dict(body)}), message, error=error)


def details(event: Event) -> Any:
    """The `details` of an event in the event log."""
    return details_of(event.body)[event.event_type]


def observed(bus: EventBus) -> ObservedUpdate:
    """The state of an update that subscribes to the events of a bus."""
    update = ObservedUpdate()
    bus.subscribe(update)
    return update


def update_progress(
    origin: EventOrigin, state: UpdateState, message: str, *, error: ErrorInfo | None = None
) -> Event:
    return Event(origin, UpdateProgress(state), message, error=error)


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
    body = FlowProgress(status, metrics, tuple(expectations), table_version)
    return Event(origin, body, message, error=error)


def column_lineage(origin: EventOrigin, body: Json) -> Event:
    return definition("column_lineage", origin, "", body)


def plan_warning(origin: EventOrigin, message: str) -> Event:
    return Event(origin, PlanWarning(message), message)


def alert_progress(origin: EventOrigin, message: str, body: Json, error: ErrorInfo | None) -> Event:
    return definition("alert_progress", origin, message, body, error)


def source_progress(origin: EventOrigin, message: str, body: Json) -> Event:
    return definition("source_progress", origin, message, body)


def source_rows_lost(origin: EventOrigin, message: str, ranges: Sequence[Json]) -> Event:
    return definition("source_rows_lost", origin, message, {"ranges": list(ranges)})


def stream_progress(origin: EventOrigin, progress: Json) -> Event:
    return definition("stream_progress", origin, "", {"progress_json": dict(progress)})


def lag_progress(origin: EventOrigin, body: Json) -> Event:
    return definition("lag_progress", origin, "", body)


def planning_information(origin: EventOrigin, technique: str, reason: str) -> Event:
    chosen = {"maintenance_type": f"MAINTENANCE_TYPE_{technique}", "is_chosen": True}
    body = {"technique_information": [chosen], "reason": reason}
    text = f"{technique} of {origin.dataset_name} ({reason})"
    return definition("planning_information", origin, text, body)
