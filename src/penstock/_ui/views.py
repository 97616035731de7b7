"""JSON forms for pages: progress of a micro-batch, column lineage, columns, rules and errors."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock._model.lineage import ColumnInput, FlowLineage, LineageSource
from penstock._observe.codec import time_text
from penstock._observe.events import DatasetDefinition, ErrorInfo, LagProgress, Rule
from penstock._observe.lag import lag_sources, problem_of, waiting_rows
from penstock._observe.snapshot import known_sum
from penstock._observe.spark_progress import (
    Progress,
    durations_of,
    operators_of,
    watermark_delay,
    watermark_of,
)
from penstock._observe.state import ObservedDataset

_MAX_PARTITIONS = 500
_MAX_INPUTS = 20
_MAX_COLUMNS = 2000


def progress_view(body: Progress, measured: LagProgress | None) -> dict[str, Any]:
    """The part of a StreamingQueryProgress that the dashboard shows, with the measured lag."""
    sources, watermark = lag_sources(body, measured), watermark_of(body)
    return {
        "batch_id": body.get("batchId"),
        "durations_ms": {
            str(name): value for name, value in durations_of(body).items() if isinstance(value, int)
        },
        "watermark": None if watermark is None else time_text(watermark),
        "watermark_delay_seconds": watermark_delay(body),
        "sources": [_source(source) for source in sources],
        "waiting_rows": waiting_rows(sources),
        "waiting_files": known_sum(source["files"] for source in sources),
        "problem": problem_of(sources),
        "state": [_state(operator) for operator in operators_of(body).values()],
    }


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
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


def lineage_view(flows: Iterable[FlowLineage]) -> dict[str, Any] | None:
    """Lineage of a dataset from that of its flows; `None` if no plan has lineage.

    `columns` are by name, `influences` are those of filters, joins and grouping. Each input has
    `dataset` (of the pipeline, or empty), `place` (outside of it), `column` and `how`.
    """
    columns: dict[str, list[dict[str, str]]] = {}
    influences: list[dict[str, str]] = []
    known = False
    for flow in flows:
        known = True
        sources = [_lineage_source(source) for source in flow.sources]
        for name, inputs in list(flow.columns.items())[:_MAX_COLUMNS]:
            _extend(columns.setdefault(name, []), sources, inputs)
        _extend(influences, sources, flow.influences)
    return {"columns": columns, "influences": influences} if known else None


def _lineage_source(source: LineageSource) -> dict[str, str]:
    place = "" if source.dataset else f"{source.namespace} {source.name}".strip()
    return {"dataset": source.dataset, "place": place}


def _extend(
    columns: list[dict[str, str]], sources: list[dict[str, str]], inputs: Sequence[ColumnInput]
) -> None:
    for column in inputs:
        entry = sources[column.source] | {"column": column.column, "how": column.transformation}
        if entry not in columns and len(columns) < _MAX_INPUTS:
            columns.append(entry)


def columns_view(schema_json: str) -> list[dict[str, Any]]:
    if not schema_json:
        return []
    columns: list[dict[str, Any]] = []
    _walk(json.loads(schema_json).get("fields", ()), 0, columns)
    return columns


def _walk(fields: Any, depth: int, columns: list[dict[str, Any]]) -> None:
    for each in fields:
        if len(columns) >= _MAX_COLUMNS:
            return
        kind = each.get("type")
        metadata = each.get("metadata") or {}
        columns.append(
            {
                "name": str(each.get("name", "")),
                "type": _type_text(kind),
                "nullable": bool(each.get("nullable", True)),
                "comment": str(metadata.get("comment") or ""),
                "depth": depth,
            }
        )
        inner = kind.get("elementType") if isinstance(kind, dict) else None
        nested = inner if isinstance(inner, dict) else kind
        if isinstance(nested, dict) and nested.get("type") == "struct":
            _walk(nested.get("fields", ()), depth + 1, columns)


def _type_text(kind: Any) -> str:
    if not isinstance(kind, dict):
        return str(kind)
    match kind.get("type"):
        case "array":
            return f"array<{_type_text(kind.get('elementType'))}>"
        case "map":
            return f"map<{_type_text(kind.get('keyType'))}, {_type_text(kind.get('valueType'))}>"
        case other:
            return str(other)


def rules_view(
    declared: DatasetDefinition, dataset: ObservedDataset | None
) -> list[dict[str, Any]]:
    counts = dataset.rules.items() if dataset is not None else ()
    counted = {name: (passed, failed) for (_, name), (passed, failed) in counts}
    known = {rule.name for rule in declared.expectations}
    rules = [*declared.expectations, *(Rule(name=name) for name in counted if name not in known)]
    views = []
    for rule in rules:
        passed, failed = counted.get(rule.name, (None, None))
        views.append({**vars(rule), "passed": passed, "failed": failed})
    return views


def error_view(error: ErrorInfo | None, *, at: int | None = None) -> dict[str, Any] | None:
    """An error for a page: the line and the hint are separate from the message."""
    if error is None:
        return None
    message, hint, declared_at = [], [], ""
    for line in error.message.splitlines():
        text = line.strip()
        if text.startswith("hint: "):
            hint.append(text.removeprefix("hint: "))
        elif text.startswith("declared at ") and not declared_at:
            declared_at = text.removeprefix("declared at ")
        elif hint and line.startswith("    "):
            hint.append(text)
        else:
            message.append(line)
    text = "\n".join(message).strip().removeprefix(f"[{error.condition}] ")
    return {
        "condition": error.condition,
        "class_name": error.class_name,
        "message": text,
        "declared_at": declared_at,
        "hint": "\n".join(hint),
        "at": at,
    }
