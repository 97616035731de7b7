"""Comments that suppress a finding: `# penstock: ignore[PSL101] why`, in SQL with `--`."""

import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from penstock._lint.catalogue import RULES
from penstock._lint.finding import Finding
from penstock._model.origin import SourceLocation

_COMMENT = re.compile(r"penstock:\s*(?P<what>ignore|ignore-file)\[(?P<ids>[^\]]*)\]", re.I)


@dataclass(frozen=True)
class Suppression:
    """One id of one comment.

    Attributes:
        rule: The id as written, in upper case.
        at: Location of the comment.
        lines: Lines of the file that it applies to; empty = the whole file.
    """

    rule: str
    at: SourceLocation
    lines: frozenset[int]


def suppressions_in_python(
    text: str, file: str, first_line: int, functions: Iterable[tuple[int, int]]
) -> Iterator[Suppression]:
    """Suppressions in Python code.

    A comment applies to its own line; a comment that stands alone applies to the next line of code.
    On or above the head of a function (decorators and `def`) it applies to the whole head.

    Args:
        text: The code.
        file: File name as in findings.
        first_line: Line of the file at which the code begins.
        functions: First line of the decorators and line of the `def` of each function.
    """
    heads = [range(first, last + 1) for first, last in functions]
    yield from _suppressions(_python_comments(text), text, file, first_line, heads)


def suppressions_in_sql(
    text: str, file: str, first_line: int, statements: Iterable[tuple[int, int]]
) -> Iterator[Suppression]:
    """Suppressions in SQL: a comment in or directly above a statement applies to all of it."""
    comments = [
        (number, line.index("--"), line[line.index("--") :])
        for number, line in enumerate(text.split("\n"), start=1)
        if "--" in line and _COMMENT.search(line[line.index("--") :])
    ]
    spans = [range(first, last + 1) for first, last in statements]
    yield from _suppressions(comments, text, file, first_line, spans)


def apply(
    findings: Iterable[Finding], suppressions: Iterable[Suppression], ignored: Iterable[str]
) -> tuple[list[Finding], list[Finding], list[Suppression]]:
    """Split findings by suppressions and by the ids that the settings ignore.

    Returns:
        Findings that count, accepted ones, and suppressions without effect.
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


def unused(suppressions: Iterable[Suppression], looked_at: Mapping[str, bool]) -> Iterator[Finding]:
    """Findings about suppressions without effect.

    `looked_at` tells per rule id whether it was applied: without Spark, some rules are not.
    """
    rule = RULES["PSL901"]
    for suppression in suppressions:
        if suppression.rule not in RULES:
            message = f"there is no rule {suppression.rule or '(blank)'}"
        elif looked_at.get(suppression.rule, True):
            message = f"{suppression.rule} has no finding here"
        else:
            continue
        yield Finding(rule=rule, origin=suppression.at, message=message)


def _suppressions(
    comments: Iterable[tuple[int, int, str]],
    text: str,
    file: str,
    first_line: int,
    spans: list[range],
) -> Iterator[Suppression]:
    lines = text.split("\n")
    for number, column, comment in comments:
        match = _COMMENT.search(comment)
        if match is None:
            continue
        spoken: set[int] = set()
        if match.group("what").lower() == "ignore":
            target = number if lines[number - 1][:column].strip() else _next_code(lines, number)
            spoken = {number, target}
            for span in spans:
                if number in span or target in span:
                    spoken |= set(span)
        shifted = frozenset(line + first_line - 1 for line in spoken)
        at = SourceLocation(file, number + first_line - 1)
        for rule in match.group("ids").split(","):
            yield Suppression(rule.strip().upper(), at, shifted)


def _next_code(lines: list[str], number: int) -> int:
    for following in range(number + 1, len(lines) + 1):
        line = lines[following - 1].strip()
        if line and not line.startswith(("#", "--")):
            return following
    return number


def _python_comments(text: str) -> list[tuple[int, int, str]]:
    try:
        return [
            (token.start[0], token.start[1], token.string)
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT
        ]
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return []
