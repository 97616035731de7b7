"""An engine that runs the script of a test in virtual time."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from made_events import details
from virtual_time import Sleeper, VirtualTime

from penstock._model.flow import OutputMode
from penstock._observe.bus import EventBus
from penstock._observe.events import Event
from penstock._plan.steps import (
    Plan,
    PrepareTable,
    RefreshView,
    ResetTable,
    RunOnceFlow,
    RunStep,
    StartFlow,
)
from penstock._runtime.ports import OnEnd, RunOutcome
from penstock._runtime.update import Update, UpdateResult
from penstock.errors import FlowError, PenstockError


def transient(flow: str = "f") -> FlowError:
    return FlowError("TEST_TRANSIENT", "the broker went away", flow=flow, retryable=True)


def fatal(flow: str = "f") -> FlowError:
    return FlowError("TEST_FATAL", "the schema changed", flow=flow, retryable=False)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a flow. `None` for a number of seconds means never."""

    seconds: float | None = 1.0
    error: BaseException | None = None
    start_seconds: float = 0.0
    start_error: BaseException | None = None
    ends_before_start_returns: bool = False
    stop_seconds: float | None = 0.5
    interrupt_seconds: float | None = 0.1
    changed: bool = True


FOREVER = Run(seconds=None)


def stream(
    name: str, *upstream: str, target: str | None = None, interval: float | None = None
) -> StartFlow:
    return StartFlow(
        flow=name,
        target=target or name,
        output_mode=OutputMode.APPEND,
        interval_seconds=interval,
        upstream=upstream,
    )


def view(name: str, *upstream: str, interval: float | None = None) -> RefreshView:
    return RefreshView(target=name, flow=name, interval_seconds=interval, upstream=upstream)


def once(name: str, *upstream: str, target: str | None = None) -> RunOnceFlow:
    return RunOnceFlow(flow=name, target=target or name, upstream=upstream)


class ScriptedFlow:
    def __init__(self, engine: "ScriptedEngine", name: str, run: Run, on_end: OnEnd) -> None:
        self._engine = engine
        self._name = name
        self._run = run
        self._on_end = on_end
        self._lock = threading.Lock()
        self._has_ended = False

    def end(self, error: BaseException | None) -> None:
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        self._engine.note("failed" if error else "ended", self._name)
        self._on_end(error)  # type: ignore[arg-type]

    def _end_in(self, seconds: float | None) -> None:
        if seconds is not None:
            time = self._engine.time
            time.at(time.monotonic() + seconds, lambda: self.end(None))

    def request_stop(self) -> None:
        self._engine.note("asked to stop", self._name)
        self._end_in(self._run.stop_seconds)

    def interrupt(self) -> None:
        self._engine.note("interrupted", self._name)
        self._end_in(self._run.interrupt_seconds)


