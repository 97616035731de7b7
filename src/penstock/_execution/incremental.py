"""Incremental refreshes of materialized views: computes what changed since the last refresh.

A refresh is one commit, so that a complete refresh can follow any failure before it.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from penstock._execution.flow_query import FlowQueries
from penstock._execution.flow_state import ViewState
from penstock._execution.writers import Commit
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._model.quantity import plural
from penstock._model.sql_text import quoted
from penstock._spark import plans
from penstock._spark.failures import (
    LOST_FILE,
    cause,
    full_text,
    is_refused_by_ansi,
    java_causes,
)
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.jvm import iterate
from penstock._tables.write.keyed import MOST_KEYS
from penstock._tables.write.view_writer import ViewChangedError, ViewWriter
from penstock.errors import DefinitionError, PenstockError, PlanError
from penstock.quality.rules import check_expectations
from penstock.quality.split import parse_failure

APPEND_ONLY = "APPEND_ONLY"
GROUP_AGGREGATE = "GROUP_AGGREGATE"

# The jobs of an incremental refresh take this long, even if few rows changed.
_SHORT_SECONDS = 2.0
_SHORT_GROUPS = 0.8
# Reading and replacing a larger share of keys takes longer than computing all rows.
_MOST_SHARE = 0.2
_MOST_ROWS = 200_000  # collected on the driver with all their columns
# Up to this share, changed rows are assumed to be next to each other. A wrong assumption costs
# little.
_FEW = 0.02
# Time to write a row, and to replace one, relative to the time to read and aggregate a row, on two
# cores.
_WRITING = 2.5
_REPLACING = 35
_IGNORES_MISSING = "spark.sql.files.ignoreMissingFiles"
_LOG_LOST = re.compile(r"DELTA_(?:LOG_FILE_NOT_FOUND|MISSING_FILES_UNEXPECTED_VERSION)\b")
_UNSUPPORTED = re.compile(r"QueryChanges\$UnsupportedException: (.+)")


class NotIncrementalError(Exception):
    """The view must be computed completely; the message is the reason."""


class SourcesUnchangedError(Exception):
    """The sources have new versions, but the same rows, as after a change of a comment."""


@dataclass(frozen=True)
class IncrementalRefresh:
    """The chosen technique, and the function that makes the commit."""

    technique: str
    reason: str
    commit: Callable[[], Commit]


@dataclass
class Attempt:
    """`share` of the sources that changed; set if an incremental refresh is worth trying."""

    share: float | None = None


class IncrementalViews:
    """Chooses and prepares incremental refreshes of views.

    According to the view's `refresh_policy`: `auto` (default) is incremental unless a complete
    refresh is likely to be faster; `incremental` and `incremental_strict` are whenever possible.
    """

    def __init__(self, queries: FlowQueries) -> None:
        self._queries = queries
        self._delta = DeltaJvm(queries.spark)

    def plan(
        self,
        node: FlowNode,
        dataset: DatasetNode,
        df: DataFrame,
        before: ViewState,
        version: int,
        attempt: Attempt,
    ) -> IncrementalRefresh:
        """Choose how to update the view from its last refresh, at `version`, to its sources.

        This and the commit must be called within `reasons`.
        """
        policy = dataset.declared.refresh_policy or "auto"
        if policy == "full":
            raise NotIncrementalError("its refresh policy is full")
        if not self._delta.has_own_classes:
            raise NotIncrementalError("the session has no Java classes of Penstock")
        if str(df.sparkSession.conf.get(_IGNORES_MISSING)).lower() == "true":
            raise NotIncrementalError(
                f"{_IGNORES_MISSING} is true: files that VACUUM deleted would be skipped"
            )
        self._check_rules(dataset)
        df = self._queries.writers.conformed(dataset, df)
        changes = self._delta.query_changes(df, before.sources)
        technique = str(changes.technique())
        writer = self._queries.writers.view_writer(dataset, node, df, version)
        if technique == APPEND_ONLY:
            rows, reason = DataFrame(changes.rows(), df.sparkSession), "rows were only added"
            try:
                check_expectations(rows, dataset.declared.expectations)
            except DefinitionError as error:
                # Columns that the query does not return are NULL in the added rows.
                raise NotIncrementalError(
                    "its expectations use columns that the query does not return"
                ) from error
            rows = self._queries.writers.with_rules(dataset, rows)
        else:
            if dataset.declared.expectations:
                raise NotIncrementalError("its expectations apply to rows that change")
            most = None
            if policy == "auto":
                attempt.share = _check_cost(before, technique, changes)
                most = before.rows
            if technique == GROUP_AGGREGATE:
                rows, reason = _groups(writer, df, changes)
            elif changes.isLinear():
                rows, reason = _rows(writer, df, changes, dataset, most)
            else:
                rows, reason = _keys(writer, df, changes, most)

        def commit() -> Commit:
            result = writer.write_batch(rows, fingerprint=before.fingerprint)
            return Commit(result, dataset.key, is_upsert=technique != APPEND_ONLY)

        return IncrementalRefresh(technique, reason, commit)

    def _check_rules(self, dataset: DatasetNode) -> None:
        for rule in dataset.declared.expectations:
            if rule.rows is not None or rule.unique:
                raise NotIncrementalError(f"expectation {rule.name} applies to all rows")
            if plans.is_changing(str(rule.condition)):
                raise NotIncrementalError(f"expectation {rule.name} is not deterministic")

    def quarantine_version(self, dataset: DatasetNode) -> int:
        """Newest version of the quarantine of a view; -1 if it has none."""
        tables = self._queries.tables
        if not tables.keeps_dropped(dataset):
            return -1
        return self._delta.version(tables.quarantine(dataset).path)


def _groups(writer: ViewWriter, df: DataFrame, changes: Any) -> tuple[DataFrame, str]:
    """The aggregates of the changed rows of the sources."""
    rows = DataFrame(changes.collectedRows(MOST_KEYS + 1), df.sparkSession)
    merges = dict(zip(rows.columns, iterate(changes.merges()), strict=True))
    keys = rows.select(*[quoted(name) for name in iterate(changes.keyColumns())])
    row_count = changes.rowCount()
    count, _ = writer.collect(keys, merges, row_count, int(changes.collected()))
    return rows, f"{'new' if row_count is None else 'changed'} rows in {plural(count, 'group')}"


def _rows(
    writer: ViewWriter,
    df: DataFrame,
    changes: Any,
    dataset: DatasetNode,
    view_rows: int | None,
) -> tuple[DataFrame, str]:
    """The removed and the added rows; with `view_rows`, at most a share of that number."""
    changed = changes.changedRows(_MOST_ROWS + 1)
    removed, added = int(changed.removed()), int(changed.added())
    most = _MOST_ROWS if view_rows is None else min(_MOST_ROWS, int(_MOST_SHARE * view_rows))
    if removed + added > most:
        raise NotIncrementalError(f"more than {most} rows changed")
    if removed:
        key = changed.keyColumn(list(dataset.declared.partition_cols))
        if key is None:
            raise NotIncrementalError("no column of the result can be searched")
        writer.collect_removed(changed, key)
    rows = DataFrame(changed.addedRows(), df.sparkSession)
    return rows, f"{plural(removed, 'row')} removed and {added:,} added"


def _keys(
    writer: ViewWriter, df: DataFrame, changes: Any, view_rows: int | None
) -> tuple[DataFrame, str]:
    """The rows of the changed keys; with `view_rows`, of at most a share of that number."""
    count, keys = writer.collect(DataFrame(changes.changedKeys(MOST_KEYS + 1), df.sparkSession))
    if view_rows is not None and count > _MOST_SHARE * view_rows:
        raise NotIncrementalError(f"{count} keys changed, of {view_rows} rows")
    names = ", ".join(iterate(changes.keyColumns()))
    rows = DataFrame(changes.rowsOf(keys._jdf), df.sparkSession)
    return rows, f"rows of {plural(count, 'key')} may have changed: {names}"


@contextmanager
def reasons(dataset: DatasetNode) -> Iterator[None]:
    """Convert the failure of an incremental refresh to the reason of a complete one.

    Raises:
        NotIncrementalError: The view must be computed completely.
        SourcesUnchangedError: The view need not be computed.
        PlanError: `REFRESH_NOT_INCREMENTAL` with the policy `incremental_strict`.
    """
    try:
        yield
    except (NotIncrementalError, ViewChangedError) as error:
        reason = str(error)
    except Exception as error:
        # A complete refresh avoids the failure, or fails with a better message.
        text = f"{full_text(error)}\n{java_causes(error)}"
        is_final = isinstance(error, PenstockError) and not isinstance(error, PlanError)
        is_strict = dataset.declared.refresh_policy == "incremental_strict"
        # A complete refresh, which the error of the policy suggests, would also refuse the value.
        is_final = is_final or (is_strict and is_refused_by_ansi(text))
        # A complete refresh would include the row that violated the rule.
        is_final = is_final or parse_failure(text) is not None
        if is_final or "cancelled" in text.lower():
            raise
        known = _UNSUPPORTED.search(text)
        if known and known[1] == "no source changed":
            raise SourcesUnchangedError from error
        if known:
            reason = known[1]
        elif _LOG_LOST.search(text):
            reason = "the log of a source was cleaned up (delta.logRetentionDuration)"
        elif LOST_FILE.search(text):
            reason = "files of the versions since its last refresh do not exist any more (VACUUM)"
        else:
            reason = f"the incremental refresh failed: {cause(text)}"
    else:
        return
    check_policy(dataset, reason)
    raise NotIncrementalError(reason)


def check_policy(dataset: DatasetNode, reason: str) -> None:
    """Refuse a complete refresh for this reason if the policy of the view does not allow it.

    Raises:
        PlanError: `REFRESH_NOT_INCREMENTAL`.
    """
    if dataset.declared.refresh_policy != "incremental_strict":
        return
    raise PlanError(
        "REFRESH_NOT_INCREMENTAL",
        f"{dataset.display} has the refresh policy incremental_strict, but {reason}",
        origin=dataset.declared.origin,
        hint=f"--full-refresh {dataset.display} computes all rows; the policy incremental does so "
        "where it is needed",
    )


def _check_cost(before: ViewState, technique: str, changes: Any) -> float:
    """Refuse an incremental refresh that is unlikely to be faster.

    Returns the changed share of the sources.

    Raises:
        NotIncrementalError: It is unlikely to be faster.
    """
    full, last = before.full_seconds, before.incremental_seconds
    short = _SHORT_GROUPS if technique == GROUP_AGGREGATE else _SHORT_SECONDS
    if full is not None and full < short:
        raise NotIncrementalError(f"a complete refresh takes {full:.1f} s")
    view_rows = max(before.rows or 0, 1)
    size = _sizes(changes, view_rows)
    share = size.changed / max(size.rows, 1)
    is_slower = full is not None and last is not None and last > full
    if is_slower and share > 0.8 * (before.incremental_share or 0):
        raise NotIncrementalError(
            f"the last incremental refresh took {last:.1f} s, the last complete one {full:.1f} s"
        )
    if technique == GROUP_AGGREGATE:
        count = size.groups * view_rows
        if size.changed + _REPLACING * count > 0.8 * (size.rows + _WRITING * view_rows):
            raise NotIncrementalError(f"about {count:.0f} of {view_rows} groups changed")
        return share
    touched = size.share if changes.isLinear() else size.groups
    most = _MOST_ROWS if changes.isLinear() else MOST_KEYS
    if touched > min(_MOST_SHARE, most / view_rows):
        raise NotIncrementalError(f"about {touched:.0%} of its rows may have changed")
    if not changes.isLinear() and not changes.selectsRows():
        raise NotIncrementalError("its keys do not select rows of its sources")
    return share


@dataclass(frozen=True)
class _Sizes:
    """Estimated changes of those source tables of a view whose rows changed.

    Attributes:
        changed: Number of rows that were added or removed.
        rows: Number of rows of these tables.
        share: Share of the view's rows that changed, if each depends on one row of each table.
        groups: The same, if the rows of tables that have more rows than the view are grouped.
    """

    changed: float
    rows: float
    share: float
    groups: float


def _sizes(changes: Any, view_rows: int) -> _Sizes:
    changed = rows = 0.0
    same = same_groups = 1.0
    for size in changes.sizes():
        share = float(size.share())
        changed_here = float(size.rows())
        if changed_here < 0:
            changed_here = share * view_rows
        rows_here = changed_here / share if share else 0.0
        changed += changed_here
        rows += rows_here
        same *= 1 - share
        group_size = max(1.0, rows_here / view_rows)
        same_groups *= 1 - share if share <= _FEW else (1 - share) ** group_size
    return _Sizes(changed, rows, 1 - same, 1 - same_groups)
