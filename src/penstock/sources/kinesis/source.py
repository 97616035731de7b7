"""Kinesis as a source: streams of shards, read by a data source in Python."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import functions as F

from penstock._model.flow import Flow
from penstock._model.quantity import plural
from penstock._model.spark_version import require_spark
from penstock._observe.lag import source_view
from penstock._observe.masking import shown
from penstock._tables.read.checkpoint_files import Checkpoint
from penstock.errors import CheckpointError, FlowError, PenstockError
from penstock.sources import aws, checkpoints
from penstock.sources.base import (
    Loss,
    OpenedSource,
    Position,
    Range,
    RangeReport,
    Read,
    Source,
    StartPosition,
    StartReport,
    first_ms,
    iso,
    not_read_yet,
)
from penstock.sources.kinesis.offsets import Offset, is_offset, ranges
from penstock.sources.kinesis.options import (
    BEHIND,
    FORMAT,
    InitialPosition,
    KinesisOptions,
    source_options,
)

_TIME = "approximateArrivalTimestamp"
_STREAMS = "Kinesis streams"
# The data source fails in Spark's Python processes, which return only the text of an error.
_FAILURE = re.compile(
    r"\[(KINESIS_[A-Z_]+|STREAM_RECREATED|SOURCE_ROWS_LOST|MISSING_EXTRA)\] ([^\n]+)"
    r"(?:\n +hint: ([^\n]+))?"
)
_HINTS = {
    "SOURCE_ROWS_LOST": 'set failOnDataLoss to "false" to continue without them, or --full-refresh '
    "TABLE to read the rows that are left; RESET",
    "STREAM_RECREATED": "--full-refresh TABLE reads the new stream from its start; RESET; to keep "
    "the rows of the old one, give the flow a new name: it starts with a new checkpoint",
}
_MAY_PASS = ("KINESIS_UNREACHABLE",)


class KinesisSource(Source):
    """Streams of Amazon Kinesis; no request is made before a query starts."""

    formats = (FORMAT,)

    def describe(self, read: Read) -> str:
        names = [v for k, v in read.options.items() if k.lower() == "streamname"]
        return f"kinesis {names[0] if names else ''}".rstrip()

    def open(self, read: Read) -> OpenedSource:
        require_spark("4.2", "Kinesis")
        from penstock.sources.kinesis.data_source import kinesis_source

        checked = source_options(read.options, streaming=read.is_stream)
        aws.require_botocore("the Kinesis source")
        options = _options_at(checked, read.position)
        read.spark.dataSource.register(kinesis_source(options))
        reader: Any = read.spark.readStream if read.is_stream else read.spark.read
        name = f"kinesis {', '.join(checked.streams)}"
        rows = _within(reader.format(FORMAT).load(), read.position)
        return KinesisStream(rows, checked.streams, name=name)


class KinesisStream(OpenedSource):
    """Streams of shards. Positions are times of arrival by the clock of Kinesis."""

    def __init__(self, df: Any, streams: Sequence[str], *, name: str) -> None:
        super().__init__(df, name=name, unit="milliseconds")
        self._streams = streams

    def lag(
        self, progress: Mapping[str, Any], java_source: Callable[[], Any]
    ) -> dict[str, Any] | None:
        latest = progress.get("latestOffset")
        if not isinstance(latest, dict) or BEHIND not in latest:
            return None
        return {"kind": "kinesis", "shards": source_view(progress)["shards"]}

    def lost(self, progress: Mapping[str, Any]) -> Sequence[Loss]:
        """Rows that the micro-batch of a progress report was to read, but could not."""
        start, end = progress.get("startOffset"), progress.get("endOffset")
        after = Offset.from_json(end) if is_offset(end) else Offset()
        # Another source of the query may also be a Kinesis source.
        if not set(self._streams) <= after.streams.keys():
            return []
        before = Offset.from_json(start) if is_offset(start) else Offset()
        return _losses(before, after, int(progress.get("numInputRows", 0)))

    def explain(self, text: str, flow: Flow) -> PenstockError | None:
        match = _FAILURE.search(text)
        if match is None:
            return None
        condition, message = match[1], shown(match[2])
        hint = _HINTS.get(condition, match[3] and shown(match[3]))
        raised = CheckpointError if condition == "STREAM_RECREATED" else FlowError
        return raised(
            condition,
            f"flow {flow.name!r}: the query failed: {message}",
            flow=flow.name,
            retryable=condition in _MAY_PASS,
            origin=flow.origin,
            hint=hint and hint.replace("TABLE", flow.target).replace("; RESET", flow.sink_reset),
        )

    def start(
        self, at: StartPosition, done: Sequence[Checkpoint], now_ms: int
    ) -> tuple[Position, StartReport]:
        seen = _seen_ms(done)
        since = first_ms(at, now_ms, _STREAMS)
        if since is None:
            return {"from_the_start": True}, self.start_report(None, 0)
        skipped = max(0, since - seen) if seen else None
        return {"arrived_from": since}, self.start_report(max(0, seen - since), skipped, done)

    def range(self, wanted: Range, done: Checkpoint) -> tuple[Position, RangeReport]:
        seen = _seen_ms([done])
        begin = first_ms(wanted.begin, wanted.now_ms, _STREAMS)
        end = seen if wanted.end is None else first_ms(wanted.end, wanted.now_ms, _STREAMS)
        if end is None or end > seen:
            raise not_read_yet(wanted.flow, f"it has read {self.name} up to {iso(seen)}")
        position: dict[str, Any] = {"arrived_before": end}
        if begin is None:
            position["from_the_start"] = True
        else:
            position["arrived_from"] = begin
        text = f"arrived from {wanted.begin} to {wanted.end or 'the position of the flow'}"
        return position, self.range_report(max(0, end - (begin or 0)), text)

    def is_past_end(self, position: Position, progress: Mapping[str, Any]) -> bool:
        end, before = progress.get("endOffset"), position.get("arrived_before")
        if before is None or not is_offset(end):
            return False
        shards = [p for s in Offset.from_json(end).streams.values() for p in s.values()]
        return all(shard.closed or shard.seen >= before for shard in shards)


def _options_at(options: KinesisOptions, position: Position) -> KinesisOptions:
    if position.get("from_the_start"):
        return replace(options, start=InitialPosition(kind="trim_horizon"))
    since = position.get("arrived_from")
    if since is None:
        return options
    return replace(options, start=InitialPosition(kind="at_timestamp", millis=int(since)))


def _within(rows: Any, position: Position) -> Any:
    if (since := position.get("arrived_from")) is not None:
        rows = rows.where(F.unix_millis(F.col(_TIME)) >= since)
    if (before := position.get("arrived_before")) is not None:
        rows = rows.where(F.unix_millis(F.col(_TIME)) < before)
    return rows


def _seen_ms(done: Sequence[Checkpoint]) -> int:
    seen = [
        shard.seen
        for checkpoint in done
        for offset in checkpoints.last_offsets(checkpoint)
        if is_offset(offset)
        for shards in Offset.from_json(offset).streams.values()
        for shard in shards.values()
        if not shard.closed
    ]
    return min(seen, default=0)


def _losses(before: Offset, after: Offset, rows: int) -> list[Loss]:
    losses = []
    for stream, shards in after.streams.items():
        for shard, position in shards.items():
            if position.lost and before.get(stream, shard) != position:
                number = None if position.lost == "?" else position.lost
                losses.append(_loss(stream, shard, after=number))
    parts = ranges(before, after)
    missing = sum(part.rows for part in parts) - rows
    if missing > 0 and after.tolerant:
        streams = sorted({part.stream for part in parts})
        # Where rows of several shards are missing, only their sum is known.
        shard = parts[0].shard if len(parts) == 1 else "*"
        losses.append(_loss(",".join(streams), shard, rows=missing))
    return losses


def _loss(stream: str, shard: str, *, after: str | None = None, rows: int | None = None) -> Loss:
    text = f"{stream}/{shard}"
    if rows is not None:
        text = f"{plural(rows, 'row')} of {text}"
    elif after:
        text = f"{text} after {after}"
    return Loss(text=text, body={"stream": stream, "shard": shard, "after": after, "rows": rows})
