"""Reads Spark's checkpoints of flows from their files: no Spark, no lease, also while it runs.

A checkpoint has a log of planned batches (`offsets`), one of finished ones (`commits`), an id of
its query (`metadata`) and the files of the state stores. Only local storage is read.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from penstock._model.pipeline import PipelineSettings
from penstock._tables.files import local_path
from penstock._tables.layout import (
    DECISION_FILE,
    NOTE_FILE,
    StorageLayout,
    path_segment,
    segment_name,
)
from penstock.errors import SpecError

METADATA_MISSING = "is missing"
_STATE_FILE = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(?:changelog|zip|delta|snapshot)$")


@dataclass(frozen=True, kw_only=True)
class LoggedBatch:
    """A file of `offsets`.

    Attributes:
        batch_id: Spark's.
        offsets: One per source; JSON values as far as they are JSON. `None` = no offset yet.
        watermark_ms: Of the batch.
        timestamp_ms: When it was planned.
        conf: Settings that Spark pins to the checkpoint.
    """

    batch_id: int
    offsets: tuple[Any, ...]
    watermark_ms: int | None
    timestamp_ms: int | None
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StatePartition:
    """Files of one partition of one stateful operator.

    Attributes:
        operator: Its number.
        partition: Its number.
        versions: Of its files, oldest first.
        size: In bytes.
    """

    operator: int
    partition: int
    versions: tuple[int, ...]
    size: int


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint as its files tell.

    Attributes:
        flow: Name of the flow.
        epoch: Its identity.
        path: Its folder.
        is_current: Whether the flow goes on with it.
        exists: Whether there is a folder at all.
        query_id: Of `metadata`; `None` if it cannot be read.
        planned: Batches in `offsets` that are not deleted yet, oldest first.
        finished: Ids of the batches in `commits`, oldest first.
        damaged: Files that cannot be read, with the reason; relative to the folder.
        state: Partitions of stateful operators.
        size: Of the whole folder, in bytes.
    """

    flow: str
    epoch: str
    path: Path
    is_current: bool
    exists: bool
    query_id: str | None
    planned: tuple[LoggedBatch, ...]
    finished: tuple[int, ...]
    damaged: Mapping[str, str]
    state: tuple[StatePartition, ...]
    size: int

    @property
    def last_planned(self) -> int | None:
        """The newest batch that was planned."""
        return self.planned[-1].batch_id if self.planned else None

    @property
    def last_finished(self) -> int | None:
        """The newest batch that was finished."""
        return self.finished[-1] if self.finished else None

    def has_finished(self, batch_id: int) -> bool:
        """Whether Spark takes a batch for done: it will not run it again."""
        planned, finished = self.last_planned, self.last_finished
        return (finished is not None and finished >= batch_id) or (
            planned is not None and planned > batch_id
        )


@dataclass(frozen=True, kw_only=True)
class FlowRecord:
    """What the pipeline remembers of a flow (`state/flows`).

    Attributes:
        flow: Its name.
        epoch: Of its checkpoint.
        target_id: Delta table id of its target; `None` for a sink, or before its first start.
        has_started: Whether it was ever started with this epoch.
    """

    flow: str
    epoch: str
    target_id: str | None
    has_started: bool


