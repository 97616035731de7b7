"""Schemas of datasets recorded by an earlier update, and differences between schemas."""

import json
from pathlib import Path
from typing import Any

from penstock._observe.codec import event_of_line
from penstock._observe.events import DatasetDefinition
from penstock._observe.segments import updates

_DEFINITION = b'"event_type":"dataset_definition"'
_FLOWS = b'"event_type":"flow_progress"'
_LOOKED_AT = 50
"""Maximum number of updates to read: those that could not start have no definitions."""
_SHOWN = 10
_UNIMPORTANT = frozenset({"nullable", "containsNull", "valueContainsNull", "metadata"})


def recorded_schemas(directory: Path) -> dict[str, str]:
    """Schema JSON per dataset of the newest recorded update that has any.

    Reads only the beginning of event logs; unreadable logs are skipped.
    """
    for update in reversed(updates(directory)[-_LOOKED_AT:]):
        schemas: dict[str, str] = {}
        try:
            for line in update.lines():
                if _FLOWS in line:
                    break
                event = event_of_line(line) if _DEFINITION in line else None
                body = event.body if event is not None else None
                if event is not None and isinstance(body, DatasetDefinition) and body.schema_json:
                    schemas[event.origin.dataset_name] = body.schema_json
        except OSError:
            continue
        if schemas:
            return schemas
    return {}


def differences(before: str, after: str) -> list[str]:
    """Added, removed and changed columns for messages; empty if there are none.

    Order, comments and nullability are ignored. Both schemas are Spark's JSON.
    """
    if before == after:
        return []
    old, new = _columns(before), _columns(after)
    if old is None or new is None:
        return []
    changes = [f"{name} added" for name in new if name not in old]
    changes += [f"{name} removed" for name in old if name not in new]
    for name, kind in new.items():
        if name in old and old[name] != kind:
            is_plain = isinstance(kind, str) and isinstance(old[name], str)
            changes.append(
                f"{name} changed from {old[name]} to {kind}" if is_plain else f"{name} changed"
            )
    more = len(changes) - _SHOWN
    return [*changes[:_SHOWN], f"{more} more"] if more > 0 else changes


def _columns(schema: str) -> dict[str, Any] | None:
    try:
        return {field["name"]: _type(field["type"]) for field in json.loads(schema)["fields"]}
    except (ValueError, KeyError, TypeError):
        return None


def _type(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _type(item) for key, item in value.items() if key not in _UNIMPORTANT}
    return [_type(item) for item in value] if isinstance(value, list) else value
