"""One update as the dashboard shows it: the shared snapshot, and what only a page needs."""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock._observe.events import ErrorInfo, Event, FlowStatus
from penstock._observe.snapshot import DatasetView, FlowView, Snapshot, UpdateView, short_names
from penstock._ui.lineage import lineage_view
from penstock._ui.progress import progress_view
from penstock._ui.series import Series

_MAX_CHANGES = 240
_MAX_COLUMNS = 2000
_SHOWN_PROPERTIES = (
    "storage",
    "root",
    "spark_log",
    "event_log",
    "continuous",
    "refresh_selection",
    "full_refresh_selection",
    "full_refresh",
)
NO_ANSWER = "NO_ANSWER"
"""Of a card: it runs, but a source of it gives no answer."""

_ENDINGS = {
    FlowStatus.COMPLETED,
    FlowStatus.FAILED,
    FlowStatus.SKIPPED,
    FlowStatus.STOPPED,
    FlowStatus.IDLE,
    FlowStatus.EXCLUDED,
}


@dataclass
class _Declared:
    """What the definition events say of a dataset or sink."""

    name: str
    kind: str
    declared_at: str = ""
    schema_json: str = ""
    expectations: list[dict[str, Any]] = field(default_factory=list)
    format: str = ""
    path: str | None = None


@dataclass
class _FlowLife:
    """What a flow went through."""

    changes: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=_MAX_CHANGES))
    running_since: int | None = None
    progress: dict[str, Any] | None = None
    reported: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)
    lineage: Mapping[str, Any] | None = None
    message: str = ""
    technique: str = ""

    @property
    def problem(self) -> dict[str, str] | None:
        """Why its sources give it nothing, and since when, as far as that was seen."""
        found = self.progress["problem"] if self.progress is not None else None
        return None if found is None else {"message": found[0], "since": found[1]}

    def change(self, at: int, status: str) -> None:
        """The flow is in this state from now on."""
        if not self.changes or self.changes[-1][1] != status:
            self.changes.append((at, str(status)))


