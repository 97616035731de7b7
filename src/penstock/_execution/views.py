"""Refreshes materialized views, and applies snapshots."""

import time
from collections.abc import Mapping
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from penstock._execution.flow_query import FlowQueries
from penstock._execution.flow_state import ViewState
from penstock._execution.incremental import (
    Attempt,
    IncrementalViews,
    NotIncrementalError,
    SourcesUnchangedError,
    check_policy,
    reasons,
)
from penstock._execution.snapshots import SnapshotProgress
from penstock._execution.writers import Commit
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._graph.replacing import replaces_rows
from penstock._model.quantity import plural
from penstock._observe.events import Event, EventOrigin, PlanningInformation
from penstock._plan.steps import RefreshView
from penstock._runtime.ports import RunOutcome
from penstock._spark import plans
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.read.log_scan import keeps_rows
from penstock._tables.write.fenced import last_number
from penstock.quality.rules import condition_column
from penstock.sources.base import OpenedSource

_QUERY_CHANGED = "the query changed"
_SOURCE_CHANGED = "a source changed"
# Each complete refresh reduces the recorded duration of the incremental one, so that it is tried
# again: if it took 1.3 times as long as a complete one, after six of them.
_AGING = 0.95
# Prefixes of the settings that are not the pipeline's own.
_KNOWN_KEYS = ("spark.", "pipelines.", "penstock.")


