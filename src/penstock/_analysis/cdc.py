"""Auto CDC: checks of declarations against queries and targets; snapshots from functions."""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from penstock._analysis.reader_hooks import reader_state
from penstock._analysis.table_sources import SchemaSource
from penstock._graph.index import DeclaredDataset, DefinitionIndex
from penstock._graph.replacing import replaces_rows
from penstock._model.cdc import CdcSpec, ScdType
from penstock._model.flow import Flow, FlowAnalysis
from penstock._model.origin import SourceLocation
from penstock._model.sql_text import quoted
from penstock._tables.write.assignment import assigned
from penstock._tables.write.cdc_events import (
    END_AT,
    START_AT,
    EventShape,
    RowShape,
    TargetShape,
    as_column,
    resolve,
)
from penstock._tables.write.schema import conformed
from penstock.errors import DefinitionError
from penstock.sources.base import OpenedSource, Position

_TICK = timedelta(microseconds=1)
_READS_CHANGES = {"skipchangecommits", "ignorechanges", "readchangefeed", "readchangedata"}


def as_cdc(
    analysis: FlowAnalysis,
    df: DataFrame,
    flow: Flow,
    dataset: DeclaredDataset,
    declared: StructType | None,
    version: Any,
) -> tuple[FlowAnalysis, StructType]:
    """The analysis of an auto CDC flow, and the columns of its target, which may be declared.

    `version` is the version of the first snapshot if the flow has snapshots.
    """
    source = df
    if declared is not None:
        df = assigned(df, declared, with_lengths=False)
    if flow.cdc is not None:
        rows: RowShape = event_shape(df, flow, dataset.flows)
        if df is not source:
            _check_sequence(source, flow, flow.cdc, rows.sequence)
        analysis = replace(analysis, sequence_type=rows.sequence.simpleString())
    else:
        rows = snapshot_shape(df, flow, version)
    wanted, scd_type = rows.target_schema(), rows.shape.scd_type
    if declared is not None:
        check_declared(declared, scd_type, wanted, dataset.declared.origin)
    lineage = analysis.lineage
    if lineage is not None:
        names = {name.lower() for name in wanted.names}
        columns = {name: of for name, of in lineage.columns.items() if name.lower() in names}
        lineage = replace(lineage, columns=columns)
    return replace(analysis, schema_json=wanted.json(), lineage=lineage), wanted


def _check_sequence(source: DataFrame, flow: Flow, spec: CdcSpec, kind: DataType) -> None:
    """Refuse declared types that may order events differently: as STRING, `10` is before `9`."""
    have = source.select(as_column(spec.sequence_by).alias("value")).schema
    lossless = conformed(have, StructType().add("value", kind))[0].dataType
    if lossless.simpleString() == kind.simpleString():
        return
    before, after = (each.simpleString().upper() for each in (have[0].dataType, kind))
    raise DefinitionError(
        "CDC_TYPE_NOT_SUPPORTED",
        f"auto CDC flow {flow.name!r}: `sequence_by` is {before} in the source and {after} in the "
        "declared types of its table, which may change the order of events",
        origin=flow.origin,
        hint="declare the type of the source, or sequence by another column",
    )


def event_shape(df: DataFrame, flow: Flow, flows: Sequence[Flow]) -> EventShape:
    """The columns of an auto CDC flow, checked; `flows` are all flows into its target."""
    assert flow.cdc is not None
    specs: list[CdcSpec] = [other.cdc for other in flows if other.cdc is not None]
    shape = TargetShape.of(specs)
    return resolve(df, flow.cdc, shape, flow=flow.name, origin=flow.origin)


def unresolved(df: DataFrame, flow: Flow) -> AnalysisException | None:
    """Spark's error for a clause of an auto CDC flow, so that a missing column can be assumed."""
    spec = flow.cdc or flow.snapshot
    assert spec is not None
    names = [*spec.keys]
    clauses: list[Any] = []
    if isinstance(spec, CdcSpec):
        names += [*(spec.columns or ()), *(spec.except_columns or ())]
        clauses = [spec.sequence_by, spec.apply_as_deletes, spec.apply_as_truncates]
    for clause in (*map(quoted, names), *clauses):
        try:
            if clause is not None:
                df.select(F.expr(clause) if isinstance(clause, str) else clause)
        except AnalysisException as error:
            return error
    return None


def check_declared(
    declared: StructType, scd_type: ScdType, wanted: StructType, origin: SourceLocation
) -> None:
    """Check the declared schema of a target.

    A table with history must have both columns of the interval, with the type of the sequence.
    """
    if scd_type is ScdType.ONE:
        return
    have = {field.name.lower(): field.dataType.simpleString() for field in declared}
    for name in (START_AT, END_AT):
        kind = wanted[name].dataType.simpleString()
        if have.get(name.lower()) != kind:
            column = have.get(name.lower())
            problem = "is missing" if column is None else f"is {column.upper()}"
            raise DefinitionError(
                "CDC_SCHEMA_INCOMPLETE",
                f"the declared schema of a table with history needs {name} {kind.upper()}, the type"
                f" of its sequence, but {name} {problem}",
                origin=origin,
                hint=f"add `{START_AT} {kind.upper()}, {END_AT} {kind.upper()}` to the schema, or "
                "leave the schema out",
            )


