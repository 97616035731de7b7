"""The query of a statement, unchanged except for syntax that Spark cannot parse."""

import re
from collections.abc import Iterable, Iterator, Mapping

from penstock._model.sql_text import literal, quoted
from penstock._sql.cursor import Cursor
from penstock._sql.names import computed_name
from penstock._sql.source import Edit, SqlSource
from penstock._sql.syntax import Query
from penstock._sql.tokens import (
    Token,
    TokenKind,
    UnclosedError,
    text_value,
    tokens_of,
)

FIRST_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
_PERIOD = re.compile(r"\s*(?:\d+(?:\.\d+)?\s+[A-Za-z]+\s*)+")


def take_query(cursor: Cursor, what: str) -> Query:
    """Return the rest of the statement, which is a query after the keyword `what`."""
    if not at_query(cursor):
        raise cursor.unexpected(f"a query after `{what}`", FIRST_WORDS)
    first = cursor.current
    start = cursor.position
    cursor.skip_while(lambda: True)
    text = cursor.between(start)
    for edit in sorted(_touch_ups(cursor, start), key=lambda edit: -edit.start):
        text = text[: edit.start - first.start] + edit.text + text[edit.end - first.start :]
    return query_at(cursor, first, text)


def query_at(cursor: Cursor, first: Token, text: str) -> Query:
    """Return a query that begins with the token `first`."""
    line, column = cursor.source.line(first.start), cursor.source.column(first.start)
    return Query(text=text, line=line, column=column)


def at_query(cursor: Cursor) -> bool:
    return cursor.current.word in FIRST_WORDS or cursor.at("(")


def spell_names(text: str, parameters: Mapping[str, str]) -> str:
    """Replace each `IDENTIFIER` of constant strings and parameters in a query by its name."""
    if "identifier" not in text.lower():
        return text
    source = SqlSource.of(text, file="")
    try:
        cursor = Cursor(source, _filled(tokens_of(text), parameters))
    except UnclosedError:
        return text
    edits = []
    while not cursor.is_done:
        first = cursor.current
        if cursor.at("IDENTIFIER", "(") and (name := computed_name(cursor)) is not None:
            edits.append(Edit(first.start, cursor.ahead(-1).end, quoted(*name)))
        else:
            cursor.advance()
    return source.replaced(edits).text


def _filled(tokens: Iterable[Token], parameters: Mapping[str, str]) -> list[Token]:
    filled: list[Token] = []
    for token in tokens:
        before = filled[-1] if filled else None
        if before and before.word == ":" and before.end == token.start and token.text in parameters:
            value = literal(parameters[token.text])
            filled[-1] = Token(TokenKind.STRING, value, before.start, token.end)
        else:
            filled.append(token)
    return filled


def _touch_ups(cursor: Cursor, start: int) -> Iterator[Edit]:
    """Yield edits of syntax that open-source Spark, or the resolution of names, does not accept.

    * `WATERMARK ... DELAY OF INTERVAL '10 minutes'`: Spark needs the parts without quotes.
    * `IDENTIFIER('a.b')` becomes the name itself, so that it is resolved like any other.
    """
    end = cursor.position
    for position in range(start, end):
        cursor.position = position
        first = cursor.current
        if cursor.at("DELAY", "OF", "INTERVAL"):
            period = cursor.ahead(3)
            text = text_value(period) if period.kind is TokenKind.STRING else ""
            if _PERIOD.fullmatch(text + " "):
                yield Edit(period.start, period.end, text.strip())
        elif cursor.at("IDENTIFIER", "(") and (name := computed_name(cursor)) is not None:
            yield Edit(first.start, cursor.ahead(-1).end, quoted(*name))
    cursor.position = end
