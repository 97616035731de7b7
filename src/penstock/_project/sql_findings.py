"""What SQL text needs: `${key}`, and paths in its strings."""

import re
from collections.abc import Iterator

from penstock._project.text_findings import Finding, FindingKind, path_in, references_in

_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<string>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")",
    re.DOTALL,
)
_SET = re.compile(r"(?:^|;)\s*SET\s+([\w.\-]+)\s*=", re.IGNORECASE)


def sql_findings(text: str) -> Iterator[Finding]:
    """Yield what a SQL string needs, without its comments."""
    text = _without_comments(text)
    for match in _SET.finditer(text):
        line = 1 + text.count("\n", 0, match.start(1))
        yield Finding(kind=FindingKind.KEY_SET, name=match.group(1), line=line)
    yield from references_in(text)
    for match in _TOKEN.finditer(text):
        line = 1 + text.count("\n", 0, match.start())
        # As Python's f-strings are shown: `/Volumes/{catalog}/raw`.
        literal = re.sub(r"\$\{\s*([^}]*?)\s*\}", r"{\1}", match.group()[1:-1])
        if finding := path_in(literal, line):
            yield finding


def _without_comments(text: str) -> str:
    """Blank out comments; line numbers do not change."""

    def blank(match: re.Match[str]) -> str:
        comment = match.group("comment")
        return match.group() if comment is None else "\n" * comment.count("\n")

    return _TOKEN.sub(blank, text)
