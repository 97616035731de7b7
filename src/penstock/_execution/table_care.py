"""Maintenance of one table, and when it is due: compaction, Z-order, VACUUM."""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from penstock._model.pipeline import MaintenanceSettings
from penstock._model.quantity import plural
from penstock._observe.events import Event, EventOrigin, MaintenanceProgress
from penstock._plan.maintenance import TableMaintenance
from penstock._tables.delta_log import file_count
from penstock._tables.files import StorageFiles
from penstock._tables.write.maintain import TARGET_BYTES, Rewritten, TableFiles

_HOUR_MS = 3_600_000
# Compactions of a busy table are frequent: one event has the sums of several.
_REPORT_SECONDS = 60.0
# How often the intervals of Z-order and VACUUM are checked; a check takes several JVM calls.
_SCHEDULED_SECONDS = 60.0

OPTIMIZE, VACUUM = "OPTIMIZE", "VACUUM"


class MaintenanceTimes:
    """When tables were last maintained: a small file in the state of the pipeline."""

    def __init__(self, files: StorageFiles, state_dir: str) -> None:
        self._files = files
        self._path = f"{state_dir}/maintenance.json"
        self._times: dict[str, dict[str, int]] | None = None

    def last(self, table: str, operation: str) -> int:
        """The timestamp of the last maintenance in milliseconds; 0 means never."""
        return self._load().get(table, {}).get(operation, 0)

    def save(self, table: str, operation: str, now_ms: int) -> None:
        times = self._load()
        times.setdefault(table, {})[operation] = now_ms
        self._files.write(self._path, json.dumps(times, sort_keys=True))

    def _load(self) -> dict[str, dict[str, int]]:
        if self._times is None:
            try:
                self._times = json.loads(self._files.read(self._path) or "{}")
            except ValueError:  # truncated, on storage without atomic replacement
                self._times = {}
        return self._times


@dataclass
class _Sums:
    """Compactions that are not reported yet."""

    since: float = 0.0
    runs: int = 0
    metrics: Counter[str] = field(default_factory=Counter)
    version: int | None = None
    milliseconds: int = 0

    def add(self, done: Rewritten, milliseconds: int) -> None:
        self.since = self.since if self.runs else time.monotonic()
        self.runs += 1
        self.milliseconds += milliseconds
        self.version = done.version
        self.metrics.update(done.metrics)


