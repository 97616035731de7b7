"""Kafka offsets: where a stream begins and ends, and which offsets were lost."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.sources.base import Loss, Offsets, Position
from penstock.sources.kafka.admin import TopicPartition

_STARTS = (
    "startingoffsets",
    "startingtimestamp",
    "startingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy",
)
_MOST_OFFSETS, _LEAST_OFFSETS = 1_000_000, 10_000
EMPTY: Mapping[str, int] = {}
"""Offsets of a topic without partitions."""


def each_offset(offsets: Offsets) -> Iterator[tuple[str, str, int]]:
    """Topic, number of the partition, and offset."""
    for topic, partitions in offsets.items():
        for number, offset in partitions.items():
            yield topic, number, offset


def is_offset(offset: Mapping[str, Any]) -> bool:
    """Whether an offset of a checkpoint is one of Kafka."""
    return bool(offset) and all(
        isinstance(partitions, dict) and all(isinstance(end, int) for end in partitions.values())
        for partitions in offset.values()
    )


def options_at(
    options: Mapping[str, str], position: Position, topics: Callable[[str], Offsets]
) -> dict[str, str]:
    """The options with the start offsets of the stream; Spark requires one for each partition."""
    offsets: Offsets = position.get("offsets", {})
    if not (offsets or position.get("from_the_start")):
        return dict(options)
    kept = {key: value for key, value in options.items() if key.lower() not in _STARTS}
    if not offsets:
        return {**kept, "startingOffsets": "earliest"}
    chosen = {
        topic: {number: offsets.get(topic, EMPTY).get(number, -2) for number in partitions}
        for topic, partitions in topics("earliest").items()
    }
    kept["startingOffsets"] = json.dumps(chosen)
    ends: Offsets = position.get("end_offsets", {})
    if ends and not any(key.lower() == "maxoffsetspertrigger" for key in kept):
        # A batch must not read far beyond the end of the range.
        wanted = sum(
            max(0, end - offsets.get(topic, EMPTY).get(number, 0))
            for topic, number, end in each_offset(ends)
        )
        kept["maxOffsetsPerTrigger"] = str(max(_LEAST_OFFSETS, min(_MOST_OFFSETS, wanted)))
    return kept


def before_end(rows: DataFrame, position: Position) -> DataFrame:
    """The rows before the end of a range."""
    ends: Offsets = position.get("end_offsets", {})
    if not ends:
        return rows
    condition: Column = F.lit(False)
    for topic, number, end in each_offset(ends):
        of_partition = (F.col("topic") == topic) & (F.col("partition") == int(number))
        condition = condition | (of_partition & (F.col("offset") < end))
    return rows.where(condition)


def lost_offsets(starts: Offsets, ends: Offsets, first: Offsets) -> str:
    """The records that a flow has read and that are before its new start, in words."""
    gone = []
    for topic, number, end in sorted(each_offset(ends)):
        begin = first.get(topic, EMPTY).get(number, 0)
        start = starts.get(topic, EMPTY).get(number)
        stop = end if start is None else min(start, end)
        if stop > begin:
            gone.append(f"{topic}-{number} {begin} to {stop - 1}")
    return f"offsets of {'; '.join(gone)} are not read" if gone else ""


def lost_ranges(
    progress: Mapping[str, Any],
    earliest: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]],
) -> list[Loss]:
    """The ranges that were removed before a batch read them, from a source's progress report.

    Fewer rows than offsets are normal (transactions, compaction), and retention may remove rows
    right after they were read. So a range is lost if rows are missing and the partition begins
    after the offset at which the batch was to begin.
    """
    start, end = progress.get("startOffset"), progress.get("endOffset")
    if not (isinstance(start, dict) and isinstance(end, dict)):
        return []
    losses: list[Loss] = []
    ahead: dict[TopicPartition, tuple[int, int]] = {}
    for topic, partition, first in each_offset(start):
        last = end.get(topic, EMPTY).get(partition)
        if last is None:
            losses.append(_loss(topic, int(partition), first, None))
        elif last > first:
            ahead[topic, int(partition)] = (first, last)
    wanted = sum(last - first for first, last in ahead.values())
    if progress.get("numInputRows", 0) < wanted:
        begins = earliest(list(ahead))
        for (topic, number), (first, last) in sorted(ahead.items()):
            begin = begins.get((topic, number), first)
            if begin > first:
                losses.append(_loss(topic, number, first, min(begin, last)))
    return losses


def _loss(topic: str, number: int, first: int, end: int | None) -> Loss:
    last = "its end" if end is None else end - 1
    body = {"topic": topic, "partition": number, "first": first, "end": end}
    return Loss(text=f"{topic}-{number} from {first} to {last}", body=body)
