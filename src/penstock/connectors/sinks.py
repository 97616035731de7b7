"""What a flow and its sink must agree on, checked while a pipeline is analysed.

Pure functions over options, columns and the output mode: nothing is connected to.
"""

import difflib
from collections.abc import Mapping

from penstock._model.flow import OutputMode
from penstock.connectors.jdbc import WriteRows, jdbc_sink_options
from penstock.connectors.kafka import prepare_sink_options
from penstock.connectors.options import FILE_FORMATS
from penstock.errors import ConnectorError

__all__ = ["check_sink"]

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
    "append": 'set {"mode": "upsert", "keys": "..."} on the sink: the grouping columns',
}


def check_sink(
    sink_format: str, options: Mapping[str, str], columns: Mapping[str, str], mode: OutputMode
) -> None:
    """Refuse what cannot work, before anything starts.

    Args:
        sink_format: As declared.
        options: Secrets filled in.
        columns: Names of the query's columns and Spark's simple names of their types.
        mode: Of the flow.

    Raises:
        ConnectorError: Wrong options, columns that the sink does not take, or a mode that it does
            not have (`SINK_MODE_NOT_SUPPORTED`).
    """
    kind = sink_format.lower()
    if kind == "kafka":
        prepare_sink_options(options)
        _check_kafka_columns(options, columns)
    elif kind == "jdbc":
        jdbc = jdbc_sink_options(options)
        if jdbc.mode is WriteRows.APPEND:
            _check_mode("append", "the JDBC sink", mode)
    elif kind in FILE_FORMATS:
        _require(options, kind, "path")
        _check_mode("files", f"a {kind} sink", mode)
    elif kind == "delta":
        _require(options, kind, "path", "tableName")
        _check_mode("delta", "a delta sink", mode)


def _check_mode(kind: str, name: str, mode: OutputMode) -> None:
    reason = _REFUSED_MODES[kind].get(mode)
    if reason is not None:
        raise ConnectorError(
            "SINK_MODE_NOT_SUPPORTED",
            f"{name} cannot take a flow in {mode.value} mode: {reason}",
            hint=_INSTEAD[kind],
        )


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