class UpdateModel:
    """Folds the events of one update. Not for several threads at once: its owner has the lock."""

    def __init__(self) -> None:
        self._snapshot = Snapshot()
        self._declared: dict[str, _Declared] = {}
        self._flows: dict[str, dict[str, Any]] = {}
        self._lives: dict[str, _FlowLife] = {}
        self._series: dict[str, Series] = {}
        self._versions: dict[str, int] = {}
        self._errors: dict[str, tuple[int, ErrorInfo]] = {}
        self._changes: list[tuple[int, str]] = []
        self._last_event: datetime | None = None
        self.structure = 0
        self.folded = 0

    def fold(self, event: Event) -> None:
        """Take in one event; one that makes no sense is passed over."""
        self.folded += 1
        self._last_event = event.timestamp
        try:
            self._snapshot(event)
            self._fold(event)
        except (LookupError, ValueError, TypeError, AttributeError):
            # Written by another version, or by hand: the rest of the log is still worth a look.
            return

    def _fold(self, event: Event) -> None:
        origin, body = event.origin, event.details.get(event.event_type) or {}
        at = int(event.timestamp.timestamp() * 1000)
        target = origin.dataset_name or origin.sink_name
        match event.event_type:
            case "update_progress":
                self._changes.append((at, str(body["state"])))
            case "dataset_definition":
                self.structure += 1
                self._declared[target] = _Declared(
                    name=target,
                    kind=str(body.get("dataset_type", "")).lower().replace("_", " "),
                    declared_at=str(body.get("declared_at") or ""),
                    path=str(body["path"]) if body.get("path") else None,
                    schema_json=str(body.get("schema_json") or ""),
                    expectations=[dict(rule) for rule in body.get("expectations") or ()],
                )
            case "sink_definition":
                self.structure += 1
                self._declared[target] = _Declared(
                    name=target, kind="sink", format=str(body.get("format") or "")
                )
            case "flow_definition":
                self.structure += 1
                self._flows[origin.flow_name] = dict(body)
            case "stream_progress":
                if origin.flow_name and isinstance(body.get("progress_json"), dict):
                    life = self._life(origin.flow_name)
                    life.reported = body["progress_json"]
                    life.progress = progress_view(life.reported, life.measured)
            case "lag_progress" if origin.flow_name:
                life = self._life(origin.flow_name)
                if life.reported:
                    life.progress = progress_view(life.reported, body)
                life.measured = body
            case "column_lineage" if origin.flow_name:
                lineage_view([body])  # one that makes no sense is passed over here
                self._life(origin.flow_name).lineage = body
            case "planning_information":
                technique = (body.get("technique_information") or [{}])[0]
                life = self._life(origin.flow_name)
                kind = str(technique.get("maintenance_type", ""))
                life.technique = kind.removeprefix("MAINTENANCE_TYPE_")
                # Each refresh begins with it; the state of its flow is told only once.
                life.running_since = at
                if life.technique != "NO_OP":
                    life.change(at, FlowStatus.RUNNING)
            case "flow_progress":
                self._fold_flow(event, body, target, at)

    def _fold_flow(self, event: Event, body: dict[str, Any], target: str, at: int) -> None:
        if target not in self._series:
            self.structure += target not in self._declared
            self._series[target] = Series()
        if event.error is not None:
            self._errors[target] = (at, event.error)
        if isinstance(body.get("table_version"), int):
            self._versions[target] = body["table_version"]
        if not event.origin.flow_name:
            return
        life = self._life(event.origin.flow_name)
        if "metrics" in body:
            self._series[target].add(event, since_ms=life.running_since)
            return
        status = str(body["status"])
        life.message = event.message
        if status == FlowStatus.RUNNING:
            life.running_since = at
        life.change(at, status)

    def _life(self, flow: str) -> _FlowLife:
        return self._lives.setdefault(flow, _FlowLife())

    def view(self, now: datetime | None = None) -> UpdateView:
        """The snapshot at one moment, for the methods below."""
        return self._snapshot.view(now)

    def head(self, view: UpdateView | None = None) -> dict[str, Any]:
        """State of the update as a whole."""
        view = view or self.view()
        ended = self._changes[-1][0] if view.has_ended and self._changes else None
        return {
            "pipeline_name": view.pipeline_name,
            "update_id": view.update_id,
            "state": view.state.value if view.state is not None else None,
            "has_ended": view.has_ended,
            "message": view.message,
            "started": _millis(view.started),
            "ended": ended,
            "last_event": _millis(self._last_event),
            "events": self.folded,
            "error": error_view(view.error),
            "warnings": list(view.warnings),
            "properties": {
                key: _plain(view.properties[key])
                for key in _SHOWN_PROPERTIES
                if key in view.properties
            },
            "changes": self._changes[-50:],
        }

    def cards(self, view: UpdateView | None = None) -> list[dict[str, Any]]:
        """One card per dataset, sink and outside source, in the order of their events."""
        view = view or self.view()
        cards = [self._card(dataset) for dataset in view.datasets]
        seen = {card["id"] for card in cards}
        hidden = [name for name in self._declared if name not in seen]
        shown = short_names([*seen, *hidden])
        for name in hidden:
            cards.append(_bare_card(name, shown[name], self._declared[name].kind))
        for name in self._outside():
            cards.append(_bare_card(name, name.removeprefix("source:"), "source"))
        return cards

    def tables(self) -> dict[str, str | None]:
        """Where the datasets that are stored lie, `None` where that was not recorded."""
        return {
            name: one.path
            for name, one in self._declared.items()
            if one.kind not in ("sink", "temporary view")
        }

    def declarations(self) -> dict[str, str]:
        """File and line of each dataset that was declared."""
        return {name: one.declared_at for name, one in self._declared.items() if one.declared_at}

    def edges(self) -> list[dict[str, str]]:
        """Which dataset feeds which, by which flow."""
        found: dict[tuple[str, str], str] = {}
        for flow, body in self._flows.items():
            target = body.get("output_dataset") or body.get("output_sink") or ""
            inputs = [
                *(body.get("input_datasets") or ()),
                *(f"source:{name}" for name in body.get("external_inputs") or ()),
            ]
            for source in inputs:
                found.setdefault((source, target), flow)
        return [
            {"from": source, "to": target, "flow": flow} for (source, target), flow in found.items()
        ]

    def flows(self, view: UpdateView | None = None) -> list[dict[str, Any]]:
        """What each flow went through, for the timeline."""
        view = view or self.view()
        return [self._flow(flow) for dataset in view.datasets for flow in dataset.flows]

    def dataset(self, name: str) -> dict[str, Any] | None:
        """Everything about one dataset, sink or outside source; `None` if there is none."""
        view = self.view()
        card = next((card for card in self.cards(view) if card["id"] == name), None)
        if card is None:
            return None
        declared = self._declared.get(name) or _Declared(name=name, kind=card["kind"])
        dataset = next((found for found in view.datasets if found.name == name), None)
        error = self._errors.get(name)
        edges = self.edges()
        return {
            "card": card,
            "declared_at": declared.declared_at,
            "format": declared.format,
            "columns": _columns(declared.schema_json),
            "lineage": self._lineage(name),
            "rules": _rules(declared, dataset),
            "flows": [self._flow(flow) for flow in dataset.flows] if dataset is not None else [],
            "upstream": [edge["from"] for edge in edges if edge["to"] == name],
            "downstream": [edge["to"] for edge in edges if edge["from"] == name],
            "error": error_view(error[1], at=error[0]) if error is not None else None,
            "series": self._series[name].columns() if name in self._series else None,
            "batches": self._series[name].recent() if name in self._series else [],
        }

    def outline(self) -> dict[str, Any]:
        """All of the update for a comparison: its head, datasets and sinks, and flows."""
        view = self.view()
        views = {dataset.name: dataset for dataset in view.datasets}
        datasets = []
        for card in self.cards(view):
            name = card["id"]
            if card["kind"] == "source":
                continue
            declared = self._declared.get(name) or _Declared(name=name, kind=card["kind"])
            series = self._series.get(name)
            datasets.append(
                {
                    **card,
                    "format": declared.format,
                    "declared_at": declared.declared_at,
                    "columns": _columns(declared.schema_json),
                    "rules": _rules(declared, views.get(name)),
                    "lineage": self._lineage(name),
                    "busy_seconds": series.busy_seconds() if series is not None else None,
                }
            )
        return {"head": self.head(view), "datasets": datasets, "flows": self.flows(view)}

    def _lineage(self, name: str) -> dict[str, Any] | None:
        lives = (
            self._lives[flow]
            for flow, body in self._flows.items()
            if flow in self._lives and name in (body.get("output_dataset"), body.get("output_sink"))
        )
        return lineage_view(life.lineage for life in lives if life.lineage is not None)

    def _flow(self, flow: FlowView) -> dict[str, Any]:
        life, body = self._life(flow.name), self._flows.get(flow.name, {})
        return {
            "name": flow.name,
            "target": flow.target,
            "state": flow.state.value,
            "type": str(body.get("flow_type") or ""),
            "once": bool(body.get("once")),
            "comment": str(body.get("comment") or ""),
            "inputs": [str(name) for name in body.get("input_datasets") or ()],
            "external_inputs": [str(name) for name in body.get("external_inputs") or ()],
            "batches": flow.batches,
            "batch_id": flow.batch_id,
            "rows": flow.rows,
            "message": life.message,
            "technique": life.technique,
            "changes": list(life.changes),
            "progress": life.progress,
            "error": error_view(flow.last_error),
        }

    def _card(self, dataset: DatasetView) -> dict[str, Any]:
        lives = [self._lives[flow.name] for flow in dataset.flows if flow.name in self._lives]
        delays = [
            life.progress["watermark_delay_seconds"]
            for life in lives
            if life.progress and life.progress["watermark_delay_seconds"] is not None
        ]
        lag, files = _waits(dataset, lives)
        problem = next((life.problem for life in lives if life.problem), None)
        is_silent = problem is not None and dataset.state is FlowStatus.RUNNING
        rate, batch_seconds = dataset.rows_per_second, dataset.batch_seconds
        if batch_seconds is None and dataset.name in self._series:
            batch_seconds = self._series[dataset.name].last_seconds()
        return {
            "id": dataset.name,
            "name": dataset.display,
            "kind": dataset.kind,
            "state": NO_ANSWER if is_silent else dataset.state.value,
            "problem": problem if is_silent else None,
            "rows": dataset.rows,
            "rows_per_second": round(rate, 1) if rate is not None else None,
            "batch_seconds": round(batch_seconds, 3) if batch_seconds is not None else None,
            "lag": None if is_silent else lag,
            "waiting_files": files,
            "quarantined": dataset.quarantined,
            "dropped": dataset.dropped,
            "failed_checks": sum(rule.failed for rule in dataset.rules),
            "watermark_delay_seconds": max(delays) if delays else None,
            "table_version": self._versions.get(dataset.name),
            "error": dataset.last_error.condition or dataset.last_error.class_name
            if dataset.last_error is not None
            else None,
        }

    def _outside(self) -> list[str]:
        names = (
            f"source:{name}"
            for body in self._flows.values()
            for name in body.get("external_inputs") or ()
        )
        return list(dict.fromkeys(names))


