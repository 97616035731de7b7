"""`lint`: what a reviewer would say about a pipeline, before it runs."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock._cli import exit_codes, options, reports

if TYPE_CHECKING:
    from penstock._lint.finding import Finding
    from penstock._lint.project import LintReport
    from penstock.errors import PenstockError

_VERSION = 1


class FindingFormat(StrEnum):
    """Form of the findings."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


class FailOn(StrEnum):
    """From which severity on the exit code is 1."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"
    NEVER = "never"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "lint",
        epilog="Examples: penstock lint | penstock lint shop --fail-on error | "
        "penstock lint --text-only --output github | penstock lint --explain PSL101",
    )(lint)


def lint(
    path: options.ProjectPath = None,
    spec: options.Spec = None,
    conf: options.Conf = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    maps: options.Maps = None,
    param: options.Parameters = None,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="Exit code 1 for findings that are at least this.")
    ] = FailOn.WARNING,
    text_only: Annotated[
        bool,
        typer.Option("--text-only", help="Look at the text only: without Spark, in a second."),
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="ID", help="Print what a rule is about, and end."),
    ] = None,
    output: Annotated[
        FindingFormat, typer.Option("--output", "-o", help="Form of the answer.")
    ] = FindingFormat.TEXT,
    junit: reports.JUnit = None,
) -> int:
    """Look for mistakes that an expert would find: state that grows, rows that get lost, secrets.

    Nothing runs, and no data is needed. A comment `# penstock: ignore[PSL101]` accepts a finding.
    Exit code 0 without findings, 1 with some, 2 if the pipeline itself is wrong.
    """
    if explain is not None:
        print("\n".join(_explanation(explain)))
        return exit_codes.OK
    from penstock._lint.project import lint_project

    settings = options.settings_of(
        path, spec, None, conf, pipeline=pipeline, target=target, maps=maps, parameters=param
    )
    with redirect_stdout(sys.stderr):  # whatever the pipeline's own code prints
        report = lint_project(settings, text_only=text_only)
    if junit is not None:
        reports.write_junit(junit, "penstock lint", _cases(report, fail_on))
    match output:
        case FindingFormat.JSON:
            options.print_json(_as_json(report))
        case FindingFormat.SARIF:
            options.print_json(_as_sarif(report))
        case FindingFormat.GITHUB:
            print("\n".join(_as_github(report)))
        case FindingFormat.TEXT:
            print("\n".join(_as_text(report)))
    if report.refused:
        return exit_codes.USAGE
    return exit_codes.UPDATE_FAILED if _fails(report, fail_on) else exit_codes.OK


def _fails(report: "LintReport", fail_on: FailOn) -> bool:
    from penstock._lint.finding import Severity

    if fail_on is FailOn.NEVER:
        return False
    least = Severity(fail_on.value).rank
    return any(finding.rule.severity.rank >= least for finding in report.findings)


def _explanation(rule_id: str) -> Iterator[str]:
    from penstock._lint.catalogue import RULES

    rule = RULES.get(rule_id.strip().upper())
    if rule is None:
        raise typer.BadParameter(
            f"there is no rule {rule_id!r}: {next(iter(RULES))} to {list(RULES)[-1]}",
            param_hint="--explain",
        )
    yield f"{rule.id} {rule.name} ({rule.severity}): {rule.summary}"
    yield f"why: {rule.why}"
    yield f"fix: {rule.fix}"
    yield f"page: {rule.page}"


def _as_text(report: "LintReport") -> Iterator[str]:
    for finding in report.findings:
        rule = finding.rule
        yield f"{finding.origin}: {rule.severity} {rule.id} {rule.name}: {_message(finding)}"
        yield f"    why: {rule.why}"
        yield f"    fix: {rule.fix}"
        yield f"    page: {rule.page}"
        yield ""
    for error in _distinct(report.refused):
        yield f"refused: {error}"
        yield ""
    for name, error in report.unsure.items():
        yield f"not looked at: {name}: {error.message}"
    yield _verdict(report)


def _verdict(report: "LintReport") -> str:
    counts = Counter(finding.rule.severity.value for finding in report.findings)
    parts = [
        f"{counts[severity]} {severity}{'' if counts[severity] == 1 else 's'}"
        for severity in ("error", "warning", "note")
        if counts[severity]
    ]
    text = ", ".join(parts) or "nothing found"
    if report.accepted:
        text += f", {len(report.accepted)} accepted"
    if report.refused:
        text += f", {len(_distinct(report.refused))} refused"
    return text if report.is_complete else f"{text} (text only: queries were not looked at)"


def _message(finding: "Finding") -> str:
    return f"{finding.flow}: {finding.message}" if finding.flow else finding.message


def _distinct(errors: "tuple[PenstockError, ...]") -> "list[PenstockError]":
    return list({str(error): error for error in errors}.values())


def _as_json(report: "LintReport") -> dict[str, Any]:
    counts = Counter(finding.rule.severity.value for finding in report.findings)
    return {
        "version": _VERSION,
        "pipeline": report.settings.name,
        "root": report.settings.root,
        "complete": report.is_complete,
        "counts": {severity: counts[severity] for severity in ("error", "warning", "note")},
        "findings": [_finding(finding) for finding in report.findings],
        "accepted": [_finding(finding) for finding in report.accepted],
        "refused": [_error(error) for error in _distinct(report.refused)],
        "not_looked_at": [{"what": name, **_error(error)} for name, error in report.unsure.items()],
    }


def _finding(finding: "Finding") -> dict[str, Any]:
    rule = finding.rule
    return {
        "rule": rule.id,
        "name": rule.name,
        "severity": rule.severity.value,
        "file": finding.origin.file,
        "line": finding.origin.line,
        "flow": finding.flow,
        "message": finding.message,
        "why": rule.why,
        "fix": rule.fix,
        "page": rule.page,
    }


def _error(error: "PenstockError") -> dict[str, Any]:
    return {
        "condition": error.condition,
        "message": error.message,
        "declared_at": str(error.origin) if error.origin is not None else None,
        "hint": error.hint,
    }


def _as_github(report: "LintReport") -> Iterator[str]:
    """Commands that GitHub's runners turn into annotations of a change."""
    yield from reports.annotations(_cases(report, FailOn.NOTE))
    yield _verdict(report)