class TableCare:
    """Maintains one table: the target of flows, or its quarantine.

    `policy` is called with the properties of the table. `turn` excludes batches of the flows.
    `vacuum_problem` returns why files that VACUUM would delete are still needed.
    """

    def __init__(
        self,
        files: TableFiles,
        name: str,
        origin: EventOrigin,
        *,
        settings: MaintenanceSettings,
        times: MaintenanceTimes,
        policy: Callable[[Mapping[str, str]], TableMaintenance],
        turn: AbstractContextManager[Any],
        vacuum_problem: Callable[[int], str | None],
    ) -> None:
        self.name = name
        self._files = files
        self._origin = origin
        self._settings = settings
        self._times = times
        self._policy = policy
        self._turn = turn
        self._vacuum_problem = vacuum_problem
        self._version = -1
        self._next_scheduled = 0.0
        self._least_files = 0
        """Least number of files since the last compaction; the next one requires more files."""
        self._sums = _Sums()
        self._skipped = ""

    # -- while flows run -----------------------------------------------------------------------

    def look(self) -> list[Event]:
        """Run the maintenance that is due, and return its events."""
        snapshot = self._files.known()
        version = int(snapshot.version())
        if version < 0:
            return []
        waited = time.monotonic() - self._sums.since
        events = self.pending_events() if waited >= _REPORT_SECONDS else []
        if version != self._version and self._has_grown(snapshot):
            policy = self._policy(_properties(snapshot))
            if policy.compacts:
                self._compact(policy, self._settings.min_small_files)
        self._version = version
        if time.monotonic() >= self._next_scheduled:
            self._next_scheduled = time.monotonic() + _SCHEDULED_SECONDS
            events += self._scheduled(snapshot)
        return events

    def _scheduled(self, snapshot: Any) -> list[Event]:
        """Run Z-order and VACUUM if their intervals have passed, and return their events."""
        policy, now = self._policy(_properties(snapshot)), int(time.time() * 1000)
        events: list[Event] = []
        hours = self._settings.optimize_interval_hours
        if policy.z_order and self._is_due(OPTIMIZE, hours, now, snapshot):
            events += self._z_order(policy, now)
        every = self._settings.vacuum_interval_hours
        if policy.vacuums and every is not None and self._is_due(VACUUM, every, now, snapshot):
            events += self._vacuum(snapshot, now)
        return events

    def compact_at_end(self) -> list[Event]:
        """Compact a table whose properties request it."""
        snapshot = self._files.known()
        if int(snapshot.version()) < 0:
            return []
        policy = self._policy(_properties(snapshot))
        if policy.compacts and policy.compacts_at_end and self._has_grown(snapshot):
            self._compact(policy, self._settings.min_small_files)
        return []

    def pending_events(self) -> list[Event]:
        """The event about compactions that are not reported yet."""
        sums, self._sums = self._sums, _Sums()
        if not sums.runs:
            return []
        text = f"{self.name}: compacted {plural(sums.metrics['files_removed'], 'file')} into "
        text += f"{sums.metrics['files_added']:,}"
        metrics = {**sums.metrics, "runs": sums.runs, "duration_ms": sums.milliseconds}
        return [self._event(OPTIMIZE, "COMPLETED", text, metrics=metrics, version=sums.version)]

    def failed(self, problem: str) -> Event:
        text = f"maintenance of {self.name} failed: {problem}"
        return self._event("MAINTENANCE", "FAILED", text, reason=problem)

    # -- on request ----------------------------------------------------------------------------

    def run(self, *, vacuum: bool) -> list[Event]:
        """Run compaction, Z-order and VACUUM now, regardless of their intervals."""
        snapshot = self._files.newest()
        if int(snapshot.version()) < 0:
            return []
        policy, now = self._policy(_properties(snapshot)), int(time.time() * 1000)
        if policy.compacts:
            self._compact(policy, 1, below=TARGET_BYTES)
        events = self.pending_events()
        if policy.z_order:
            events += self._z_order(policy, now)
        if vacuum and policy.vacuums:
            events += self._vacuum(self._files.newest(), now)
        return events

    # -- parts ---------------------------------------------------------------------------------

    def _has_grown(self, snapshot: Any) -> bool:
        known = snapshot.checksumOpt().isDefined()
        files = file_count(snapshot) if known else self._least_files + int(snapshot.version())
        self._least_files = min(self._least_files, files)
        return files - self._least_files >= self._settings.min_small_files

    def _compact(self, policy: TableMaintenance, at_least: int, below: int | None = None) -> None:
        with self._turn if policy.alone else contextlib.nullcontext():
            started = time.monotonic()
            done = self._files.compact(at_least=at_least, below=below)
        if done is not None:
            self._sums.add(done, _milliseconds(started))
        self._least_files = file_count(self._files.known())

    def _z_order(self, policy: TableMaintenance, now: int) -> list[Event]:
        with self._turn if policy.alone else contextlib.nullcontext():
            started = time.monotonic()
            done = self._files.z_order(policy.z_order)
        self._times.save(self.name, OPTIMIZE, now)
        if done is None:
            return []
        columns = ", ".join(policy.z_order)
        removed, added = done.metrics["files_removed"], done.metrics["files_added"]
        text = f"{self.name}: ordered {plural(removed, 'file')} by {columns} into {added:,}"
        metrics = {**done.metrics, "duration_ms": _milliseconds(started)}
        return [self._event(OPTIMIZE, "COMPLETED", text, metrics=metrics, version=done.version)]

    def _vacuum(self, snapshot: Any, now: int) -> list[Event]:
        retention = self._files.retention_ms()
        if now - _created(snapshot) < retention:
            return []  # no file can be old enough
        problem = self._vacuum_problem(now - retention)
        if problem is not None:
            if problem == self._skipped:
                return []
            self._skipped = problem
            text = f"no VACUUM of {self.name}: {problem}"
            return [self._event(VACUUM, "SKIPPED", text, reason=problem)]
        started = time.monotonic()
        self._files.vacuum()
        self._skipped = ""
        self._times.save(self.name, VACUUM, now)
        text = f"{self.name}: VACUUM, files of the last {retention // _HOUR_MS:,} hours were kept"
        metrics = {"duration_ms": _milliseconds(started), "retention_hours": retention // _HOUR_MS}
        return [self._event(VACUUM, "COMPLETED", text, metrics=metrics)]

    def _is_due(self, operation: str, hours: float, now: int, snapshot: Any) -> bool:
        last = max(self._times.last(self.name, operation), _created(snapshot))
        return now - last >= hours * _HOUR_MS

    def _event(
        self,
        operation: str,
        status: str,
        text: str,
        *,
        metrics: Mapping[str, int] | None = None,
        version: int | None = None,
        reason: str | None = None,
    ) -> Event:
        body = MaintenanceProgress(
            operation=operation,
            status=status,
            table=self.name,
            table_version=version,
            reason=reason,
            metrics=dict(metrics or {}),
        )
        return Event(self._origin, body, text)


def _properties(snapshot: Any) -> dict[str, str]:
    content = json.loads(snapshot.metadata().json())["metaData"]
    return dict(content.get("configuration") or {})


def _created(snapshot: Any) -> int:
    created = snapshot.metadata().createdTime()
    return int(created.get()) if created.isDefined() else 0


def _milliseconds(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
