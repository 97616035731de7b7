"""Rules about SQL text."""

import re
from collections.abc import Iterator
from itertools import chain

from penstock._lint.calls import Hit
from penstock._lint.secret_literals import secret_kind
from penstock._project.findings import without_sql_comments
from penstock._sql.source import SqlSource
from penstock._sql.statements import split_statements

_DISTINCT = re.compile(r"\bcount\s*\(\s*distinct\b", re.I)
_STREAM = re.compile(r"\bSTREAM\s*\(|\b(?:FROM|JOIN)\s+STREAM\s+[\w`]|\bread_stream\s*\(", re.I)
_SET = re.compile(r"\s*SET\s+([\w.\-]+)\s*=\s*(.+)", re.I | re.S)
_NAMED = re.compile(r"['\"`]?([\w.\-]+)['\"`]?\s*(?:=>|=)\s*'((?:[^'\\]|\\.|'')*)'")
_MAP = re.compile(r"\bmap\s*\((?:'(?:[^'\\]|\\.|'')*'|[^')])*", re.I)
_MAP_ENTRY = re.compile(r"'([\w.\-]+)'\s*,\s*'((?:[^'\\]|\\.|'')*)'")


def is_distinct_count(text: str) -> bool:
    """Whether a statement counts distinct values of a stream."""
    return _DISTINCT.search(text) is not None and _STREAM.search(text) is not None


def sql_code_findings(text: str) -> Iterator[Hit]:
    for start, statement in _statements(text):
        match = _DISTINCT.search(statement)
        if match is not None and _STREAM.search(statement):
            line = start + statement.count("\n", 0, match.start())
            yield Hit("PSL107", line, "COUNT(DISTINCT ...) on a stream")
        maps = (_MAP_ENTRY.finditer(statement, *each.span()) for each in _MAP.finditer(statement))
        for match in chain(_NAMED.finditer(statement), *maps):
            name, value = match.groups()
            if (kind := secret_kind(name, value)) is not None:
                line = start + statement.count("\n", 0, match.start())
                yield Hit("PSL601", line, f"the value of {name} is {kind}")


def setting_statements(text: str) -> Iterator[tuple[str, str, int]]:
    """Key, value and line of each `SET key = value`."""
    for start, statement in _statements(text):
        match = _SET.match(statement)
        if match is not None:
            line = start + statement.count("\n", 0, match.start(1))
            yield match.group(1), match.group(2).strip().strip("'\""), line


def statement_lines(text: str) -> Iterator[tuple[int, int]]:
    """First and last line of each statement, without leading comments."""
    for first, statement in _statements(text):
        yield first, first + statement.count("\n")


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The first line of each statement, and its text without comments."""
    for statement in split_statements(SqlSource.of(without_sql_comments(text), file="")):
        yield statement.source.first_line, statement.source.text
