"""The code of a declaration, to be shown to users: read from the current version of its file.

Code may contain credentials. A string that belongs to a word such as `password`, or that looks
like a credential by itself, is masked.
"""

import ast
import re
from pathlib import Path
from typing import Any

from penstock._observe.masking import shown
from penstock._sql.tokens import UnclosedError, tokens_of

_MOST_BYTES = 2_000_000
_MOST_LINES = 120
_MOST_TEXT = 12_000
_HIDDEN = "[redacted]"
_PLACE = re.compile(r"(?P<file>.+):(?P<line>\d{1,7})")
_TEXT = r"(?:\\.|(?!(?P={0}))[^\\])*"
_PYTHON = re.compile(
    r"(?P<comment>#[^\n]*)"
    rf"|(?P<long>\'\'\'|\"\"\")(?P<long_text>{_TEXT.format('long')})(?P=long)"
    r"|(?P<quote>['\"])(?P<text>(?:\\.|(?!(?P=quote))[^\\\n])*)(?P=quote)",
    re.DOTALL,
)
_SQL = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?\*/)"
    r"|(?P<name>`[^`]*`)"
    rf"|(?P<quote>['\"])(?P<text>{_TEXT.format('quote')})(?P=quote)",
    re.DOTALL,
)
_SECRET = re.compile(
    r"passw|passphrase|secret|token|api[._\-]?key|access[._\-]?key|account[._\-]?key"
    r"|shared[._\-]?key|private[._\-]?key|secret[._\-]?key|credential|authorization|signature|jaas"
    r"|\bpwd|\bsas",
    re.IGNORECASE,
)
# A string that looks like a key; paths are excluded by `_looks_like_a_key`.
_KEY_LIKE = re.compile(
    r"(?=\S{0,99}\d)(?=\S{0,99}[a-z])(?=\S{0,99}[A-Z])[A-Za-z0-9+/=_\-]{24,}|[0-9a-f]{32,}"
)


def excerpt(root: Path, declared_at: str) -> dict[str, Any] | None:
    """The statement that begins at a file and line, such as `transformations/orders.py:12`.

    A dictionary for JSON, with credentials masked; `line` is the number of the first line. `None`
    for files that are missing, outside of the folder, neither Python nor SQL, too large, or broken.
    """
    place = _PLACE.fullmatch(declared_at)
    if place is None:
        return None
    try:
        folder = root.resolve()
        path = (folder / place["file"]).resolve()
        if not path.is_relative_to(folder) or path.suffix not in (".py", ".sql"):
            return None
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return None
    lines = text.split("\n")
    first = int(place["line"])
    if not 1 <= first <= len(lines):
        return None
    is_sql = path.suffix == ".sql"
    ends = _sql_statement(lines, first) if is_sql else _python_statement(text, first)
    if ends is None:
        return None
    first, last = ends
    # Masked before it is cut: a cut string has no closing quote.
    code = without_secrets("\n".join(lines[first - 1 : last]), is_sql=is_sql)
    shorter = "\n".join(code.split("\n")[:_MOST_LINES])[:_MOST_TEXT]
    is_cut = len(shorter) < len(code)
    return {"file": shown(place["file"]), "line": first, "text": shorter, "is_cut": is_cut}


def without_secrets(code: str, *, is_sql: bool = False) -> str:
    """Code with credentials masked; line numbers do not change."""
    pieces: list[str] = []
    before, was_hidden = 0, False
    previous = ""
    for match in (_SQL if is_sql else _PYTHON).finditer(code):
        groups = match.groupdict()
        between = code[before : match.start()]
        pieces.append(between)
        before = match.end()
        if groups["comment"] is not None:
            pieces.append(_comment(groups["comment"]))
            continue
        if groups.get("name") is not None:
            previous = match[0]
            pieces.append(match[0])
            continue
        quote = groups.get("long") or groups["quote"]
        text = groups["text"] if groups.get("long") is None else groups["long_text"]
        is_continued = was_hidden and not between.strip(" \t\r\n\\()bBrRuUfF")
        # The name of a string is before it: in the code, or in the previous string.
        words = previous + between[-400:]
        was_hidden = bool(is_continued or _SECRET.search(words) or _looks_like_a_key(text))
        hidden = _HIDDEN + "\n" * text.count("\n")
        pieces.append(f"{quote}{hidden if text else ''}{quote}" if was_hidden else match[0])
        # A hidden value is not the name of the next string.
        previous = "" if was_hidden else text
    pieces.append(code[before:])
    return shown("".join(pieces))


def _looks_like_a_key(text: str) -> bool:
    is_place = text.startswith(("/", ".")) or "://" in text
    return not is_place and _KEY_LIKE.search(text) is not None


def _comment(text: str) -> str:
    match = _SECRET.search(text)
    if match is None or not re.search(r"[\"'=:]", text[match.start() :]):
        return text
    rest = text[match.end() :]
    return (
        text[: match.end()]
        + f" {_HIDDEN}"
        + "\n" * rest.count("\n")
        + ("*/" if text.startswith("/*") else "")
    )


def _python_statement(text: str, line: int) -> tuple[int, int] | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    spans: list[tuple[int, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            decorators = getattr(node, "decorator_list", ())
            start = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            if start <= line <= (end := node.end_lineno or 0):
                spans.append((start, end))
    return min(spans, key=lambda span: span[1] - span[0], default=None)


def _sql_statement(lines: list[str], line: int) -> tuple[int, int] | None:
    rest = "\n".join(lines[line - 1 :])
    try:
        for token in tokens_of(rest):
            if token.word == ";":
                return line, line + rest.count("\n", 0, token.end)
    except UnclosedError:
        return None
    return line, len(lines)
