"""Late rows: rows that a stateful operator drops because they are older than the watermark.

Spark filters them in the operator. The plan of the micro-batch has the watermark of the operator
(from the previous batch, stored in the offset log, so a repeated batch applies the same one) and
the input of the batch. The late rows are that input, filtered by the condition of the operator.
This requires that the input only comes from sources; the output of another stateful operator would
have to be recomputed with its state.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._model.dataset import LateRows
from penstock._model.expectation import FAILED_RULES, ROW, SOURCE
from penstock._model.flow import Flow, OutputMode
from penstock._model.sql_text import quoted
from penstock._spark.plans import WINDOW_MARKS, analyzed, is_stateful, keeps_state, kind_of, walk
from penstock._tables.jvm import dataframe, iterate
from penstock._tables.session_conf import session_conf
from penstock._tables.write.row_files import LATE, NO_EVENT_TIME, NO_SESSION_GAP, Refused
from penstock.errors import DefinitionError
from penstock.quality.split import QUARANTINE_COLUMNS, row_json, source_column

_DELAY = "spark.watermarkDelayMs"
# Operators that compare rows, or groups of rows, with the watermark.
_BY_ROW = {"Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Join"}
_PHYSICAL = {
    "StateStoreSaveExec",
    "SessionWindowStateStoreRestoreExec",
    "StreamingDeduplicateExec",
    "StreamingDeduplicateWithinWatermarkExec",
    "StreamingSymmetricHashJoinExec",
}
_DROPPED = "numRowsDroppedByWatermark"
_CHECK = "spark.sql.streaming.unsupportedOperationCheck"


@dataclass(frozen=True)
class _Input:
    """One input of the operator.

    Attributes:
        plan: Logical plan of the input.
        position: Position of the column that is compared with the watermark.
        is_window: Whether that column is a window, whose end is compared.
        before_window: Plan and position of the event time before windows are assigned.
        sessions: Plan and position of session windows before those without a gap are removed.
    """

    plan: Any
    position: int
    is_window: bool
    before_window: tuple[Any, int] | None = None
    sessions: tuple[Any, int] | None = None


class _UnknownError(Exception):
    """The late rows cannot be determined; the message is the reason."""


def check_late_rows(df: DataFrame, flow: Flow, mode: OutputMode | None, wanted: LateRows) -> None:
    """Refuse `late_rows="quarantine"` where late rows cannot be determined."""
    if wanted is not LateRows.QUARANTINE or flow.once:
        return
    if not flow.implicit and not keeps_state(df):
        return  # one of several flows into the table, without late rows
    try:
        if flow.cdc is not None or flow.snapshot is not None:
            raise _UnknownError("the rows of an auto CDC flow are change events")
        if mode is None:
            raise _UnknownError("the query is not a stream")
        if mode is OutputMode.COMPLETE:
            raise _UnknownError(
                "in complete mode no row is late: every batch recomputes the whole result"
            )
        _operator(analyzed(df))
    except _UnknownError as reason:
        raise DefinitionError(
            "LATE_ROWS_NOT_AVAILABLE",
            f'flow {flow.name!r} cannot keep late rows (late_rows="quarantine"): {reason}',
            origin=flow.origin,
            hint="keep them in a separate table before the stateful operation: a streaming table "
            "that this query reads, with an expectation that checks the event time",
        ) from None


class LateRowFinder:
    """See `penstock._tables.write.row_files.FindLateRows`."""

    def __init__(self, execution: Callable[[], Any], *, keeps: bool) -> None:
        self._execution = execution
        self.keeps = keeps

    def find(self, df: DataFrame) -> Refused:
        execution = self._execution()
        watermark, dropped = _applied(execution.executedPlan())
        if not self.keeps and not dropped:
            return Refused()
        try:
            kind, inputs = _operator(execution.analyzed())
        except _UnknownError:
            return Refused(dropped)
        if not self.keeps and kind != "Aggregate":
            return Refused(dropped)  # Spark counts rows; for an aggregation, it counts groups
        session = df.sparkSession
        # The plan reads the micro-batch, but is still marked as streaming.
        with session_conf(session, {_CHECK: "false"}):
            rows, *others = self._frames(session, inputs, watermark)
            for frame in others:
                rows = rows.unionByName(frame, allowMissingColumns=True)
            plain = _as_batch(session, rows)
        return Refused(-1, plain) if self.keeps else Refused(plain.count())

    def _frames(
        self, session: SparkSession, inputs: Iterable[_Input], watermark: int | None
    ) -> Iterator[DataFrame]:
        for source in inputs:
            frame = _frame(session, source.plan)
            time = F.col(quoted(frame.columns[source.position]))
            end = time["end"] if source.is_window else time
            limit = F.timestamp_millis(F.lit(watermark if watermark is not None else 0))
            is_late = end <= limit if watermark is not None else F.lit(False)
            yield _with_reason(frame, is_late, LATE)
            if source.before_window is not None and self.keeps:
                plan, position = source.before_window
                frame = _frame(session, plan)
                is_null = F.col(quoted(frame.columns[position])).isNull()
                yield _with_reason(frame, is_null, NO_EVENT_TIME)
            if source.sessions is not None and self.keeps:
                plan, position = source.sessions
                frame = _frame(session, plan)
                window = F.col(quoted(frame.columns[position]))
                is_empty = ~F.coalesce(window["end"] > window["start"], F.lit(False))
                has_time = window["start"].isNotNull()
                yield _with_reason(frame, has_time & is_empty, NO_SESSION_GAP)


def dropped_by_watermark(progress: Any) -> int:
    """The count that Spark reports for a batch: dropped rows, or groups of an aggregation."""
    return sum(
        max(0, int(operator.get(_DROPPED, 0) or 0))
        for operator in progress.get("stateOperators") or ()
    )


def _frame(session: SparkSession, plan: Any) -> DataFrame:
    """The rows of a plan, with unique column names."""
    names = [str(attribute.name()) for attribute in iterate(plan.output())]
    known, seen = {name.lower() for name in names}, set()
    unique = []
    for name in names:
        new, count = name, 1
        while new.lower() in seen or (count > 1 and new.lower() in known):
            count += 1
            new = f"{name}_{count}"
        seen.add(new.lower())
        unique.append(new)
    return dataframe(session, plan).toDF(*unique)


def _with_reason(df: DataFrame, condition: Column, reason: str) -> DataFrame:
    kept = [name for name in df.columns if name not in QUARANTINE_COLUMNS]
    return df.where(condition).select(
        *[F.col(quoted(name)) for name in kept],
        F.array(F.lit(reason)).alias(FAILED_RULES),
        row_json(df, df.columns).alias(ROW),
        source_column(df).alias(SOURCE),
    )


def _as_batch(session: SparkSession, df: DataFrame) -> DataFrame:
    jdf = df._jdf
    rows = jdf.queryExecution().toRdd()
    java_session: Any = session._jsparkSession
    return DataFrame(java_session.internalCreateDataFrame(rows, jdf.schema(), False), session)


# -- plans -------------------------------------------------------------------------------------


def _operator(plan: Any) -> tuple[str, tuple[_Input, ...]]:
    """The kind and inputs of the only stateful operator of a plan; raises `_UnknownError`."""
    stateful = [node for node in walk(plan) if is_stateful(node)]
    if not stateful:
        raise _UnknownError("it has no stateful operation, so no row of it is late")
    if len(stateful) > 1:
        raise _UnknownError(
            "it has several stateful operations, and the input of the later ones depends on the "
            "state of the earlier ones"
        )
    node = stateful[0]
    kind = kind_of(node)
    children = list(iterate(node.children()))
    if kind == "Aggregate":
        return kind, (_of_aggregate(node, children[0]),)
    if kind in _BY_ROW:
        inputs = tuple(rows for child in children if (rows := _of_rows(child)) is not None)
        if not inputs:
            raise _UnknownError("its input has no watermark, so no row is late")
        return kind, inputs
    raise _UnknownError(f"user code of {kind} decides which rows are late")


def _of_aggregate(node: Any, child: Any) -> _Input:
    keys = [key for key in iterate(node.groupingExpressions()) if is_watermarked(key)]
    if not keys:
        raise _UnknownError("it does not group by a column with a watermark, so no row is late")
    number = keys[0].toAttribute().exprId().id()
    position = _position(child, number)
    if position is None:
        raise _UnknownError("its grouping is computed inside of the aggregation")
    is_window = str(keys[0].dataType().simpleString()).startswith("struct<")
    if not is_window:
        return _Input(child, position, is_window)
    return _Input(child, position, is_window, *_before(child))


def _of_rows(child: Any) -> _Input | None:
    marked = [
        (position, attribute)
        for position, attribute in enumerate(iterate(child.output()))
        if is_watermarked(attribute)
    ]
    if not marked:
        return None
    if len({attribute.exprId().id() for _, attribute in marked}) > 1:
        raise _UnknownError("its input has several columns with a watermark")
    position, attribute = marked[0]
    is_window = str(attribute.dataType().simpleString()).startswith("struct<")
    return _Input(child, position, is_window)


def _before(child: Any) -> tuple[tuple[Any, int] | None, tuple[Any, int] | None]:
    """`before_window` and `sessions` of an `_Input`.

    Spark adds a Project (or Expand, if windows overlap) with the window, and a filter for NULL
    below or above it. The filter of session windows is above it, and also removes those without a
    gap.
    """
    node, above = child, child
    while kind_of(node) in ("Project", "Filter", "Expand") and _window(node.child()) is not None:
        node, above = node.child(), node
    window = _window(node)
    if kind_of(node) not in ("Project", "Expand") or window is None:
        return None, None
    is_above = kind_of(above) == "Filter"
    condition = above if is_above else node.child()
    if kind_of(condition) != "Filter":
        return None, None
    rows = node.child() if is_above else condition.child()
    sessions = (node, window) if is_above and kind_of(node) == "Project" else None
    for attribute in iterate(condition.condition().references().toSeq()):
        position = _position(rows, attribute.exprId().id())
        if position is not None and is_watermarked(attribute):
            return (rows, position), sessions
    return None, sessions


def _window(plan: Any) -> int | None:
    """Position of the column that `window` or `session_window` created."""
    for position, attribute in enumerate(iterate(plan.output())):
        if any(attribute.metadata().contains(mark) for mark in WINDOW_MARKS):
            return position
    return None


def _position(plan: Any, number: int) -> int | None:
    ids = [attribute.exprId().id() for attribute in iterate(plan.output())]
    return ids.index(number) if number in ids else None


def is_watermarked(expression: Any) -> bool:
    return kind_of(expression) in ("AttributeReference", "Alias") and bool(
        expression.metadata().contains(_DELAY)
    )


def _applied(plan: Any) -> tuple[int | None, int]:
    """The watermark of the stateful operators, and the total number of rows that they dropped."""
    watermark: int | None = None
    dropped = 0
    pending = [plan]
    while pending:
        node = pending.pop()
        if kind_of(node) in _PHYSICAL:
            applied = node.eventTimeWatermarkForLateEvents()
            if applied.isDefined():
                watermark = int(applied.get())
        if node.metrics().contains(_DROPPED):
            dropped += max(0, int(node.metrics().apply(_DROPPED).value()))
        pending.extend(iterate(node.children()))
    return watermark, dropped
