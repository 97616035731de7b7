"""The newest commit of a flow in each of its tables, recorded in the flow's checkpoint.

A checkpoint does not record the versions of its batches, and batches without rows have none. So
lost versions of a table could not be distinguished from batches without rows. The note is written
after the last commit of a batch: it is never ahead of the tables.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from penstock._tables.files import StorageFiles, local_path

_FORMAT = 1
_SECONDS_ELSEWHERE = 60.0
"""Minimum interval between two writes on remote storage, where a small file costs a request."""

TARGET, QUARANTINE, CDC_STATE = "target", "quarantine", "cdc_state"


@dataclass(frozen=True, kw_only=True)
class NotedCommit:
    table_id: str
    version: int
    batch_id: int
    app_id: str


def commits_of(text: str | None) -> dict[str, NotedCommit]:
    """The commits in a note, by role of the table; empty if there is no readable note."""
    try:
        content = json.loads(text or "{}")
        if content.get("format") != _FORMAT:
            return {}
        return {
            role: NotedCommit(
                table_id=str(commit["table_id"]),
                version=int(commit["version"]),
                batch_id=int(commit["batch_id"]),
                app_id=str(commit["app_id"]),
            )
            for role, commit in content["tables"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


class CommitNote:
    def __init__(self, files: StorageFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._known: dict[str, NotedCommit] | None = None
        self._pause = 0.0 if local_path(path) is not None else _SECONDS_ELSEWHERE
        self._written = -self._pause

    def load(self) -> dict[str, NotedCommit]:
        return commits_of(self._files.read(self._path))

    def update(self, commits: Mapping[str, NotedCommit]) -> None:
        if self._known is None:
            self._known = self.load()
        known = {**self._known, **commits}
        if known == self._known or time.monotonic() - self._written < self._pause:
            return
        self.replace(known)
        self._written = time.monotonic()

    def replace(self, commits: Mapping[str, NotedCommit]) -> None:
        """Replace the whole note; an empty one accepts the tables in their present state."""
        tables = {role: asdict(commit) for role, commit in commits.items()}
        text = json.dumps({"format": _FORMAT, "tables": tables}, separators=(",", ":"))
        # No fsync, like the files of Spark and Delta themselves.
        self._files.write(self._path, text, sync=False)
        self._known = dict(commits)
