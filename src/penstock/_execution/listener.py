"""The streaming listener of a session: routes progress to the watchers of its queries."""

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

if TYPE_CHECKING:
    from penstock._execution.running import RunningQuery


_MOST_EARLY = 20


class ProgressListener(StreamingQueryListener):
    """Routes Spark's streaming events to the watcher of the query's run.

    Events before the watcher is registered (Spark calls `onQueryStarted` while `start()` is still
    running) are kept and delivered when it registers.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._watchers: dict[str, RunningQuery] = {}
        self._early: dict[str, list[Callable[[RunningQuery], None]]] = {}
        self._java: Any = None

    def watch(self, run_id: str, watcher: "RunningQuery") -> None:
        """Register the watcher of a run and deliver its earlier events."""
        with self._lock:
            self._watchers[run_id] = watcher
            for deliver in self._early.pop(run_id, []):
                deliver(watcher)

    def watchers(self) -> "list[RunningQuery]":
        """The watchers of queries that have not ended."""
        with self._lock:
            return list(self._watchers.values())

    def _deliver(
        self, run_id: str, call: "Callable[[RunningQuery], None]", *, is_end: bool = False
    ) -> None:
        with self._lock:
            watcher = self._watchers.get(run_id)
            if watcher is None:
                early = self._early.setdefault(run_id, [])
                # More events belong to a query that is not ours.
                if is_end or len(early) < _MOST_EARLY:
                    early.append(call)
                return
        call(watcher)

    @property
    def _jlistener(self) -> Any:
        if self._java is None:
            jvm: Any = SparkContext._jvm
            self._java = jvm.PythonStreamingQueryListenerWrapper(_JavaListener(self))
        return self._java

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Ignored."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Deliver the progress of a micro-batch, or the idle report of every ten seconds."""
        self.progressed(event.progress.json)

    def progressed(self, text: str) -> None:
        """Deliver a progress report in Spark's JSON form."""
        progress = json.loads(text)
        self._deliver(progress["runId"], lambda watcher: watcher.progressed(progress))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        error, query_id = event.exception, str(event.id)
        run_id = str(event.runId)

        def end(watcher: "RunningQuery") -> None:
            with self._lock:
                del self._watchers[run_id]
            watcher.terminated(error, query_id)

        self._deliver(run_id, end, is_end=True)


WRITTEN = "penstock_written"
"""Name of the observed number of rows that a query passes to a sink that Spark writes itself."""


def written_records(progress: Mapping[str, Any]) -> int | None:
    """The number of rows written to a sink, if the query observes it or Spark counts it."""
    rows = (progress.get("observedMetrics") or {}).get(WRITTEN)
    if rows is not None:
        return int(rows[WRITTEN])
    counted = (progress.get("sink") or {}).get("numOutputRows", -1)
    return None if counted < 0 else int(counted)


def backlog_records(progress: Mapping[str, Any]) -> int | None:
    """Unread records of sources that report them (Kafka: latest minus processed offsets).

    Kinesis reports only the lag in milliseconds.
    """
    waiting: int | None = None
    for source in progress.get("sources", ()):
        latest, end = source.get("latestOffset"), source.get("endOffset")
        if not (isinstance(latest, dict) and isinstance(end, dict)) or "behind_millis" in latest:
            continue
        for topic, partitions in latest.items():
            if not isinstance(partitions, dict):
                continue
            done = end.get(topic) or {}
            if not all(isinstance(n, int) for n in (*partitions.values(), *done.values())):
                continue  # a source without numeric offsets
            behind = sum(max(0, offset - done.get(p, 0)) for p, offset in partitions.items())
            waiting = (waiting or 0) + behind
    return waiting


class _JavaListener(JStreamingQueryListener):
    """Receives a report as one string; PySpark fetches each field with a separate call."""

    def onQueryProgress(self, jevent: Any) -> None:
        listener: Any = self.pylistener
        listener.progressed(jevent.progress().json())
