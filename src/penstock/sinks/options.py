"""What a flow and its sink must agree on, checked while a pipeline is analysed.

Pure functions over options, columns and the output mode: nothing is connected to.
"""

import difflib
from collections.abc import Mapping

from penstock._model.flow import OutputMode
from penstock.errors import ConnectorError
from penstock.sinks.jdbc_options import WriteRows, jdbc_sink_options
from penstock.sources.kafka.options import prepare_sink_options
from penstock.sources.options import FILE_FORMATS

__all__ = ["check_sink", "mode_refusal", "modes_taken"]

_HEADERS = "array<struct<key:string,value:binary>>"
_TEXT = ("string", "binary")
_KAFKA_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
    "row_id": _TEXT,
}
_REFUSED_MODES: Mapping[str, Mapping[OutputMode, str]] = {
    "files": {
        OutputMode.UPDATE: "files cannot be changed",
        OutputMode.COMPLETE: "files would hold every version of the result",
    },
    "delta": {OutputMode.UPDATE: "Delta's sink adds rows or replaces all of them"},
    "kafka": {
        OutputMode.COMPLETE: "a topic only grows, so every batch would send the whole result again"
    },
    "append": {
        OutputMode.UPDATE: "mode `append` would add each new version of a row as one more",
        OutputMode.COMPLETE: "mode `append` would add the whole result with every batch",
    },
}
_INSTEAD = {
    "files": "add withWatermark before the aggregation, so that it runs in append mode; or write a "
    "table of the pipeline",
    "delta": 'write a table of the pipeline: @dp.table(output_mode="update") merges by the '
    "grouping columns",
    "kafka": 'output_mode="update" sends the groups that changed',
    "append": 'set {"mode": "upsert", "keys": "..."} on the sink: the grouping columns',
}


def modes_taken(sink_format: str) -> tuple[OutputMode, ...]:
    """The output modes that a sink of a format takes, whatever its options."""
    modes = (OutputMode.APPEND, OutputMode.COMPLETE, OutputMode.UPDATE)
    return tuple(mode for mode in modes if mode not in _REFUSED_MODES.get(_kind(sink_format), {}))


def mode_refusal(sink_format: str, mode: OutputMode) -> tuple[str, str]:
    """Why a sink of a format does not take a mode, and what to do instead.

    Raises:
        KeyError: It takes it.
    """
    return _REFUSED_MODES[_kind(sink_format)][mode], _INSTEAD[_kind(sink_format)]


def _kind(sink_format: str) -> str:
    kind = sink_format.lower()
    return "files" if kind in FILE_FORMATS else kind


def check_sink(
    sink_format: str, options: Mapping[str, str], columns: Mapping[str, str], mode: OutputMode
) -> None:
    """Refuse what cannot work, before anything starts; modes that depend on options included.

    Args:
        sink_format: As declared.
        options: Secrets filled in.
        columns: Names of the query's columns and Spark's simple names of their types.
        mode: Of the flow.

    Raises:
        ConnectorError: Wrong options, columns that the sink does not take, or a mode that does not
            go with its options (`SINK_MODE_NOT_SUPPORTED`).
    """
    kind = sink_format.lower()
    if kind == "kafka":
        prepare_sink_options(options)
        _check_kafka_columns(options, columns)
    elif kind == "jdbc":
        jdbc = jdbc_sink_options(options)
        refused = _REFUSED_MODES["append"].get(mode)
        if jdbc.mode is WriteRows.APPEND and refused is not None:
            raise ConnectorError(
                "SINK_MODE_NOT_SUPPORTED",
                f"the JDBC sink cannot take a flow in {mode.value} mode: {refused}",
                hint=_INSTEAD["append"],
            )
    elif kind in FILE_FORMATS:
        _require(options, kind, "path")
    elif kind in ("foreach", "foreachbatch"):
        raise ConnectorError(
            "SINK_FORMAT_NOT_SUPPORTED",
            f"a sink of format {sink_format!r} has no place for a function or an object",
            hint="put @dp.foreach_batch_sink on a function of the batch; in it, "
            "penstock.batches.foreach_row hands rows to a ForeachWriter",
        )
    elif kind == "delta":
        _require(options, kind, "path", "tableName")


def _require(options: Mapping[str, str], kind: str, *names: str) -> None:
    given = {name.lower() for name, value in options.items() if value.strip()}
    if not given & {name.lower() for name in names}:
        shown = " or ".join(f"`{name}`" for name in names)
        raise ConnectorError("SINK_OPTION_MISSING", f"a {kind} sink needs option {shown}")
    if "checkpointlocation" in given:
        raise ConnectorError(
            "SINK_OPTION_REFUSED",
            "option `checkpointLocation` cannot be set: each flow has a checkpoint that Penstock "
            "manages",
            hint="remove it",
        )


def _check_kafka_columns(options: Mapping[str, str], columns: Mapping[str, str]) -> None:
    has_topic = any(name.lower() == "topic" and value.strip() for name, value in options.items())
    problems = [
        f"column `{name}` is {kind}, not {' or '.join(_KAFKA_COLUMNS[name])}"
        for name, kind in columns.items()
        if kind not in _KAFKA_COLUMNS.get(name, (kind,))
    ]
    if "value" not in columns:
        near = difflib.get_close_matches("value", [name.lower() for name in columns], n=1)
        also = f"; {near[0]} is spelled in another way" if near else ""
        problems.append(f"there is no column `value`{also}")
    if not has_topic and "topic" not in columns:
        problems.append("neither option `topic` nor a column `topic` names where it goes")
    if problems:
        raise ConnectorError(
            "KAFKA_COLUMNS_INVALID",
            f"the Kafka sink cannot send these rows: {'; '.join(problems)}",
            hint="pack a row with F.to_json(F.struct('*')).alias('value')",
        )
