"""Tables of databases as streams of their rows, in the order of a key."""

from collections.abc import Sequence
from dataclasses import replace

from penstock._model.flow import Flow
from penstock._tables.read.checkpoint_files import Checkpoint
from penstock.errors import ConnectorError, PenstockError
from penstock.sources import checkpoints
from penstock.sources.base import (
    OpenedSource,
    Position,
    Range,
    RangeReport,
    Read,
    Source,
    StartKind,
    StartPosition,
    StartReport,
    not_read_yet,
    range_invalid,
    start_not_available,
)
from penstock.sources.jdbc.failures import SourceFailure
from penstock.sources.jdbc.options import (
    JdbcSourceOptions,
    jdbc_source_options,
    spark_options,
)
from penstock.sources.jdbc.stream import JdbcStream, KeyRange, check_columns

_OFFSET = {"key", "after", "rows"}


class JdbcSource(Source):
    """Tables and queries over JDBC; Spark reads batches."""

    formats = ("jdbc",)

    def describe(self, read: Read) -> str:
        options = {name.lower(): value for name, value in read.options.items()}
        return f"jdbc {options.get('dbtable', 'query')}"

    def open(self, read: Read) -> OpenedSource:
        read = replace(read, options=spark_options(read.options))
        if not read.is_stream:
            rows = read.load(read.options)
            check_columns(rows.schema, read.options, self.describe(read))
            return OpenedSource(rows, name=self.describe(read))
        if read.schema is not None:
            raise ConnectorError(
                "JDBC_OPTION_INVALID",
                "a JDBC stream has the columns of its table",
                hint='cast them in the query, or set .option("customSchema", "amount DOUBLE")',
            )
        options = jdbc_source_options(read.options)
        bounds = KeyRange(**read.position.get("keys", {}).get(options.place, {}))
        if read.position.get("from_the_start"):
            bounds = KeyRange(is_whole=True)
        try:
            stream = JdbcStream(read.spark, options, bounds)
        except SourceFailure as failure:
            raise failure.as_error(read.flow) from failure
        return JdbcRows(stream, options)


class JdbcRows(OpenedSource):
    """A stream of one table. Positions are keys; see `OpenedSource`."""

    has_names_in_offsets = False

    def __init__(self, stream: JdbcStream, options: JdbcSourceOptions) -> None:
        super().__init__(stream.rows(), name=f"jdbc {options.place}")
        self._stream = stream
        self._place = options.place
        self._key = options.key

    def explain(self, text: str, flow: Flow) -> PenstockError | None:
        failure = self._stream.failure
        if failure is None:
            return None
        error = failure.as_error(flow.name)
        error.origin = flow.origin
        return error

    def start(
        self, at: StartPosition, done: Sequence[Checkpoint], now_ms: int
    ) -> tuple[Position, StartReport]:
        read = self._read_by(done)
        if at.kind is StartKind.EARLIEST:
            again = self._stream.count(KeyRange(until=read)) if read else 0
            return {"from_the_start": True}, self.start_report(again, 0, done)
        if at.kind is StartKind.LATEST:
            again, last = 0, self._stream.newest()
            bounds = KeyRange(after=last)
        else:
            key = self._key_of(at)
            again = self._stream.count(KeyRange(since=key, until=read)) if read else 0
            bounds, last = KeyRange(since=key), self._stream.newest(before=key)
        skipped = 0 if last is None else self._stream.count(KeyRange(after=read, until=last))
        report = self.start_report(again, skipped, done)
        return {"keys": {self._place: bounds.as_json()}}, report

    def range(self, wanted: Range, done: Checkpoint) -> tuple[Position, RangeReport]:
        read = self._read_by([done])
        if read is None:
            raise not_read_yet(wanted.flow, f"it has read nothing of {self.name}")
        is_whole = wanted.begin.kind is StartKind.EARLIEST
        since = None if is_whole else self._key_of(wanted.begin)
        until: str | None = read
        if wanted.end is not None:
            until = self._stream.newest(before=self._key_of(wanted.end))
            if until is None:
                raise range_invalid(f"{self.name} has no keys in it", "choose another range")
            if self._stream.count(KeyRange(after=read, until=until)):
                raise not_read_yet(wanted.flow, f"it has read {self.name} up to key {read}")
        bounds = KeyRange(since=since, until=until, is_whole=is_whole)
        count = self._stream.count(bounds)
        text = f"keys from {since or 'the first'} to {until}"
        return {"keys": {self._place: bounds.as_json()}}, self.range_report(count, text)

    def _key_of(self, at: StartPosition) -> str:
        match at.kind:
            case StartKind.KEY:
                return at.key
            case StartKind.TIMESTAMP if self._stream.has_times:
                return str(at)
            case _:
                raise start_not_available(
                    at,
                    "positions in a table are keys",
                    f"use `key=...`, a value of the column {self._key}",
                )

    def _read_by(self, done: Sequence[Checkpoint]) -> str | None:
        keys = [
            str(offset["key"])
            for checkpoint in done
            for offset in checkpoints.last_offsets(checkpoint)
            if set(offset) >= _OFFSET
        ]
        return self._stream.greatest(keys)
