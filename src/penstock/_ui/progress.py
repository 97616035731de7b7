"""What Spark's own progress of a micro-batch tells: sources, state, watermark."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

_MAX_PARTITIONS = 500


def progress_view(body: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a StreamingQueryProgress that the dashboard shows; the rest stays behind."""
    durations = body.get("durationMs") or {}
    return {
        "batch_id": body.get("batchId"),
        "durations_ms": {
            str(name): value for name, value in durations.items() if isinstance(value, int)
        },
        "watermark": _watermark(body),
        "watermark_delay_seconds": watermark_delay(body),
        "sources": [_source(source) for source in body.get("sources") or ()],
        "state": [_state(operator) for operator in body.get("stateOperators") or ()],
    }


def watermark_delay(body: Mapping[str, Any]) -> float | None:
    """How far the watermark is behind the clock at that moment; `None` before the first one."""
    watermark, moment = _watermark(body), body.get("timestamp")
    if watermark is None or not isinstance(moment, str):
        return None
    behind = datetime.fromisoformat(moment) - datetime.fromisoformat(watermark)
    return max(0.0, behind.total_seconds())


def _watermark(body: Mapping[str, Any]) -> str | None:
    watermark = (body.get("eventTime") or {}).get("watermark")
    if not isinstance(watermark, str) or watermark.startswith("1970-01-01T00:00:00"):
        return None
    return watermark


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
    partitions = _partitions(source.get("endOffset"), source.get("latestOffset"))
    return {
        "description": str(source.get("description", "")),
        "rows": source.get("numInputRows"),
        "partitions": partitions,
        "metrics": {str(name): str(value) for name, value in (source.get("metrics") or {}).items()},
    }


def _partitions(end: Any, latest: Any) -> list[dict[str, Any]]:
    """Offsets per topic and partition, where the source is Kafka."""
    found: list[dict[str, Any]] = []
    if not isinstance(end, Mapping):
        return found
    for topic, offsets in end.items():
        if not isinstance(offsets, Mapping):
            return []
        newest = latest.get(topic) if isinstance(latest, Mapping) else None
        for partition, offset in offsets.items():
            if not isinstance(offset, int) or len(found) >= _MAX_PARTITIONS:
                continue
            last = newest.get(partition) if isinstance(newest, Mapping) else None
            found.append(
                {
                    "topic": str(topic),
                    "partition": str(partition),
                    "offset": offset,
                    "latest": last if isinstance(last, int) else None,
                    "lag": max(0, last - offset) if isinstance(last, int) else None,
                }
            )
    return found


def _state(operator: Mapping[str, Any]) -> dict[str, Any]:
    custom = operator.get("customMetrics") or {}
    return {
        "operator": str(operator.get("operatorName", "")),
        "rows": operator.get("numRowsTotal"),
        "memory_bytes": operator.get("memoryUsedBytes"),
        "dropped_by_watermark": operator.get("numRowsDroppedByWatermark"),
        "duplicates_dropped": custom.get("numDroppedDuplicateRows"),
    }
