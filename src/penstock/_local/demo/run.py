"""The demo: broker, generator, pipeline, account."""

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from penstock._local.broker import ensure_topic, start_broker, stop_broker
from penstock._local.demo.account import Account, take_account
from penstock._local.demo.conductor import Conductor, Stoppable
from penstock._local.demo.delta_log import read_rows, read_snapshot
from penstock._local.demo.kafka_log import Ranges, read_ranges
from penstock._local.demo.orders import OrderStream
from penstock._local.demo.places import PARTITIONS, PIPELINE, TOPIC, DemoPlaces
from penstock._local.demo.producer import OrderProducer
from penstock._model.pipeline import PipelineSettings
from penstock._observe.events import UpdateState
from penstock._runtime.lease import Lease
from penstock._runtime.update import UpdateResult

DEFAULT_RATE = 200.0
DEFAULT_RATE_ONCE = 2000.0
DEFAULT_EVENTS_ONCE = 5000
# Orders are kept for ever: an account over messages that the broker has deleted means nothing.
_BROKER_PROPERTIES = {"log.retention.ms": "-1"}


class RunPipeline(Protocol):
    """Runs one update of a pipeline to its end, shows it, and lets signals stop it.

    `on_running` is called once the update can be stopped; what it returns is to get the signals
    in place of the update.
    """

    def __call__(
        self,
        settings: PipelineSettings,
        *,
        continuous: bool,
        on_running: Callable[[Stoppable], Stoppable] | None = None,
    ) -> UpdateResult:
        """Run it."""


@dataclass(frozen=True, kw_only=True)
class DemoOutcome:
    account: Account
    broken_rules: dict[str, int]  # rows in quarantine per rule that they broke
    succeeded: bool  # balanced, no failed flow, and nothing pending unless cut short
    was_cut_short: bool  # a stop was requested more than once
    lines: tuple[str, ...]


def run_demo(
    *,
    directory: Path,
    run_pipeline: RunPipeline,
    events: int | None = None,
    rate: float | None = None,
    once: bool = False,
    seed: int = 0,
    say: Callable[[str], None] = lambda _line: None,
) -> DemoOutcome:
    """Send orders through the demo's pipeline and account for each of them.

    Resumes with the data of the folder, also after a kill. Without `events` it sends until a stop
    is requested (with `once`: a fixed number). `say` is called with lines before and after the
    update.
    """
    places = DemoPlaces(directory.absolute())
    with Lease.acquire(places.lease, holder={"pipeline": PIPELINE}):
        say(f"starting Kafka in {places.broker}")
        broker = start_broker(places.broker, properties=_BROKER_PROPERTIES)
        try:
            ensure_topic(broker.bootstrap_servers, TOPIC, PARTITIONS)
            settings = places.write_project(broker.bootstrap_servers)
            runner = _run_once if once else _run_continuously
            parts = _Parts(places, broker.bootstrap_servers, settings, run_pipeline, say)
            result, was_cut_short = runner(parts, events=events, rate=rate, seed=seed)
            account = take_account(places, parts.ranges())
        finally:
            stop_broker(places.broker)
    broken_rules = _broken_rules(places)
    return DemoOutcome(
        account=account,
        broken_rules=broken_rules,
        succeeded=account.balanced
        and result.state is not UpdateState.FAILED
        and (was_cut_short or account.pending == 0),
        was_cut_short=was_cut_short,
        lines=tuple(_lines(account, broken_rules, directory)),
    )


@dataclass(frozen=True)
class _Parts:
    places: DemoPlaces
    bootstrap_servers: str
    settings: PipelineSettings
    run_pipeline: RunPipeline
    say: Callable[[str], None]

    def ranges(self) -> Ranges:
        return read_ranges(self.bootstrap_servers, TOPIC)

    def producer(self, *, total: int | None, rate: float, seed: int) -> OrderProducer:
        run_id = f"{datetime.now(UTC):%Y%m%d%H%M%S}-{uuid.uuid4().hex[:6]}"
        stream = OrderStream(run_id=run_id, rate=rate, seed=seed)
        return OrderProducer(self.bootstrap_servers, TOPIC, stream, total=total)


def _run_once(
    parts: _Parts, *, events: int | None, rate: float | None, seed: int
) -> tuple[UpdateResult, bool]:
    total, per_second = events or DEFAULT_EVENTS_ONCE, rate or DEFAULT_RATE_ONCE
    parts.say(f"sending {total:,} orders, {per_second:,g} per second")
    producer = parts.producer(total=total, rate=per_second, seed=seed)
    producer.start()
    try:
        producer.join(total / per_second + 60.0)
    finally:
        producer.request_stop()
    return parts.run_pipeline(parts.settings, continuous=False), False


def _run_continuously(
    parts: _Parts, *, events: int | None, rate: float | None, seed: int
) -> tuple[UpdateResult, bool]:
    per_second = rate or DEFAULT_RATE
    count = "orders until Ctrl-C" if events is None else f"{events:,} orders"
    parts.say(f"sending {count}, {per_second:,g} per second, once the pipeline runs")
    producer = parts.producer(total=events, rate=per_second, seed=seed)
    conductor = Conductor(parts.places, parts.ranges, producer)
    try:
        result = parts.run_pipeline(parts.settings, continuous=True, on_running=conductor.begin)
    finally:
        conductor.end()
    parts.say(f"sent {producer.acknowledged:,} orders")
    return result, conductor.was_cut_short


def _broken_rules(places: DemoPlaces) -> dict[str, int]:
    snapshot = read_snapshot(places.quarantine("orders"))
    if snapshot is None:
        return {}
    column = read_rows(snapshot.files, ["_failed_rules"]).column("_failed_rules")
    return dict(Counter(rule for rules in column.to_pylist() for rule in rules or ()).most_common())


def _lines(account: Account, broken_rules: dict[str, int], directory: Path) -> list[str]:
    figures = (
        ("read", account.read, "the broker's end offsets"),
        ("= silver", account.silver, "rows of orders"),
        ("+ quarantined", account.quarantined, "rows of orders_quarantine"),
        ("+ duplicates", account.duplicates, "messages that repeat one of these orders"),
        ("+ pending", account.pending, "messages that the flows have not got to"),
    )
    lines = ["", "Account of the topic orders"]
    lines += [f"  {name:<14}{count:>12,}  {meaning}" for name, count, meaning in figures]
    lines += [f"  {finding}" for finding in account.findings()]
    lines.append("It balances." if account.balanced else "It does NOT balance.")
    if broken_rules:
        counts = ", ".join(f"{rule} {count:,}" for rule, count in broken_rules.items())
        lines.append(f"Rules broken in quarantine: {counts}")
    lines.append(
        f"Look around: cd {directory} && penstock preview revenue_5m"
        " (or: penstock quarantine show orders, penstock events)"
    )
    return lines
