"""Paths of the lock files of leases.

With a local storage root the files are next to the data, so all writers use the same lock; symbolic
links are followed, so that one folder has one path. Other file systems (s3a, abfss, hdfs, ...) have
no locks: the files are then in the user's state folder, and immediately refuse a second driver of
this user on this host; `_execution.storage_lease` covers other drivers.
"""

import os
from pathlib import Path

from penstock._model.paths import local_path, storage_key
from penstock.errors import SetupError


def _state_home() -> Path:
    configured = os.environ.get("XDG_STATE_HOME", "")
    if configured.startswith("/"):
        return Path(configured)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as raised:
        raise SetupError(
            "LEASE_UNAVAILABLE",
            "there is no home folder for lock files",
            hint="set HOME or XDG_STATE_HOME to a writable folder",
        ) from raised


def lease_directory(storage_uri: str) -> Path:
    """Folder of the lock files for a storage root: its `state/`, or one in the state folder."""
    local = local_path(storage_uri)
    if local is not None:
        return local.resolve() / "state"
    return _state_home() / "penstock" / storage_key(storage_uri)


def pipeline_lease_path(storage_uri: str) -> Path:
    """Lock file for everything below a storage root: checkpoints, events, state."""
    return lease_directory(storage_uri) / "pipeline.lock"


def table_lease_path(table_uri: str) -> Path:
    """Lock file for one table: a hidden file next to a local table's folder.

    Depends only on the table's location, so that pipelines that write to it use the same lock.
    """
    local = local_path(table_uri)
    if local is not None:
        folder = local.resolve()
        return folder.parent / f".{folder.name}.lock"
    return _state_home() / "penstock" / "tables" / f"{storage_key(table_uri)}.lock"
