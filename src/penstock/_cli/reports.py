"""Reports for CI: JUnit XML, GitHub annotations, and a Markdown summary of an update."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from xml.etree import ElementTree as Xml

import typer

from penstock._display.text import count, error_line, rows_text, seconds
from penstock._model.quantity import plural
from penstock.errors import DefinitionErrors, PenstockError

if TYPE_CHECKING:
    from penstock._observe.snapshot import UpdateView

# Characters that XML 1.0 cannot represent.
_UNPRINTABLE = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Verdict = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    group: str  # kind
    verdict: Verdict = "passed"
    title: str = ""  # one line; empty if it passed
    text: str = ""
    level: str = "error"  # error, warning or notice, as in GitHub annotations
    file: str = ""  # empty without a location
    line: int = 0


JUnit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Also write the result as JUnit XML.")
]
Report = Annotated[
    Literal["text", "json", "github"], typer.Option("--output", "-o", help="Output format.")
]


def distinct(errors: Iterable[PenstockError]) -> list[PenstockError]:
    return list({str(error): error for error in errors}.values())


def cases_of(error: PenstockError) -> list[Case]:
    parts = error.errors if isinstance(error, DefinitionErrors) else (error,)
    return [failed(part, "definition") for part in distinct(parts)]


def failed(error: PenstockError, group: str, name: str = "", verdict: Verdict = "failed") -> Case:
    origin = error.origin
    return Case(
        name=name or (f"{error.condition} {origin}" if origin else error.condition),
        group=group,
        verdict=verdict,
        title=f"[{error.condition}] {error.message}".partition("\n")[0],
        text=str(error),
        level="error" if verdict == "failed" else "warning",
        file=origin.file if origin else "",
        line=origin.line if origin else 0,
    )


def error_body(error: PenstockError) -> dict[str, Any]:
    return {
        "condition": error.condition,
        "message": error.message,
        "declared_at": str(error.origin) if error.origin is not None else None,
        "hint": error.hint,
    }


def write_junit(path: Path, suite: str, cases: Sequence[Case]) -> None:
    """Write JUnit XML, with secrets masked."""
    verdicts = [case.verdict for case in cases]
    counts = {
        "tests": str(len(cases)),
        "failures": str(verdicts.count("failed")),
        "errors": "0",
        "skipped": str(verdicts.count("skipped")),
    }
    root = Xml.Element("testsuites", counts)
    body = Xml.SubElement(root, "testsuite", {"name": _clean(suite), **counts})
    for case in cases:
        attributes = {"classname": f"{suite}.{case.group}", "name": case.name}
        if case.file:
            attributes |= {"file": case.file, "line": str(case.line)}
        element = Xml.SubElement(
            body, "testcase", {key: _clean(value) for key, value in attributes.items()}
        )
        if case.verdict != "passed":
            tag = "failure" if case.verdict == "failed" else "skipped"
            result = Xml.SubElement(element, tag, {"message": _clean(case.title)})
            result.text = _clean(case.text)
    Xml.indent(root)
    text = Xml.tostring(root, encoding="unicode", xml_declaration=True)
    write_text(path, text + "\n", "--junit")


def annotations(cases: Iterable[Case]) -> Iterator[str]:
    for case in cases:
        if case.verdict == "passed":
            continue
        parts = []
        if case.file:
            parts = [f"file={escaped(case.file, ':,')}", f"line={case.line}"]
        parts.append(f"title={escaped(_clean(case.title), ':,')}")
        yield f"::{case.level} {','.join(parts)}::{escaped(_clean(case.text))}"


def escaped(text: str, more: str = "") -> str:
    for sign in f"%\r\n{more}":
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def write_summary(path: Path, view: "UpdateView") -> None:
    """Write a Markdown summary of an update; appends to the step summary of GitHub Actions."""
    text = "\n".join(summary(view)) + "\n"
    shared = os.environ.get("GITHUB_STEP_SUMMARY")
    is_shared = shared and path.resolve() == Path(shared).resolve()
    write_text(path, text, "--summary", mode="a" if is_shared else "w")


def summary(view: "UpdateView") -> Iterator[str]:
    state = view.state.value if view.state is not None else "ended"
    yield f"## {_cell(view.pipeline_name or 'pipeline')}: {state}"
    yield ""
    yield (
        f"{plural(len(view.datasets), 'dataset')}, {rows_text(view.rows)} written in "
        f"{seconds(view.duration_seconds)}. Update `{view.update_id}`."
    )
    if view.datasets:
        yield ""
        yield "| Dataset | Kind | State | Rows | Quarantined | Dropped | Late | Time |"
        yield "|---|---|---|---:|---:|---:|---:|---:|"
        for dataset in view.datasets:
            cells = (dataset.display, dataset.kind, dataset.state.value, count(dataset.rows))
            figures = (dataset.quarantined, dataset.discarded, dataset.late)
            texts = [*cells, *(count(number) for number in figures)]
            texts.append(seconds(dataset.duration_seconds))
            yield f"| {' | '.join(_cell(text) for text in texts)} |"
    rules = [(dataset.display, rule) for dataset in view.datasets for rule in dataset.rules]
    if rules:
        yield ""
        yield "| Expectation | Dataset | Passed | Failed | Share |"
        yield "|---|---|---:|---:|---:|"
        for display, rule in rules:
            share = rule.failed / max(1, rule.passed + rule.failed)
            yield (
                f"| {_cell(rule.name)} | {_cell(display)} | {count(rule.passed)} | "
                f"{count(rule.failed)} | {share:.2%} |"
            )
    errors = {
        dataset.display: dataset.last_error
        for dataset in view.datasets
        if dataset.last_error is not None
    }
    if view.error is not None:
        errors["update"] = view.error
    if errors:
        yield ""
        yield "### Errors"
        for name, error in errors.items():
            yield ""
            yield f"**{_cell(name)}** {_cell(error_line(error))}"
            yield ""
            yield from (f"    {line}" for line in _clean(error.message).splitlines())
    if view.warnings:
        yield ""
        yield "### Warnings"
        yield ""
        yield from (f"- {_cell(warning)}" for warning in view.warnings)


def _cell(text: str) -> str:
    flat = " ".join(_clean(text).split())
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", flat)


def _clean(text: str) -> str:
    from penstock._observe.masking import shown

    return _UNPRINTABLE.sub("?", shown(text))


def write_text(path: Path, text: str, option: str, *, mode: str = "w") -> None:
    """Write a file that an option of the command line names."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        problem = f"{path} cannot be written: {error.strerror or error}"
        raise typer.BadParameter(problem, param_hint=option) from error
