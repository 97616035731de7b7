"""`check`: what of a foreign project would run here, and what it needs."""

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock._cli import exit_codes, options, reports

if TYPE_CHECKING:
    from penstock._check import ProjectCheck
    from penstock.errors import PenstockError


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "check",
        epilog="Examples: penstock check ../their-project | penstock check --output json | "
        "penstock check --output github --junit check.xml",
    )(check)


def check(
    path: options.ProjectPath = None,
    spec: options.Spec = None,
    conf: options.Conf = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    maps: options.Maps = None,
    param: options.Parameters = None,
    output: reports.Report = reports.ReportFormat.TEXT,
    junit: reports.JUnit = None,
) -> int:
    """Say what of a project would run here, what is refused and why, and what it needs.

    Nothing runs. Data, secrets, settings and packages need not be here: their columns and values
    are assumed as the code uses them. Exit code 0 if nothing is refused.
    """
    from penstock.pipelines import check_with

    with redirect_stdout(sys.stderr):  # whatever the pipeline's own code prints
        found = check_with(
            lambda: options.settings_of(
                path,
                spec,
                None,
                conf,
                pipeline=pipeline,
                target=target,
                maps=maps,
                parameters=param,
            )
        )
    if junit is not None:
        reports.write_junit(junit, "penstock check", _cases(found))
    match output:
        case reports.ReportFormat.JSON:
            options.print_json(_as_json(found))
        case reports.ReportFormat.GITHUB:
            for line in (*reports.annotations(_cases(found)), _verdict(found)):
                print(line)
        case reports.ReportFormat.TEXT:
            for line in _as_text(found):
                print(line)
    return exit_codes.USAGE if found.refused else exit_codes.OK


def _as_text(found: "ProjectCheck") -> Iterator[str]:
    yield f"pipeline {found.settings.name}: {_counted(len(found.sources), 'source file')}"
    unsure = [name for name in found.flows if name in found.unsure]
    planned = [name for name in found.flows if name in found.planned]
    refused = len(found.flows) - len(planned) - len(unsure)
    yield (
        f"{_counted(len(found.datasets), 'dataset')}, {_counted(len(found.flows), 'flow')}: "
        f"{len(planned)} planned, {len(unsure)} not certain, {refused} refused"
    )
    needed = list(_needs(found))
    if needed:
        yield ""
        yield "needs"
        width = max(len(kind) for kind, _, _ in needed)
        for kind, what, where in needed:
            yield f"  {kind:{width}}  {what}" + (f"  ({where})" if where else "")
    for title, errors in (
        ("refused", list(found.refused)),
        ("not certain without what is missing", list(found.unsure.values())),
    ):
        if errors:
            yield ""
            yield title
            for error in _distinct(errors):
                yield from (f"  {line}" for line in str(error).splitlines())
    if found.notes:
        yield ""
        yield from (f"note: {note}" for note in found.notes)
    yield ""
    yield _verdict(found)


def _cases(found: "ProjectCheck") -> list[reports.Case]:
    """Flows that are planned have passed, refused ones failed, the others are not certain."""
    cases = [reports.Case(name=name, group="flow") for name in found.planned]
    cases += [reports.failed(error, "refused") for error in _distinct(list(found.refused))]
    cases += [
        reports.failed(error, "not certain", name, reports.Verdict.SKIPPED)
        for name, error in found.unsure.items()
    ]
    return cases


def _verdict(found: "ProjectCheck") -> str:
    if found.refused:
        return "Not all of it would run: see what is refused."
    if found.unsure:
        return "It would run as far as can be told without what is missing."
    return "It would run" + (", with what it needs." if any(_needs(found)) else ".")


def _needs(found: "ProjectCheck") -> Iterator[tuple[str, str, str]]:
    """Kind, name and place of each thing that is missing, once."""
    listed = set()
    for kind, name, where in _all_needs(found):
        # `scikit-learn` and `scikit_learn` are one package.
        key = (kind, name.lower().replace("-", "_") if kind == "package" else name)
        if key not in listed:
            listed.add(key)
            yield kind, name, where


def _all_needs(found: "ProjectCheck") -> Iterator[tuple[str, str, str]]:
    needs = found.needs
    for setting in (*needs.configuration, *needs.widgets):
        if setting.is_missing:
            yield "setting", setting.key, str(setting.origin)
    for key in found.assumed_settings:
        yield "setting", key, ""
    for secret in needs.secrets:
        if secret.is_found is False:
            yield "secret", secret.name, str(secret.origin)
    for source in found.missing:
        columns = ", ".join(source.columns)
        yield "source", f"{source.name}: {columns}" if columns else source.name, source.reason
    for servers in found.servers:
        yield "broker", servers, f"--map kafka://{servers}=kafka://localhost:9092 dials another one"
    for module in needs.imports:
        if not module.is_optional:
            yield "package", module.module, str(module.origin)
    for error in found.unsure.values():
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            yield "package", cause.name, str(error.origin)
    for package in needs.packages:
        if not package.is_installed:
            yield "package", package.name, str(package.origin)
    for requirement in found.settings.dependencies:
        yield "package", requirement, "settings"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _distinct(errors: "list[PenstockError]") -> "list[PenstockError]":
    return list({str(error): error for error in errors}.values())


def _as_json(found: "ProjectCheck") -> dict[str, Any]:
    return {
        "pipeline": found.settings.name,
        "root": found.settings.root,
        "sources": [_shown(source, found.settings.root) for source in found.sources],
        "datasets": dict(found.datasets),
        "flows": len(found.flows),
        "planned": list(found.planned),
        "refused": [_error(error) for error in _distinct(list(found.refused))],
        "not_certain": [{"flow": name, **_error(error)} for name, error in found.unsure.items()],
        "needs": [
            {"kind": kind, "name": what, "where": where} for kind, what, where in _needs(found)
        ],
        "missing_sources": [
            {"name": source.name, "reason": source.reason, "columns": dict(source.columns)}
            for source in found.missing
        ],
        "paths": [
            {"path": need.path, "scheme": need.scheme, "where": str(need.origin)}
            for need in found.needs.paths
        ],
        "notes": list(found.notes),
    }


def _error(error: "PenstockError") -> dict[str, Any]:
    return {
        "condition": error.condition,
        "message": error.message,
        "declared_at": str(error.origin) if error.origin is not None else None,
        "hint": error.hint,
    }


def _shown(path: Path, root: str) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
