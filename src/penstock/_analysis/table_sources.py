"""Rows of the pipeline's datasets: empty relations for analysis, or the real tables."""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from penstock._analysis.boundary import DatasetNotReadyError
from penstock._analysis.reader_hooks import reader_state
from penstock._tables.write.schema import plain_schema
from penstock.sources.base import OpenedSource, Position, Read
from penstock.sources.delta.source import OWN_BEGINNING, STARTS, DeltaStream


class SchemaSource:
    """Empty relations with the schemas of the datasets, for analysis; storage is not read.

    Reads raise `DatasetNotReadyError` for a dataset whose schema is not known yet.
    """

    def __init__(self) -> None:
        self.schemas: dict[str, StructType] = {}
        self._datasets: dict[str, str] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-analysis-")

    def close(self) -> None:
        """Remove the empty folder of the relations."""
        self._folder.cleanup()

    def batch(self, key: str, reader: DataFrameReader) -> DataFrame:
        return reader.format("parquet").schema(self._schema(key, reader)).load(self._folder_of(key))

    def stream(self, key: str, reader: DataStreamReader, position: Position) -> OpenedSource:
        rows = reader.format("parquet").schema(self._schema(key, reader)).load(self._folder_of(key))
        return OpenedSource(rows, name=f"table {key}", unit="versions")

    def dataset_at(self, path: str) -> str | None:
        return self._datasets.get(Path(unquote(path.rstrip("/"))).name)

    def _folder_of(self, key: str) -> str:
        # One folder per dataset, so that the plan shows which dataset it reads.
        name = f"{Path(self._folder.name).name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        folder = Path(self._folder.name) / name
        if name not in self._datasets:
            folder.mkdir(exist_ok=True)
            self._datasets[name] = key
        return folder.as_uri()

    def _schema(self, key: str, reader: DataFrameReader | DataStreamReader) -> StructType:
        if key not in self.schemas:
            raise DatasetNotReadyError(key)
        # The schema of a query includes its watermark. With it, an aggregation would be planned in
        # append mode, which Spark refuses for the real table.
        schema = plain_schema(self.schemas[key])
        options = reader_state(reader).folded_options
        if options.get("readchangefeed", options.get("readchangedata", "")).lower() == "true":
            schema = schema.add("_change_type", StringType()).add("_commit_version", LongType())
            schema = schema.add("_commit_timestamp", TimestampType())
        return schema


@dataclass
class StreamStarts:
    """Versions of tables from which a new flow reads appends; others begin with a snapshot.

    A stream that begins with a snapshot of its table computes the state of that table at its first
    start, and again at every start without new rows; a stream that reads the log from its beginning
    returns the same rows and computes nothing. `is_open`: whether the flow has not started yet.
    """

    chosen: dict[str, int]
    is_open: bool


class DeltaSource:
    """The real tables; for `append_only_start` see `_tables.read.log_scan`.

    `deferred` are paths of tables of a deployed pipeline, by key.
    """

    def __init__(
        self,
        paths: Mapping[str, str],
        append_only_start: Callable[[str], int | None],
        deferred: Mapping[str, str] | None = None,
    ) -> None:
        self._deferred = deferred or {}
        self._paths = {**paths, **self._deferred}
        self._append_only_start = append_only_start
        self._starts: ContextVar[StreamStarts | None] = ContextVar("penstock_starts", default=None)

    @contextlib.contextmanager
    def starting(self, starts: StreamStarts) -> Iterator[None]:
        """Use these start versions in this context."""
        token = self._starts.set(starts)
        try:
            yield
        finally:
            self._starts.reset(token)

    def batch(self, key: str, reader: DataFrameReader) -> DataFrame:
        return reader.format("delta").load(self._paths[key])

    def stream(self, key: str, reader: DataStreamReader, position: Position) -> OpenedSource:
        path, options = self._paths[key], reader_state(reader).options
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
        if starts is None or reader_state(reader).folded_options.keys() & {*STARTS, *OWN_BEGINNING}:
            return None
        # The version of a deployed table must not be used for the pipeline's own table.
        known = self._deferred.get(key, key)
        if starts.is_open and known not in starts.chosen:
            start = self._append_only_start(self._paths[key])
            if start is not None:
                starts.chosen[known] = start
        return starts.chosen.get(known)
