"""Where the rows of a pipeline's own datasets come from: empty stand-ins, or the real tables."""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from penstock._analysis.boundary import DatasetNotReadyError
from penstock._analysis.reader_hooks import reader_options
from penstock.sources.base import OpenedSource, Position, Read
from penstock.sources.delta.source import DeltaStream

# Options with which a query says by itself where to begin, or how.
_OWN_START = {
    *("startingversion", "startingtimestamp", "readchangefeed", "readchangedata"),
    *("witheventtimeorder", "schematrackinglocation", "schemalocation"),
}


_WATERMARK = "spark.watermarkDelayMs"


class TableSource(Protocol):
    """Where the rows of a stored dataset come from."""

    def batch(self, key: str, reader: DataFrameReader) -> DataFrame:
        """All rows. Raises `DatasetNotReadyError` when its schema is not known yet."""

    def stream(self, key: str, reader: DataStreamReader, position: Position) -> OpenedSource:
        """New rows. Raises `DatasetNotReadyError` when its schema is not known yet."""


class SchemaSource:
    """Empty stand-ins with the right schema, for analysis: nothing of the storage is touched."""

    def __init__(self) -> None:
        self.schemas: dict[str, StructType] = {}
        self._datasets: dict[str, str] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-analysis-")

    def close(self) -> None:
        """Remove the empty folder that the stand-ins read."""
        self._folder.cleanup()

    def batch(self, key: str, reader: DataFrameReader) -> DataFrame:
        """See `TableSource.batch`."""
        return reader.format("parquet").schema(self._schema(key, reader)).load(self._place(key))

    def stream(self, key: str, reader: DataStreamReader, position: Position) -> OpenedSource:
        """See `TableSource.stream`."""
        rows = reader.format("parquet").schema(self._schema(key, reader)).load(self._place(key))
        return OpenedSource(rows, name=f"table {key}", unit="versions")

    def dataset_at(self, place: str) -> str | None:
        """The dataset that an empty folder stands in for."""
        return self._datasets.get(Path(unquote(place.rstrip("/"))).name)

    def _place(self, key: str) -> str:
        # A folder of its own for each, so that the plan tells which dataset it reads.
        name = f"{Path(self._folder.name).name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        folder = Path(self._folder.name) / name
        if name not in self._datasets:
            folder.mkdir(exist_ok=True)
            self._datasets[name] = key
        return folder.as_uri()

    def _schema(self, key: str, reader: DataFrameReader | DataStreamReader) -> StructType:
        if key not in self.schemas:
            raise DatasetNotReadyError(key)
        schema = without_watermarks(self.schemas[key])
        options = {name.lower(): value for name, value in reader_options(reader).items()}
        if options.get("readchangefeed", options.get("readchangedata", "")).lower() == "true":
            schema = StructType(list(schema.fields))
            schema = schema.add("_change_type", StringType()).add("_commit_version", LongType())
            schema = schema.add("_commit_timestamp", TimestampType())
        return schema


def without_watermarks(schema: StructType) -> StructType:
    """Columns as a stored table gives them back: a watermark is metadata of a query.

    With it, an aggregation would be planned in append mode, which Spark refuses once the table is
    there.
    """
    columns = []
    for column in schema:
        metadata = {k: v for k, v in (column.metadata or {}).items() if k != _WATERMARK}
        columns.append(StructField(column.name, column.dataType, column.nullable, metadata))
    return StructType(columns)


@dataclass
class StreamStarts:
    """From which version of each table a new flow reads appends.

    A stream that begins with a snapshot of its table computes the state of that table at its first
    start, and again at every start without news; one that reads the log from its beginning sees the
    same rows and computes nothing.

    Attributes:
        chosen: Version by dataset; others begin with a snapshot.
        is_open: Whether versions may still be chosen: the flow has not started yet.
    """

    chosen: dict[str, int]
    is_open: bool


class DeltaSource:
    """The real tables.

    Args:
        paths: Path of each table by dataset.
        append_only_start: Of the table at a path; see `_tables.log_scan`.
    """

    def __init__(
        self, paths: Mapping[str, str], append_only_start: Callable[[str], int | None]
    ) -> None:
        self._paths = paths
        self._append_only_start = append_only_start
        self._starts: ContextVar[StreamStarts | None] = ContextVar("penstock_starts", default=None)

    @contextlib.contextmanager
    def starting(self, starts: StreamStarts) -> Iterator[None]:
        """Use these versions for the streams that are read inside."""
        token = self._starts.set(starts)
        try:
            yield
        finally:
            self._starts.reset(token)

    def batch(self, key: str, reader: DataFrameReader) -> DataFrame:
        """See `TableSource.batch`."""
        return reader.format("delta").load(self._paths[key])

    def stream(self, key: str, reader: DataStreamReader, position: Position) -> OpenedSource:
        """See `TableSource.stream`."""
        path, options = self._paths[key], reader_options(reader)
        start = None if position else self._start(key, reader)
        if start is not None:
            options = {**options, "startingVersion": str(start)}

        def load(wanted: Mapping[str, str]) -> DataFrame:
            return reader.options(**wanted).format("delta").load(path)

        read = Read(
            spark=reader._spark,
            format="delta",
            options=options,
            load=load,
            paths=(path,),
            position=position,
        )
        return DeltaStream(read, path)

    def _start(self, key: str, reader: DataStreamReader) -> int | None:
        starts = self._starts.get()
        if starts is None or {name.lower() for name in reader_options(reader)} & _OWN_START:
            return None
        if starts.is_open and key not in starts.chosen:
            start = self._append_only_start(self._paths[key])
            if start is not None:
                starts.chosen[key] = start
        return starts.chosen.get(key)
