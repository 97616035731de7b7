"""The JSON form of events: the only module that knows the keys of the event log.

`event_json` writes what `event_of_json` reads. A body with invalid values, or of an unknown type,
becomes an `UnknownBody` and is written as it was read.
"""

import functools
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

from penstock._model.lineage import FlowLineage, LineageSource
from penstock._observe import events
from penstock._observe.events import Body, Event, EventOrigin, UnknownBody

SCHEMA_VERSION = 2
"""Version of the JSON form of an event; increased if a field is removed or changes its meaning.

Since version 2 an event may replace several micro-batches (`rolled_up`)."""

_BODIES: Mapping[str, type[Body]] = {
    body.event_type: body
    for body in vars(events).values()
    if isinstance(body, type) and issubclass(body, Body) and hasattr(body, "event_type")
}
EVENT_TYPES = tuple(_BODIES)
_QUALITY = ("dropped_records", "quarantined_records", "late_records", "duplicate_records")
_METRICS = tuple(known.name for known in fields(events.FlowMetrics) if known.name not in _QUALITY)
_ORIGIN_NAMES = ("pipeline_name", "update_id", "dataset_name", "flow_name", "sink_name")
_TECHNIQUE = "MAINTENANCE_TYPE_"
_ENCODER = json.JSONEncoder(default=str, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

Convert = Callable[[Any], Any]


# -- lines ----------------------------------------------------------------------------------------


def event_json(event: Event, *, instance: str, seq_no: int) -> dict[str, Any]:
    """An event in Lakeflow's format; `seq_no` is its number within the writer `instance`."""
    origin = {key: value for key, value in vars(event.origin).items() if value not in ("", None)}
    error = None
    if event.error is not None:
        error = {
            "fatal": event.error.fatal,
            "exceptions": [
                {
                    "class_name": event.error.class_name,
                    "message": event.error.message,
                    "condition": event.error.condition,
                }
            ],
        }
    return {
        "id": event.id,
        "sequence": {"data_plane_id": {"instance": instance, "seq_no": seq_no}},
        "origin": origin,
        "timestamp": time_text(event.timestamp),
        "message": event.message,
        "level": event.level.value,
        "maturity_level": event.body.maturity_level,
        "error": error,
        "details": details_of(event.body),
        "schema_version": SCHEMA_VERSION,
        "event_type": event.event_type,
    }


def encode(body: Any) -> bytes:
    """One line of JSON, without the line break.

    Values without a JSON type (dates, decimals) become strings and NaN becomes null, so that an
    event is never lost because of one of its values.
    """
    try:
        text = dump(body)
    except ValueError:
        text = dump(json.loads(json.dumps(body, default=str), parse_constant=lambda _: None))
    # A lone surrogate becomes \udcXX, which is its JSON escape.
    return text.encode("utf-8", "backslashreplace")


def dump(body: Any) -> str:
    """Compact JSON as in the event log; raises `ValueError` for NaN."""
    return _ENCODER.encode(body)


def time_text(timestamp: datetime) -> str:
    """A timestamp in ISO 8601, UTC, with milliseconds."""
    return timestamp.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def millis(timestamp: datetime) -> int:
    """A timestamp in milliseconds since the epoch."""
    return int(timestamp.timestamp() * 1000)


def object_of_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line of an event log; `None` for an empty or truncated line."""
    try:
        body = json.loads(line)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def event_of_line(line: bytes) -> Event | None:
    """The event of a line of an event log; `None` for an empty, truncated or foreign line."""
    return event_of(object_of_line(line))


def event_of(body: Any) -> Event | None:
    try:
        return event_of_json(body)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def event_of_json(body: Mapping[str, Any]) -> Event:
    """The event that `event_json` wrote; raises `ValueError` or `KeyError` for invalid fields."""
    origin = body.get("origin") or {}
    batch_id = origin.get("batch_id")
    level = events.Level(body.get("level", "INFO"))
    known = body_of(str(body["event_type"]), body.get("details") or {})
    if isinstance(known, UnknownBody):
        maturity = str(body.get("maturity_level", "STABLE"))
        known = replace(known, recorded_level=level, maturity_level=maturity)
    return Event(
        EventOrigin(
            **{name: str(origin.get(name, "")) for name in _ORIGIN_NAMES},
            batch_id=batch_id if isinstance(batch_id, int) else None,
        ),
        known,
        str(body.get("message") or ""),
        error=_error(body.get("error")),
        id=str(body.get("id", "")),
        timestamp=datetime.fromisoformat(body["timestamp"]),
    )


def _error(body: Mapping[str, Any] | None) -> events.ErrorInfo | None:
    if not body or not body.get("exceptions"):
        return None
    first = body["exceptions"][0]
    return events.ErrorInfo(
        condition=str(first.get("condition") or ""),
        class_name=str(first.get("class_name") or ""),
        message=str(first.get("message") or ""),
        fatal=bool(body.get("fatal", True)),
    )


# -- bodies ---------------------------------------------------------------------------------------


def details_of(body: Body | UnknownBody) -> Mapping[str, Any]:
    """The JSON form of a body, under its event type as the only key."""
    match body:
        case UnknownBody():
            return body.details
        case events.FlowProgress():
            body_json = _flow_json(body)
        case events.CreateUpdate():
            body_json = dict(body.properties)
        case events.ColumnLineage():
            body_json = body.lineage.as_json()
        case events.PlanningInformation():
            chosen = {"maintenance_type": f"{_TECHNIQUE}{body.technique}", "is_chosen": True}
            body_json = {"technique_information": [chosen], "reason": body.reason}
        case events.BackfillProgress() | events.MigrationProgress():
            body_json = _to_json(body)
            body_json |= body_json.pop("figures")
        case _:
            body_json = _to_json(body)
    return {body.event_type: body_json}


def body_of(event_type: str, details: Mapping[str, Any]) -> Body | UnknownBody:
    """The body from its JSON form, or an `UnknownBody`; `ValueError` if it is not an object."""
    body, known = details.get(event_type, {}), _BODIES.get(event_type)
    if not isinstance(body, dict):
        raise ValueError("the details of an event must be an object")
    try:
        match known:
            case None:
                pass
            case events.FlowProgress:
                return _flow_of(body)
            case events.CreateUpdate:
                return events.CreateUpdate(body)
            case events.ColumnLineage:
                return events.ColumnLineage(FlowLineage.from_json(body))
            case events.PlanningInformation:
                chosen = (body.get("technique_information") or [{}])[0]
                technique = str(chosen.get("maintenance_type", "")).removeprefix(_TECHNIQUE)
                return events.PlanningInformation(technique, str(body.get("reason") or ""))
            case events.BackfillProgress | events.MigrationProgress:
                names = _readers(known)
                figures = {key: value for key, value in body.items() if key not in names}
                return _from_json(known, {**body, "figures": figures})  # type: ignore[no-any-return]
            case _:
                return _from_json(known, body)  # type: ignore[no-any-return]
    except (ValueError, TypeError, AttributeError, LookupError):
        pass
    return UnknownBody(event_type=event_type, details=details)


def _flow_json(body: events.FlowProgress) -> dict[str, Any]:
    body_json: dict[str, Any] = {"status": body.status.value}
    quality: dict[str, Any] = {}
    if body.metrics is not None:
        values = vars(body.metrics)
        body_json["metrics"] = {key: values[key] for key in _METRICS if values[key] is not None}
        quality = {key: values[key] for key in _QUALITY if values[key] is not None}
    if body.expectations:
        quality["expectations"] = [dict(vars(rule)) for rule in body.expectations]
    if quality:
        body_json["data_quality"] = quality
    if body.table_version is not None:
        body_json["table_version"] = body.table_version
    if body.rolled_up is not None:
        body_json["rolled_up"] = _to_json(body.rolled_up)
    return body_json


def _flow_of(body: Mapping[str, Any]) -> events.FlowProgress:
    metrics, quality = body.get("metrics"), body.get("data_quality") or {}
    counts = None
    if metrics is not None:
        counts = _from_json(events.FlowMetrics, {**metrics, **quality})
    version, rolled = body.get("table_version"), body.get("rolled_up")
    return events.FlowProgress(
        events.FlowStatus(body["status"]),
        counts,
        tuple(
            _from_json(events.ExpectationCounts, rule) for rule in quality.get("expectations", ())
        ),
        version if version is None else _checked(int, version),
        None if rolled is None else _from_json(events.RolledUp, rolled),
    )


# -- dataclasses ----------------------------------------------------------------------------------


def _to_json(value: Any) -> Any:
    if isinstance(value, LineageSource):
        return value.as_json()
    if is_dataclass(value):
        omits_none = getattr(value, "omits_none", False)
        return {
            name: _to_json(each)
            for name, each in vars(value).items()
            if each is not None or not omits_none
        }
    if isinstance(value, tuple):
        return [_to_json(each) for each in value]
    return str(value) if isinstance(value, StrEnum) else value


def _from_json(kind: type, body: Mapping[str, Any]) -> Any:
    """The dataclass from its JSON form; ignores unknown keys, raises errors for invalid values."""
    _checked(dict, body)
    readers = _readers(kind).items()
    return kind(**{name: read(body[name]) for name, read in readers if name in body})


@functools.cache
def _readers(kind: Any) -> dict[str, Convert]:
    hints = get_type_hints(kind)
    return {each.name: _reader(hints[each.name]) for each in fields(kind)}


def _reader(hint: Any) -> Convert:
    inner, is_optional = _without_none(hint)
    read: Convert
    if is_dataclass(inner):
        read = lambda value: _from_json(inner, value)  # type: ignore[arg-type] # noqa: E731
    elif get_origin(inner) is tuple:
        each = _reader(get_args(inner)[0])
        read = lambda values: tuple(each(value) for value in _checked(list, values))  # noqa: E731
    elif isinstance(inner, type) and issubclass(inner, StrEnum):
        read = inner
    elif get_args(inner) == (str, int):
        read = lambda value: {key: _checked(int, value[key]) for key in value}  # noqa: E731
    else:
        kind = dict if get_origin(inner) else inner
        read = lambda value: _checked(kind, value)  # noqa: E731
    return (lambda value: None if value is None else read(value)) if is_optional else read


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        return next(each for each in get_args(hint) if each is not type(None)), True
    return hint, False


def _checked(kind: type, value: Any) -> Any:
    if kind is float and type(value) is int:
        return value
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value
