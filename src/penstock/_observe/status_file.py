"""The file that tells other processes what an update does; and its reader.

A small thread writes it, so that no event waits for the disk: at most twice a second, and once
more at the end. The file is replaced as a whole, so that a reader never sees half of it.
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
    """Where the file is: in `state` beside the folder of the event log."""
    return event_directory(settings).parent / "state" / _NAME


class StatusFile:
    """Keeps the file of one update. Subscribe it to the bus; close it at the end.

    A disk that is full or gone harms nothing but the file.

    Args:
        path: Of the file.
        update: Its state, which has taken in an event before this subscriber gets it.
        pause_seconds: Between two versions of the file.
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
        """There was an event; returns at once."""
        self._changed.set()

    def close(self) -> None:
        """Write what is not written yet, and end. May be called again."""
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
        # Beside the file, so that the replacement is one step for the file system.
        draft = self._path.with_name(f".{_NAME}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(encode(body) + b"\n")
            draft.replace(self._path)
        except OSError:
            with suppress(OSError):
                draft.unlink()


def read_status(settings: PipelineSettings, *, update: str = LATEST) -> dict[str, Any] | None:
    """The status of the newest update, or of another one; `None` if there is no such.

    The file is taken if it is about that update; else its event log is folded. Whether the
    process still lives is not known here.

    Args:
        settings: Of the pipeline.
        update: `latest`, or an id or its beginning that means one update.
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
    """Which update last wrote its status beside this event log, and its process id.

    `None` where no status is beside it (a copy of a log, or one of long ago), and where another
    machine or container wrote it: its processes are not known here.
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
