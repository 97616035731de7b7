"""Sources without their systems: offsets and versions of Kafka and Delta are literals."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock._formats.options import file_options
from penstock._tables.read.checkpoint_files import Checkpoint, LoggedBatch
from penstock.sources.base import OpenedSource
from penstock.sources.delta.source import DeltaStream
from penstock.sources.files.listing import FileRoots
from penstock.sources.files.source import FileStream
from penstock.sources.kafka.source import KafkaStream

Offsets = Mapping[str, Mapping[str, int]]

TABLE_ID = "id"
_NO_ROWS: Any = None


def checkpoint(
    folder: Path,
    *planned: Any,
    first: Any = None,
    files: Mapping[str, int] | None = None,
) -> Checkpoint:
    """Write a checkpoint with one planned batch.

    Args:
        folder: Path of the checkpoint.
        planned: Offsets of the batch, one per source. Without offsets, no batch is planned.
        first: The initial offsets, which the source stores before the first batch.
        files: Modification times of the files in the log of the source, by path.
    """
    sources = folder / "sources" / "0"
    sources.mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id": "x"}')
    if first is not None:
        # Spark writes a zero byte before the version.
        (sources / "0").write_text(f"\0v1\n{json.dumps(first)}")
    if files:
        lines = [
            json.dumps({"path": path, "timestamp": at, "batchId": 0}) for path, at in files.items()
        ]
        (sources / "0").write_text("\n".join(["v1", *lines]))
    batch = LoggedBatch(batch_id=0, offsets=planned, watermark_ms=None, timestamp_ms=None)
    return Checkpoint(
        flow="flow",
        epoch="e",
        path=folder,
        is_current=True,
        exists=True,
        query_id="x",
        planned=(batch,) if planned else (),
        finished=(0,) if planned else (),
        damaged={},
        state=(),
        size=0,
    )


class Topics:
    """The offsets that a broker returns."""

    def __init__(self, first: Offsets, next_: Offsets, by_time: Offsets) -> None:
        self._first, self._next, self._by_time = first, next_, by_time

    def __call__(self, at: str | int) -> Offsets:
        by_name = {"earliest": self._first, "latest": self._next}
        return self._by_time if isinstance(at, int) else by_name[at]


class PaperTopics(KafkaStream):
    """A Kafka source whose topics have these offsets."""

    def __init__(self, first: Offsets, next_: Offsets, by_time: Offsets | None = None) -> None:
        OpenedSource.__init__(self, _NO_ROWS, name="kafka", unit="offsets")
        topics: Any = Topics(first, next_, by_time or {})
        self._topics = topics
        self._ids = {}


class PaperTable(DeltaStream):
    """A stream of the table `/t`, which has a version every ten seconds."""

    def __init__(self) -> None:
        OpenedSource.__init__(self, _NO_ROWS, name="table /t", unit="versions")
        self.path = self._location = "/t"
        delta: Any = SimpleNamespace(
            begin=lambda path: path, metadata=lambda path: SimpleNamespace(id=TABLE_ID)
        )
        self._delta = delta

    def _times(self) -> dict[int, int]:
        return {version: version * 10_000 for version in range(10)}


class PaperFolder(FileStream):
    """A source of files in local folders. Without folders, it reads every file."""

    def __init__(self, *folders: str) -> None:
        OpenedSource.__init__(self, _NO_ROWS, name=f"files {folders}", unit="files")
        self._spark: Any = None
        if folders:
            options = file_options({"format": "text"}, has_schema=True, streaming=True)
            self._roots = FileRoots(self._spark, folders, options)
