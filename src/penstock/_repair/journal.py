"""The journal of a repair: what a command has started, in a small JSON file.

It is written before anything changes and deleted when the command is done. A command that was
killed is resumed with it, whatever its options and the pipeline are by then. Other files of the
repair are in the same folder, and are deleted with it.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from penstock._tables.files import StorageFiles
from penstock.errors import SetupError

Entry = TypeVar("Entry")


class Journal(Generic[Entry]):
    """The journal of the repairs of one flow or table; of one at a time."""

    def __init__(
        self,
        files: StorageFiles,
        folder: str,
        parse: Callable[[dict[str, Any]], Entry],  # an entry from its JSON form
        name: str = "decided.json",  # of the file in the folder
    ) -> None:
        self.folder = folder
        self._files = files
        self._parse = parse
        self._path = f"{folder}/{name}"

    def load(self) -> Entry | None:
        """The entry; `None` if no repair is unfinished."""
        text = self._files.read(self._path)
        try:
            return self._parse(json.loads(text)) if text else None
        except (ValueError, KeyError, TypeError) as error:
            raise SetupError(
                "JOURNAL_DAMAGED",
                f"the journal of an unfinished repair, {self._path}, is damaged or was written by "
                "another version of Penstock",
                hint="restore the file from a copy, or run the command with the version of "
                "Penstock that started it",
            ) from error

    def save(self, entry: Mapping[str, Any]) -> None:
        """Replace the entry, atomically on a local disk."""
        self._files.write(self._path, json.dumps(entry, indent=1))

    def clear(self) -> None:
        """Remove the entry; other files of the repair stay."""
        if self._files.exists(self._path):
            self._files.write(self._path, "")

    def delete(self) -> None:
        """Remove the entry, then the folder: a kill in between leaves no entry without files."""
        self.clear()
        self._files.delete_tree(self.folder)
