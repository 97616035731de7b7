"""Many micro-batches in one event: sums of what their events said, so that nobody counts wrong.

Only what can be added up exactly is rolled up; `counts_of` and `measured_of` refuse all else. The
figures stay where they are in the event of a single batch. What only many batches have is below
`rolled_up`; docs/event-log.md lists it.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any

from penstock._observe.codec import SCHEMA_VERSION
from penstock._observe.state import BATCH_BUCKETS

ROLLED_UP = "rolled_up"

_ORIGIN = frozenset({"pipeline_name", "update_id", "dataset_name", "flow_name", "sink_name"})
_BODY = frozenset({"status", "metrics", "data_quality", "table_version", ROLLED_UP})
_METRICS = (
    *("num_output_rows", "num_upserted_rows", "num_deleted_rows", "num_input_rows"),
    *("batch_duration_ms", "backlog_records"),
)
_QUALITY = ("dropped_records", "quarantined_records", "late_records", "duplicate_records")
_RULE = frozenset({"name", "dataset", "passed_records", "failed_records"})
_ABOVE = "+Inf"


def counts_of(event: Any) -> dict[str, Any] | None:
    """The body of an event with the counts of a micro-batch; `None` if it is not to be rolled up.

    An event with a message, an error or anything that is not known here stays as it is.
    """
    try:
        origin, body = event["origin"], event["details"]["flow_progress"]
        quality = body.get("data_quality", {})
        is_plain = (
            event["error"] is None
            and event["level"] == "INFO"
            and event["message"] == ""
            and isinstance(event["timestamp"], str)
            and _are_counts({"batch_id": origin["batch_id"]})
            and set(origin) - {"batch_id"} <= _ORIGIN
            and len(event["details"]) == 1
            and set(body) <= _BODY
            and body["status"] == "RUNNING"
            and set(body["metrics"]) <= set(_METRICS)
            and _are_counts(body["metrics"])
            and set(quality) <= {*_QUALITY, "expectations"}
            and _are_counts({key: quality[key] for key in quality if key != "expectations"})
            and _are_counts({"version": body.get("table_version", 0)})
            and _are_sums(body.get(ROLLED_UP, {}))
        )
        for rule in quality.get("expectations", ()):
            is_plain &= set(rule) == _RULE and _are_counts(
                {key: rule[key] for key in ("passed_records", "failed_records")}
            )
    except (KeyError, TypeError, AttributeError):
        return None
    return body if is_plain else None


def _are_counts(values: dict[str, Any]) -> bool:
    return all(type(value) is int for value in values.values())


def _are_sums(rolled: dict[str, Any]) -> bool:
    """Whether what was rolled up before can be added to more."""
    inner = [value for value in rolled.values() if isinstance(value, dict)]
    outer = {
        key: value
        for key, value in rolled.items()
        if key != "since" and not isinstance(value, dict)
    }
    return all(_are_counts(values) for values in (outer, *inner))


@dataclass
class Counts:
    """The counts of neighbouring micro-batches of one flow."""

    event: dict[str, Any] = field(default_factory=dict)
    batch_id: int = -1
    first_batch_id: int | None = None
    added: int = 0
    events: int = 0
    batches: int = 0
    since: str = ""
    metrics: dict[str, int] = field(default_factory=dict)
    quality: dict[str, int] = field(default_factory=dict)
    rules: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    first_version: int | None = None
    version: int | None = None
    longest_ms: int = 0
    durations: dict[str, int] = field(default_factory=dict)

    def fits(self, event: dict[str, Any]) -> bool:
        """Whether an event is of the same flow, dataset and update."""
        return not self.event or _about(event) == _about(self.event)

    def add(self, event: dict[str, Any], body: dict[str, Any], *, is_new: bool) -> None:
        """Take in the next event of the flow; it may be one that was rolled up before.

        Args:
            event: The event.
            body: As `counts_of` gave it.
            is_new: Whether no event of this batch, or of a later one, came before.
        """
        rolled = body.get(ROLLED_UP) or {}
        batch_id = event["origin"]["batch_id"]
        self.event = event
        self.added += 1
        self.batch_id = max(self.batch_id, batch_id)
        self.since = self.since or rolled.get("since", event["timestamp"])
        first = rolled.get("first_batch_id", batch_id)
        self.first_batch_id = (
            first if self.first_batch_id is None else min(first, self.first_batch_id)
        )
        self.events += rolled.get("events", 1)
        self.batches += rolled.get("batches", int(is_new))
        for key, count in body["metrics"].items():
            is_sum = key != "backlog_records"
            self.metrics[key] = count + (self.metrics.get(key, 0) if is_sum else 0)
        quality = body.get("data_quality", {})
        for key in _QUALITY:
            if key in quality:
                self.quality[key] = self.quality.get(key, 0) + quality[key]
        for rule in quality.get("expectations", ()):
            sums = self.rules.setdefault((rule["dataset"], rule["name"]), [0, 0])
            sums[0] += rule["passed_records"]
            sums[1] += rule["failed_records"]
        if "table_version" in body:
            self.version = body["table_version"]
            if self.first_version is None:
                self.first_version = rolled.get("first_table_version", self.version)
        if "batch_duration_ms" in body["metrics"]:
            self._time(body["metrics"]["batch_duration_ms"], rolled)

    def _time(self, milliseconds: int, rolled: dict[str, Any]) -> None:
        known = {_bucket(milliseconds / 1000): 1}
        for bound, count in rolled.get("batch_durations", known).items():
            self.durations[bound] = self.durations.get(bound, 0) + count
        self.longest_ms = max(self.longest_ms, rolled.get("longest_batch_ms", milliseconds))

    def as_json(self) -> dict[str, Any]:
        """The event that stands for all of them; its place is that of the last one."""
        rolled: dict[str, Any] = {
            "events": self.events,
            "batches": self.batches,
            "first_batch_id": self.first_batch_id,
            "since": self.since,
        }
        body: dict[str, Any] = {"status": "RUNNING", "metrics": self.metrics}
        quality: dict[str, Any] = dict(self.quality)
        if self.rules:
            quality["expectations"] = [
                {
                    "name": name,
                    "dataset": dataset,
                    "passed_records": passed,
                    "failed_records": failed,
                }
                for (dataset, name), (passed, failed) in self.rules.items()
            ]
        if quality:
            body["data_quality"] = quality
        if self.version is not None:
            rolled["first_table_version"] = self.first_version
            body["table_version"] = self.version
        if self.durations:
            rolled["longest_batch_ms"] = self.longest_ms
            rolled["batch_durations"] = self.durations
        body[ROLLED_UP] = rolled
        return _standing_for(self.event, self.batch_id, "flow_progress", body)


def measured_of(event: Any) -> dict[str, Any] | None:
    """What of a `stream_progress` or `lag_progress` event is summed up when it goes away.

    `None` if the event makes no sense here: then it stays.
    """
    try:
        if event["event_type"] == "lag_progress":
            return {"events": 1, "since": event["timestamp"]}
        body = event["details"]["stream_progress"]
        if ROLLED_UP in body:
            return dict(body[ROLLED_UP]) if _are_sums(body[ROLLED_UP]) else None
        progress = body["progress_json"]
        dropped = {
            f"{at} {operator.get('operatorName', '')}".strip(): operator.get(
                "numRowsDroppedByWatermark", 0
            )
            for at, operator in enumerate(progress.get("stateOperators") or ())
        }
        durations = dict(progress.get("durationMs") or {})
        if not _are_counts({**durations, **{f" {key}": dropped[key] for key in dropped}}):
            return None
        found = {
            "events": 1,
            "batches": 1,
            "since": event["timestamp"],
            "durations_ms": durations,
            "dropped_by_watermark": dropped,
        }
        if "batch_id" in event["origin"]:
            found["first_batch_id"] = event["origin"]["batch_id"]
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    return found


@dataclass
class Measured:
    """What is left of the measurements of one flow that go away: sums for the counters."""

    event: dict[str, Any] = field(default_factory=dict)
    sums: dict[str, Any] = field(default_factory=dict)

    def add(self, event: dict[str, Any], found: dict[str, Any]) -> None:
        """Take in the next one, as `measured_of` gave it."""
        self.event = event
        for key in ("events", "batches"):
            self.sums[key] = self.sums.get(key, 0) + found.get(key, 0)
        for key in ("first_batch_id", "since"):
            if key in found:
                self.sums.setdefault(key, found[key])
        for key in ("durations_ms", "dropped_by_watermark"):
            sums = self.sums.setdefault(key, {})
            for name, count in found.get(key, {}).items():
                sums[name] = sums.get(name, 0) + count

    def as_json(self) -> dict[str, Any]:
        """A `stream_progress` event without a progress; its place is that of the last one."""
        batch_id = self.event["origin"].get("batch_id")
        return _standing_for(self.event, batch_id, "stream_progress", {ROLLED_UP: self.sums})


def _about(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event["origin"].items() if key != "batch_id"}


def _standing_for(
    last: dict[str, Any], batch_id: int | None, event_type: str, body: dict[str, Any]
) -> dict[str, Any]:
    origin = dict(last["origin"])
    if batch_id is not None:
        origin["batch_id"] = batch_id
    # The same again if a crash comes before the file is replaced.
    name = f"{last['id']} {event_type} {ROLLED_UP}"
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
        "sequence": last["sequence"],
        "origin": origin,
        "timestamp": last["timestamp"],
        "message": "",
        "level": last["level"],
        "maturity_level": last["maturity_level"],
        "error": None,
        "details": {event_type: body},
        "schema_version": SCHEMA_VERSION,
        "event_type": event_type,
    }


def _bucket(seconds: float) -> str:
    return next((str(bound) for bound in BATCH_BUCKETS if seconds <= bound), _ABOVE)
