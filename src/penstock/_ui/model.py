"""One update as the dashboard shows it: the shared snapshot and details for pages."""

from datetime import datetime
from typing import Any

from penstock._observe.codec import millis
from penstock._observe.events import (
    DatasetDefinition,
    Event,
    FlowDefinition,
    FlowProgress,
    FlowStatus,
    LagProgress,
    Level,
    SinkDefinition,
    StreamProgress,
)
from penstock._observe.snapshot import (
    DatasetView,
    known_sum,
    short_names,
    update_view,
)
from penstock._observe.state import ObservedUpdate
from penstock._ui.series import Series
from penstock._ui.views import (
    columns_view,
    error_view,
    lineage_view,
    progress_view,
    rules_view,
)

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
_UNKNOWN = (
    *("rows_per_second", "batch_seconds", "problem", "lag", "waiting_files"),
    *("watermark_delay_seconds", "table_version", "error"),
)
NO_ANSWER = "NO_ANSWER"
"""State of a card that runs although one of its sources does not respond."""


class UpdateModel:
    """Folds the events of one update. Not thread-safe: its owner holds the lock."""

    def __init__(self) -> None:
        self._update = ObservedUpdate()
        self._progress: dict[str, dict[str, Any]] = {}
        self._series: dict[str, Series] = {}
        self.structure = 0
        self.folded = 0

    def fold(self, event: Event) -> None:
        """Add one event; events with invalid values are ignored."""
        self.folded += 1
        try:
            self._update(event)
            self._fold(event)
        except (LookupError, ValueError, TypeError, AttributeError):
            # The event may be from another version or edited; the rest of the log is still shown.
            return

    def _fold(self, event: Event) -> None:
        match event.body:
            case DatasetDefinition() | SinkDefinition() | FlowDefinition():
                self.structure += 1
            case StreamProgress() | LagProgress() if event.origin.flow_name:
                flow = self._update.flow(event.origin.flow_name)
                if flow.progress:
                    self._progress[flow.name] = progress_view(flow.progress, flow.lag)
            case FlowProgress() as body:
                target = event.origin.dataset_name or event.origin.sink_name
                if target not in self._series:
                    self.structure += self._declared(target) is None
                    self._series[target] = Series()
                if event.origin.flow_name and body.metrics is not None:
                    since = self._update.flow(event.origin.flow_name).working_since
                    self._series[target].add(event, body, since_ms=_millis(since))

    def _declared(self, name: str) -> DatasetDefinition | SinkDefinition | None:
        dataset = self._update.datasets.get(name)
        return dataset.definition if dataset is not None else None

    @property
    def has_ended(self) -> bool:
        return self._update.ended is not None

    def head(self) -> dict[str, Any]:
        update, properties = self._update, self._update.properties
        changes = [(_millis(at), state.value) for at, state in update.changes[-50:]]
        return {
            "pipeline_name": update.pipeline_name,
            "update_id": update.update_id,
            "state": update.state.value if update.state is not None else None,
            "has_ended": self.has_ended,
            "message": update.message,
            "started": _millis(update.started),
            "ended": _millis(update.ended),
            "last_event": _millis(update.last_event),
            "events": self.folded,
            "error": error_view(update.error),
            "warnings": list(update.warnings),
            "all_warnings": update.events[Level.WARN],
            "properties": {
                key: _plain(properties[key]) for key in _SHOWN_PROPERTIES if key in properties
            },
            "changes": changes,
        }

    def cards(self) -> list[dict[str, Any]]:
        """One card per dataset, sink and external source, in the order of their events."""
        cards = [self._card(dataset) for dataset in update_view(self._update).datasets]
        seen = {card["id"] for card in cards}
        hidden = {
            name: dataset.kind
            for name, dataset in self._update.datasets.items()
            if dataset.definition is not None and name not in seen
        }
        shown = short_names([*seen, *hidden])
        for name, kind in hidden.items():
            cards.append(_bare_card(name, shown[name], kind))
        bodies = self._definitions().values()
        for name in dict.fromkeys(name for body in bodies for name in _external(body)):
            cards.append(_bare_card(name, name.removeprefix("source:"), "source"))
        return cards

    def tables(self) -> dict[str, str | None]:
        """Path of each stored dataset, `None` if it was not recorded."""
        return {
            name: dataset.definition.path or None
            for name, dataset in self._update.datasets.items()
            if isinstance(dataset.definition, DatasetDefinition)
            and dataset.kind != "temporary view"
        }

    def declarations(self) -> dict[str, str]:
        return {
            name: dataset.definition.declared_at
            for name, dataset in self._update.datasets.items()
            if isinstance(dataset.definition, DatasetDefinition) and dataset.definition.declared_at
        }

    def edges(self) -> list[dict[str, str]]:
        edges: dict[tuple[str, str], str] = {}
        for flow, body in self._definitions().items():
            for source in (*body.input_datasets, *_external(body)):
                edges.setdefault((source, body.target), flow)
        return [
            {"from": source, "to": target, "flow": flow} for (source, target), flow in edges.items()
        ]

    def flows(self) -> list[dict[str, Any]]:
        datasets = [each for each in self._update.datasets.values() if not each.is_hidden]
        return [self._flow(flow) for dataset in datasets for flow in dataset.flows]

    def dataset(self, name: str) -> dict[str, Any] | None:
        """Everything about one dataset, sink or external source; `None` if there is none."""
        card = next((card for card in self.cards() if card["id"] == name), None)
        if card is None:
            return None
        dataset = self._update.datasets.get(name)
        error = dataset.error if dataset is not None else None
        flows = dataset.flows if dataset is not None and not dataset.is_hidden else ()
        edges = self.edges()
        return {
            "card": card,
            **self._declaration(name),
            "flows": [self._flow(flow) for flow in flows],
            "upstream": [edge["from"] for edge in edges if edge["to"] == name],
            "downstream": [edge["to"] for edge in edges if edge["from"] == name],
            "error": error_view(error[1], at=_millis(error[0])) if error is not None else None,
            "series": self._series[name].columns() if name in self._series else None,
            "batches": self._series[name].recent() if name in self._series else [],
        }

    def outline(self) -> dict[str, Any]:
        """The update for a comparison: its head, datasets and sinks, and flows."""
        datasets = []
        for card in self.cards():
            name = card["id"]
            if card["kind"] == "source":
                continue
            series = self._series.get(name)
            datasets.append(
                {
                    **card,
                    **self._declaration(name),
                    "busy_seconds": series.busy_seconds() if series is not None else None,
                }
            )
        return {"head": self.head(), "datasets": datasets, "flows": self.flows()}

    def _declaration(self, name: str) -> dict[str, Any]:
        body = self._declared(name)
        declared = body if isinstance(body, DatasetDefinition) else DatasetDefinition()
        return {
            "declared_at": declared.declared_at,
            "format": body.format if isinstance(body, SinkDefinition) else "",
            "columns": columns_view(declared.schema_json or ""),
            "lineage": self._lineage(name),
            "rules": rules_view(declared, self._update.datasets.get(name)),
        }

    def _lineage(self, name: str) -> dict[str, Any] | None:
        names = [flow for flow, body in self._definitions().items() if body.target == name]
        flows = (self._update.flows[flow] for flow in names)
        return lineage_view(flow.lineage for flow in flows if flow.lineage is not None)

    def _definitions(self) -> dict[str, FlowDefinition]:
        return {
            name: flow.definition
            for name, flow in self._update.flows.items()
            if flow.definition is not None
        }

    def _flow(self, name: str) -> dict[str, Any]:
        flow = self._update.flows[name]
        body = flow.definition or FlowDefinition()
        return {
            "name": flow.name,
            "target": flow.target,
            "state": flow.state.value,
            "type": body.flow_type,
            "once": body.once,
            "comment": body.comment or "",
            "inputs": list(body.input_datasets),
            "external_inputs": list(body.external_inputs),
            "batches": flow.batches or 0,
            "batch_id": flow.batch_id,
            "rows": flow.rows,
            "message": flow.message,
            "technique": flow.technique,
            "changes": [(_millis(at), status.value) for at, status in flow.changes],
            "progress": self._progress.get(flow.name),
            "error": error_view(flow.last_error),
        }

    def _card(self, dataset: DatasetView) -> dict[str, Any]:
        known = [self._progress[name] for name in dataset.flows if name in self._progress]
        delays = [
            progress["watermark_delay_seconds"]
            for progress in known
            if progress["watermark_delay_seconds"] is not None
        ]
        # Separate measurements are newer than the backlog that the last batch reported.
        lag = known_sum(progress["waiting_rows"] for progress in known) if known else dataset.lag
        problem = next((progress["problem"] for progress in known if progress["problem"]), None)
        if dataset.state is not FlowStatus.RUNNING:
            problem = None
        message, since = problem or ("", "")
        rate, batch_seconds = dataset.rows_per_second, dataset.batch_seconds
        if batch_seconds is None and dataset.name in self._series:
            batch_seconds = self._series[dataset.name].last_seconds()
        return {
            "id": dataset.name,
            "name": dataset.display,
            "kind": dataset.kind,
            "state": NO_ANSWER if problem else dataset.state.value,
            "problem": {"message": message, "since": since} if problem else None,
            "rows": dataset.rows,
            "rows_per_second": round(rate, 1) if rate is not None else None,
            "batch_seconds": round(batch_seconds, 3) if batch_seconds is not None else None,
            "lag": None if problem else lag,
            "waiting_files": known_sum(progress["waiting_files"] for progress in known),
            "quarantined": dataset.quarantined,
            "dropped": dataset.discarded,
            "failed_checks": sum(rule.failed for rule in dataset.rules),
            "watermark_delay_seconds": max(delays, default=None),
            "table_version": self._update.datasets[dataset.name].table_version,
            "error": dataset.last_error.condition or dataset.last_error.class_name
            if dataset.last_error is not None
            else None,
        }


def _bare_card(name: str, display: str, kind: str) -> dict[str, Any]:
    """The card of a view or an external source, which have no row counts."""
    counts = dict.fromkeys(("rows", "quarantined", "dropped", "failed_checks"), 0)
    names = {"id": name, "name": display, "kind": kind, "state": ""}
    return {**names, **counts, **dict.fromkeys(_UNKNOWN)}


def _external(body: FlowDefinition) -> list[str]:
    """The external sources of a flow, as nodes of the graph."""
    return [f"source:{name}" for name in body.external_inputs]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return value if isinstance(value, bool | int) else str(value)


def _millis(moment: datetime | None) -> int | None:
    return millis(moment) if moment is not None else None
