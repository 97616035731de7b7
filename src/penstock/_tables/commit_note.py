"""The newest commit of a flow in each of its tables, noted in the flow's checkpoint.

A checkpoint alone does not say which versions its batches made, and batches without rows make
none. So what a table has lost since - its newest log file, or all that came after an older copy -
would be taken for batches that never had rows. The note is written after the last commit of a
batch: it is never ahead of the tables.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from penstock._tables.files import StorageFiles, local_path

_FORMAT = 1
_SECONDS_ELSEWHERE = 60.0
"""Where a small file costs a request, the note may be older by this."""

TARGET, QUARANTINE, CDC_STATE = "target", "quarantine", "cdc_state"


@dataclass(frozen=True, kw_only=True)
class NotedCommit:
    """A commit of a flow.

    Attributes:
        table_id: Delta's id of the table.
        version: That the commit made.
        batch_id: Micro-batch that it holds.
        app_id: Under which the table keeps it; it changes with the name of the pipeline.
    """

    table_id: str
    version: int
    batch_id: int
    app_id: str


def commits_of(text: str | None) -> dict[str, NotedCommit]:
    """The newest commits that a note names, by role of the table.

    Empty without a note, and for one that cannot be read: then there is nothing to compare.
    """
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
    """The note of one flow.

    Args:
        files: Of the storage.
        path: Of the file.
    """

    def __init__(self, files: StorageFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._known: dict[str, NotedCommit] | None = None
        self._pause = 0.0 if local_path(path) is not None else _SECONDS_ELSEWHERE
        self._written = -self._pause

    def load(self) -> dict[str, NotedCommit]:
        """See `commits_of`."""
        return commits_of(self._files.read(self._path))

    def update(self, commits: Mapping[str, NotedCommit]) -> None:
        """Replace what is noted of some tables."""
        if self._known is None:
            self._known = self.load()
        known = {**self._known, **commits}
        if known == self._known or time.monotonic() - self._written < self._pause:
            return
        self.replace(known)
        self._written = time.monotonic()

    def replace(self, commits: Mapping[str, NotedCommit]) -> None:
        """Replace the whole note; an empty one accepts the tables as they are."""
        tables = {role: asdict(commit) for role, commit in commits.items()}
        text = json.dumps({"format": _FORMAT, "tables": tables}, separators=(",", ":"))
        # As durable as what Spark and Delta write, which do not wait for the disk either.
        self._files.write(self._path, text, sync=False)
        self._known = dict(commits)