class ScriptedEngine:
    """An engine whose flows run as their scripts specify.

    The last run of a script is repeated. A flow without a script runs for one second. `log` has
    tuples of (seconds, what, name); `peak` has the maximum number of concurrent streams and batch
    steps.
    """

    def __init__(
        self,
        time: VirtualTime,
        scripts: Mapping[str, Sequence[Run]] | None = None,
        setups: Mapping[str, Sequence[BaseException | None]] | None = None,
        setup_seconds: float = 0.0,
    ) -> None:
        self.time = time
        self._scripts = dict(scripts or {})
        self._setups = dict(setups or {})
        self._setup_seconds = setup_seconds
        self._starts: Counter[str] = Counter()
        self._sleepers: list[Sleeper] = []
        self._lock = threading.Lock()
        self.log: list[tuple[float, str, str]] = []
        self.active: dict[str, set[str]] = {"stream": set(), "batch": set()}
        self.peak = {"stream": 0, "batch": 0}
        self.setup_threads: set[str] = set()
        self.stopped_at_end: bool | None = None

    def note(self, what: str, name: str) -> None:
        with self._lock:
            self.log.append((self.time.monotonic(), what, name))
            if what in ("ended", "failed"):
                for names in self.active.values():
                    names.discard(name)

    def _begin(self, kind: str, name: str) -> Run:
        script = self._scripts.get(name) or [Run()]
        run = script[min(self._starts[name], len(script) - 1)]
        self._starts[name] += 1
        self.note("start", name)
        with self._lock:
            self.active[kind].add(name)
            self.peak[kind] = max(self.peak[kind], len(self.active[kind]))
        return run

    def times(self, what: str, name: str) -> list[float]:
        return [when for when, did, whom in self.log if (did, whom) == (what, name)]

    def _set_up(self, what: str, dataset: str) -> None:
        self.setup_threads.add(threading.current_thread().name)
        script = self._setups.get(dataset) or [None]
        error = script[min(self._starts[f"{what} {dataset}"], len(script) - 1)]
        self._starts[f"{what} {dataset}"] += 1
        self.note(what, dataset)
        if self._setup_seconds:
            self.time.sleep(self._setup_seconds)
        if error is not None:
            raise error

    def reset(self, step: ResetTable) -> None:
        self._set_up("reset", step.dataset)

    def prepare(self, step: PrepareTable) -> None:
        self._set_up("prepare", step.dataset)

    def start_flow(self, step: StartFlow, on_end: OnEnd) -> ScriptedFlow:
        run = self._begin("stream", step.flow)
        if run.start_seconds:
            self.time.sleep(run.start_seconds)
        if run.start_error is not None:
            self.note("failed", step.flow)
            raise run.start_error
        flow = ScriptedFlow(self, step.flow, run, on_end)
        if run.ends_before_start_returns:
            flow.end(run.error)
        elif run.seconds is not None:
            self.time.at(self.time.monotonic() + run.seconds, lambda: flow.end(run.error))
        return flow

    def run_once(self, step: RunOnceFlow) -> RunOutcome:
        return self._batch(step.flow)

    def refresh(self, step: RefreshView) -> RunOutcome:
        return self._batch(step.flow)

    def _batch(self, name: str) -> RunOutcome:
        run = self._begin("batch", name)
        sleeper = Sleeper()
        with self._lock:
            self._sleepers.append(sleeper)
        seconds = 1e9 if run.seconds is None else run.seconds
        if not self.time.sleep(seconds, sleeper):
            self.note("failed", name)
            raise fatal(name)  # a cancelled Spark job raises errors of various classes
        if run.error is not None:
            self.note("failed", name)
            raise run.error
        self.note("ended", name)
        return RunOutcome(changed=run.changed, reason="said so")

    def finish(self, *, is_stopped: bool) -> None:
        """Record how the update ended."""
        self.stopped_at_end = is_stopped

    def cancel(self) -> None:
        self.note("cancel", "")
        for sleeper in self._sleepers:
            self.time.cancel(sleeper)


class Harness:
    """A plan, its scripted engine and the resulting events."""

    def __init__(
        self,
        runs: Sequence[RunStep],
        scripts: Mapping[str, Sequence[Run]] | None = None,
        *,
        tables: Sequence[str] = (),
        resets: Sequence[str] = (),
        setups: Mapping[str, Sequence[BaseException | None]] | None = None,
        setup_seconds: float = 0.0,
        excluded: tuple[str, ...] = (),
        excluded_sinks: tuple[str, ...] = (),
        continuous: bool = False,
        stops: Sequence[float] = (),
        setup_retries: int | None = None,
        refused: Mapping[str, PenstockError] | None = None,
        **options: object,
    ) -> None:
        self.time = VirtualTime()
        self.engine = ScriptedEngine(self.time, scripts, setups, setup_seconds)
        self.events: list[Event] = []
        bus = EventBus()
        bus.subscribe(self.events.append)
        self.plan = Plan(
            resets=tuple(ResetTable(dataset=name, flows=(name,)) for name in resets),
            tables=tuple(PrepareTable(dataset=name) for name in tables),
            runs=tuple(runs),
            excluded=excluded,
            excluded_sinks=excluded_sinks,
            continuous=continuous,
            setup_retries=setup_retries,
            refused=refused or {},
        )
        self.update = Update(
            self.plan,
            self.engine,
            bus,
            pipeline_name="shop",
            update_id="u1",
            scheduler=self.time,
            jitter=lambda: 0.5,
            **options,  # type: ignore[arg-type]
        )
        for moment in stops:
            self.time.at(moment, self.update.request_stop)

    def run(self) -> UpdateResult:
        return self.update.run()

    def statuses(self, flow: str) -> list[str]:
        """The statuses of a flow, in order."""
        return [
            details(event)["status"]
            for event in self.events
            if event.event_type == "flow_progress" and event.origin.flow_name == flow
        ]

    def states(self) -> list[str]:
        """The states of the update, in order."""
        return [
            details(event)["state"]
            for event in self.events
            if event.event_type == "update_progress"
        ]

    def last(self, flow: str) -> Event:
        return [event for event in self.events if event.origin.flow_name == flow][-1]
