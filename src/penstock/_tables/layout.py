"""Where everything of a pipeline lies below its storage root."""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from penstock._model.name import DatasetName

QUARANTINE_SUFFIX = "_quarantine"
DECISION_FILE = "decision.json"
"""Name, in a checkpoint, of the file with the decision about a batch."""
NOTE_FILE = "committed.json"
"""Name, in a checkpoint, of the file with the newest commits of its batches."""


def path_segment(name: str) -> str:
    """A name as one folder name that every file system and URI takes; `segment_name` reverses it.

    Letters of ASCII, digits, `_` and `-` stay; everything else becomes `%XX` of its UTF-8 bytes.
    Upper case is kept: names differ by more than case within one pipeline, so folders on
    case-insensitive disks do, too. `%` itself would be decoded again by URI-based readers, so `=`
    marks the bytes instead.
    """
    quoted = quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
    if quoted.startswith("_"):
        # Spark takes files below `_x` for hidden.
        quoted = "%5F" + quoted[1:]
    return quoted.replace("%", "=")


def segment_name(segment: str) -> str:
    """The name that `path_segment` made the folder name from."""
    return unquote(segment.replace("=", "%"))


@dataclass(frozen=True)
class TableRef:
    """One Delta table.

    Attributes:
        path: Its location, a URI or an absolute path.
        name: How messages call it.
    """

    path: str
    name: str


@dataclass(frozen=True)
class StorageLayout:
    """The layout under one storage root.

    Attributes:
        root: Root URI without a trailing slash.
    """

    root: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", re.sub(r"(?<=[^/:])/+$", "", self.root))

    def table_path(self, name: DatasetName, override: str | None = None) -> str:
        """Where a table lies; the user's own `path` wins and is relative to nothing."""
        if override is not None:
            return override.rstrip("/")
        parts = (path_segment(part.lower()) for part in (name.catalog, name.schema, name.name))
        return "/".join((self.root, "tables", *parts))

    def quarantine_path(self, name: DatasetName, override: str | None = None) -> str:
        """Where the rows that broke a drop rule of a table lie: beside it."""
        return f"{self.table_path(name, override)}{QUARANTINE_SUFFIX}"

    def table(self, name: DatasetName, override: str | None = None) -> TableRef:
        """The table of a dataset."""
        return TableRef(self.table_path(name, override), str(name))

    def quarantine(self, name: DatasetName, override: str | None = None) -> TableRef:
        """The quarantine table of a dataset."""
        return TableRef(self.quarantine_path(name, override), f"{name}{QUARANTINE_SUFFIX}")

    def cdc_state(self, name: DatasetName) -> TableRef:
        """What auto CDC remembers of a table beside its rows."""
        parts = (path_segment(part.lower()) for part in (name.catalog, name.schema, name.name))
        return TableRef("/".join((self.state_dir, "cdc", *parts)), f"{name} (CDC state)")

    def replay_staging(self, name: DatasetName) -> str:
        """Where a replay keeps what it has decided about the rows in quarantine of a table."""
        parts = (path_segment(part.lower()) for part in (name.catalog, name.schema, name.name))
        return "/".join((self.state_dir, "replay", *parts))

    def backfill_folder(self, flow: str) -> str:
        """Where a backfill of a flow keeps what it has decided, and the rows of a window."""
        return f"{self.state_dir}/backfill/{path_segment(flow)}"

    def migration_folder(self, flow: str) -> str:
        """Where a migration of a flow keeps what it has decided, and the table in the making."""
        return f"{self.state_dir}/migrate/{path_segment(flow)}"

    def checkpoint_path(self, flow: str, epoch: str) -> str:
        """The checkpoint of one flow in one epoch."""
        return f"{self.root}/checkpoints/{path_segment(flow)}/{path_segment(epoch)}"

    def decision_file(self, flow: str, epoch: str) -> str:
        """Where a flow records what it decides about a batch; see `_tables.decision`."""
        return f"{self.checkpoint_path(flow, epoch)}/{DECISION_FILE}"

    def note_file(self, flow: str, epoch: str) -> str:
        """Where a flow notes its newest commits; see `_tables.commit_note`."""
        return f"{self.checkpoint_path(flow, epoch)}/{NOTE_FILE}"

    @property
    def state_dir(self) -> str:
        """Where leases, epochs and fingerprints lie."""
        return f"{self.root}/state"
