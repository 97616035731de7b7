"""Applies all rules to a project: to its source text and, with Spark, to its queries.

Comments suppress findings: `# penstock: ignore[PSL101] reason`, in SQL with `--`.
"""

import io
import os
import re
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock._analysis.observing import Observations, ObservingEvaluator
from penstock._check import OpenedProject, opened_project
from penstock._lint.catalogue import RULES
from penstock._lint.datasets import findings_of_dataset
from penstock._lint.finding import Finding
from penstock._lint.job_code import DEFAULT_CHECKPOINT
from penstock._lint.plans import findings_of_query, findings_of_read
from penstock._lint.python_code import (
    PIPELINE_RULES,
    CodeFindings,
    python_code_findings,
    setting_findings,
)
from penstock._lint.sql_code import setting_statements, sql_code_findings, statement_lines
from penstock._model.dataset import DatasetKind
from penstock._model.origin import SourceLocation, source_location
from penstock._model.pipeline import PipelineSettings
from penstock._model.query_facts import RuleFacts
from penstock._project.databricks.magics import Cell, CellKind
from penstock._project.job_files import job_files
from penstock._project.needs import needs, project_cells
from penstock.errors import PenstockError, SpecError

_COMMENT = re.compile(r"penstock:\s*(?P<what>ignore|ignore-file)\[(?P<ids>[^\]]*)\]", re.I)


@dataclass(frozen=True)
class Suppression:
    """One id of one comment, and the lines that it applies to; no lines mean the whole file."""

    rule: str
    at: SourceLocation
    lines: frozenset[int]


def apply_suppressions(
    findings: Iterable[Finding], suppressions: Iterable[Suppression], ignored: Iterable[str]
) -> tuple[list[Finding], list[Finding], list[Suppression]]:
    """Split findings by suppressions and by the ids that the settings ignore.

    Returns the remaining findings, the accepted findings, and the suppressions without effect.
    """
    by_file: dict[str, list[Suppression]] = {}
    known = list(suppressions)
    for suppression in known:
        by_file.setdefault(suppression.at.file, []).append(suppression)
    everywhere = {rule.upper() for rule in ignored}
    counted: list[Finding] = []
    accepted: list[Finding] = []
    used: set[Suppression] = set()
    for finding in findings:
        hits = {
            suppression
            for location in (finding.origin, finding.declared)
            if location is not None
            for suppression in by_file.get(location.file, ())
            if suppression.rule == finding.rule.id
            and (not suppression.lines or location.line in suppression.lines)
        }
        used |= hits
        (accepted if hits or finding.rule.id in everywhere else counted).append(finding)
    return counted, accepted, [suppression for suppression in known if suppression not in used]


def unused_suppressions(
    suppressions: Iterable[Suppression], looked_at: Collection[str]
) -> Iterator[Finding]:
    """Findings about suppressions without effect.

    `looked_at` are ids of rules that were applied: some rules require Spark.
    """
    rule = RULES["PSL901"]
    for suppression in suppressions:
        if suppression.rule not in RULES:
            message = f"there is no rule {suppression.rule or '(blank)'}"
        elif suppression.rule in looked_at:
            message = f"{suppression.rule} has no finding here"
        else:
            continue
        yield Finding(rule=rule, origin=suppression.at, message=message)


def _suppressions(
    cell: Cell, comments: Iterable[tuple[int, int, str]], spans: Iterable[tuple[int, int]]
) -> Iterator[Suppression]:
    """Suppressions in comments, which are given as line, column and text.

    A comment applies to its own line; a comment alone on its line also applies to the next line of
    code. If one of these is in one of `spans`, it applies to all lines of the span: in SQL, spans
    are statements; in Python, heads of functions (decorators and `def`) and simple statements.
    """
    lines = cell.text.split("\n")
    ranges = [range(first, last + 1) for first, last in spans]
    for number, column, comment in comments:
        match = _COMMENT.search(comment)
        if match is None:
            continue
        spoken: set[int] = set()
        if match.group("what").lower() == "ignore":
            target = number if lines[number - 1][:column].strip() else _next_code(lines, number)
            spoken = {number, target}
            for span in ranges:
                if number in span or target in span:
                    spoken |= set(span)
        shifted = frozenset(line + cell.line - 1 for line in spoken)
        at = _at(cell, number)
        for rule in match.group("ids").split(","):
            yield Suppression(rule.strip().upper(), at, shifted)


def _next_code(lines: list[str], number: int) -> int:
    for following in range(number + 1, len(lines) + 1):
        line = lines[following - 1].strip()
        if line and not line.startswith(("#", "--")):
            return following
    return number