class ViewRefresh:
    """Refreshes tables that are defined by batch queries."""

    def __init__(self, queries: FlowQueries) -> None:
        self._queries = queries
        self._delta = DeltaJvm(queries.spark)
        self._incremental = IncrementalViews(queries)
        # Flows without a change, reported once: a continuous update checks every few seconds.
        self._unchanged: set[str] = set()

    def refresh(self, step: RefreshView) -> RunOutcome:
        node = self._queries.graph.flows[step.flow]
        dataset = self._queries.graph.datasets[step.target]
        sources: list[OpenedSource] = []
        with self._queries.translated(node, sources):
            if node.flow.snapshot is not None:
                return self._follow_snapshots(step, node, dataset)
            df, opened = self._queries.evaluate(node)
            sources += opened
            node = self._queries.adopt(node, df)
            df = self._delta.pinned(self._queries.confs.bound(df, node))
            # A concurrent compaction would make one of the two fail.
            with self._queries.tables.turns[dataset.key]:
                return self._refresh_view(step, node, dataset, df)

    def _refresh_view(
        self, step: RefreshView, node: FlowNode, dataset: DatasetNode, df: DataFrame
    ) -> RunOutcome:
        started = time.monotonic()
        where = None
        sources = plans.batch_sources(df)
        if replaces_rows(node.flow):
            window = self._queries.writers.window(dataset, node, df)
            df, where = window.df, window.where
        fingerprint = self._fingerprint(df, sources, dataset, node)
        before = self._queries.state.view(step.target)
        version = self._queries.tables.version(dataset)
        reason = self._why_recompute(step, before, sources, fingerprint, version)
        if where is not None and reason == _QUERY_CHANGED:
            reason = "its window moved, or the query changed"
        origin = self._queries.origin(node)
        declared = self._queries.declaration(node)
        result: Commit | None = None
        attempt, attempt_seconds = Attempt(), 0.0
        if reason == _SOURCE_CHANGED and where is None:
            assert before is not None and version is not None
            try:
                with reasons(dataset):
                    update = self._incremental.plan(node, dataset, df, before, version, attempt)
                self._queries.context.emit(_refresh(origin, update.technique, update.reason))
                with reasons(dataset):
                    result, reason = update.commit(), update.reason
            except SourcesUnchangedError:
                reason = None
            except NotIncrementalError as error:
                reason = f"{_SOURCE_CHANGED}; {error}"
            attempt_seconds = time.monotonic() - started
        if reason is None:
            assert before is not None
            state = replace(before, sources=sources.versions, deployed=declared)
            if state != before:
                self._queries.state.save_view(step.target, state)
            if step.flow not in self._unchanged:
                self._unchanged.add(step.flow)
                self._queries.context.emit(_refresh(origin, "NO_OP", "no source changed"))
            return RunOutcome(changed=False, reason="no source changed")
        self._unchanged.discard(step.flow)
        is_incremental = result is not None
        if result is None:
            self._queries.context.emit(_refresh(origin, "COMPLETE_RECOMPUTE", reason))
            result = self._queries.writers.replace(dataset, node, df, fingerprint, where=where)
        spent = time.monotonic() - started
        rows: int | None = result.result.rows_written
        full_seconds: float | None = spent - attempt_seconds
        if is_incremental and before is not None:
            rows, full_seconds = before.rows, before.full_seconds
        seconds = share = None
        if attempt.share is not None:
            seconds, share = spent, attempt.share
        elif before is not None and before.fingerprint == fingerprint:
            seconds, share = before.incremental_seconds, before.incremental_share
            if seconds is not None and not is_incremental:
                seconds *= _AGING
        known = result.result.version
        state = ViewState(
            fingerprint=fingerprint,
            sources=sources.versions,
            table_ids={**sources.table_ids, **self._own_id(dataset)},
            # Without a commit, the version at the start: another writer may have changed the table.
            table_version=version if known is None else known,
            quarantine_version=self._incremental.quarantine_version(dataset),
            rows=rows,
            full_seconds=full_seconds,
            incremental_seconds=seconds,
            incremental_share=share,
            deployed=declared,
        )
        self._queries.state.save_view(step.target, state)
        self._queries.state.forget_declaration(step.flow)
        duration = round(spent * 1000)
        self._queries.context.emit(result.event(origin, reason, duration_ms=duration))
        return RunOutcome(changed=True, reason=reason)

    def _follow_snapshots(
        self, step: RefreshView, node: FlowNode, dataset: DatasetNode
    ) -> RunOutcome:
        """Apply the snapshots that are newer than the last one.

        The version of a snapshot is recorded before it is applied; after a kill the number of the
        last commit shows whether it was applied.
        """
        state = self._queries.state.flow(step.flow) or self._queries.state.new_flow(step.flow)
        if node.flow.once and state.once_done:
            return RunOutcome(changed=False, reason="it already ran; a full refresh repeats it")
        state = replace(state, target_id=self._queries.tables.check_ownership(node, state))
        identity = self._queries.tables.app_id(step.flow, state.epoch)
        last = last_number(self._delta, self._queries.tables.paths[dataset.key], identity)
        progress = SnapshotProgress(
            node.flow, self._queries.evaluate_flow, last, state, self._queries.state.save_flow
        )
        applied, latest = 0, self._queries.state.view(step.target)
        for snapshot in progress.newer(
            lambda shape: self._queries.writers.snapshot_writer(dataset, node, shape, state.epoch)
        ):
            now = None
            if snapshot.is_named:
                sources = plans.batch_sources(snapshot.df)
                query = self._fingerprint(snapshot.df, sources, dataset, node)
                now = ViewState(
                    fingerprint=f"{state.epoch} {query}",
                    sources=sources.versions,
                    table_version=None,
                    table_ids=sources.table_ids,
                )
                if self._is_known(latest, sources, now.fingerprint):
                    continue
            # A concurrent compaction would make one of the two fail.
            with self._queries.tables.turns[dataset.key]:
                result = snapshot.apply()
            if now is not None:
                self._queries.state.save_view(step.target, now)
            if result is None:
                continue
            applied += 1
            if not result.replayed:
                commit = Commit(result, dataset.key, True, True)
                self._queries.context.emit(commit.event(self._queries.origin(node), snapshot.text))
        if progress.last_known is not None:
            self._queries.warn(
                node,
                f"flow {step.flow} skipped snapshots up to version {progress.last_known}: the "
                f"history of {dataset.display} has this version, or later ones",
            )
        if node.flow.once:
            self._queries.state.save_flow(step.flow, replace(progress.state, once_done=True))
        self._queries.record(node)
        if not applied:
            return RunOutcome(changed=False, reason="no changes since the last snapshot")
        return RunOutcome(changed=True, reason=plural(applied, "snapshot"))

    def _is_known(
        self, before: ViewState | None, sources: plans.BatchSources, fingerprint: str
    ) -> bool:
        """Whether a query and the rows of its sources are those of the last comparison."""
        return (
            before is not None
            and before.fingerprint == fingerprint
            and sources.unversioned is None
            and not _are_replaced(before, sources.table_ids)
            and self._have_same_rows(before, sources)
        )

    def _why_recompute(
        self,
        step: RefreshView,
        before: ViewState | None,
        sources: plans.BatchSources,
        fingerprint: str,
        version: int | None,
    ) -> str | None:
        if step.full:
            return "full refresh"
        if before is None or version is None:
            return "first refresh"
        if before.fingerprint != fingerprint:
            return _QUERY_CHANGED
        dataset = self._queries.graph.datasets[step.target]
        path = self._queries.tables.table(dataset).path
        if (
            before.table_version is None
            or _are_replaced(before, self._own_id(dataset))
            or not keeps_rows(self._delta, path, before.table_version, version)
        ):
            return "the table was changed since the last refresh"
        quarantine = self._queries.tables.quarantine(dataset).path
        kept = self._incremental.quarantine_version(dataset)
        if not keeps_rows(self._delta, quarantine, before.quarantine_version, kept):
            return "its quarantine is new, or was changed since the last refresh"
        reason = sources.unversioned
        if reason is None and _are_replaced(before, sources.table_ids):
            reason = "a source was dropped and created again"
        if reason is not None:
            check_policy(dataset, reason)
            return reason
        if not self._have_same_rows(before, sources):
            return _SOURCE_CHANGED
        return None

    def _own_id(self, dataset: DatasetNode) -> dict[str, str]:
        """The id of a view's table, by its path, as of the last read of its version."""
        path = self._queries.tables.table(dataset).path
        return {path: str(self._delta.log(path).unsafeVolatileSnapshot().metadata().id())}

    def _have_same_rows(self, before: ViewState, sources: plans.BatchSources) -> bool:
        """Whether the sources have the rows of the last refresh, in the same files or others."""
        old, new = dict(before.sources), dict(sources.versions)
        if sources.needs_files:
            return old == new
        changed = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
        return all(
            old.get(path, "").isdecimal()
            and new.get(path, "").isdecimal()
            and keeps_rows(self._delta, path, int(old[path]), int(new[path]))
            for path in changed
        )

    def _fingerprint(
        self, df: DataFrame, sources: plans.BatchSources, dataset: DatasetNode, node: FlowNode
    ) -> str:
        text = plans.query_text(df)
        rules = [
            f"{rule.name}:{rule.condition}:{rule.on_violation}"
            for rule in dataset.declared.expectations
        ]
        needs_code = node.analysis.runs_python or self._rules_need_code(df, dataset)
        code = self._code() if needs_code else [""]
        # The text has no paths: in `a EXCEPT b`, two tables may have been swapped.
        paths = sources.paths if len(sources.paths) > 1 else ()
        return plans.fingerprint(text, *rules, *plans.result_confs(df), *code, *paths)

    def _code(self) -> list[str]:
        """What Python functions depend on: the source files, and settings that they may read."""
        settings = self._queries.tables.settings
        values = {**settings.parameters, **settings.configuration}
        return [
            self._queries.context.source_digest,
            *(f"{k}={v}" for k, v in sorted(values.items()) if not k.startswith(_KNOWN_KEYS)),
        ]

    def _rules_need_code(self, df: DataFrame, dataset: DatasetNode) -> bool:
        conditions = [
            condition_column(df.sparkSession, rule)
            for rule in dataset.declared.expectations
            if rule.rows is None and not rule.unique
        ]
        if not conditions:
            return False
        try:
            rules = self._queries.writers.conformed(dataset, df).select(*conditions)
        except AnalysisException:
            # Rules on columns that the query does not return: its text does not have their names.
            return True
        return plans.runs_python(rules)


def _are_replaced(before: ViewState, ids: Mapping[str, str]) -> bool:
    """Whether the table at one of these paths was replaced since the last refresh."""
    return any(before.table_ids.get(path, now) != now for path, now in ids.items())


def _refresh(origin: EventOrigin, technique: str, reason: str) -> Event:
    text = f"{technique} of {origin.dataset_name} ({reason})"
    return Event(origin, PlanningInformation(technique, reason), text)
