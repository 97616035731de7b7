"""Readers of Spark's `StreamingQueryProgress`."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

_NEVER = "1970-01-01T00:00:00"
_LAST = datetime.max.replace(tzinfo=UTC)

Progress = Mapping[str, Any]


def durations_of(progress: Progress) -> Mapping[str, Any]:
    """Milliseconds per phase; `triggerExecution` is the total."""
    return progress.get("durationMs") or {}


def timestamp_of(text: Any) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        # Milliseconds that were mistaken for seconds exceed the largest year of Python.
        return _LAST if text.startswith("+") else None


def began_at(progress: Progress) -> datetime | None:
    return timestamp_of(progress.get("timestamp"))


def ended_at(progress: Progress) -> datetime | None:
    """End of the micro-batch; `None` if unknown."""
    began, took = began_at(progress), durations_of(progress).get("triggerExecution", 0)
    return None if began is None else began + timedelta(milliseconds=float(took))


def event_times(progress: Progress) -> Mapping[str, Any]:
    """`watermark`, `max` and others of a query with a watermark; otherwise empty."""
    return progress.get("eventTime") or {}


def watermark_text(progress: Progress) -> str | None:
    """The watermark as a string in Spark's format; `None` before the first one."""
    text = event_times(progress).get("watermark")
    return text if isinstance(text, str) and not text.startswith(_NEVER) else None


def watermark_of(progress: Progress) -> datetime | None:
    return timestamp_of(watermark_text(progress))


def watermark_delay(progress: Progress) -> float | None:
    """Seconds from the watermark to the start of the micro-batch; negative if it is ahead."""
    watermark, began = watermark_of(progress), began_at(progress)
    if watermark is None or began is None:
        return None
    return (began - watermark).total_seconds()


def operators_of(progress: Progress) -> dict[str, Mapping[str, Any]]:
    """The stateful operators by position and name, which are unique within a query."""
    return {
        f"{at} {operator.get('operatorName', '')}".strip(): operator
        for at, operator in enumerate(progress.get("stateOperators") or ())
    }


def dropped_by_watermark(progress: Progress) -> dict[str, Any]:
    """Rows that the watermark dropped, per stateful operator."""
    operators = operators_of(progress).items()
    return {name: each.get("numRowsDroppedByWatermark", 0) for name, each in operators}