def _cases(report: "LintReport", fail_on: FailOn) -> list[reports.Case]:
    """Findings as cases: those that do not count are skipped; one that passed if there are none."""
    from penstock._lint.finding import Severity

    words = {"note": "notice", "warning": "warning", "error": "error"}
    never = fail_on is FailOn.NEVER
    least = 0 if never else Severity(fail_on.value).rank
    cases = []
    for finding in report.findings:
        rule = finding.rule
        counts = not never and rule.severity.rank >= least
        cases.append(
            reports.Case(
                name=f"{rule.id} {finding.origin}",
                group=rule.name,
                verdict=reports.Verdict.FAILED if counts else reports.Verdict.SKIPPED,
                title=f"{rule.id} {rule.name}",
                text=f"{_message(finding)}\n{rule.why}\nfix: {rule.fix}",
                level=words[rule.severity.value],
                file=finding.origin.file,
                line=finding.origin.line,
            )
        )
    cases += [reports.failed(error, "refused") for error in _distinct(report.refused)]
    cases += [
        reports.failed(error, "not looked at", name, reports.Verdict.SKIPPED)
        for name, error in report.unsure.items()
    ]
    return cases or [reports.Case(name=report.settings.name, group="nothing found")]


def _as_sarif(report: "LintReport") -> dict[str, Any]:
    from penstock import __version__
    from penstock._lint.catalogue import RULES

    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "penstock",
                        "version": __version__,
                        "rules": [
                            {
                                "id": rule.id,
                                "name": rule.name,
                                "shortDescription": {"text": rule.summary},
                                "fullDescription": {"text": rule.why},
                                "help": {"text": rule.fix},
                                "defaultConfiguration": {"level": rule.severity.value},
                            }
                            for rule in RULES.values()
                        ],
                    }
                },
                "results": [
                    {
                        "ruleId": finding.rule.id,
                        "level": finding.rule.severity.value,
                        "message": {"text": _message(finding)},
                        "locations": [
                            {
                                "physicalLocation": {
                                    "artifactLocation": {"uri": finding.origin.file},
                                    "region": {"startLine": finding.origin.line},
                                }
                            }
                        ],
                    }
                    for finding in report.findings
                ],
            }
        ],
    }
