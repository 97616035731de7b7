"""An update as plain lines, for pipes, files and CI; and as JSON lines, for programs."""

from dataclasses import dataclass
from datetime import datetime

from penstock._cli.terminal import Output
from penstock._cli.text import error_line, seconds
from penstock._observe.events import Event, FlowStatus, Level
from penstock._observe.log import encode, event_json
from penstock._observe.snapshot import short_names

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
    rows: int = 0
    quarantined: int = 0
    late: int = 0
    duplicates: int = 0
    deleted: int = 0
    lag: int | None = None

    def is_due(self, now: datetime) -> bool:
        """Whether it runs and its figures were not shown for a while."""
        if self.shown is None:
            return False
        return (now - self.shown).total_seconds() >= _PROGRESS_SECONDS


class LinePrinter:
    """Subscriber that prints one line when a flow starts, ends, fails or gets on.

    The progress of a flow is shown at most every ten seconds, counted by the events themselves.

    Args:
        output: Where the lines go.
        quiet: Errors only.
    """

    def __init__(self, output: Output, *, quiet: bool = False) -> None:
        self._output = output
        self._quiet = quiet
        self._flows: dict[str, _Flow] = {}
        self._kinds: dict[str, str] = {}
        self._short: dict[str, str] = {}
        self._notes: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Print what the event is worth."""
        body = event.details.get(event.event_type, {})
        match event.event_type:
            case "flow_progress":
                self._flow(event, body)
                return
            case "dataset_definition":
                kind = str(body.get("dataset_type", ""))
                self._kinds[event.origin.dataset_name] = kind.lower().replace("_", " ")
            case "planning_information":
                self._notes[event.origin.dataset_name] = str(body.get("reason", ""))
        is_told = event.event_type in ("update_progress", "source_progress")
        if is_told or event.level in (Level.WARN, Level.ERROR):
            self._general(event, body)

    def _general(self, event: Event, body: object) -> None:
        if event.level is Level.ERROR:
            # The end of the update is in the final line too.
            is_error = event.event_type != "update_progress"
            self._print(event, f"ERROR {event.message}", is_error=is_error)
        elif event.level is Level.WARN:
            self._print(event, f"WARN {event.message}")
        else:
            state = ""
            if event.event_type == "update_progress" and isinstance(body, dict):
                state = body.get("state", "")
            self._print(event, f"{state} {event.message}".rstrip())

    def _flow(self, event: Event, body: dict[str, object]) -> None:
        name = event.origin.flow_name
        if not name:
            return
        flow = self._flows.setdefault(name, _Flow(len(self._flows) + 1))
        status = FlowStatus(str(body["status"]))
        self._count(flow, body, replaces=self._is_view(event))
        if event.level is Level.WARN and status not in _WORDS:
            self._print(event, f"WARN {self._label(event)}: {event.message}")
            if event.error is not None:
                self._print(event, f"  {error_line(event.error)}")
            return
        head = self._position(flow)
        if status in _BEGUN and flow.started is None and "metrics" not in body:
            flow.started = flow.shown = event.timestamp
            self._print(event, f"{head} START {self._label(event)}")
        if status in _WORDS:
            self._ended(event, flow, status, head)
        elif "metrics" in body and flow.is_due(event.timestamp):
            flow.shown = event.timestamp
            lag = "" if flow.lag is None else f", lag {flow.lag:,}"
            self._print(event, f"{head} RUN {self._label(event)} {_figures(flow)}{lag}")

    def _ended(self, event: Event, flow: _Flow, status: FlowStatus, head: str) -> None:
        if status in (FlowStatus.COMPLETED, FlowStatus.IDLE) and flow.started is None:
            # One more look of a continuous update at its view, not an end.
            if status is FlowStatus.COMPLETED and flow.is_due(event.timestamp):
                flow.shown = event.timestamp
                self._print(event, f"{head} RUN {self._label(event)} {_figures(flow)}")
            return
        line = f"{head} {_WORDS[status]} {self._label(event)}"
        if status is FlowStatus.IDLE:
            line += " unchanged"
        elif status is FlowStatus.SKIPPED or (status is FlowStatus.FAILED and not event.error):
            line += f": {event.message}"
        elif status is not FlowStatus.FAILED:
            spent = event.timestamp - flow.started if flow.started else None
            line += f" {_figures(flow, seconds(spent.total_seconds()) if spent else '')}"
        note = self._notes.get(event.origin.dataset_name)
        if note and status in (FlowStatus.IDLE, FlowStatus.COMPLETED):
            line += f" ({note})"
        self._print(event, line, is_error=status is FlowStatus.FAILED)
        if event.error is not None:
            first, *rest = event.error.message.strip().splitlines() or [""]
            for text in (f"[{event.error.condition}] {first}", *rest):
                self._print(event, f"  {text}", is_error=status is FlowStatus.FAILED)
        flow.started = None

    def _is_view(self, event: Event) -> bool:
        return self._kinds.get(event.origin.dataset_name) == "materialized view"

    @staticmethod
    def _count(flow: _Flow, body: dict[str, object], *, replaces: bool) -> None:
        metrics = body.get("metrics")
        if isinstance(metrics, dict):
            if replaces:
                flow.rows = flow.quarantined = flow.late = 0
            flow.rows += metrics.get("num_output_rows", 0) + metrics.get("num_upserted_rows", 0)
            flow.deleted += metrics.get("num_deleted_rows", 0)
            flow.lag = metrics.get("backlog_records", flow.lag)
        quality = body.get("data_quality")
        if isinstance(quality, dict):
            flow.quarantined += quality.get("quarantined_records", 0)
            flow.late += quality.get("late_records", 0)
            flow.duplicates += quality.get("duplicate_records", 0)

    def _position(self, flow: _Flow) -> str:
        # All flows are queued before the first one starts, so the total is known by then.
        return f"{flow.number} of {len(self._flows)}"

    def _label(self, event: Event) -> str:
        """`streaming table silver`, and the flow where it is not called like its target."""
        origin = event.origin
        target = origin.dataset_name or origin.sink_name
        kind = "sink" if origin.sink_name else self._kinds.get(target, "")
        if len(self._short) != len(self._kinds):
            self._short = short_names(list(self._kinds))
        label = f"{kind} {self._short.get(target, target.rpartition('.')[2])}".strip()
        flow = origin.flow_name
        is_its_own = f".{target}".lower().endswith(f".{flow}".lower())
        return label if is_its_own else f"{label} (flow {flow.rpartition('.')[2]})"

    def _print(self, event: Event, text: str, *, is_error: bool = False) -> None:
        if self._quiet and not is_error:
            return
        self._output.line(f"{event.timestamp.astimezone():%H:%M:%S} | {text}")


def _figures(flow: _Flow, spent: str = "") -> str:
    text = f"{flow.rows:,} row{'' if flow.rows == 1 else 's'}"
    if spent:
        text += f" in {spent}"
    if flow.deleted:
        text += f", {flow.deleted:,} deleted"
    if flow.quarantined:
        text += f", {flow.quarantined:,} quarantined"
    if flow.late:
        text += f", {flow.late:,} late"
    if flow.duplicates:
        text += f", {flow.duplicates:,} duplicate{'' if flow.duplicates == 1 else 's'}"
    return text


class JsonPrinter:
    """Subscriber that prints every event as one JSON line, in the shape of the event log.

    Args:
        output: Where the lines go.
        instance: Id of this writer in the events' sequence.
        quiet: Errors and the states of the update only.
    """

    def __init__(self, output: Output, *, instance: str, quiet: bool = False) -> None:
        self._output = output
        self._instance = instance
        self._quiet = quiet
        self._seq_no = 0

    def __call__(self, event: Event) -> None:
        """Print the event."""
        seq_no, self._seq_no = self._seq_no, self._seq_no + 1
        if self._quiet and event.level is not Level.ERROR and event.event_type != "update_progress":
            return
        body = event_json(event, instance=self._instance, seq_no=seq_no)
        self._output.line(encode(body).decode("utf-8"), is_masked=True)
