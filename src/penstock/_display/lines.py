"""An update as plain lines, for pipes, files and CI; and as JSON lines, for programs."""

from dataclasses import dataclass
from datetime import datetime

from penstock._display.terminal import Output
from penstock._display.text import error_line, rows_text, seconds
from penstock._model.quantity import plural
from penstock._observe.codec import encode, event_json
from penstock._observe.events import (
    DatasetDefinition,
    Event,
    FlowProgress,
    FlowStatus,
    Level,
    PlanningInformation,
    SourceProgress,
    UpdateProgress,
)
from penstock._observe.snapshot import last_part, rows_discarded, short_names
from penstock._observe.state import ObservedFlow, ObservedUpdate

_PROGRESS_SECONDS = 10.0
_BEGUN = (FlowStatus.STARTING, FlowStatus.RUNNING)
_WORDS = {
    FlowStatus.COMPLETED: "OK",
    FlowStatus.IDLE: "OK",
    FlowStatus.FAILED: "ERROR",
    FlowStatus.SKIPPED: "SKIP",
    FlowStatus.STOPPED: "STOP",
}


@dataclass
class _Flow:
    number: int
    started: datetime | None = None
    shown: datetime | None = None

    def is_due(self, now: datetime) -> bool:
        if self.shown is None:
            return False
        return abs((now - self.shown).total_seconds()) >= _PROGRESS_SECONDS


