"""Recorded lines become events again, for readers of an event log that was written elsewhere."""

import json
from datetime import datetime
from typing import Any

from penstock._observe.events import ErrorInfo, Event, EventOrigin, Level


def event_of_line(line: bytes) -> Event | None:
    """The event of a line of an event log; `None` for an empty, torn or foreign one."""
    try:
        return event_of_json(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def event_of_json(body: dict[str, Any]) -> Event:
    """The event that `event_json` wrote; what it does not know is left out.

    Raises:
        ValueError: A field has a value that no event has.
        KeyError: A field is missing.
    """
    origin = body.get("origin") or {}
    batch_id = origin.get("batch_id")
    details = body.get("details") or {}
    if not isinstance(details.get(body["event_type"], {}), dict):
        raise ValueError("the details of an event are an object")
    return Event(
        event_type=str(body["event_type"]),
        message=str(body.get("message") or ""),
        origin=EventOrigin(
            pipeline_name=str(origin.get("pipeline_name", "")),
            update_id=str(origin.get("update_id", "")),
            dataset_name=str(origin.get("dataset_name", "")),
            flow_name=str(origin.get("flow_name", "")),
            sink_name=str(origin.get("sink_name", "")),
            batch_id=batch_id if isinstance(batch_id, int) else None,
        ),
        details=details,
        level=Level(body.get("level", "INFO")),
        maturity_level=str(body.get("maturity_level", "STABLE")),
        error=_error(body.get("error")),
        id=str(body.get("id", "")),
        timestamp=datetime.fromisoformat(body["timestamp"]),
    )


def _error(body: dict[str, Any] | None) -> ErrorInfo | None:
    exceptions = (body or {}).get("exceptions") or []
    if not exceptions:
        return None
    first = exceptions[0]
    return ErrorInfo(
        condition=str(first.get("condition") or ""),
        class_name=str(first.get("class_name") or ""),
        message=str(first.get("message") or ""),
        fatal=bool((body or {}).get("fatal", True)),
    )
