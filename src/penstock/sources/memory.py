"""What a source remembers of one flow: schema versions and small notes.

A folder store lies beside the flow's other state and dies with the flow's epoch, as the checkpoint
does. A memory store is for dry runs: it shows what a folder holds and keeps what is new to itself.
"""

import json
from typing import Any

from pyspark.sql.types import StructType

from penstock._tables.files import StorageFiles


class FolderMemory:
    """Versions in `<folder>/_schemas/<n>`, notes in `<folder>/<name>.json`. One writer at a time.

    An incomplete file counts as absent. Without a version, `seed` (from the analysis of the same
    update) is the first, so that the table and the stream agree. The source can have files of its
    own in the folder.
    """

    def __init__(
        self, files: StorageFiles, folder: str, *, seed: "PassingMemory | None" = None
    ) -> None:
        self._files = files
        self.folder = folder.rstrip("/")
        self._seed = seed

    def load(self) -> list[StructType]:
        """All versions, oldest first; empty before the first start."""
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
        """Add a version."""
        number = 0
        while self._read(number) is not None:
            number += 1
        body = {"version": 1, "schema": schema.jsonValue()}
        self._files.write(f"{self.folder}/_schemas/{number}", json.dumps(body, indent=1))

    def note(self, name: str) -> Any:
        """A note that was saved under a name; `None` without one."""
        return _parsed(self._files.read(f"{self.folder}/{name}.json"))

    def save_note(self, name: str, value: Any) -> None:
        """Save something that JSON can hold, replacing what has that name."""
        self._files.write(f"{self.folder}/{name}.json", json.dumps(value, indent=1))

    def _read(self, number: int) -> StructType | None:
        body = _parsed(self._files.read(f"{self.folder}/_schemas/{number}"))
        return None if body is None else StructType.fromJson(body["schema"])


class PassingMemory:
    """Keeps everything in memory; reads what a persisted store has, and never writes to it."""

    folder = None

    def __init__(self, persisted: FolderMemory | None = None) -> None:
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


SourceMemory = FolderMemory | PassingMemory


def _parsed(text: str | None) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None
