"""HTTP endpoints of a pipeline: stored data and source code; actions (start, stop, replay)."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from penstock._observe.codec import encode
from penstock._observe.masking import shown
from penstock._ui.ports import Control, Tables
from penstock._ui.recording import Recording
from penstock.errors import SetupError, SpecError

_MOST_NAMES = 50
_MOST_RULES = 20
_MOST_ROWS = 1000
_PREVIEW_ROWS = 50
_MAX_PAGE = 100
_NO_ROWS = {
    "message": "this dashboard shows no rows",
    "hint": "it was started with --no-rows, or with an event log without the tables",
}

Name = Annotated[str, Query(max_length=1000)]


def json_response(body: dict[str, Any], *, status: int = 200) -> Response:
    return Response(
        encode(body),
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


def add_stored(app: FastAPI, recording_of: Callable[[str], Recording]) -> None:
    """Add the endpoints; `recording_of` raises for an unknown key."""

    @app.get("/api/pipelines/{key}/rows")
    def show_rows(key: str, name: Name) -> Response:
        tables, paths = _stored(recording_of(key), [name])
        return _answer(tables, lambda them: them.preview(name, paths[name], limit=_PREVIEW_ROWS))

    @app.get("/api/pipelines/{key}/table")
    def show_table(key: str, name: Name) -> Response:
        tables, paths = _stored(recording_of(key), [name])
        return _answer(tables, lambda them: them.table(name, paths[name]))

    @app.get("/api/pipelines/{key}/code")
    def show_code(key: str, name: Name) -> Response:
        recording = recording_of(key)
        declarations: dict[str, str] = {}
        if (recorded := recording.defined()) is not None:
            with recording.lock:
                declarations = recorded.model.declarations()
        if name not in declarations:
            raise HTTPException(404, "no such dataset")
        code = recording.code_of(declarations[name]) if recording.code_of is not None else None
        return json_response({"code": code})

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


def _stored(
    recording: Recording, names: Sequence[str] = ()
) -> tuple[Tables | None, dict[str, str | None]]:
    """The tables of a pipeline and their paths; status 404 unless all `names` are among them."""
    recorded = recording.defined()
    paths: dict[str, str | None] = {}
    if recorded is not None:
        with recording.lock:
            paths = recorded.model.tables()
    if not paths.keys() >= set(names):
        raise HTTPException(404, "no such table")
    return recording.tables, paths


def _answer(tables: Tables | None, ask: Callable[[Tables], dict[str, Any]]) -> Response:
    """A response with the result of `ask` or, if it fails, with a message for the page."""
    if tables is None:
        body: dict[str, Any] = {"problem": _NO_ROWS}
    else:
        try:
            body = ask(tables)
        except SpecError as error:
            body = {"problem": {"message": shown(error.message), "hint": shown(error.hint or "")}}
        except ValueError as error:
            raise HTTPException(422, "not a position in a quarantine") from error
    return json_response(body)


# -- actions: the guard has authorised the request ------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Start(_Strict):
    refresh: list[str] = Field(default_factory=list, max_length=_MOST_NAMES)
    full_refresh: list[str] = Field(default_factory=list, max_length=_MOST_NAMES)
    continuous: bool | None = None


class Stop(_Strict):
    now: bool = False


RuleName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,300}$")]
RowId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}-(0|[1-9][0-9]{0,11})$")]


class Replay(_Strict):
    """Body of a `replay` request: all rows if no ids are set, none for an empty list.

    SQL conditions are not accepted: they would let a visitor run arbitrary expressions.
    """

    name: str
    rules: list[RuleName] | None = Field(default=None, min_length=1, max_length=_MOST_RULES)
    rows: list[RowId] | None = Field(default=None, min_length=1, max_length=_MOST_ROWS)


def add_acting(app: FastAPI, recording_of: Callable[[str], Recording], *, allowed: bool) -> None:
    """Add the endpoints; unless `allowed`, only the one that reports that they are disabled."""

    @app.get("/api/pipelines/{key}/control")
    def show_control(key: str) -> Response:
        control = recording_of(key).control
        if control is None or not allowed:
            return json_response({"enabled": False})
        return json_response({"enabled": True, **control.state()})

    if not allowed:
        return

    @app.post("/api/pipelines/{key}/start")
    def start(key: str, request: Start) -> Response:
        recording = recording_of(key)
        _stored(recording, [*request.refresh, *request.full_refresh])
        return _act(
            recording,
            lambda control: control.start(
                refresh=request.refresh,
                full_refresh=request.full_refresh,
                continuous=request.continuous,
            ),
        )

    @app.post("/api/pipelines/{key}/stop")
    def stop(key: str, request: Stop) -> Response:
        return _act(recording_of(key), lambda control: control.stop(now=request.now))

    @app.post("/api/pipelines/{key}/replay")
    def replay(key: str, request: Replay) -> Response:
        recording = recording_of(key)
        _stored(recording, [request.name])
        return _act(
            recording,
            lambda control: control.replay(
                request.name, rules=request.rules or (), rows=request.rows or ()
            ),
        )


def _act(recording: Recording, do: Callable[[Control], None]) -> Response:
    if recording.control is None:
        raise HTTPException(404, "this pipeline is read-only: its project is not known")
    try:
        do(recording.control)
    except SetupError as error:
        return json_response({"refused": shown(error.message)}, status=409)
    return json_response({"enabled": True, **recording.control.state()}, status=202)
