"""What Spark's own progress of a micro-batch tells: sources, state, watermark."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from penstock._observe.lag import lag_sources, problem_of, waiting_rows

_MAX_PARTITIONS = 500


def progress_view(body: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a StreamingQueryProgress that the dashboard shows; the rest stays behind.

    Args:
        body: The progress.
        measured: Body of the newest `lag_progress` event of the flow; may be empty.
    """
    durations = body.get("durationMs") or {}
    sources = lag_sources(body, measured)
    return {
        "batch_id": body.get("batchId"),
        "durations_ms": {
            str(name): value for name, value in durations.items() if isinstance(value, int)
        },
        "watermark": _watermark(body),
        "watermark_delay_seconds": watermark_delay(body),
        "sources": [_source(source) for source in sources],
        "waiting_rows": waiting_rows(sources),
        "waiting_files": _sum(source["files"] for source in sources if source["files"] is not None),
        "problem": problem_of(sources),
        "state": [_state(operator) for operator in body.get("stateOperators") or ()],
    }


def _sum(counts: Iterable[int]) -> int | None:
    found = list(counts)
    return sum(found) if found else None


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
    """One source with what waits there; what is not known is `None`."""
    return {
        "description": str(source["source"]),
        "rows": source["input_rows"],
        "files": source["files"],
        "versions": source["versions"],
        "waiting_rows": source["rows"],
        "bytes": source["bytes"],
        "seconds_behind": source["seconds_behind"],
        "problem": source["problem"],
        "partitions": [_partition(part) for part in source["partitions"][:_MAX_PARTITIONS]],
        "shards": source["shards"][:_MAX_PARTITIONS],
        "metrics": {str(name): str(value) for name, value in source["metrics"].items()},
    }


def _partition(part: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "topic": str(part["topic"]),
        "partition": str(part["partition"]),
        "offset": part["offset"],
        "latest": part["latest_offset"],
        "lag": part["records"],
        "seconds_behind": part["seconds_behind"],
        "seconds_to_loss": part["seconds_to_loss"],
        "loss": part["loss"],
        "lost_records": part["lost_records"],
    }


def _state(operator: Mapping[str, Any]) -> dict[str, Any]:
    custom = operator.get("customMetrics") or {}
    return {
        "operator": str(operator.get("operatorName", "")),
        "rows": operator.get("numRowsTotal"),
        "memory_bytes": operator.get("memoryUsedBytes"),
        "dropped_by_watermark": operator.get("numRowsDroppedByWatermark"),
        "duplicates_dropped": custom.get("numDroppedDuplicateRows"),
    }