def _sql_comments(text: str) -> Iterator[tuple[int, int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if "--" in line:
            yield number, line.index("--"), line[line.index("--") :]


def _python_comments(text: str) -> list[tuple[int, int, str]]:
    try:
        return [
            (token.start[0], token.start[1], token.string)
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT
        ]
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return []


TEXT_RULES = frozenset(
    f"PSL{number}"
    for number in (
        *(107, 109, 301, 302, 303, 304, 305, 306, 307, 308, 311, 312, 313, 314),
        *(601, 701, 702, 703, 704, 901),
    )
)
"""Rules that only check the text; all others require a complete analysis."""


@dataclass(frozen=True, kw_only=True)
class LintReport:
    """Result of a lint run, in the order of file and line.

    `accepted` are findings that a comment or a setting suppresses. `refused` are definition errors:
    the analysis stops there, so rules may have missed findings. `unsure` are flows or locations
    that could not be analysed. `is_complete`: whether queries were analysed, not only the text.
    """

    settings: PipelineSettings
    findings: tuple[Finding, ...]
    accepted: tuple[Finding, ...]
    refused: tuple[PenstockError, ...]
    unsure: Mapping[str, PenstockError]
    is_complete: bool


def lint_project(settings: PipelineSettings, *, text_only: bool = False) -> LintReport:
    """Check a project; no query runs and no data is read.

    Called on the main thread; changes the working directory to the project's root. With
    `text_only`, Spark is not started, and rules that need the plans of queries are not applied. A
    job is not executed: only its text is checked.
    """
    for rule in settings.lint_ignore:
        if rule.upper() not in RULES:
            raise SpecError(
                "LINT_RULE_UNKNOWN",
                f"`lint.ignore` contains {rule!r}, which is not a rule",
                hint=f"rules are {next(iter(RULES))} to {list(RULES)[-1]}: see docs/lint.md",
            )
    findings: list[Finding] = []
    suppressions: list[Suppression] = []
    checkpoints: dict[str, list[SourceLocation]] = {}
    refused: tuple[PenstockError, ...] = ()
    unsure: Mapping[str, PenstockError] = {}
    is_job = bool(job_files(settings))
    text_only = text_only or is_job
    if not text_only:
        absent = {need.name: need.origin.file for need in needs(settings).imports}
        made: list[ObservingEvaluator] = []

        def evaluator(*arguments: object) -> ObservingEvaluator:
            made.append(ObservingEvaluator(*arguments))
            return made[-1]

        with opened_project(settings, absent, evaluator) as opened:
            refused, unsure = opened.problems()
            findings += _of_analysis(opened, made[-1].seen, settings)
            made[-1].close()
    os.chdir(settings.root)  # paths in findings are relative to it
    cells = project_cells(settings)
    code_findings: Callable[[str], CodeFindings] = python_code_findings
    if is_job:
        keys = [key.lower() for key in settings.configuration]
        has_default_checkpoint = DEFAULT_CHECKPOINT.lower() in keys or any(
            DEFAULT_CHECKPOINT in cell.text for cell in cells
        )
        code_findings = partial(
            python_code_findings, is_job=True, has_default_checkpoint=has_default_checkpoint
        )
        cells = _joined(cells)
    for cell in cells:
        findings += _of_cell(cell, code_findings, suppressions, checkpoints)
    for location, origins in checkpoints.items():
        for origin in origins if len(origins) > 1 else ():
            message = f"{len(origins)} queries have the checkpoint {location}"
            findings.append(Finding(rule=RULES["PSL301"], origin=origin, message=message))
    findings += [
        finding
        for finding in _of_settings(settings)
        if not (is_job and finding.rule.id in PIPELINE_RULES)
    ]
    counted, accepted, without_effect = apply_suppressions(
        _distinct(findings), suppressions, settings.lint_ignore
    )
    # Without an analysis it is unknown whether rules about plans have findings.
    is_analysed = not (text_only or refused or unsure)
    counted += unused_suppressions(without_effect, RULES if is_analysed else TEXT_RULES)
    counted.sort(key=lambda each: (each.origin.file, each.origin.line, each.rule.id))
    return LintReport(
        settings=settings,
        findings=tuple(counted),
        accepted=tuple(accepted),
        refused=refused,
        unsure=unsure,
        is_complete=not text_only,
    )


# -- text ---------------------------------------------------------------------------------------


def _joined(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Join the Python cells of each file: a job may define rows in one and write in another."""
    lines: dict[str, list[str]] = {}
    others: list[Cell] = []
    for cell in cells:
        if cell.kind is not CellKind.PYTHON:
            others.append(cell)
            continue
        known = lines.setdefault(cell.file, [])
        known += [""] * (cell.line - 1 - len(known))
        known += cell.text.split("\n")
    python = [
        Cell(kind=CellKind.PYTHON, text="\n".join(text), file=file) for file, text in lines.items()
    ]
    return (*python, *others)


def _of_cell(
    cell: Cell,
    code_findings: Callable[[str], CodeFindings],
    suppressions: list[Suppression],
    checkpoints: dict[str, list[SourceLocation]],
) -> Iterator[Finding]:
    at = partial(_at, cell)
    functions: list[tuple[int, int]] = []
    if cell.kind is CellKind.SQL:
        hits = list(sql_code_findings(cell.text))
        for key, value, line in setting_statements(cell.text):
            for rule, message in setting_findings(key, value):
                yield Finding(rule=RULES[rule], origin=at(line), message=message)
        lines = statement_lines(cell.text)
        suppressions += _suppressions(cell, _sql_comments(cell.text), lines)
    elif cell.kind is CellKind.PYTHON:
        code = code_findings(cell.text)
        hits, functions = code.hits, code.functions
        for location, line in code.checkpoints:
            checkpoints.setdefault(location, []).append(at(line))
        suppressions += _suppressions(cell, _python_comments(cell.text), code.spans)
    else:
        return
    for hit in hits:
        around = max((head for head, last in functions if head <= hit.line <= last), default=None)
        yield Finding(
            rule=RULES[hit.rule],
            origin=at(hit.line),
            message=hit.message,
            declared=None if around is None else at(around),
        )


def _at(cell: Cell, line: int) -> SourceLocation:
    return source_location(cell.file, cell.line + line - 1)


def _of_settings(settings: PipelineSettings) -> Iterator[Finding]:
    parts = [
        {**settings.parameters, **settings.configuration},
        _texts(settings.lineage.transport),
        settings.telemetry.headers,
    ]
    if settings.metastore is not None:
        parts.append(settings.metastore.options)
    for target in settings.alerts.targets:
        parts.append({"webhook": target.webhook, **target.headers, **target.mail})
    for key, value in (pair for part in parts for pair in part.items()):
        for rule, message in setting_findings(key, value):
            yield Finding(rule=RULES[rule], origin=_line_of(key, settings), message=message)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings as one flat mapping."""
    texts: dict[str, str] = {}
    for key, value in values.items():
        texts |= _texts(value) if isinstance(value, Mapping) else {key: str(value)}
    return texts


def _line_of(key: str, settings: PipelineSettings) -> SourceLocation:
    root = Path(settings.root)
    written = re.compile(rf"""\s*(?:-\s+)?["']?{re.escape(key)}["']?\s*:""")
    for file in sorted(root.iterdir()):
        if file.suffix.lower() in (".yml", ".yaml", ".json") and file.is_file():
            lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
            for number, line in enumerate(lines, start=1):
                if written.match(line):
                    return source_location(str(file), number)
    return source_location(str(root), 1)


# -- analysis -----------------------------------------------------------------------------------


def _of_analysis(
    opened: OpenedProject, seen: Observations, settings: PipelineSettings
) -> Iterator[Finding]:
    index = opened.index
    for name, flow in index.flows.items():
        facts = seen.queries.get(name)
        if facts is not None:
            target = index.datasets.get(index.flow_targets[name])
            queried = (
                DatasetKind.STREAMING_TABLE if facts.is_streaming else DatasetKind.MATERIALIZED_VIEW
            )
            kind = None if target is None else target.declared.kind or queried
            yield from findings_of_query(name, flow.origin, facts, kind)
        for read in seen.reads.get(name, ()):
            # Reads of SQL statements have no location in the user's code.
            located = replace(read, origin=flow.origin) if flow.language == "SQL" else read
            yield from findings_of_read(name, flow.origin, located)
    for dataset in index.datasets.values():
        flows = {flow.name for flow in dataset.flows}
        rules: dict[str, RuleFacts] = {}
        for flow_name in flows:
            rules |= seen.rules.get(flow_name, {})
        queries = {name: seen.queries[name] for name in flows if name in seen.queries}
        yield from findings_of_dataset(
            dataset.declared, queries, rules, quarantine=settings.quarantine
        )


def _distinct(findings: list[Finding]) -> list[Finding]:
    return list(
        {
            (finding.rule.id, finding.origin, finding.message): finding for finding in findings
        }.values()
    )
