"""Snapshot flows: a call of their function as a query, and their versions."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    TimestampType,
)

from penstock._model.flow import Flow
from penstock._tables.cdc_events import END_AT, START_AT
from penstock._tables.cdc_snapshot import SnapshotShape
from penstock.errors import DefinitionError

_TICK = timedelta(microseconds=1)


class NoSnapshotError(BaseException):
    """The function of a snapshot flow has no newer one.

    Not an `Exception`: it passes the boundary to user code untranslated.
    """


class SnapshotQuery:
    """One call of a snapshot flow's function, as a query that can be evaluated.

    Args:
        flow: The flow.
        latest: Version of the last snapshot; `None` before the first.

    Attributes:
        flow: The flow with that call as its query function; it raises `NoSnapshotError`.
        version: After the evaluation: the version of the snapshot. A source that has a name gets
            the time of its comparison.
    """

    def __init__(self, flow: Flow, latest: Any = None) -> None:
        assert flow.snapshot is not None
        self._spec = flow.snapshot
        self._latest = latest
        self._origin = flow.origin
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
            raise self._invalid(f"gave a version of type {type(self.version).__name__}")
        if not isinstance(df, DataFrame):
            raise self._invalid(f"gave {type(df).__name__} instead of a DataFrame")
        return df

    def _invalid(self, what: str) -> DefinitionError:
        return DefinitionError(
            "SNAPSHOT_FUNCTION_INVALID",
            f"the function of a snapshot flow {what}",
            origin=self._origin,
            hint="return (DataFrame, version) or None; a version is int, str, float, bytes, "
            "datetime, date or Decimal",
        )


def version_type(version: Any) -> DataType | None:
    """The column type for versions like this one; `None` if it cannot be one."""
    match version:
        case bool():
            return None
        case int():
            return LongType()
        case str():
            return StringType()
        case float():
            return DoubleType()
        case bytes() | bytearray():
            return BinaryType()
        case datetime():
            return TimestampType()
        case date():
            return DateType()
        case Decimal():
            return DecimalType(38, 18)
        case _:
            return None


def encode_version(version: Any) -> str:
    """A version as text that `decode_version` reads back."""
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
    """The version that `encode_version` wrote."""
    kind, value = json.loads(text)
    return _DECODERS[kind](value) if kind in _DECODERS else value


def snapshot_shape(df: DataFrame, flow: Flow, version: Any) -> SnapshotShape:
    """Check a snapshot flow's declaration against the columns of a snapshot.

    Args:
        df: A snapshot.
        flow: The flow.
        version: Of that snapshot.

    Raises:
        DefinitionError: `CDC_COLUMN_NOT_FOUND` or `COLUMN_NAME_RESERVED`.
    """
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
    return SnapshotShape(spec=spec, columns=df.schema, version=kind)
