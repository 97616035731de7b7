"""The state of a pipeline, read from another process: for scripts, probes and dashboards.

Needs neither Spark nor Java, takes no lease and does not affect the pipeline: it reads two files
that the pipeline writes, on the machine that runs it, or the event log in an object store.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock._model.pipeline import PipelineSettings
from penstock._observe.segments import LATEST
from penstock._observe.status_file import read_status
from penstock._project.event_store import holder_of, read_events_of
from penstock._project.spec import load_settings

__all__ = ["status"]


def status(
    project: str | Path | None = None,
    *,
    storage: str | None = None,
    pipeline: str | None = None,
    target: str | None = None,
    update: str = "latest",
) -> Mapping[str, Any] | None:
    """The state of the newest update of a pipeline.

    The keys are those of `penstock status --output json`; see the page on monitoring. An update
    that was refused with LEASE_HELD is not shown while the other one is running.

    Args:
        project: Project folder, source file or settings file; default: the current folder.
        storage: Root of tables and checkpoints instead of the one of the settings.
        pipeline: Key of the pipeline if the bundle has several.
        target: Target of a bundle.
        update: `latest`, or the prefix of an id.

    Returns:
        `None` if no update is recorded.

    Raises:
        SpecError: The project or its settings are wrong.
    """
    settings = load_settings(
        Path.cwd(),
        source=None if project is None else Path(project),
        storage=storage,
        pipeline=pipeline,
        target=target,
    )
    return status_of(settings, update=update)


def status_of(settings: PipelineSettings, *, update: str = "latest") -> dict[str, Any] | None:
    """Same as `status`, for loaded settings."""
    read_events_of(settings)
    body = read_status(settings, update=update)
    if body is None:
        return None
    holder = holder_of(settings) or {}
    is_refused = (body["error"] or {}).get("condition") == "LEASE_HELD"
    if update == LATEST and is_refused and (running := holder.get("update")):
        # The refused update was started on another machine.
        body = read_status(settings, update=running) or body
    is_holder = holder.get("update") == body["update_id"]
    body["is_alive"] = is_holder and not body["has_ended"]
    if body["started"] and not body["has_ended"]:
        last, started = map(datetime.fromisoformat, (body["last_event"], body["started"]))
        if body["is_alive"]:
            last = datetime.now(UTC)
        body["seconds"] = max(0.0, round((last - started).total_seconds(), 3))
    body["process_id"] = holder.get("pid") if is_holder else None
    return body
