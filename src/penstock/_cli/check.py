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
        report = check_with(
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
        reports.write_junit(junit, "penstock check", _cases(report))
    match output:
        case reports.ReportFormat.JSON:
            options.print_json(_as_json(report))
        case reports.ReportFormat.GITHUB:
            for line in (*reports.annotations(_cases(report)), _verdict(report)):
                print(line)
        case reports.ReportFormat.TEXT:
            for line in _as_text(report):
                print(line)
    return exit_codes.USAGE if report.refused else exit_codes.OK


def _as_text(report: "ProjectCheck") -> Iterator[str]:
    yield f"pipeline {report.settings.name}: {_counted(len(report.sources), 'source file')}"
    unsure = [name for name in report.flows if name in report.unsure]
    planned = [name for name in report.flows if name in report.planned]
    refused = len(report.flows) - len(planned) - len(unsure)
    yield (
        f"{_counted(len(report.datasets), 'dataset')}, {_counted(len(report.flows), 'flow')}: "
        f"{len(planned)} planned, {len(unsure)} not certain, {refused} refused"
    )
    needed = list(_needs(report))
    if needed:
        yield ""
        yield "needs"
        width = max(len(kind) for kind, _, _ in needed)
        for kind, what, where in needed:
            yield f"  {kind:{width}}  {what}" + (f"  ({where})" if where else "")
    for title, errors in (
        ("refused", list(report.refused)),
        ("not certain without what is missing", list(report.unsure.values())),
    ):
        if errors:
            yield ""
            yield title
            for error in _distinct(errors):
                yield from (f"  {line}" for line in str(error).splitlines())
    if report.notes:
        yield ""
        yield from (f"note: {note}" for note in report.notes)
    yield ""
    yield _verdict(report)


def _cases(report: "ProjectCheck") -> list[reports.Case]:
    """Flows that are planned have passed, refused ones failed, the others are not certain."""
    cases = [reports.Case(name=name, group="flow") for name in report.planned]
    cases += [reports.failed(error, "refused") for error in _distinct(list(report.refused))]
    cases += [
        reports.failed(error, "not certain", name, reports.Verdict.SKIPPED)
        for name, error in report.unsure.items()
    ]
    return cases


def _verdict(report: "ProjectCheck") -> str:
    if report.refused:
        return "Not all of it would run: see what is refused."
    if report.unsure:
        return "It would run as far as can be told without what is missing."
    return "It would run" + (", with what it needs." if any(_needs(report)) else ".")


def _needs(report: "ProjectCheck") -> Iterator[tuple[str, str, str]]:
    """Kind, name and place of each thing that is missing, once."""
    listed = set()
    for kind, name, where in _all_needs(report):
        # `scikit-learn` and `scikit_learn` are one package.
        key = (kind, name.lower().replace("-", "_") if kind == "package" else name)
        if key not in listed:
            listed.add(key)
            yield kind, name, where


def _all_needs(report: "ProjectCheck") -> Iterator[tuple[str, str, str]]:
    needs = report.needs
    for setting in (*needs.configuration, *needs.widgets):
        if setting.is_missing:
            yield "setting", setting.key, str(setting.origin)
    for key in report.assumed_settings:
        yield "setting", key, ""
    for secret in needs.secrets:
        if secret.is_found is False:
            yield "secret", secret.name, str(secret.origin)
    for source in report.missing:
        columns = ", ".join(source.columns)
        yield "source", f"{source.name}: {columns}" if columns else source.name, source.reason
    for servers in report.servers:
        yield "broker", servers, f"--map kafka://{servers}=kafka://localhost:9092 dials another one"
    for module in needs.imports:
        if not module.is_optional:
            yield "package", module.module, str(module.origin)
    for error in report.unsure.values():
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            yield "package", cause.name, str(error.origin)
    for package in needs.packages:
        if not package.is_installed:
            yield "package", package.name, str(package.origin)
    for requirement in report.settings.dependencies:
        yield "package", requirement, "settings"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _distinct(errors: "list[PenstockError]") -> "list[PenstockError]":
    return list({str(error): error for error in errors}.values())


def _as_json(report: "ProjectCheck") -> dict[str, Any]:
    return {
        "pipeline": report.settings.name,
        "root": report.settings.root,
        "sources": [_shown(source, report.settings.root) for source in report.sources],
        "datasets": dict(report.datasets),
        "flows": len(report.flows),
        "planned": list(report.planned),
        "refused": [_error(error) for error in _distinct(list(report.refused))],
        "not_certain": [{"flow": name, **_error(error)} for name, error in report.unsure.items()],
        "needs": [
            {"kind": kind, "name": what, "where": where} for kind, what, where in _needs(report)
        ],
        "missing_sources": [
            {"name": source.name, "reason": source.reason, "columns": dict(source.columns)}
            for source in report.missing
        ],
        "paths": [
            {"path": need.path, "scheme": need.scheme, "where": str(need.origin)}
            for need in report.needs.paths
        ],
        "notes": list(report.notes),
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
