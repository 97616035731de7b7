"""Savepoints in a storage, and the checkpoints that they copy.

A savepoint has the version of each table of a pipeline, and a copy of the checkpoint and of the
state of each flow; `_repair` creates and restores it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock._model.name import path_segment, segment_name
from penstock._tables.files import StorageFiles
from penstock._tables.layout import StorageLayout
from penstock.errors import PlanError, SetupError, SpecError

RESTORE_JOURNAL = "restore.json"
_FILE = "savepoint.json"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SavedTable:
    """A version of a table, of its quarantine or of its CDC state."""

    name: str  # for messages
    path: str
    table_id: str
    version: int
    view: Mapping[str, Any] = field(default_factory=dict)  # JSON of `ViewState`, of its dataset


@dataclass(frozen=True, kw_only=True)
class SavedFlow:
    """A flow with its last finished micro-batch; `state` is the JSON of `FlowState`."""

    flow: str
    batch_id: int | None  # None before the first one
    state: Mapping[str, Any]
    numbers: Mapping[str, int]  # last batch in the log of each table, by its path
    is_declared: bool = True  # and at rest; False: its code was removed before


@dataclass(frozen=True, kw_only=True)
class Savepoint:
    name: str
    created_at: str  # ISO 8601, UTC
    tables: tuple[SavedTable, ...]
    flows: tuple[SavedFlow, ...]


class Savepoints:
    """The savepoints of a storage."""

    def __init__(self, files: StorageFiles, layout: StorageLayout) -> None:
        self._files = files
        self._layout = layout

    def names(self) -> list[str]:
        return sorted(segment_name(name) for name in self._files.names(self._layout.savepoints))

    def find(self, name: str) -> Savepoint | None:
        """A savepoint; `None` if it does not exist or was not completed."""
        path = f"{self._layout.savepoint_folder(name)}/{_FILE}"
        text = self._files.read(path)
        try:
            return None if not text else _savepoint_of(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise SpecError(
                "SAVEPOINT_NOT_READABLE",
                f"the savepoint {name!r} was written by another version of Penstock, or its file "
                f"is damaged: {path}",
                hint="use the version of Penstock that created it; restore a damaged file from a "
                "copy, or delete its folder",
            ) from error

    def all(self) -> list[Savepoint]:
        """All complete savepoints, oldest first."""
        complete = [point for name in self.names() if (point := self.find(name)) is not None]
        return sorted(complete, key=lambda point: point.created_at)

    def get(self, name: str) -> Savepoint:
        savepoint = self.find(name)
        if savepoint is None:
            known = ", ".join(point.name for point in self.all())
            raise SpecError(
                "SAVEPOINT_NOT_FOUND",
                f"there is no savepoint {name!r}",
                hint=f"savepoints: {known or 'none'}",
            )
        return savepoint

    def save(self, savepoint: Savepoint) -> None:
        content = json.dumps({"format": _FORMAT, **asdict(savepoint)}, indent=1)
        self._files.write(f"{self._layout.savepoint_folder(savepoint.name)}/{_FILE}", content)

    def delete(self, name: str) -> None:
        folder = self._layout.savepoint_folder(name)
        self._files.write(f"{folder}/{_FILE}", "")  # a kill leaves no savepoint without its copies
        self._files.delete_tree(folder)

    def delete_incomplete(self) -> None:
        """Delete incomplete savepoints of interrupted commands."""
        for name in self.names():
            if not self._files.read(f"{self._layout.savepoint_folder(name)}/{_FILE}"):
                self.delete(name)

    def flow_folder(self, name: str, flow: str) -> str:
        """Folder of the copies of a flow: `checkpoint` and `files`."""
        return f"{self._layout.savepoint_folder(name)}/flows/{path_segment(flow)}"


def unfinished_restore(files: StorageFiles, layout: StorageLayout) -> str | None:
    """The savepoint whose restore was interrupted; `None` if there is none."""
    path = f"{layout.restore_folder}/{RESTORE_JOURNAL}"
    text = files.read(path)
    try:
        return str(json.loads(text)["savepoint"]) if text else None
    except (ValueError, KeyError, TypeError) as error:
        raise journal_damaged(path) from error


def journal_damaged(path: str) -> SetupError:
    return SetupError(
        "JOURNAL_DAMAGED",
        f"the journal of an unfinished repair, {path}, is damaged or was written by another "
        "version of Penstock",
        hint="restore the file from a copy, or run the command with the version of Penstock that "
        "started it",
    )


def restore_unfinished(savepoint: str) -> PlanError:
    return PlanError(
        "RESTORE_UNFINISHED",
        f"the restore of savepoint {savepoint!r} was interrupted: tables and checkpoints do not "
        "belong together",
        hint=f"`penstock savepoint restore {savepoint} --yes` completes it",
    )


def _savepoint_of(body: Mapping[str, Any]) -> Savepoint:
    if body["format"] != _FORMAT:
        raise ValueError
    return Savepoint(
        name=body["name"],
        created_at=body["created_at"],
        tables=tuple(SavedTable(**table) for table in body["tables"]),
        flows=tuple(SavedFlow(**flow) for flow in body["flows"]),
    )
