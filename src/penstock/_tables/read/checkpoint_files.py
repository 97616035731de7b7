"""Reads the files of Spark's checkpoints, without Spark or a lease, also while a flow runs.

A checkpoint has a log of planned batches (`offsets`), a log of finished batches (`commits`), the id
of its query (`metadata`) and the files of the state stores. Most functions read local storage only.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from penstock._model.name import find_name, path_segment, segment_name
from penstock._model.pipeline import PipelineSettings
from penstock._tables.commits import lines_of
from penstock._tables.files import StorageFiles, local_path
from penstock._tables.layout import DECISION_FILE, NOTE_FILE, layout_of
from penstock.errors import SpecError

METADATA_MISSING = "is missing"
_STATE_FILE = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(?:changelog|zip|delta|snapshot)$")


@dataclass(frozen=True, kw_only=True)
class LoggedBatch:
    """A file of `offsets`; `conf` are the settings that Spark stores in the checkpoint."""

    batch_id: int
    offsets: tuple[Any, ...]  # per source: JSON, or another string; None means no offset yet
    watermark_ms: int | None
    timestamp_ms: int | None  # when it was planned
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StatePartition:
    """State files of one partition of one stateful operator; versions ascending, size in bytes."""

    operator: int
    partition: int
    versions: tuple[int, ...]
    size: int


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    flow: str
    epoch: str
    path: Path
    is_current: bool  # whether the flow uses it
    exists: bool  # whether the folder exists
    query_id: str | None  # None if `metadata` cannot be read
    planned: tuple[LoggedBatch, ...]  # batches in `offsets` that are not deleted yet, ascending
    finished: tuple[int, ...]  # ids of the batches in `commits`, ascending
    damaged: Mapping[str, str]  # unreadable files, relative to the folder, with the reason
    state: tuple[StatePartition, ...]
    size: int  # size of the folder in bytes

    @property
    def last_planned(self) -> int | None:
        return self.planned[-1].batch_id if self.planned else None

    @property
    def last_finished(self) -> int | None:
        return self.finished[-1] if self.finished else None

    def has_finished(self, batch_id: int) -> bool:
        planned, finished = self.last_planned, self.last_finished
        return (finished is not None and finished >= batch_id) or (
            planned is not None and planned > batch_id
        )


@dataclass(frozen=True, kw_only=True)
class FlowRecord:
    """The stored state of a flow (`state/flows`)."""

    flow: str
    epoch: str
    target_id: str | None  # Delta's table id; None for a sink, or before the first start
    has_started: bool
    pipeline: str  # name of the pipeline in the application id of its writers


def flow_records(settings: PipelineSettings) -> dict[str, FlowRecord]:
    records = {}
    for file in sorted((_root(settings) / "state" / "flows").glob("*.json")):
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
            name = unquote(file.stem)
            records[name] = FlowRecord(
                flow=name,
                epoch=str(body["epoch"]),
                target_id=body.get("target_id"),
                has_started=body.get("stateful_operators") is not None,
                pipeline=str(body.get("pipeline") or settings.name),
            )
        except (OSError, ValueError, KeyError, TypeError):
            # Truncated by a crash. The flow cannot start without it if the table has its batches.
            continue
    return records


def checkpoints(settings: PipelineSettings, flow: str | None = None) -> list[Checkpoint]:
    """All checkpoints below the storage root, or those of one flow; current ones first.

    Raises `CHECKPOINT_NOT_FOUND` if the flow has none, or `STORAGE_NOT_LOCAL`.
    """
    root = _root(settings) / "checkpoints"
    records = flow_records(settings)
    paths = {
        (segment_name(path.parent.name), segment_name(path.name)): path
        for path in sorted(root.glob("*/*"))
        if path.is_dir() and not _is_of_batch_query(path)
    }
    for record in records.values():
        if record.has_started:
            path = root / path_segment(record.flow) / path_segment(record.epoch)
            paths.setdefault((record.flow, record.epoch), path)
    current = {(record.flow, record.epoch) for record in records.values()}
    result = [
        read_checkpoint(*names, path, is_current=names in current) for names, path in paths.items()
    ]
    if flow is not None:
        known = sorted({checkpoint.flow for checkpoint in result})
        name = find_name(flow, known)
        result = [checkpoint for checkpoint in result if checkpoint.flow == name]
        if not result:
            raise SpecError(
                "CHECKPOINT_NOT_FOUND",
                f"flow {flow!r} has no checkpoint below {root}",
                hint=f"flows with a checkpoint: {', '.join(known) or 'none yet'}",
            )
    return sorted(result, key=lambda item: (item.flow, not item.is_current, item.epoch))


def _is_of_batch_query(path: Path) -> bool:
    """Whether a folder has only the files that one-time flows write, and no files of Spark."""
    # A process that is killed while it writes such a file leaves a file that begins with a dot.
    names = (file.name.removeprefix(".") for file in path.iterdir())
    return all(name.startswith((DECISION_FILE, NOTE_FILE)) for name in names)


def _root(settings: PipelineSettings) -> Path:
    root = local_path(layout_of(settings).home)
    if root is None:
        raise SpecError(
            "STORAGE_NOT_LOCAL",
            f"the checkpoints of {settings.storage} cannot be read without Spark",
        )
    return root


def newest_of_checkpoint(flow: str, epoch: str, path: Path) -> Checkpoint:
    """A current checkpoint with its newest two batches, which the next start reads."""
    return read_checkpoint(flow, epoch, path, last=2)


def batches(files: StorageFiles, checkpoint: str, kind: str) -> list[int]:
    """The micro-batches in `offsets` or `commits` of a checkpoint on any storage, ascending."""
    return sorted(int(name) for name in files.names(f"{checkpoint}/{kind}") if name.isdecimal())


def table_offsets(text: str) -> Iterator[dict[str, Any]]:
    """The offsets of Delta tables in a file of `offsets`."""
    return (o for o in map(_offset, lines_of(text)) if isinstance(o, dict) and "reservoirId" in o)


def source_offsets(text: str) -> list[Any]:
    """The offsets of all sources in a file of `offsets`, without its version and settings."""
    return [_offset(line) for line in lines_of(text)[2:]]


def read_checkpoint(
    flow: str, epoch: str, path: Path, *, is_current: bool = True, last: int = 0
) -> Checkpoint:
    """The content of a checkpoint; with `last`, only that many batches, without state and size."""
    damaged: dict[str, str] = {}
    files = [] if last else [file for file in path.rglob("*") if file.is_file()]
    return Checkpoint(
        flow=flow,
        epoch=epoch,
        path=path,
        is_current=is_current,
        exists=path.is_dir(),
        query_id=_query_id(path, damaged) if path.is_dir() or last else None,
        planned=tuple(_planned(path, damaged, last)),
        finished=tuple(_finished(path, damaged, last)),
        damaged=damaged,
        state=() if last else tuple(_state(path)),
        size=sum(map(_size, files)),
    )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # Spark has deleted it since it was listed
        return 0


def _query_id(path: Path, damaged: dict[str, str]) -> str | None:
    try:
        return str(json.loads((path / "metadata").read_text(encoding="utf-8"))["id"])
    except FileNotFoundError:
        damaged["metadata"] = METADATA_MISSING
    except (OSError, ValueError, KeyError, TypeError):
        damaged["metadata"] = "is not JSON with an id"
    return None


def _numbered(folder: Path, last: int = 0) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    names = [file for file in folder.iterdir() if file.name.isdecimal()]
    return sorted((int(file.name), file) for file in names)[-last:]


def _planned(path: Path, damaged: dict[str, str], last: int) -> Iterator[LoggedBatch]:
    for number, name, lines in _entries(path, "offsets", damaged, last):
        if len(lines) < 2:
            damaged[name] = "is truncated: it has no offsets"
            continue
        try:
            head = json.loads(lines[0] or "{}")  # empty without micro-batches
            yield LoggedBatch(
                batch_id=number,
                offsets=tuple(_offset(line) for line in lines[1:]),
                watermark_ms=head.get("batchWatermarkMs"),
                timestamp_ms=head.get("batchTimestampMs"),
                conf={str(key): str(value) for key, value in head.get("conf", {}).items()},
            )
        except (ValueError, AttributeError):
            damaged[name] = "is not in Spark's format"


def _finished(path: Path, damaged: dict[str, str], last: int) -> Iterator[int]:
    for number, name, lines in _entries(path, "commits", damaged, last):
        try:
            json.loads(lines[0])
        except (ValueError, IndexError):
            damaged[name] = "is not in Spark's format"
            continue
        yield number


def _entries(
    path: Path, kind: str, damaged: dict[str, str], last: int
) -> Iterator[tuple[int, str, list[str]]]:
    """Batches of `offsets` or `commits`, their files, and the lines below the version."""
    for number, file in _numbered(path / kind, last):
        name = f"{kind}/{number}"
        try:
            version, *lines = file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            damaged[name] = f"cannot be read: {error}"
            continue
        if re.fullmatch(r"v\d+", version):
            yield number, name, [*lines[:1], *filter(None, lines[1:])]
        else:
            damaged[name] = "does not start with a version" if version else "is empty"


def _offset(line: str) -> Any:
    if line == "-":
        return None
    try:
        return json.loads(line)
    except ValueError:
        return line


def _state(path: Path) -> Iterator[StatePartition]:
    for operator, folder in _numbered(path / "state"):
        for partition, inner in _numbered(folder):
            files = [file for file in inner.rglob("*") if file.is_file()]
            matches = (_STATE_FILE.match(file.name) for file in files)
            yield StatePartition(
                operator=operator,
                partition=partition,
                versions=tuple(sorted({int(match.group(1)) for match in matches if match})),
                size=sum(map(_size, files)),
            )
