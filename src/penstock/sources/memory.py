"""What a source remembers of one flow: schema versions and small notes.

A folder store lies beside the flow's other state and dies with the flow's epoch, as the checkpoint
does. A memory store is for dry runs: it shows what a folder holds and keeps what is new to itself.
"""

import json
from typing import Any, Protocol

from pyspark.sql.types import StructType

from penstock._tables.files import StorageFiles


class SourceMemory(Protocol):
    """Versions of one source's schema, and notes about it. One writer at a time."""

    @property
    def folder(self) -> str | None:
        """Where the source can have files of its own; `None` if nothing may be written."""

    def load(self) -> list[StructType]:
        """All versions, oldest first; empty before the first start."""

    def save(self, schema: StructType) -> None:
        """Add a version."""

    def note(self, name: str) -> Any:
        """A note that was saved under a name; `None` without one."""

    def save_note(self, name: str, value: Any) -> None:
        """Save something that JSON can hold, replacing what has that name."""


class FolderMemory:
    """Versions in `<folder>/_schemas/<n>`, notes in `<folder>/<name>.json`.

    An incomplete file counts as absent. Without a version, `seed` (from the analysis of the same
    update) is the first, so that the table and the stream agree.
    """

    def __init__(
        self, files: StorageFiles, folder: str, *, seed: "PassingMemory | None" = None
    ) -> None:
        self._files = files
        self.folder = folder.rstrip("/")
        self._seed = seed

    def load(self) -> list[StructType]:
        schemas: list[StructType] = []
        while (schema := self._read(len(schemas))) is not None:
            schemas.append(schema)
        if not schemas and self._seed is not None and self._seed.added:
            for name, value in self._seed.notes.items():
                self.save_note(name, value)
            self.save(self._seed.added[-1])
            schemas.append(self._seed.added[-1])
        return schemas

    def save(self, schema: StructType) -> None:
        number = 0
        while self._read(number) is not None:
            number += 1
        body = {"version": 1, "schema": schema.jsonValue()}
        self._files.write(f"{self.folder}/_schemas/{number}", json.dumps(body, indent=1))

    def note(self, name: str) -> Any:
        return _parsed(self._files.read(f"{self.folder}/{name}.json"))

    def save_note(self, name: str, value: Any) -> None:
        self._files.write(f"{self.folder}/{name}.json", json.dumps(value, indent=1))

    def _read(self, number: int) -> StructType | None:
        body = _parsed(self._files.read(f"{self.folder}/_schemas/{number}"))
        return None if body is None else StructType.fromJson(body["schema"])


class PassingMemory:
    """Keeps everything in memory; reads what a persisted store has, and never writes to it."""

    folder = None

    def __init__(self, persisted: SourceMemory | None = None) -> None:
        self._persisted = persisted
        self.added: list[StructType] = []
        """Versions that the persisted store does not have."""
        self.notes: dict[str, Any] = {}
        """Notes that the persisted store does not have."""

    def load(self) -> list[StructType]:
        before = self._persisted.load() if self._persisted is not None else []
        return [*before, *self.added]

    def save(self, schema: StructType) -> None:
        self.added.append(schema)

    def note(self, name: str) -> Any:
        if name in self.notes or self._persisted is None:
            return self.notes.get(name)
        return self._persisted.note(name)

    def save_note(self, name: str, value: Any) -> None:
        self.notes[name] = value


def _parsed(text: str | None) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None
