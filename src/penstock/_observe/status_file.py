"""The status file, from which other processes read the status of an update, and its reader.

A background thread writes it at most twice a second and once at the end, so no event waits for the
disk. The file is replaced atomically.
"""

import json
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock._model.pipeline import PipelineSettings
from penstock._observe.codec import encode
from penstock._observe.events import Event
from penstock._observe.log import event_directory, recorded_events
from penstock._observe.segments import LATEST, select_updates
from penstock._observe.state import ObservedUpdate
from penstock._observe.status import status_json

_PAUSE_SECONDS = 0.5
_NAME = "status.json"


def status_path(settings: PipelineSettings) -> Path:
    """Path of the file: in `state`, next to the folder of the event log."""
    return event_directory(settings).parent / "state" / _NAME


class StatusFile:
    """Writes the status file of one update. Subscribe it to the bus; close it at the end.

    `update` must be subscribed to the bus before. A full or missing disk affects only the file.
    """

    def __init__(
        self, path: Path, update: ObservedUpdate, *, pause_seconds: float = _PAUSE_SECONDS
    ) -> None:
        self._path = path
        self._pause_seconds = pause_seconds
        self._update = update
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="status file", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Schedule a write; never blocks."""
        self._changed.set()

    def close(self) -> None:
        """Write the last status and stop. Idempotent."""
        self._closing.set()
        self._changed.set()
        self._thread.join(timeout=10.0)

    def _keep(self) -> None:
        while not self._closing.is_set():
            self._changed.wait()
            self._changed.clear()
            self._write()
            self._closing.wait(self._pause_seconds)
        self._write()

    def _write(self) -> None:
        mine = {"process_id": os.getpid(), "host": socket.gethostname()}
        body = {**status_json(self._update), **mine}
        # In the same folder, so that the replacement is atomic.
        draft = self._path.with_name(f".{_NAME}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(encode(body) + b"\n")
            draft.replace(self._path)
        except OSError:
            with suppress(OSError):
                draft.unlink()


def read_status(settings: PipelineSettings, *, update: str = LATEST) -> dict[str, Any] | None:
    """The status of an update (`latest`, an id or a unique prefix); `None` if it does not exist.

    Read from the file if it is about that update, else folded from the event log. Does not check
    whether the process is still alive.
    """
    directory = event_directory(settings)
    selected = select_updates(directory, update)
    if not selected:
        return None
    update_id = selected[-1].update_id
    with suppress(OSError, ValueError):
        body = json.loads(status_path(settings).read_bytes())
        if isinstance(body, dict) and body.get("update_id") == update_id:
            return body
    state = ObservedUpdate()
    for event in recorded_events(directory, update_id):
        state(event)
    return {**status_json(state), "process_id": None, "host": None}


def writer_of(directory: Path) -> tuple[str, int] | None:
    """Update and process id that last wrote the status file of this event log.

    `None` without a status file (a copied or old log), or if another machine or container wrote it.
    """
    try:
        body = json.loads((directory.parent / "state" / _NAME).read_bytes())
        update_id, process_id = body["update_id"], body["process_id"]
        host = body.get("host")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if host is not None and host != socket.gethostname():
        return None
    if not isinstance(update_id, str) or not isinstance(process_id, int) or process_id <= 0:
        return None
    return update_id, process_id
