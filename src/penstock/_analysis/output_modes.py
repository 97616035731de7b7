"""Output modes: the mode of a flow, and hints if Spark or the target refuses it."""

from typing import TYPE_CHECKING, Any

from penstock._model.dataset import Dataset, Sink
from penstock._model.exception_text import first_line
from penstock._model.flow import Flow, OutputMode
from penstock._spark.plans import analyzed
from penstock.errors import DefinitionError
from penstock.sinks.registry import sink_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_APPEND, _COMPLETE, _UPDATE = OutputMode.APPEND, OutputMode.COMPLETE, OutputMode.UPDATE

_NO_WATERMARK = "without watermark"
_NO_AGGREGATION = "no streaming aggregations"
# Part of Spark's message -> hint; the first match is used.
_HINTS = (
    (
        "Sorting",
        "rows of a table have no order: sort in the query that reads it, or in a materialized view",
    ),
    (
        "Distinct aggregations",
        "approx_count_distinct(column); or exactly: dropDuplicatesWithinWatermark and then count, "
        "or a materialized view over the stream's table",
    ),
    (
        "Limits",
        "remove the limit; append mode takes the first rows of the whole stream, a materialized "
        "view the current rows",
    ),
    (
        "global watermark",
        "several stateful operations in one query run in append mode only: leave out output_mode, "
        "or put the result of the first one into a table of its own",
    ),
    (
        "session window",
        "session windows run in append mode (with a watermark) or in complete mode: a session that "
        "grows changes its own key",
    ),
    (
        _NO_AGGREGATION,
        "complete mode needs an aggregation, whose result replaces the table: leave out "
        "output_mode",
    ),
    (
        "NON_TIME_WINDOW",
        "a stream never has all rows of a partition: group by window(), keep one row per key with "
        "max_by/min_by or dropDuplicates, or use a materialized view",
    ),
    (
        "Stream-stream",
        "give both sides withWatermark, and the join a condition on both event times such as "
        "click_time >= seen_time AND click_time <= seen_time + INTERVAL 10 MINUTES",
    ),
    (
        _NO_WATERMARK,
        "add withWatermark on the event time and group by a window of it; or choose "
        'output_mode="update", which merges changed groups into the table, or "complete", which '
        "replaces it",
    ),
)
_DEFAULT_HINT = (
    "add withWatermark before the stateful operation, or choose another output_mode "
    "(append, complete, update)"
)


def choose_output_mode(
    df: "DataFrame", flow: Flow, *, dataset: Dataset | None = None, sink: Sink | None = None
) -> OutputMode:
    """The declared output mode, or the first that Spark and the target support.

    Runs Spark's own check, so that an unsupported mode is refused before anything starts.
    """
    takes = (_APPEND, _COMPLETE, _UPDATE) if sink is None else sink_of(sink.format).modes
    # Update mode is the default only of targets that do not support complete mode.
    wanted = [flow.output_mode] if flow.output_mode else list(takes[:2])
    reasons = []
    for mode in wanted:
        reason = _refusal(df, mode)
        if reason is None:
            _check_target(flow, mode, takes, dataset, sink)
            return mode
        reasons.append(reason)
    reason = reasons[0]
    if len(reasons) > 1 and _NO_WATERMARK in reason and _NO_AGGREGATION not in reasons[1]:
        # A watermark alone would not help: complete mode needs none and is refused as well.
        reason = reasons[1]
    hint = next((hint for words, hint in _HINTS if words in reason), _DEFAULT_HINT)
    if sink is not None and len(takes) == 1:
        hint += f". A {sink.format} sink takes rows in append mode only"
    raise _not_supported(flow, wanted[0], reason, hint)


def _check_target(
    flow: Flow,
    mode: OutputMode,
    takes: tuple[OutputMode, ...],
    dataset: Dataset | None,
    sink: Sink | None,
) -> None:
    if mode not in takes:
        assert sink is not None
        system = sink_of(sink.format)
        raise _not_supported(flow, mode, system.refused_modes[mode], system.instead)
    properties = {} if dataset is None else dataset.table_properties
    if mode is not _APPEND and str(properties.get("delta.appendOnly")).lower() == "true":
        raise _not_supported(
            flow,
            mode,
            "the table has delta.appendOnly = true, and the mode changes rows",
            "remove the property, or give the query a watermark and write in append mode",
        )


def _not_supported(flow: Flow, mode: OutputMode, reason: str, hint: str) -> DefinitionError:
    return DefinitionError(
        "OUTPUT_MODE_NOT_SUPPORTED",
        f"flow {flow.name!r} cannot run in {mode.value} mode: {reason}",
        origin=flow.origin,
        hint=hint,
    )


def _refusal(df: "DataFrame", mode: OutputMode) -> str | None:
    jvm: Any = df.sparkSession._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    jmode = {_APPEND: modes.Append, _COMPLETE: modes.Complete, _UPDATE: modes.Update}[mode]()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(analyzed(df), jmode)
    except Exception as error:
        return first_line(error)
    return None
