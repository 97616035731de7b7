"""Splits SQL text into statements."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from penstock._sql.source import SqlSource
from penstock._sql.tokens import Token, TokenKind, UnclosedError, tokens_of
from penstock.errors import DefinitionError

# Separates the cells of an exported notebook; the last `;` of a cell may be missing.
_CELL_END = re.compile(r"--\s*COMMAND\s*-{5,}\s*")
# Cells of a notebook may have a language; only SQL cells are parsed.
_MAGIC = re.compile(r"[\s\ufeff]*%(\w+)[^\S\r\n]*")

_QUOTES = "'\""
_QUERIES = {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "("}
_SHOWN_ONLY = {"SHOW", "DESCRIBE", "DESC", "EXPLAIN", "LIST"}
_SET_WITHOUT_EQUALS = {"CATALOG", "TIME", "ROLE", "RECIPIENT", "VARIABLE", "VAR"}


@dataclass(frozen=True)
class Statement:
    """One statement, from its first to its last token, with comments."""

    source: SqlSource
    tokens: tuple[Token, ...]
    error: DefinitionError | None = None

    @property
    def is_display(self) -> bool:
        """Whether the statement only shows a result, like a query in a notebook cell."""
        tokens = [token for token in self.tokens if token.kind is not TokenKind.COMMENT]
        words = [token.word for token in tokens]
        # `END` closes a `BEGIN`, which is reported.
        if not words or words[0] in _SHOWN_ONLY or words == ["END"]:
            return True
        if words[0] == "SET" and "=" not in words:  # `SET key` shows a value
            is_one_word = all(a.end == b.start for a, b in pairwise(tokens[1:]))
            return is_one_word and not {*words[1:2]} & _SET_WITHOUT_EQUALS
        return words[0] in _QUERIES and "INSERT" not in words


def split_statements(source: SqlSource) -> Iterator[Statement]:
    """Yield the statements of a text, in order.

    A `;` ends a statement anywhere outside of strings and comments, even in parentheses: no
    statement needs one there, and an unclosed parenthesis then affects only its own statement. The
    end of a notebook's cell and of the text end a statement as well.
    """
    magic = _MAGIC.match(source.text)
    start = 0
    if magic is not None:
        if magic.group(1).lower() != "sql":
            return
        start = magic.end()
    source = source.section(start, len(source.text))
    pending: list[Token] = []
    stream = tokens_of(source.text)
    while True:
        try:
            token = next(stream, None)
        except UnclosedError as error:
            yield _unclosed(source, pending, error)
            return
        if token is None or token.word == ";" or _CELL_END.fullmatch(token.text):
            if any(known.kind is not TokenKind.COMMENT for known in pending):
                yield _statement(source, pending, pending[-1].end)
            if token is None:
                return
            pending = []
        elif pending or token.kind is not TokenKind.COMMENT:
            pending.append(token)


def _statement(
    source: SqlSource, tokens: list[Token], end: int, error: DefinitionError | None = None
) -> Statement:
    start = tokens[0].start if tokens else end
    moved = [replace(token, start=token.start - start, end=token.end - start) for token in tokens]
    return Statement(source.section(start, end), tuple(moved), error)


def _unclosed(source: SqlSource, pending: list[Token], error: UnclosedError) -> Statement:
    origin = source.origin(error.start)
    message = f"{error.what} is not closed"
    hint = f"close it with `{error.closing}`"
    if error.closing in _QUOTES:
        hint += f"; inside of a string, write `{error.closing * 2}` or `\\{error.closing}`"
        broken = _broken_off(pending)
        if broken is not None:
            # An extra apostrophe shifts all later strings: report the first, not the last.
            message = (
                f"a string ends before `{broken.text}`, and one on line {origin.line} is not closed"
            )
            origin = source.origin(broken.start)
    wrong = DefinitionError("SQL_SYNTAX", message, origin=origin, hint=hint)
    return _statement(source, pending, error.start, wrong)


def _broken_off(tokens: list[Token]) -> Token | None:
    """The word directly after a string, as in `'it's'`."""
    for text, word in pairwise(tokens):
        if text.kind is TokenKind.STRING and word.word.isalpha() and text.end == word.start:
            return word
    return None