class LinePrinter:
    """Subscriber that prints one line when a flow starts, ends, fails or makes progress.

    The progress of a flow is shown at most every ten seconds, by the timestamps of the events.
    `update` must be subscribed before; with `quiet` only errors are printed.
    """

    def __init__(self, output: Output, update: ObservedUpdate, *, quiet: bool = False) -> None:
        self._output = output
        self._update = update
        self._quiet = quiet
        self._flows: dict[str, _Flow] = {}
        self._declared = 0
        self._short: dict[str, str] = {}
        self._notes: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        match event.body:
            case FlowProgress() as body:
                self._flow(event, body)
            case PlanningInformation() as body:
                self._notes[event.origin.dataset_name] = body.reason
            case UpdateProgress() | SourceProgress():
                self._general(event)
            case _ if event.level in (Level.WARN, Level.ERROR):
                self._general(event)

    def _general(self, event: Event) -> None:
        if event.level is Level.ERROR:
            # The error of the update is also in the final line.
            is_error = not isinstance(event.body, UpdateProgress)
            self._print(event, f"ERROR {event.message}", is_error=is_error)
        elif event.level is Level.WARN:
            self._print(event, f"WARN {event.message}")
        else:
            state = event.body.state.value if isinstance(event.body, UpdateProgress) else ""
            self._print(event, f"{state} {event.message}".rstrip())

    def _flow(self, event: Event, body: FlowProgress) -> None:
        name = event.origin.flow_name
        if not name:
            return
        flow = self._flows.setdefault(name, _Flow(len(self._flows) + 1))
        status, figures = body.status, self._update.flow(name)
        if event.level is Level.WARN and status not in _WORDS:
            self._print(event, f"WARN {self._label(event)}: {event.message}")
            if event.error is not None:
                self._print(event, f"  {error_line(event.error)}")
            return
        # All flows are queued before the first one starts, so the total is known by then.
        head = f"{flow.number} of {len(self._flows)}"
        if status in _BEGUN and flow.started is None and body.metrics is None:
            flow.started = flow.shown = event.timestamp
            self._print(event, f"{head} START {self._label(event)}")
        if status in _WORDS:
            self._ended(event, flow, status, head)
        elif body.metrics is not None and flow.is_due(event.timestamp):
            flow.shown = event.timestamp
            lag = "" if figures.backlog is None else f", lag {figures.backlog:,}"
            self._print(event, f"{head} RUN {self._label(event)} {_figures(figures)}{lag}")

    def _ended(self, event: Event, flow: _Flow, status: FlowStatus, head: str) -> None:
        if status in (FlowStatus.COMPLETED, FlowStatus.IDLE) and flow.started is None:
            # A repeated refresh of a view in a continuous update, not the end of the flow.
            if status is FlowStatus.COMPLETED and flow.is_due(event.timestamp):
                flow.shown = event.timestamp
                text = _figures(self._update.flow(event.origin.flow_name))
                self._print(event, f"{head} RUN {self._label(event)} {text}")
            return
        line = f"{head} {_WORDS[status]} {self._label(event)}"
        if status is FlowStatus.IDLE:
            line += " unchanged"
        elif status is FlowStatus.SKIPPED or (status is FlowStatus.FAILED and not event.error):
            line += f": {event.message}"
        elif status is not FlowStatus.FAILED:
            spent = event.timestamp - flow.started if flow.started else None
            figures = self._update.flow(event.origin.flow_name)
            line += f" {_figures(figures, seconds(spent.total_seconds()) if spent else '')}"
        note = self._notes.get(event.origin.dataset_name)
        if note and status in (FlowStatus.IDLE, FlowStatus.COMPLETED):
            line += f" ({note})"
        self._print(event, line, is_error=status is FlowStatus.FAILED)
        if event.error is not None:
            first, *rest = event.error.message.strip().splitlines() or [""]
            for text in (f"[{event.error.condition}] {first}", *rest):
                self._print(event, f"  {text}", is_error=status is FlowStatus.FAILED)
        flow.started = None

    def _label(self, event: Event) -> str:
        """`streaming table silver`, with the flow if its name differs from the target's."""
        origin = event.origin
        target = origin.dataset_name or origin.sink_name
        datasets = self._update.datasets
        if self._declared != len(datasets):
            self._declared = len(datasets)
            self._short = short_names(
                [
                    dataset.name
                    for dataset in datasets.values()
                    if isinstance(dataset.definition, DatasetDefinition)
                ]
            )
        kind = "sink" if origin.sink_name else datasets[target].kind if target in datasets else ""
        label = f"{kind} {self._short.get(target, last_part(target))}".strip()
        flow = origin.flow_name
        is_its_own = f".{target}".lower().endswith(f".{flow}".lower())
        return label if is_its_own else f"{label} (flow {last_part(flow)})"

    def _print(self, event: Event, text: str, *, is_error: bool = False) -> None:
        if self._quiet and not is_error:
            return
        self._output.line(f"{event.timestamp.astimezone():%H:%M:%S} | {text}")


def _figures(flow: ObservedFlow, spent: str = "") -> str:
    text = rows_text(flow.rows)
    if spent:
        text += f" in {spent}"
    quarantined = flow.count("quarantined_records")
    for count, verb in (
        (flow.count("num_deleted_rows"), "deleted"),
        (quarantined, "quarantined"),
        (rows_discarded(flow.count("dropped_records"), quarantined), "dropped"),
        (flow.count("late_records"), "late"),
    ):
        if count:
            text += f", {count:,} {verb}"
    if duplicates := flow.count("duplicate_records"):
        text += f", {plural(duplicates, 'duplicate')}"
    return text


class JsonPrinter:
    """Prints every event as a line of the event log; `quiet`: errors and states only."""

    def __init__(self, output: Output, *, instance: str, quiet: bool = False) -> None:
        self._output = output
        self._instance = instance
        self._quiet = quiet
        self._seq_no = 0

    def __call__(self, event: Event) -> None:
        seq_no, self._seq_no = self._seq_no, self._seq_no + 1
        is_wanted = event.level is Level.ERROR or isinstance(event.body, UpdateProgress)
        if self._quiet and not is_wanted:
            return
        body = event_json(event, instance=self._instance, seq_no=seq_no)
        self._output.line(encode(body).decode("utf-8"), is_masked=True)
