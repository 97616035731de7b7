"""Paths of tables, checkpoints and state below the storage root of a pipeline."""

import re
from dataclasses import dataclass
from urllib.parse import quote

from penstock._model.name import DatasetName, path_segment, resolve_name
from penstock._model.pipeline import PipelineSettings

QUARANTINE_SUFFIX = "_quarantine"
DECISION_FILE = "decision.json"
"""File in a checkpoint: the files of a batch with several commits; see `decision`."""
NOTE_FILE = "committed.json"
"""File in a checkpoint: the newest commits of its batches; see `commit_note`."""


@dataclass(frozen=True)
class TableRef:
    """A Delta table: a URI or an absolute path, and its name for messages."""

    path: str
    name: str


@dataclass(frozen=True)
class StorageLayout:
    """The layout below a storage root, a URI; trailing slashes are removed.

    `home` is the root of everything except tables, see `PipelineSettings.home`; by default `root`.
    """

    root: str
    home: str = ""

    def __post_init__(self) -> None:
        for name in ("root", "home"):
            uri = getattr(self, name) or self.root
            object.__setattr__(self, name, re.sub(r"(?<=[^/:])/+$", "", uri))

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
        return f"{self.checkpoints}/{path_segment(flow)}/{path_segment(epoch)}"

    def source_files(self, flow: str, epoch: str) -> str:
        """Folder of the files that the sources of a flow store."""
        return f"{self.state_dir}/files/{path_segment(flow)}/{path_segment(epoch)}"

    def decision_file(self, flow: str, epoch: str) -> str:
        return f"{self.checkpoint_path(flow, epoch)}/{DECISION_FILE}"

    def note_file(self, flow: str, epoch: str) -> str:
        return f"{self.checkpoint_path(flow, epoch)}/{NOTE_FILE}"

    def flow_state(self, flow: str) -> str:
        """The state file of a flow."""
        return f"{self.state_dir}/flows/{quote(flow, safe=' ')}.json"

    def savepoint_folder(self, name: str) -> str:
        return f"{self.savepoints}/{path_segment(name)}"

    @property
    def savepoints(self) -> str:
        return f"{self.home}/savepoints"

    @property
    def restore_folder(self) -> str:
        """Folder of the journal of an unfinished restore of a savepoint."""
        return f"{self.state_dir}/restore"

    @property
    def checkpoints(self) -> str:
        return f"{self.home}/checkpoints"

    @property
    def state_dir(self) -> str:
        """Folder of leases, epochs and fingerprints."""
        return f"{self.home}/state"

    def _below(self, folder: str, name: DatasetName) -> str:
        parts = (path_segment(part.lower()) for part in (name.catalog, name.schema, name.name))
        return "/".join((folder, *parts))


def app_id(pipeline: str, flow: str, epoch: str) -> str:
    """The application id of a flow's transactions, in one epoch of its checkpoint."""
    return f"{pipeline}/{flow}/writer/{epoch}"


def event_table(settings: PipelineSettings, text: str) -> tuple[DatasetName, TableRef]:
    """A table of the setting `events`."""
    name = resolve_name(text, catalog=settings.catalog, schema=settings.schema)
    return name, TableRef(layout_of(settings).table_path(name), text)


def layout_of(settings: PipelineSettings) -> StorageLayout:
    return StorageLayout(settings.storage, settings.home)
