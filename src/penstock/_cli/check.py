"""`check`: whether an existing project would run here, and its requirements."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock._cli import exit_codes, options, reports
from penstock._model.quantity import plural

if TYPE_CHECKING:
    from penstock._check import ProjectCheck

app = typer.Typer()


@app.command(
    "check",
    epilog="Examples: penstock check ../their-project | penstock check --output json | "
    "penstock check --output github --junit check.xml",
)
@options.grouped
def check(
    *, project: options.CheckOptions, output: reports.Report = "text", junit: reports.JUnit = None
) -> int:
    """Report which flows would run here, which would be refused and why, and what is missing.

    Nothing runs. Data, secrets, settings and packages may be missing: their columns and values are
    inferred from the code. Exit code 0 if nothing is refused.
    """
    from penstock.pipelines import check_with

    with options.stdout_to_stderr():
        result = check_with(project.settings)
    if junit is not None:
        reports.write_junit(junit, "penstock check", _cases(result))
    match output:
        case "json":
            options.print_json(_as_json(result))
        case "github":
            for line in (*reports.annotations(_cases(result)), _verdict(result)):
                print(line)
        case "text":
            for line in _as_text(result):
                print(line)
    return exit_codes.USAGE if result.refused else exit_codes.OK


def _as_text(result: "ProjectCheck") -> Iterator[str]:
    yield f"pipeline {result.settings.name}: {plural(len(result.sources), 'source file')}"
    unsure = [name for name in result.flows if name in result.unsure]
    planned = [name for name in result.flows if name in result.planned]
    refused = len(result.flows) - len(planned) - len(unsure)
    yield (
        f"{plural(len(result.datasets), 'dataset')}, {plural(len(result.flows), 'flow')}: "
        f"{len(planned)} planned, {len(unsure)} not certain, {refused} refused"
    )
    needed = list(_needs(result))
    if needed:
        yield ""
        yield "needs"
        width = max(len(kind) for kind, _, _ in needed)
        for kind, what, where in needed:
            yield f"  {kind:{width}}  {what}" + (f"  ({where})" if where else "")
    for title, errors in (
        ("refused", list(result.refused)),
        ("not certain because of missing parts", list(result.unsure.values())),
    ):
        if errors:
            yield ""
            yield title
            for error in reports.distinct(errors):
                yield from (f"  {line}" for line in str(error).splitlines())
    if result.notes:
        yield ""
        yield from (f"note: {note}" for note in result.notes)
    yield ""
    yield _verdict(result)


def _cases(result: "ProjectCheck") -> list[reports.Case]:
    cases = [reports.Case(name=name, group="flow") for name in result.planned]
    cases += [reports.failed(error, "refused") for error in reports.distinct(list(result.refused))]
    cases += [
        reports.failed(error, "not certain", name, "skipped")
        for name, error in result.unsure.items()
    ]
    return cases


def _verdict(result: "ProjectCheck") -> str:
    if result.refused:
        return "Not everything would run: see the refused flows."
    if result.unsure:
        return "It would run, as far as can be checked without the missing parts."
    return "It would run" + (" with these needs met." if any(_needs(result)) else ".")


def _needs(result: "ProjectCheck") -> Iterator[tuple[str, str, str]]:
    listed = set()
    for kind, name, where in _all_needs(result):
        # `scikit-learn` and `scikit_learn` are the same package.
        key = (kind, name.lower().replace("-", "_") if kind == "package" else name)
        if key not in listed:
            listed.add(key)
            yield kind, name, where


def _all_needs(result: "ProjectCheck") -> Iterator[tuple[str, str, str]]:
    needs = result.needs
    for setting in needs.settings:
        yield "setting", setting.name, str(setting.origin)
    for key in result.assumed_settings:
        yield "setting", key, ""
    for secret in needs.secrets:
        if "{" not in secret.name:
            yield "secret", secret.name, str(secret.origin)
    for source in result.missing:
        columns = ", ".join(source.columns)
        yield "source", f"{source.name}: {columns}" if columns else source.name, source.reason
    for servers in result.servers:
        yield (
            "broker",
            servers,
            f"--map kafka://{servers}=kafka://localhost:9092 connects to another broker",
        )
    for module in needs.imports:
        yield "package", module.name, str(module.origin)
    for error in result.unsure.values():
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            yield "package", cause.name, str(error.origin)
    for package in needs.packages:
        yield "package", package.name, str(package.origin)
    for requirement in result.settings.dependencies:
        yield "package", requirement, "settings"


def _as_json(result: "ProjectCheck") -> dict[str, Any]:
    return {
        "pipeline": result.settings.name,
        "root": result.settings.root,
        "sources": [_shown(source, result.settings.root) for source in result.sources],
        "datasets": dict(result.datasets),
        "flows": len(result.flows),
        "planned": list(result.planned),
        "refused": [reports.error_body(error) for error in reports.distinct(list(result.refused))],
        "not_certain": [
            {"flow": name, **reports.error_body(error)} for name, error in result.unsure.items()
        ],
        "needs": [
            {"kind": kind, "name": what, "where": where} for kind, what, where in _needs(result)
        ],
        "missing_sources": [asdict(source) for source in result.missing],
        "paths": [
            {"path": need.name, "scheme": need.scheme, "where": str(need.origin)}
            for need in result.needs.paths
        ],
        "notes": list(result.notes),
    }


def _shown(path: Path, root: str) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
