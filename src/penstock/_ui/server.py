"""HTTP endpoints of the dashboard: pages, JSON, and a stream of changes."""

import gzip
import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import Response, StreamingResponse

from penstock._observe.segments import LATEST
from penstock._ui.difference import differences
from penstock._ui.endpoints import Name, add_acting, add_stored, json_response
from penstock._ui.guard import Guard
from penstock._ui.hub import MAX_WATCHERS, Hub, whole_update, with_interrupted
from penstock._ui.recording import Recording

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file of the bundle, in memory and compressed once."""

    body: bytes
    zipped: bytes
    content_type: str
    etag: str


def load_assets() -> dict[str, Asset]:
    """All files of the bundle by name.

    Requests are served from this mapping only, so that their paths never reach the file system.
    """
    assets = {}
    for path in sorted(STATIC.iterdir()):
        if path.suffix not in _TYPES:
            continue
        body = path.read_bytes()
        assets[path.name] = Asset(
            body=body,
            zipped=gzip.compress(body, mtime=0),
            content_type=_TYPES[path.suffix],
            etag=f'"{hashlib.sha256(body).hexdigest()[:20]}"',
        )
    return assets


_DOTS = 20
_MAX_PAGE = 200

Update = Annotated[str, Query(max_length=100)]


def build_app(
    recordings: list[Recording],
    *,
    host: str,
    token: str | None,
    hub: Hub | None = None,
    acts: bool = False,
) -> Guard:
    """The dashboard of some pipelines, behind its guard; the caller closes `hub` at the end."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    pipelines = {recording.key: recording for recording in recordings}
    assets = load_assets()
    streams = hub if hub is not None else Hub()

    def recording_of(key: str) -> Recording:
        recording = pipelines.get(key)
        if recording is None:
            raise HTTPException(404, "no such pipeline")
        return recording

    @app.get("/api/pipelines")
    def list_pipelines() -> Response:
        return json_response({"pipelines": [_pipeline(each) for each in recordings]})

    @app.get("/api/pipelines/{key}/update")
    def show_update(key: str, update: Update = LATEST) -> Response:
        body = whole_update(recording_of(key), update)
        if body is None:
            raise HTTPException(404, "no such update")
        return json_response(body)

    @app.get("/api/pipelines/{key}/dataset")
    def show_dataset(key: str, name: Name, update: Update = LATEST) -> Response:
        recording = recording_of(key)
        recorded = recording.recorded(update)
        if recorded is None:
            raise HTTPException(404, "no such update")
        with recording.lock:
            body = recorded.model.dataset(name)
            if body is None:
                raise HTTPException(404, "no such dataset")
            is_gone = recording.was_interrupted(recorded)
            (body["card"],) = with_interrupted([body["card"]], is_gone=is_gone)
            body["flows"] = with_interrupted(body["flows"], is_gone=is_gone)
        return json_response(body)

    @app.get("/api/pipelines/{key}/updates")
    def list_updates(
        key: str,
        before: Annotated[int | None, Query(ge=0)] = None,
        limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = 50,
    ) -> Response:
        recording = recording_of(key)
        total = recording.count()
        updates = recording.history(before=before, limit=limit)
        end = total if before is None else min(before, total)
        return json_response(
            {
                "total": total,
                "next": end - len(updates) if end > len(updates) else None,
                "updates": [asdict(summary) for summary in updates],
            }
        )

    @app.get("/api/pipelines/{key}/differences")
    def show_differences(
        key: str,
        before: Update,
        after: Update = LATEST,
    ) -> Response:
        recording = recording_of(key)
        outlines = []
        read_percent = None
        for update in (before, after):
            recorded = recording.recorded(update)
            if recorded is None:
                raise HTTPException(404, "no such update")
            if recorded.read_percent is not None:
                read_percent = min(recorded.read_percent, read_percent or 100)
            with recording.lock:
                outlines.append(recorded.model.outline())
        if read_percent is not None:
            # Unread events would appear as differences; the page repeats the request.
            return json_response({"read_percent": read_percent})
        heads = {"before": outlines[0]["head"], "after": outlines[1]["head"]}
        return json_response({**heads, **differences(*outlines)})

    @app.get("/api/pipelines/{key}/stream")
    async def stream(key: str, update: Update = LATEST) -> Response:
        recording = recording_of(key)
        if streams.watchers >= MAX_WATCHERS:
            raise HTTPException(503, "too many open streams")
        return StreamingResponse(
            streams.watch(recording, update),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    add_stored(app, recording_of)
    add_acting(app, recording_of, allowed=acts)

    @app.get("/{name}")
    def asset(name: str, request: Request) -> Response:
        content = assets.get(name)
        if content is None:
            raise HTTPException(404, "no such page")
        return _asset(content, request)

    @app.get("/")
    def page(request: Request) -> Response:
        return _asset(assets["index.html"], request)

    return Guard(app, host=host, token=token, acts=acts)


def _pipeline(recording: Recording) -> dict[str, Any]:
    dots = recording.history(limit=_DOTS)
    newest = dots[0] if dots else None
    return {
        "key": recording.key,
        "name": (newest.pipeline_name if newest is not None else "") or recording.label,
        "event_log": str(recording.directory),
        "total": recording.count(),
        "updates": [asdict(summary) for summary in dots],
    }


def _asset(asset: Asset, request: Request) -> Response:
    headers = {"etag": asset.etag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    body = asset.body
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["content-encoding"] = asset.zipped, "gzip"
    return Response(body, media_type=asset.content_type, headers=headers)