def flow_records(settings: PipelineSettings) -> dict[str, FlowRecord]:
    """All flows that were ever started, by name."""
    folder = _root(settings) / "state" / "flows"
    found = {}
    for file in sorted(folder.glob("*.json")):
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
            name = unquote(file.stem)
            found[name] = FlowRecord(
                flow=name,
                epoch=str(body["epoch"]),
                target_id=body.get("target_id"),
                has_started=body.get("stateful_operators") is not None,
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a file that a crash has torn: the flow begins anew
    return found


def checkpoints(settings: PipelineSettings, flow: str | None = None) -> list[Checkpoint]:
    """All checkpoints below the storage root, those that flows go on with first.

    Args:
        settings: Of the pipeline.
        flow: Only those of this flow, any case.

    Raises:
        SpecError: `CHECKPOINT_NOT_FOUND`: the flow has none; `STORAGE_NOT_LOCAL`.
    """
    root = _root(settings) / "checkpoints"
    records = flow_records(settings)
    places = {
        (segment_name(place.parent.name), segment_name(place.name)): place
        for place in sorted(root.glob("*/*"))
        if place.is_dir() and not _is_of_batch_query(place)
    }
    for record in records.values():
        place = root / path_segment(record.flow) / path_segment(record.epoch)
        if record.has_started:
            places.setdefault((record.flow, record.epoch), place)
    current = {(record.flow, record.epoch) for record in records.values()}
    found = [
        read_checkpoint(*names, place, is_current=names in current)
        for names, place in places.items()
    ]
    if flow is not None:
        known = sorted({one.flow for one in found})
        found = [one for one in found if one.flow.lower() == flow.lower()]
        if not found:
            raise SpecError(
                "CHECKPOINT_NOT_FOUND",
                f"flow {flow!r} has no checkpoint below {root}",
                hint=f"flows with a checkpoint: {', '.join(known) or 'none yet'}",
            )
    return sorted(found, key=lambda one: (one.flow, not one.is_current, one.epoch))


def _is_of_batch_query(place: Path) -> bool:
    """Whether a folder holds nothing of Spark's: a one-time flow records its batch there."""
    return all(file.name.startswith((DECISION_FILE, NOTE_FILE)) for file in place.iterdir())


def _root(settings: PipelineSettings) -> Path:
    root = local_path(StorageLayout(settings.storage).root)
    if root is None:
        raise SpecError(
            "STORAGE_NOT_LOCAL",
            f"it changes checkpoints, and {settings.storage} is not on this machine",
            hint="run it where the storage is mounted, and give --storage; on any storage work "
            "`checkpoint list`, `inspect` and `doctor`, and `penstock run --full-refresh TABLE`",
        )
    return root


def newest_of_checkpoint(flow: str, epoch: str, place: Path) -> Checkpoint:
    """A checkpoint that a flow goes on with, as far as the next start reads it.

    Without state and size, and of its batches only the newest two.
    """
    damaged: dict[str, str] = {}
    return Checkpoint(
        flow=flow,
        epoch=epoch,
        path=place,
        is_current=True,
        exists=place.is_dir(),
        query_id=_query_id(place, damaged),
        planned=tuple(_planned(place, damaged, last=2)),
        finished=tuple(_finished(place, damaged, last=2)),
        damaged=damaged,
        state=(),
        size=0,
    )


def read_checkpoint(flow: str, epoch: str, place: Path, *, is_current: bool = True) -> Checkpoint:
    """All that the files of a checkpoint tell; nothing is raised where there is none."""
    damaged: dict[str, str] = {}
    query_id = None
    if place.is_dir():
        query_id = _query_id(place, damaged)
    files = [file for file in place.rglob("*") if file.is_file()]
    return Checkpoint(
        flow=flow,
        epoch=epoch,
        path=place,
        is_current=is_current,
        exists=place.is_dir(),
        query_id=query_id,
        planned=tuple(_planned(place, damaged)),
        finished=tuple(_finished(place, damaged)),
        damaged=damaged,
        state=tuple(_state(place)),
        size=sum(file.stat().st_size for file in files),
    )


def _query_id(place: Path, damaged: dict[str, str]) -> str | None:
    try:
        return str(json.loads((place / "metadata").read_text(encoding="utf-8"))["id"])
    except FileNotFoundError:
        damaged["metadata"] = METADATA_MISSING
    except (OSError, ValueError, KeyError, TypeError):
        damaged["metadata"] = "is not JSON with an id"
    return None


def _numbered(folder: Path, last: int = 0) -> list[tuple[int, Path]]:
    """Files with a number as their name; only the last ones if `last` is not 0."""
    if not folder.is_dir():
        return []
    names = [file for file in folder.iterdir() if file.name.isdecimal()]
    return sorted((int(file.name), file) for file in names)[-last:]


def _planned(place: Path, damaged: dict[str, str], *, last: int = 0) -> Iterator[LoggedBatch]:
    for number, file in _numbered(place / "offsets", last):
        name = f"offsets/{number}"
        lines = _lines(file, name, damaged)
        if lines is None:
            continue
        if len(lines) < 2:
            damaged[name] = "is cut: it has no offsets"
            continue
        try:
            head = json.loads(lines[0])
            yield LoggedBatch(
                batch_id=number,
                offsets=tuple(_offset(line) for line in lines[1:]),
                watermark_ms=head.get("batchWatermarkMs"),
                timestamp_ms=head.get("batchTimestampMs"),
                conf={str(key): str(value) for key, value in head.get("conf", {}).items()},
            )
        except (ValueError, AttributeError):
            damaged[name] = "is not what Spark writes"


def _finished(place: Path, damaged: dict[str, str], *, last: int = 0) -> Iterator[int]:
    for number, file in _numbered(place / "commits", last):
        name = f"commits/{number}"
        lines = _lines(file, name, damaged)
        if lines is None:
            continue
        try:
            json.loads(lines[0])
        except (ValueError, IndexError):
            damaged[name] = "is not what Spark writes"
            continue
        yield number


def _lines(file: Path, name: str, damaged: dict[str, str]) -> list[str] | None:
    """The lines below the version; `None` if there is none."""
    try:
        version, *lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        damaged[name] = f"cannot be read: {error}"
        return None
    if not re.fullmatch(r"v\d+", version):
        damaged[name] = "is empty" if not version else "does not begin with a version"
        return None
    return [line for line in lines if line]


def _offset(line: str) -> Any:
    if line == "-":
        return None
    try:
        return json.loads(line)
    except ValueError:
        return line


def _state(place: Path) -> Iterator[StatePartition]:
    for operator, folder in _numbered(place / "state"):
        for partition, inner in _numbered(folder):
            files = [file for file in inner.rglob("*") if file.is_file()]
            versions = {
                int(match.group(1)) for file in files if (match := _STATE_FILE.match(file.name))
            }
            yield StatePartition(
                operator=operator,
                partition=partition,
                versions=tuple(sorted(versions)),
                size=sum(file.stat().st_size for file in files),
            )
