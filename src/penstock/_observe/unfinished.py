"""Updates whose process ended without a word: killed, out of memory, or on a full disk."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock._observe.events import ErrorInfo, EventOrigin, UpdateState, update_progress
from penstock._observe.log import (
    TERMINAL_STATES,
    UpdateFile,
    encode,
    event_json,
    last_event,
    updates,
)

PROCESS_GONE = "PROCESS_GONE"
"""Condition of such an update."""


def has_ended(progress: dict[str, Any] | None) -> bool:
    """Whether the newest `update_progress` event of an update is its last one."""
    body = (progress or {}).get("details", {}).get("update_progress", {})
    return body.get("state") in TERMINAL_STATES


def end_unfinished(directory: Path) -> list[str]:
    """Record the end of updates that could not do so themselves, as FAILED.

    Only who holds the lease of the pipeline may call: then none of them can still run. Those
    before the newest one that has ended were looked at by an earlier start.

    Args:
        directory: The folder of the event log.

    Returns:
        Their ids, newest first.

    Raises:
        OSError: A file could not be read or written.
    """
    ended = []
    for file in reversed(updates(directory)):
        progress = last_event(file, "update_progress")
        if has_ended(progress):
            break
        _end(file, progress or {})
        ended.append(file.update_id)
    return ended


def _end(file: UpdateFile, progress: dict[str, Any]) -> None:
    name = progress.get("origin", {}).get("pipeline_name", "")
    text = "the process of the update ended without a word: it was killed, or could not write"
    event = replace(
        update_progress(
            EventOrigin(pipeline_name=name, update_id=file.update_id),
            UpdateState.FAILED,
            text,
            error=ErrorInfo(condition=PROCESS_GONE, class_name="SetupError", message=text),
        ),
        # When it was last seen alive, so that the update does not seem to have lasted until now.
        timestamp=datetime.fromtimestamp(file.path.stat().st_mtime, UTC),
    )
    line = encode(event_json(event, instance=str(uuid.uuid4()), seq_no=0)) + b"\n"
    with file.path.open("ab") as log:
        # The last line may be cut: an empty line after a whole one does no harm.
        log.write(b"\n" + line)