class CdcAwareSource(SchemaSource):
    """Empty relations for analysis that track which tables are read as streams."""

    def __init__(self, index: DefinitionIndex) -> None:
        super().__init__()
        self._index = index
        self._streamed: dict[str, bool] = {}

    def take_streamed(self) -> dict[str, bool]:
        """Tables read as a stream since the last call, and whether any was a plain stream."""
        taken, self._streamed = self._streamed, {}
        return taken

    def stream(self, key: str, reader: DataStreamReader, position: Position) -> OpenedSource:
        """Return a dataset as a stream.

        Raises:
            DefinitionError: `REPLACE_WHERE_TARGET_STREAMED`.
        """
        dataset = self._index.datasets[key]
        options = reader_state(reader).folded_options
        is_plain = not any(options.get(name, "").lower() == "true" for name in _READS_CHANGES)
        if is_plain and any(replaces_rows(flow) for flow in dataset.flows):
            shown = self._index.display(key)
            raise DefinitionError(
                "REPLACE_WHERE_TARGET_STREAMED",
                f"{shown!r} is read as a stream, but its flow replaces rows of it",
                hint='read its change feed: spark.readStream.option("readChangeFeed", "true")'
                f'.table("{shown}"); or read it as a batch; or skip changed rows with option '
                '"skipChangeCommits"',
            )
        self._streamed[key] = is_plain or self._streamed.get(key, False)
        return super().stream(key, reader, position)


# -- snapshots -----------------------------------------------------------------------------------


class NoSnapshotError(BaseException):
    """The function of a snapshot flow has returned no newer snapshot.

    Not an `Exception`, so that it passes the boundary to user code unchanged.
    """


class SnapshotQuery:
    """One call of a snapshot flow's function, as a query that can be evaluated.

    `latest` is the version of the last snapshot, `None` before the first. `version` is set by the
    evaluation to the version of its snapshot; for a named source it is the time of the comparison.
    `flow` has the call as its query function, which raises `NoSnapshotError` if there is no newer
    snapshot.
    """

    def __init__(self, flow: Flow, latest: Any = None) -> None:
        assert flow.snapshot is not None
        self._spec = flow.snapshot
        self._latest = latest
        self.version: Any = None
        self.flow = flow
        if self._spec.next_snapshot is not None:
            self.flow = replace(flow, function=self._call)
        else:
            now = datetime.now(UTC)
            self.version = now if latest is None else max(now, latest + _TICK)

    def _call(self) -> DataFrame:
        assert self._spec.next_snapshot is not None
        answer = self._spec.next_snapshot(self._latest)
        if answer is None:
            raise NoSnapshotError
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._invalid(f"returned {type(answer).__name__}")
        df, self.version = answer
        if version_type(self.version) is None:
            raise self._invalid(f"returned a version of type {type(self.version).__name__}")
        if not isinstance(df, DataFrame):
            raise self._invalid(f"returned {type(df).__name__} instead of a DataFrame")
        return df

    def _invalid(self, what: str) -> DefinitionError:
        return DefinitionError(
            "SNAPSHOT_FUNCTION_INVALID",
            f"the function of a snapshot flow {what}",
            origin=self.flow.origin,
            hint="return (DataFrame, version) or None; a version is int, str, float, bytes, "
            "datetime, date or Decimal",
        )


# The first match is used: a bool is an int, a datetime is a date.
_VERSION_TYPES: tuple[tuple[Any, DataType | None], ...] = (
    (bool, None),
    (int, LongType()),
    (str, StringType()),
    (float, DoubleType()),
    ((bytes, bytearray), BinaryType()),
    (datetime, TimestampType()),
    (date, DateType()),
    (Decimal, DecimalType(38, 18)),
)


def version_type(version: Any) -> DataType | None:
    """The column type for a version; `None` if it is not a valid one."""
    types = (kind for known, kind in _VERSION_TYPES if isinstance(version, known))
    return next(types, None)


def encode_version(version: Any) -> str:
    match version:
        case bytes() | bytearray():
            return json.dumps(["bytes", base64.b64encode(version).decode()])
        case datetime():
            return json.dumps(["datetime", version.isoformat()])
        case date():
            return json.dumps(["date", version.isoformat()])
        case Decimal():
            return json.dumps(["decimal", str(version)])
        case _:
            return json.dumps([type(version).__name__, version])


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "bytes": base64.b64decode,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "decimal": Decimal,
    "float": float,
}


def decode_version(text: str) -> Any:
    kind, value = json.loads(text)
    return _DECODERS[kind](value) if kind in _DECODERS else value


def snapshot_shape(df: DataFrame, flow: Flow, version: Any) -> RowShape:
    """Check the declaration of a snapshot flow against the columns of a snapshot."""
    assert flow.snapshot is not None
    spec = flow.snapshot
    kind = version_type(version)
    assert kind is not None
    have = {name.lower() for name in df.columns}
    lists = {
        "keys": spec.keys,
        "track_history_column_list": spec.track_history.columns or (),
        "track_history_except_column_list": spec.track_history.except_columns or (),
    }
    for parameter, names in lists.items():
        for name in names:
            if name.lower() not in have:
                raise DefinitionError(
                    "CDC_COLUMN_NOT_FOUND",
                    f"snapshot flow {flow.name!r}: `{parameter}` names {name!r}, which its source "
                    "does not have",
                    origin=flow.origin,
                    hint=f"columns of the source: {', '.join(df.columns)}",
                )
    for name in (START_AT, END_AT):
        if name.lower() in have:
            raise DefinitionError(
                "COLUMN_NAME_RESERVED",
                f"snapshot flow {flow.name!r}: its source has a column {name!r}, which auto CDC "
                "needs itself",
                origin=flow.origin,
                hint="rename the column in the snapshot",
            )
    shape = TargetShape(keys=spec.keys, scd_type=spec.scd_type, track_history=spec.track_history)
    return RowShape(shape=shape, columns=tuple(df.schema), sequence=kind)
