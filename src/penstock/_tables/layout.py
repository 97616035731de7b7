"""Paths of tables, checkpoints and state below the storage root of a pipeline."""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from penstock._model.name import DatasetName

QUARANTINE_SUFFIX = "_quarantine"
DECISION_FILE = "decision.json"
"""File in a checkpoint: the files of a batch with several commits; see `decision`."""
NOTE_FILE = "committed.json"
"""File in a checkpoint: the newest commits of its batches; see `commit_note`."""


def path_segment(name: str) -> str:
    """A name as one folder name that every file system and URI takes; `segment_name` reverses it.

    ASCII letters, digits, `_` and `-` stay; everything else becomes `=XX` of its UTF-8 bytes (not
    `%XX`, which URI-based readers would decode). Upper case is kept: names within one pipeline
    differ by more than case, so folders on case-insensitive disks do, too.
    """
    quoted = quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
    if quoted.startswith("_"):
        # Spark treats files below `_x` as hidden.
        quoted = "%5F" + quoted[1:]
    return quoted.replace("%", "=")


def segment_name(segment: str) -> str:
    return unquote(segment.replace("=", "%"))


@dataclass(frozen=True)
class TableRef:
    """A Delta table: a URI or an absolute path, and its name for messages."""

    path: str
    name: str


@dataclass(frozen=True)
class StorageLayout:
    """The layout below a storage root, a URI; trailing slashes are removed."""

    root: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", re.sub(r"(?<=[^/:])/+$", "", self.root))

    def table_path(self, name: DatasetName, override: str | None = None) -> str:
        """Location of a table; the user's own absolute `path` takes precedence."""
        if override is not None:
            return override.rstrip("/")
        return self._below(f"{self.root}/tables", name)

    def quarantine_path(self, name: DatasetName, override: str | None = None) -> str:
        return f"{self.table_path(name, override)}{QUARANTINE_SUFFIX}"

    def cdc_state(self, name: DatasetName) -> TableRef:
        return TableRef(self._below(f"{self.state_dir}/cdc", name), f"{name} (CDC state)")

    def replay_staging(self, name: DatasetName) -> str:
        return self._below(f"{self.state_dir}/replay", name)

    def backfill_folder(self, flow: str) -> str:
        return f"{self.state_dir}/backfill/{path_segment(flow)}"

    def migration_folder(self, flow: str) -> str:
        return f"{self.state_dir}/migrate/{path_segment(flow)}"

    def checkpoint_path(self, flow: str, epoch: str) -> str:
        return f"{self.root}/checkpoints/{path_segment(flow)}/{path_segment(epoch)}"

    def decision_file(self, flow: str, epoch: str) -> str:
        return f"{self.checkpoint_path(flow, epoch)}/{DECISION_FILE}"

    def note_file(self, flow: str, epoch: str) -> str:
        return f"{self.checkpoint_path(flow, epoch)}/{NOTE_FILE}"

    @property
    def state_dir(self) -> str:
        """Folder of leases, epochs and fingerprints."""
        return f"{self.root}/state"

    def _below(self, folder: str, name: DatasetName) -> str:
        parts = (path_segment(part.lower()) for part in (name.catalog, name.schema, name.name))
        return "/".join((folder, *parts))
