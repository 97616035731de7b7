"""`lint`: check a pipeline for likely mistakes before it runs."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from penstock._cli import exit_codes, options, reports
from penstock._model.quantity import plural

if TYPE_CHECKING:
    from penstock._lint.finding import Finding, Rule
    from penstock._lint.project import LintReport

_VERSION = 1

FailOn = Literal["note", "warning", "error", "never"]

app = typer.Typer()


@app.command(
    "lint",
    epilog="Examples: penstock lint | penstock lint shop --fail-on error | "
    "penstock lint --text-only --output github | penstock lint --explain PSL101",
)
@options.grouped
def lint(
    *,
    project: options.CheckOptions,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="Minimum severity for exit code 1.")
    ] = "warning",
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Check the source text only, without Spark.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="ID", help="Print the description of a rule and exit."),
    ] = None,
    output: Annotated[
        Literal["text", "json", "github", "sarif"],
        typer.Option("--output", "-o", help="Output format."),
    ] = "text",
    junit: reports.JUnit = None,
) -> int:
    """Check for likely mistakes: unbounded state, lost rows, secrets in code.

    Nothing runs, and no data is needed; of a job, the text is checked.
    A comment `# penstock: ignore[PSL101]` accepts a finding.
    Exit code 0 without findings, 1 with findings, 2 if the pipeline is invalid.
    """
    if explain is not None:
        rule = _rule(explain)
        body = options.attributes(rule, "id", "name", "severity", "summary", "why", "fix", "page")
        options.show("json" if output == "json" else "text", body, _explanation(rule))
        return exit_codes.OK
    from penstock._lint.project import lint_project

    settings = project.settings()
    with options.stdout_to_stderr():
        report = lint_project(settings, text_only=text_only)
    if junit is not None:
        reports.write_junit(junit, "penstock lint", _cases(report, fail_on))
    match output:
        case "json":
            options.print_json(_as_json(report))
        case "sarif":
            options.print_json(_as_sarif(report))
        case "github":
            annotations = reports.annotations(_cases(report, "note"))
            print("\n".join([*annotations, _verdict(report)]))
        case "text":
            print("\n".join(_as_text(report)))
    if report.refused:
        return exit_codes.USAGE
    fails = any(_counts(finding, fail_on) for finding in report.findings)
    return exit_codes.UPDATE_FAILED if fails else exit_codes.OK


def _counts(finding: "Finding", fail_on: FailOn) -> bool:
    from penstock._lint.finding import Severity

    return fail_on != "never" and finding.rule.severity.rank >= Severity(fail_on).rank


def _rule(rule_id: str) -> "Rule":
    from penstock._lint.catalogue import RULES

    rule = RULES.get(rule_id.strip().upper())
    if rule is None:
        raise typer.BadParameter(
            f"there is no rule {rule_id!r}: {next(iter(RULES))} to {list(RULES)[-1]}",
            param_hint="--explain",
        )
    return rule


def _explanation(rule: "Rule") -> Iterator[str]:
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
    for error in reports.distinct(report.refused):
        yield f"refused: {error}"
        yield ""
    for name, error in report.unsure.items():
        yield f"not checked: {name}: {error.message}"
    yield _verdict(report)


def _verdict(report: "LintReport") -> str:
    counts = Counter(finding.rule.severity.value for finding in report.findings)
    severities = ("error", "warning", "note")
    parts = [plural(counts[severity], severity) for severity in severities if counts[severity]]
    text = ", ".join(parts) or "no findings"
    if report.accepted:
        text += f", {len(report.accepted)} accepted"
    if report.refused:
        text += f", {len(reports.distinct(report.refused))} refused"
    return text if report.is_complete else f"{text} (text only: queries were not checked)"


def _message(finding: "Finding") -> str:
    return f"{finding.flow}: {finding.message}" if finding.flow else finding.message


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
        "refused": [reports.error_body(error) for error in reports.distinct(report.refused)],
        "not_checked": [
            {"what": name, **reports.error_body(error)} for name, error in report.unsure.items()
        ],
    }


def _finding(finding: "Finding") -> dict[str, Any]:
    rule = finding.rule
    return {
        **options.attributes(rule, "name", "severity", "why", "fix", "page"),
        **options.attributes(finding, "flow", "message"),
        **options.attributes(finding.origin, "file", "line"),
        "rule": rule.id,
    }


def _cases(report: "LintReport", fail_on: FailOn) -> list[reports.Case]:
    """Findings as cases, skipped below `fail_on`; one passed case if there are no findings."""
    words = {"note": "notice", "warning": "warning", "error": "error"}
    cases = []
    for finding in report.findings:
        rule = finding.rule
        cases.append(
            reports.Case(
                name=f"{rule.id} {finding.origin}",
                group=rule.name,
                verdict="failed" if _counts(finding, fail_on) else "skipped",
                title=f"{rule.id} {rule.name}",
                text=f"{_message(finding)}\n{rule.why}\nfix: {rule.fix}",
                level=words[rule.severity.value],
                file=finding.origin.file,
                line=finding.origin.line,
            )
        )
    cases += [reports.failed(error, "refused") for error in reports.distinct(report.refused)]
    cases += [
        reports.failed(error, "not checked", name, "skipped")
        for name, error in report.unsure.items()
    ]
    return cases or [reports.Case(name=report.settings.name, group="no findings")]


def _as_sarif(report: "LintReport") -> dict[str, Any]:
    from penstock import __version__
    from penstock._lint.catalogue import RULES

    rules = [
        {
            "id": rule.id,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.fix},
            "defaultConfiguration": {"level": rule.severity.value},
        }
        for rule in RULES.values()
    ]
    results = []
    for finding in report.findings:
        location = {
            "artifactLocation": {"uri": quote(finding.origin.file)},
            "region": {"startLine": finding.origin.line},
        }
        results.append(
            {
                "ruleId": finding.rule.id,
                "level": finding.rule.severity.value,
                "message": {"text": _message(finding)},
                "locations": [{"physicalLocation": location}],
            }
        )
    driver = {"name": "penstock", "version": __version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
