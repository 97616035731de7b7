"""Executors of a cluster: waits for them, reports changes, and sends Penstock's package."""

import contextlib
import re
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock._model.exception_text import first_line
from penstock._observe.events import ClusterResources, Event, EventOrigin
from penstock._observe.masking import shown
from penstock._spark.session_defaults import available_cores, is_local, parallelism
from penstock.errors import SetupError

_POLL_SECONDS = 0.1
_STABLE_SECONDS = 1.0
_WATCH_SECONDS = 1.0
_ON_PURPOSE = re.compile(r"killed by driver|decommission", re.IGNORECASE)
_WAIT = "spark.scheduler.maxRegisteredResourcesWaitingTime"


@contextlib.contextmanager
def starting_executors(spark: SparkSession) -> Iterator[Callable[[], None]]:
    """Wait for the executors of a cluster on a separate thread, while the pipeline is analysed.

    The yielded function returns when they have registered and the session is sized by their cores.
    It waits for the first executor up to `spark.scheduler.maxRegisteredResourcesWaitingTime`
    (30 s), and then raises `NO_EXECUTORS`; so does the block, if a job in it would wait forever.
    There is no wait in a borrowed session, nor with dynamic allocation, which requests executors
    only for waiting tasks.
    """
    context: Any = spark.sparkContext
    is_borrowed = getattr(context._gateway, "spark_log", None) is None
    has_all = is_borrowed or is_local(context.master)
    dynamic = "spark.dynamicAllocation.enabled"
    if has_all or context.getConf().get(dynamic, "false").lower() == "true":
        yield lambda: None
        return
    failures: list[SetupError] = []
    over = threading.Event()

    def wait() -> None:
        with contextlib.suppress(Py4JError, ConnectionError):  # the JVM has ended, or is ending
            try:
                _wait_for_executors(spark, over)
            except SetupError as error:
                failures.append(error)
                context._jsc.sc().stop()  # ends jobs that wait for executors

    def ready() -> None:
        thread.join()
        if failures:
            raise failures[0]

    thread = threading.Thread(target=wait, name="executors", daemon=True)
    thread.start()
    try:
        yield ready
    except Exception:
        if failures:
            raise failures[0] from None
        raise
    finally:
        over.set()
        thread.join(_WATCH_SECONDS)


def _wait_for_executors(spark: SparkSession, over: threading.Event) -> None:
    context: Any = spark.sparkContext
    conf = context.getConf()
    seconds = context._jsc.sc().conf().getTimeAsMs(_WAIT, "30s") / 1000
    count, since = 0, time.monotonic()
    deadline = since + seconds
    while not count or time.monotonic() < min(since + _STABLE_SECONDS, deadline):
        registered = sum(1 for _ in _executors(spark))
        if registered != count:
            count, since = registered, time.monotonic()
        if not count and time.monotonic() > deadline:
            raise SetupError(
                "NO_EXECUTORS",
                f"no executor of {context.master} registered within {seconds:g} s",
                hint="check that the cluster has free cores and memory for spark.executor.cores "
                f"and spark.executor.memory; if it only takes longer, raise {_WAIT}",
            )
        if over.wait(_POLL_SECONDS):
            return
    if available_cores(context.master, dict(conf.getAll())) is None:
        for key, value in parallelism(context.defaultParallelism).items():
            if not conf.contains(key):
                spark.conf.set(key, value)


@contextlib.contextmanager
def executor_watch(
    spark: SparkSession, origin: EventOrigin, emit: Callable[[Event], None]
) -> Iterator[None]:
    """Emit an event on a separate thread when executors of a cluster are added or removed."""
    if is_local(str(spark.sparkContext.master)):
        yield
        return
    over = threading.Event()

    def watch() -> None:
        known: dict[str, _Executor] = {}
        while not over.is_set():
            try:
                now = {executor.id: executor for executor in _executors(spark)}
            except (Py4JError, ConnectionError):
                return  # the JVM has ended, or is ending
            if change := _change(known, now):
                emit(Event(origin, change, _message(change, now)))
            known = now
            over.wait(_WATCH_SECONDS)

    thread = threading.Thread(target=watch, name="executor watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_WATCH_SECONDS)


@dataclass(frozen=True, kw_only=True)
class _Executor:
    id: str
    is_active: bool
    cores: int
    reason: str


def _executors(spark: SparkSession) -> Iterator[_Executor]:
    """All executors of the session, including ended ones, without the driver."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext._jsc.sc()
    listed = jvm.scala.jdk.javaapi.CollectionConverters.asJava(
        context.statusStore().executorList(False)
    )
    for item in listed:
        if item.id() != "driver":
            reason = item.removeReason()
            yield _Executor(
                id=item.id(),
                is_active=item.isActive(),
                cores=item.totalCores(),
                reason=reason.get() if reason.isDefined() else "",
            )


def _change(
    known: Mapping[str, _Executor], now: Mapping[str, _Executor]
) -> ClusterResources | None:
    active = [item for item in now.values() if item.is_active]
    ended = [
        item
        for item in now.values()
        if not item.is_active and (item.id not in known or known[item.id].is_active)
    ]
    change = ClusterResources(
        num_executors=len(active),
        num_task_slots=sum(item.cores for item in active),
        added=tuple(item.id for item in now.values() if item.id not in known),
        removed=tuple(item.id for item in ended if _ON_PURPOSE.search(item.reason)),
        lost=tuple(item.id for item in ended if not _ON_PURPOSE.search(item.reason)),
    )
    return change if change.added or ended else None


def _message(change: ClusterResources, executors: Mapping[str, _Executor]) -> str:
    changes = {"added": change.added, "removed": change.removed, "lost": change.lost}
    parts = [f"{word} executor {', '.join(ids)}" for word, ids in changes.items() if ids]
    if change.lost:
        parts[-1] += f" ({shown(first_line(executors[change.lost[0]].reason))})"
    left = f"{change.num_executors} with {change.num_task_slots} task slots"
    return f"{'; '.join(parts)}; executors now: {left}"


def ship_package(spark: SparkSession) -> None:
    """Send Penstock's package to the executors of a cluster.

    Functions of the project are pickled by value. Those of Penstock are imported by the executors'
    Python, in which Penstock may not be installed, or have another version than in the driver.
    """
    package = Path(__file__).parents[1]
    context: Any = spark.sparkContext
    archive = Path(context._temp_dir) / "penstock.zip"  # also read by executors that start later
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as content:
        for file in package.rglob("*.py"):
            content.write(file, file.relative_to(package.parent))
    before = list(sys.path)
    context.addPyFile(str(archive))
    sys.path[:] = before  # the driver has its own
