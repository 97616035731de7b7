"""The stored state of a source in one flow: schema versions and small notes.

`FolderMemory` is stored next to the flow's other state and is deleted with the flow's epoch, like
the checkpoint. `PassingMemory` is for dry runs: it reads a folder and keeps new entries in memory.
"""

import json
from typing import Any

from pyspark.sql.types import StructType

from penstock._tables.files import StorageFiles


class FolderMemory:
    """Versions in `<folder>/_schemas/<n>`, notes in `<folder>/<name>.json`. One writer at a time.

    An incomplete file counts as absent. If there is no version, that of `seed` (from the analysis
    of the same update) is saved as the first, so that the table and the stream have the same
    schema. The source can keep other files in the folder.
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
        """The note with a name; `None` if there is none."""
        return _parsed(self._files.read(f"{self.folder}/{name}.json"))

    def save_note(self, name: str, value: Any) -> None:
        """Save a value that JSON can represent, replacing a note with the same name."""
        self._files.write(f"{self.folder}/{name}.json", json.dumps(value, indent=1))

    def _read(self, number: int) -> StructType | None:
        body = _parsed(self._files.read(f"{self.folder}/_schemas/{number}"))
        return None if body is None else StructType.fromJson(body["schema"])


class PassingMemory:
    """Keeps everything in memory; reads a persisted store, but never writes to it."""

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
