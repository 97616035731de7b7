"""Ends updates whose process was killed, ran out of memory or had a full disk."""

import uuid
from datetime import UTC, datetime
from pathlib import Path

from penstock._observe.codec import encode, event_json
from penstock._observe.events import (
    TERMINAL_STATES,
    ErrorInfo,
    Event,
    EventOrigin,
    UpdateProgress,
    UpdateState,
)
from penstock._observe.log import last_progress
from penstock._observe.segments import UpdateLog, updates

PROCESS_GONE = "PROCESS_GONE"
"""Error condition of an update whose process has ended without a final state."""


def has_ended(progress: Event | None) -> bool:
    """Whether the newest `update_progress` event of an update is final."""
    body = progress.body if progress is not None else None
    return isinstance(body, UpdateProgress) and body.state in TERMINAL_STATES


def end_unfinished(directory: Path, own: str = "") -> None:
    """Record updates whose process has died as FAILED.

    The caller must hold the lease of the pipeline, so that only its `own` update can be running.
    Updates before the newest finished one were handled by an earlier start.
    """
    for update in reversed(updates(directory)):
        if update.update_id == own:
            continue
        progress = last_progress(update)
        if has_ended(progress):
            break
        _end(update, progress.origin.pipeline_name if progress is not None else "")


def _end(update: UpdateLog, pipeline: str) -> None:
    newest = update.segments()[-1]
    text = "the process of the update died: it was killed, or could not write its events"
    event = Event(
        EventOrigin(pipeline_name=pipeline, update_id=update.update_id),
        UpdateProgress(UpdateState.FAILED),
        text,
        error=ErrorInfo(condition=PROCESS_GONE, class_name="SetupError", message=text),
        # Time of the last write, so that the update does not seem to have lasted until now.
        timestamp=datetime.fromtimestamp(newest.path.stat().st_mtime, UTC),
    )
    line = encode(event_json(event, instance=str(uuid.uuid4()), seq_no=0)) + b"\n"
    # A new segment: the last line of the newest one may be truncated.
    update.path(newest.last + 1).write_bytes(line)
