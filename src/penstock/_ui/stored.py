"""HTTP endpoints about stored data: tables, quarantined rows, and source code."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import Response

from penstock._observe.codec import encode
from penstock._observe.masking import shown
from penstock._observe.segments import LATEST
from penstock._ui.ports import Tables
from penstock._ui.recording import Recording
from penstock.errors import SpecError

_PREVIEW_ROWS = 50
_MAX_PAGE = 100
_NO_ROWS = {
    "message": "this dashboard shows no rows",
    "hint": "it was started with --no-rows, or with events that have no tables beside them",
}

Name = Annotated[str, Query(max_length=1000)]


def add_stored(app: FastAPI, recording_of: Callable[[str], Recording]) -> None:
    """Add the endpoints; `recording_of` raises for an unknown key."""

    @app.get("/api/pipelines/{key}/rows")
    def show_rows(key: str, name: Name) -> Response:
        tables, paths = _stored(recording_of(key))
        if name not in paths:
            raise HTTPException(404, "no such table")
        return _answer(tables, lambda them: them.preview(name, paths[name], limit=_PREVIEW_ROWS))

    @app.get("/api/pipelines/{key}/table")
    def show_table(key: str, name: Name) -> Response:
        tables, paths = _stored(recording_of(key))
        if name not in paths:
            raise HTTPException(404, "no such table")
        return _answer(tables, lambda them: them.table(name, paths[name]))

    @app.get("/api/pipelines/{key}/code")
    def show_code(key: str, name: Name) -> Response:
        recording = recording_of(key)
        declarations: dict[str, str] = {}
        if (recorded := recording.recorded(LATEST)) is not None:
            with recording.lock:
                declarations = recorded.model.declarations()
        if name not in declarations:
            raise HTTPException(404, "no such dataset")
        code = recording.sources.code(declarations[name]) if recording.sources is not None else None
        return _body({"code": code})

    @app.get("/api/pipelines/{key}/quarantines")
    def list_quarantines(key: str) -> Response:
        tables, paths = _stored(recording_of(key))
        return _answer(tables, lambda them: {"tables": them.quarantines(paths)})

    @app.get("/api/pipelines/{key}/quarantine")
    def show_quarantine(
        key: str,
        name: Name,
        search: Annotated[str, Query(max_length=200)] = "",
        rule: Annotated[str, Query(max_length=300)] = "",
        before: Annotated[str, Query(max_length=60)] = "",
        limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = 25,
    ) -> Response:
        tables, paths = _stored(recording_of(key))
        return _answer(
            tables,
            lambda them: them.quarantine(
                name, paths.get(name), search=search, rule=rule, before=before, limit=limit
            ),
        )


def _stored(recording: Recording) -> tuple[Tables | None, dict[str, str | None]]:
    recorded = recording.recorded(LATEST)
    if recorded is None:
        return recording.tables, {}
    with recording.lock:
        return recording.tables, recorded.model.tables()


def _answer(tables: Tables | None, ask: Callable[[Tables], dict[str, Any]]) -> Response:
    """What the tables say, or why they do not, as words for the page."""
    if tables is None:
        body: dict[str, Any] = {"problem": _NO_ROWS}
    else:
        try:
            body = ask(tables)
        except SpecError as error:
            body = {"problem": {"message": shown(error.message), "hint": shown(error.hint or "")}}
        except ValueError as error:
            raise HTTPException(422, "not a position in a quarantine") from error
    return _body(body)


def _body(body: dict[str, Any]) -> Response:
    return Response(
        encode(body), media_type="application/json", headers={"cache-control": "no-store"}
    )