def error_view(error: ErrorInfo | None, *, at: int | None = None) -> dict[str, Any] | None:
    """An error for a page: condition, message, and apart from it the line and the way out."""
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


def _waits(dataset: DatasetView, lives: list[_FlowLife]) -> tuple[int | None, int | None]:
    """Rows and files that wait at the sources of a dataset, as far as they are known.

    What was measured beside the batches is newer than what the last batch saw.
    """
    known = [life.progress for life in lives if life.progress is not None]
    rows = [one["waiting_rows"] for one in known if one["waiting_rows"] is not None]
    files = [one["waiting_files"] for one in known if one["waiting_files"] is not None]
    if not known:
        return dataset.lag, None
    return sum(rows) if rows else None, sum(files) if files else None


def _bare_card(name: str, display: str, kind: str) -> dict[str, Any]:
    return {
        "id": name,
        "name": display,
        "kind": kind,
        "state": "",
        "rows": 0,
        "rows_per_second": None,
        "batch_seconds": None,
        "problem": None,
        "lag": None,
        "waiting_files": None,
        "quarantined": 0,
        "dropped": 0,
        "failed_checks": 0,
        "watermark_delay_seconds": None,
        "table_version": None,
        "error": None,
    }


def _rules(declared: _Declared, dataset: DatasetView | None) -> list[dict[str, Any]]:
    counted = {rule.name: rule for rule in dataset.rules} if dataset is not None else {}
    rules = [
        {
            "name": str(rule.get("name", "")),
            "condition": str(rule.get("condition", "")),
            "action": str(rule.get("action", "")),
        }
        for rule in declared.expectations
    ]
    known = {rule["name"] for rule in rules}
    rules += [
        {"name": name, "condition": "", "action": ""} for name in counted if name not in known
    ]
    return [
        {
            **rule,
            "passed": counted[rule["name"]].passed if rule["name"] in counted else None,
            "failed": counted[rule["name"]].failed if rule["name"] in counted else None,
        }
        for rule in rules
    ]


def _columns(schema_json: str) -> list[dict[str, Any]]:
    if not schema_json:
        return []
    found: list[dict[str, Any]] = []
    _walk(json.loads(schema_json).get("fields", ()), 0, found)
    return found


def _walk(fields: Any, depth: int, found: list[dict[str, Any]]) -> None:
    for each in fields:
        if len(found) >= _MAX_COLUMNS:
            return
        kind = each.get("type")
        metadata = each.get("metadata") or {}
        found.append(
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
            _walk(nested.get("fields", ()), depth + 1, found)


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


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return value if isinstance(value, bool | int) else str(value)


def _millis(moment: datetime | None) -> int | None:
    return int(moment.astimezone(UTC).timestamp() * 1000) if moment is not None else None
