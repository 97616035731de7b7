"""Lag of running flows, measured on a separate thread: no batch waits for it."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from penstock._model.exception_text import first_line
from penstock._observe.codec import time_text
from penstock._observe.events import Event, EventOrigin, LagProgress, SourceProgress
from penstock._observe.lag import lag_summary
from penstock._tables.jvm import iterate
from penstock.sources.base import OpenedSource

_logger = logging.getLogger(__name__)
_PAUSE_SECONDS = 10.0
# Measuring takes about one twentieth of the time, and adds few events to the log.
_PAUSE_FACTOR = 20.0
_PAUSE_PER_PARTITION = 0.1
# On a loaded machine measuring takes long, but an unresponsive source must still be noticed.
_LONGEST_PAUSE_SECONDS = 30.0
_CLOSE_SECONDS = 8.0


def described(sources: Sequence[OpenedSource], text: str) -> str:
    """The description of a source in reports, from Spark's description."""
    for source in sources:
        text = source.description(text)
    return text


class FlowLag:
    """The sources of one running flow.

    `progressed` and `ended` are called on the listener's thread and do not block; `measure` is
    called on the probe's thread.
    """

    def __init__(
        self,
        origin: EventOrigin,
        sources: Sequence[OpenedSource],
        query: StreamingQuery,
        wake: Callable[[], None],
        problems: dict[str, tuple[str, str]],  # by source; kept when the flow is started again
    ) -> None:
        self._problems = problems
        self._origin = origin
        self._wake = wake
        self._sources = sources
        self._query: Any = query
        self._progress: Mapping[str, Any] | None = None
        self._last: Any = None
        self._due = float("-inf")
        self._has_ended = self._waits = False
        self.is_done = False
        """Whether it was measured after its end."""

    def progressed(self, progress: Mapping[str, Any]) -> None:
        self._progress = progress
        self._wake()

    def ended(self, *, waits: bool = False) -> None:
        """Mark the flow as ended: it is measured once more. With `waits`, it will be restarted."""
        self._waits = waits
        self._has_ended = True
        self._wake()

    def due(self, now: float) -> float | None:
        """Seconds until the next measurement; `None` before the first progress."""
        if self.is_done or (self._progress is None and not self._has_ended):
            return None
        return 0.0 if self._has_ended else max(0.0, self._due - now)

    def measure(self) -> list[Event]:
        """Events of a changed measurement, and of sources that stopped or started to respond."""
        ending, started = self._has_ended, time.monotonic()
        progress: Mapping[str, Any] = self._progress or {}
        sources: list[dict[str, Any]] = []
        try:
            for source in progress.get("sources") or ():
                sources.append(self._source(source))
        finally:
            spent = time.monotonic() - started
            parts = sum(len(lag.get("partitions", ())) for lag in sources)
            if any(lag.get("problem") for lag in sources):
                spent = 0.0  # spent waiting
            rest = min(_PAUSE_FACTOR * spent, _LONGEST_PAUSE_SECONDS)
            pause = max(_PAUSE_SECONDS, rest, _PAUSE_PER_PARTITION * parts)
            self._due = time.monotonic() + pause
            self.is_done = ending
            if ending:
                self._query = None  # it can be freed
        timestamp = time_text(datetime.now(UTC))
        stopped = ending and not self._waits
        changes = [] if stopped else self._changes(sources, timestamp)
        if not sources or sources == self._last:
            return changes
        self._last = sources
        origin = replace(self._origin, batch_id=progress.get("batchId"))
        measured = LagProgress(
            measured_at=timestamp, sources=tuple(sources), **lag_summary(sources)
        )
        return [*changes, Event(origin, measured)]

    def _changes(self, sources: Sequence[dict[str, Any]], timestamp: str) -> list[Event]:
        """Record since when each source has its problem; return an event for each change."""
        events = []
        flow = self._origin.flow_name
        for source in sources:
            name, problem = source["source"], source.get("problem")
            known = self._problems.get(name)
            if problem:
                since = known[1] if known is not None else timestamp
                self._problems[name] = problem, since
                source["problem_since"] = since
                if known is None:
                    text = f"flow {flow} is waiting for its source {name}: {problem}"
                    body = SourceProgress(
                        state="NO_ANSWER", source=name, problem=problem, since=since
                    )
                    events.append(Event(self._origin, body, text))
            elif known is not None:
                del self._problems[name]
                text = f"source {name} of flow {flow} responds again"
                body = SourceProgress(state="ANSWERS", source=name, since=timestamp)
                events.append(Event(self._origin, body, text))
        return events

    def _source(self, progress: Mapping[str, Any]) -> dict[str, Any]:
        name = str(progress.get("description", ""))

        def java_source() -> Any:
            sources = iterate(self._query._jsq.streamingQuery().sources())
            return next((java for java in sources if str(java.toString()) == name), None)

        bodies = (source.lag(progress, java_source) for source in self._sources)
        body = next((b for b in bodies if b is not None), {"kind": "other"})
        return {"source": described(self._sources, name), **body}


class LagProbe:
    """Measures all flows of an update, one after the other."""

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self._emit = emit
        self._flows: list[FlowLag] = []
        self._problems: dict[str, dict[str, tuple[str, str]]] = {}  # by flow
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def watch(
        self, origin: EventOrigin, sources: Sequence[OpenedSource], query: StreamingQuery
    ) -> FlowLag:
        problems = self._problems.setdefault(origin.flow_name, {})
        flow = FlowLag(origin, sources, query, self._wake, problems)
        with self._changed:
            self._flows.append(flow)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lag", daemon=True)
                self._thread.start()
        return flow

    def close(self) -> None:
        """Measure ended flows a last time, and stop the thread."""
        self._closing = True
        self._wake()
        if self._thread is not None:
            self._thread.join(timeout=_CLOSE_SECONDS)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        while (flow := self._next()) is not None:
            try:
                events = flow.measure()
            except Exception as error:  # must not end the lag of other flows
                _logger.debug("the lag of a flow is unknown: %s", first_line(error))
                continue
            for event in events:
                self._emit(event)

    def _next(self) -> FlowLag | None:
        """Wait for a flow that is due; `None` at the end."""
        with self._changed:
            while True:
                self._flows = [flow for flow in self._flows if not flow.is_done]
                now = time.monotonic()
                waits = [(due, flow) for flow in self._flows if (due := flow.due(now)) is not None]
                ready = [flow for due, flow in waits if due <= 0]
                if ready:
                    return ready[0]
                if self._closing:
                    return None
                self._changed.wait(min((due for due, _ in waits), default=None))
