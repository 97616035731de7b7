"""How far the checkpoints of a flow have read: functions for sources."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock._tables.read.checkpoint_files import Checkpoint


def that_count(checkpoints: Sequence[Checkpoint], replaced_ms: int) -> list[Checkpoint]:
    """The checkpoints of which a table may have rows: without those that ended by `replaced_ms`."""
    return [c for c in checkpoints if c.is_current or _ended_ms(c) > replaced_ms]


def last_offsets(checkpoint: Checkpoint) -> Iterator[Mapping[str, Any]]:
    """The end offsets of the newest planned batch, for sources whose offsets are JSON objects."""
    if checkpoint.planned:
        for offset in checkpoint.planned[-1].offsets:
            if isinstance(offset, dict):
                yield offset


def first_offsets(checkpoint: Checkpoint) -> Iterator[Mapping[str, Any]]:
    """The offsets that sources stored before their first batch, after a zero byte of Spark's."""
    for log in sorted((checkpoint.path / "sources").glob("*/0")):
        try:
            offset = json.loads(log.read_text(encoding="utf-8").rpartition("\n")[2])
        except (OSError, ValueError):
            continue
        if isinstance(offset, dict):
            yield offset


def created_ms(checkpoint: Checkpoint) -> int:
    """When Spark gave the query its id: written once, before the first batch; 0 if unknown."""
    try:
        return round((checkpoint.path / "metadata").stat().st_mtime * 1000)
    except OSError:
        return 0


def _ended_ms(checkpoint: Checkpoint) -> int:
    times = [file.stat().st_mtime for file in (checkpoint.path / "commits").glob("[0-9]*")]
    return round(max(times, default=0) * 1000)
