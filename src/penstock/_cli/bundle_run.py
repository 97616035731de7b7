"""`run --all`: an update of each pipeline of a bundle, one after another."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from penstock._cli import exit_codes, options
from penstock._cli.tables import print_table
from penstock._display.text import seconds
from penstock.errors import PenstockError, SpecError

if TYPE_CHECKING:
    from penstock._model.pipeline import PipelineSettings

_COLUMNS = ("pipeline", "state", "time", "rows", "quarantined", "error")


def each_pipeline(project: options.UpdateOptions) -> list["PipelineSettings"]:
    """The settings of each pipeline of a bundle, or of the only pipeline.

    Raises:
        SpecError: PIPELINES_SHARE_STORAGE: Two pipelines have the same checkpoints and state.
    """
    from penstock._project.databricks.bundle import SeveralPipelinesError

    try:
        chosen = [project.settings()]
    except SeveralPipelinesError as error:
        chosen = [replace(project, pipeline=key).settings() for key in error.keys]
    names: dict[str, str] = {}
    for settings in chosen:
        if settings.continuous:
            raise typer.BadParameter(
                f"pipeline {settings.name!r} is continuous; add --triggered", param_hint="--all"
            )
        other = names.get(settings.home)
        names[settings.home] = settings.name
        if other is not None:
            raise SpecError(
                "PIPELINES_SHARE_STORAGE",
                f"the pipelines {other!r} and {settings.name!r} have the same storage",
                hint="set `shared_storage: true` in the penstock.yaml next to the bundle",
            )
    return chosen


def run_each(
    pipelines: Sequence["PipelineSettings"], run: Callable[["PipelineSettings"], int]
) -> tuple[int, list[dict[str, Any]]]:
    """Run updates; returns the exit code of the first that failed, and a result row for each.

    The next pipeline runs even if a pipeline has failed, but not after an interrupt.
    """
    codes: list[int] = []
    rows: list[dict[str, Any]] = []
    for settings in pipelines:
        try:
            codes.append(run(settings))
            rows.append(_row(settings))
        except PenstockError as error:
            codes.append(error.exit_code)
            rows.append({"pipeline": settings.name, "state": "FAILED", "error": error.condition})
            print(f"Error in pipeline {settings.name}: {error}", file=sys.stderr)
        if codes[-1] == exit_codes.INTERRUPTED:
            break
    ended = {row["pipeline"] for row in rows}
    rows += [{"pipeline": s.name, "state": "NOT STARTED"} for s in pipelines if s.name not in ended]
    return next((code for code in codes if code), exit_codes.OK), rows


def _row(settings: "PipelineSettings") -> dict[str, Any]:
    from penstock.monitoring import status_of

    status: Mapping[str, Any] = status_of(settings) or {}
    flows: Sequence[Mapping[str, Any]] = status.get("flows", ())
    errors = [flow["exception"] for flow in flows if flow["exception"]]
    error = status.get("error") or next(iter(errors), None)
    return {
        "pipeline": settings.name,
        "update_id": status.get("update_id"),
        "state": status.get("state"),
        "seconds": status.get("seconds"),
        "rows": sum(flow["rows"] or 0 for flow in flows),
        "quarantined": sum(flow["quarantined"] for flow in flows),
        "error": error and error["condition"],
    }


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        _COLUMNS,
        [
            (
                row["pipeline"],
                row["state"],
                seconds(row.get("seconds")),
                f"{row.get('rows', 0):,}",
                f"{row.get('quarantined', 0):,}",
                row.get("error") or "-",
            )
            for row in rows
        ],
        right=("time", "rows", "quarantined"),
    )
