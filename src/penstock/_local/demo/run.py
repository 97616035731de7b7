"""The demo: broker, generator, pipeline, account."""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from penstock._local.broker import ensure_topic, start_broker, stop_broker
from penstock._local.cluster import start_cluster, stop_cluster
from penstock._local.demo.account import Account, take_account
from penstock._local.demo.folders import PARTITIONS, PIPELINE, TOPIC, DemoFolders
from penstock._local.demo.kafka_log import Ranges, read_ranges
from penstock._local.demo.orders import OrderStream
from penstock._local.demo.producer import OrderProducer
from penstock._local.demo.tables import opened, read_rows
from penstock._observe.events import UpdateState
from penstock._runtime.lease import Lease
from penstock._runtime.update import UpdateResult
from penstock.errors import SetupError

DEFAULT_RATE = 200.0
DEFAULT_RATE_ONCE = 2000.0
DEFAULT_EVENTS_ONCE = 5000
STALL_SECONDS = 120.0
_POLL_SECONDS = 0.5
_WORKERS = 2


class Stoppable(Protocol):
    def request_stop(self) -> None:
        """First call: end after the batches in flight. Second call: interrupt. Signal-safe."""


class Conductor:
    """Starts the generator when the update runs, and ends the update when all is processed.

    Receives signals instead of the update: the first request stops the generator and drains what
    was sent, the second ends the update after the batches in flight, the third interrupts them. The
    update also ends if no flow commits for `stall_seconds`.
    """

    def __init__(
        self,
        folders: DemoFolders,
        read_ranges: Callable[[], Ranges],
        producer: OrderProducer,
        *,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._folders = folders
        self._read_ranges = read_ranges
        self._producer = producer
        self._stall_seconds = stall_seconds
        self._update: Stoppable | None = None
        self._requests = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-demo", daemon=True)

    @property
    def was_cut_short(self) -> bool:
        return self._requests > 1

    def begin(self, update: Stoppable) -> Stoppable:
        """Start sending and watching. Called again for an update that follows a failed JVM.

        Returns what receives signals instead of the update.
        """
        self._update = update
        if self._thread.ident is None:
            self._producer.start()
            self._thread.start()
        elif not self._thread.is_alive():  # it asked the update before to stop, whose JVM died
            update.request_stop()
        return self

    def request_stop(self) -> None:
        self._requests += 1
        if self._requests == 1:
            self._producer.request_stop()
        elif self._update is not None:
            self._update.request_stop()

    def end(self, timeout_seconds: float = 60.0) -> None:
        self._over.set()
        self._producer.request_stop()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
            self._producer.join(timeout_seconds)

    def _watch(self) -> None:
        before: object = None
        moved_at = time.monotonic()
        while not self._over.wait(_POLL_SECONDS):
            progress = self._folders.progress()
            now = time.monotonic()
            if progress != before or not self._producer.finished:
                before, moved_at = progress, now
                if not self._producer.finished:
                    continue
            if self._is_done() or now - moved_at > self._stall_seconds:
                break
        if self._update is not None and not self._over.is_set():
            self._update.request_stop()

    def _is_done(self) -> bool:
        try:
            return self._folders.is_caught_up(self._read_ranges())
        except SetupError:
            return False  # the broker is gone; if it stays so, no flow commits anything either


@dataclass(frozen=True, kw_only=True)
class DemoOutcome:
    succeeded: bool  # balanced, no failed flow, and nothing pending unless cut short
    was_cut_short: bool  # a stop was requested more than once
    lines: tuple[str, ...]


def run_demo(
    *,
    directory: Path,
    run_pipeline: Callable[..., UpdateResult],
    events: int | None = None,
    rate: float | None = None,
    once: bool = False,
    on_cluster: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> DemoOutcome:
    """Send orders through the demo's pipeline and account for each of them.

    Resumes with the data of the folder, also after a kill. Without `events` it sends until a stop
    is requested (with `once`: a fixed number). `on_cluster` runs it on a standalone cluster of two
    workers instead of one JVM. `say` is called with lines before and after the update.

    `run_pipeline` runs one update to its end: it takes the settings, `continuous`, and optionally
    `on_running`, which is called once the update can be stopped, and returns what receives signals
    instead of the update.
    """
    folders = DemoFolders(directory.absolute())
    with Lease.acquire(folders.lease, holder={"pipeline": PIPELINE}):
        say(f"starting Kafka in {folders.broker}")
        servers = start_broker(folders.broker).bootstrap_servers
        try:
            ensure_topic(servers, TOPIC, PARTITIONS)
            settings = folders.write_project(servers)
            if on_cluster:
                say(f"starting a Spark cluster in {folders.cluster}")
                cluster = start_cluster(folders.cluster, workers=_WORKERS)
                # Spark waits for the executors of all workers, which may start one by one.
                wait = {
                    "spark.cores.max": str(_WORKERS),
                    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                }
                configuration = {**settings.configuration, **wait}
                settings = replace(settings, master=cluster.master, configuration=configuration)
            if once:
                total, per_second = events or DEFAULT_EVENTS_ONCE, rate or DEFAULT_RATE_ONCE
                say(f"sending {total:,} orders, {per_second:,g} per second")
                producer = _producer(servers, total, per_second)
                producer.start()
                try:
                    producer.join()
                finally:
                    producer.request_stop()
                result, was_cut_short = run_pipeline(settings, continuous=False), False
            else:
                per_second = rate or DEFAULT_RATE
                count = "orders until Ctrl-C" if events is None else f"{events:,} orders"
                say(f"sending {count}, {per_second:,g} per second, once the pipeline runs")
                producer = _producer(servers, events, per_second)
                conductor = Conductor(folders, lambda: read_ranges(servers, TOPIC), producer)
                try:
                    result = run_pipeline(settings, continuous=True, on_running=conductor.begin)
                finally:
                    conductor.end()
                say(f"sent {producer.acknowledged:,} orders")
                was_cut_short = conductor.was_cut_short
            account = take_account(folders, read_ranges(servers, TOPIC))
        finally:
            stop_cluster(folders.cluster)
            stop_broker(folders.broker)
    return DemoOutcome(
        succeeded=account.balanced
        and result.state is not UpdateState.FAILED
        and (was_cut_short or account.pending == 0),
        was_cut_short=was_cut_short,
        lines=tuple(_lines(account, _broken_rules(folders), directory)),
    )


def _producer(servers: str, total: int | None, rate: float) -> OrderProducer:
    run_id = f"{datetime.now(UTC):%Y%m%d%H%M%S}-{uuid.uuid4().hex[:6]}"
    return OrderProducer(servers, TOPIC, OrderStream(run_id=run_id, rate=rate), total=total)


def _broken_rules(folders: DemoFolders) -> dict[str, int]:
    rows = read_rows(opened(folders.quarantine("orders")), ["_failed_rules"])
    column = rows.column("_failed_rules")
    return dict(Counter(rule for rules in column.to_pylist() for rule in rules or ()).most_common())


def _lines(account: Account, broken_rules: dict[str, int], directory: Path) -> list[str]:
    figures = (
        ("read", account.read, "the broker's end offsets"),
        ("= silver", account.silver, "rows of orders"),
        ("+ quarantined", account.quarantined, "rows of orders_quarantine"),
        ("+ duplicates", account.duplicates, "duplicates of these orders"),
        ("+ pending", account.pending, "messages that the flows have not read yet"),
    )
    lines = ["", "Account of the topic orders"]
    lines += [f"  {name:<14}{count:>12,}  {meaning}" for name, count, meaning in figures]
    lines += [f"  {finding}" for finding in account.findings()]
    lines.append("It balances." if account.balanced else "It does NOT balance.")
    if broken_rules:
        counts = ", ".join(f"{rule} {count:,}" for rule, count in broken_rules.items())
        lines.append(f"Violated rules in quarantine: {counts}")
    lines.append(
        f"Look around: cd {directory} && penstock preview revenue_5m"
        " (or: penstock quarantine show orders, penstock events)"
    )
    return lines
