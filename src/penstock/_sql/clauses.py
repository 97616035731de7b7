"""Clauses of a dataset, in any order between its columns and its query."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock._sql.cursor import Cursor
from penstock._sql.names import parse_columns, parse_name
from penstock._sql.tokens import Token, TokenKind
from penstock.errors import DefinitionError

_PLAIN_COLLATION = "UTF8_BINARY"


Clauses = Sequence[tuple[tuple[str, ...], Callable[[Cursor], dict[str, Any]]]]
"""The keywords that begin each clause, and a function that parses what follows them."""


def parse_clauses(cursor: Cursor, *, ends: Sequence[str]) -> dict[str, Any]:
    """Parse the clauses up to one of the keywords `ends`, or the end of the statement.

    Returns fields of `Dataset`.
    """
    known = (*(words[0] for words, _ in _CLAUSES), *ends, "FLOW")
    expected = " or ".join([*(f"`{word}`" for word in ends), "a clause of a table"])

    def at_end() -> bool:
        # `AS` may be left out, as in Spark's `CREATE TABLE`.
        is_query = cursor.at("SELECT") and cursor.ahead(-1).word != "AS"
        return cursor.current.word in ends or is_query

    return in_any_order(cursor, _CLAUSES, expected, known, at_end)


def in_any_order(
    cursor: Cursor,
    known: Clauses,
    expected: str,
    words: Sequence[str],
    at_end: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Parse clauses up to `at_end`, each once; `expected` and `words` are for the error."""
    clauses: dict[str, Any] = {}
    seen: set[str] = set()
    while not cursor.is_done and not at_end():
        first = cursor.current
        parse = next((parse for begin, parse in known if cursor.accept(*begin)), None)
        if parse is None:
            rest = [begin for begin, _ in known]
            # Report the first wrong word: `DELETES` in `APPLY AS DELETES`.
            while rest := [begin[1:] for begin in rest if begin and cursor.at(begin[0])]:
                cursor.advance()
            raise cursor.unexpected(expected, words)
        clause = parse(cursor)
        for name in clause or (first.word,):
            if name in seen:
                raise cursor.error(f"`{first.text}` is given twice", at=first)
            seen.add(name)
        clauses |= clause
    return clauses


@contextmanager
def _parentheses(cursor: Cursor) -> Iterator[None]:
    cursor.expect("(")
    yield
    if not cursor.accept(")"):
        raise cursor.unexpected("`,` or `)`")


def _cluster_by(cursor: Cursor) -> dict[str, Any]:
    if cursor.accept("AUTO"):
        return {"cluster_by_auto": True}
    if cursor.accept("NONE"):
        return {"cluster_by": ()}
    columns: list[str] = []
    with _parentheses(cursor):
        while True:
            # A clustering column may be a field of a struct.
            parts = [cursor.identifier("a column name in `CLUSTER BY`")]
            while cursor.accept("."):
                parts.append(cursor.identifier("a field"))
            columns.append(".".join(parts))
            if not cursor.accept(","):
                break
    return {"cluster_by": tuple(columns)}


def _location(cursor: Cursor) -> dict[str, Any]:
    first = cursor.current
    path = cursor.text("`LOCATION`")
    if not path.strip():
        raise cursor.error("`LOCATION` is blank", at=first)
    return {"path": path}


def _properties(cursor: Cursor) -> dict[str, Any]:
    properties: dict[str, str] = {}
    with _parentheses(cursor):
        while not cursor.at(")"):
            first = cursor.current
            key = _property_key(cursor)
            if key in properties:
                raise cursor.error(f"the property `{key}` is given twice", at=first)
            if not cursor.accept("="):
                cursor.accept("==")
            properties[key] = _property_value(cursor, key)
            if not cursor.accept(","):
                break
    return {"table_properties": properties}


def _property_key(cursor: Cursor) -> str:
    if cursor.current.kind is TokenKind.STRING:
        return cursor.text("a property")
    key = cursor.identifier("the key of a property")
    # Keys without quotes may have separators: `delta.enableChangeDataFeed`, `my-team.owner`.
    while cursor.current.word in (".", "-", ":") and cursor.current.start == cursor.ahead(-1).end:
        key += cursor.advance().text + cursor.identifier("the key of a property")
    return key


def _property_value(cursor: Cursor, key: str) -> str:
    if cursor.current.kind is TokenKind.STRING:
        return cursor.text(f"the property `{key}`")
    sign = cursor.advance().text if cursor.current.word in ("-", "+") else ""
    token = cursor.current
    if token.kind is TokenKind.NUMBER or (token.kind is TokenKind.WORD and not sign):
        cursor.advance()
        # Booleans are written in lower case: Delta compares with `true`.
        return sign + (token.text.lower() if token.word in ("TRUE", "FALSE") else token.text)
    raise cursor.unexpected(f"a string, a number, `true` or `false` for the property `{key}`")


def _schedule(cursor: Cursor) -> dict[str, Any]:
    """Skip the refresh schedule of a hosted platform: updates are started by the user."""
    cursor.accept("REFRESH")
    if cursor.accept("CRON"):
        cursor.text("`CRON`")
        if cursor.accept("AT", "TIME", "ZONE"):
            cursor.text("`AT TIME ZONE`")
    else:
        if not cursor.accept("EVERY"):
            raise cursor.unexpected("`EVERY` or `CRON`", ("EVERY", "CRON"))
        _period(cursor)
    return {}


def _trigger(cursor: Cursor) -> dict[str, Any]:
    if cursor.accept("AT", "MOST", "EVERY"):
        _period(cursor)
    return {}


def _period(cursor: Cursor) -> None:
    cursor.accept("INTERVAL")
    if cursor.current.kind not in (TokenKind.NUMBER, TokenKind.STRING):
        raise cursor.unexpected("a number")
    quoted = cursor.advance().kind is TokenKind.STRING
    if not quoted or cursor.current.word.rstrip("S") in _UNITS:
        cursor.identifier("a unit of time")


_UNITS = ("SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR")


def _row_filter(cursor: Cursor) -> dict[str, Any]:
    start = cursor.position - 2  # at `ROW FILTER`
    parse_name(cursor, "a function")
    cursor.expect("ON")
    cursor.group()
    return {"row_filter": cursor.between(start)}


def _refresh_policy(cursor: Cursor) -> dict[str, Any]:
    if cursor.accept("INCREMENTAL", "STRICT"):
        return {"refresh_policy": "incremental_strict"}
    if cursor.current.word in ("AUTO", "INCREMENTAL", "FULL"):
        return {"refresh_policy": cursor.advance().text.lower()}
    raise cursor.unexpected(
        "`AUTO`, `INCREMENTAL`, `INCREMENTAL STRICT` or `FULL`", ("AUTO", "INCREMENTAL", "FULL")
    )


def _collation(cursor: Cursor) -> dict[str, Any]:
    first = cursor.ahead(-2)
    if cursor.identifier("a collation").upper() != _PLAIN_COLLATION:
        raise unavailable(cursor, "a `DEFAULT COLLATION` other than `UTF8_BINARY`", first)
    return {}


def unavailable(
    cursor: Cursor, what: str, at: Token, *, hint: str | None = None
) -> DefinitionError:
    """Return the error for a clause that is not supported yet."""
    return DefinitionError(
        "FEATURE_NOT_AVAILABLE",
        f"{what} is not available yet",
        origin=cursor.source.origin(at.start),
        hint=hint,
    )


_CLAUSES: Clauses = (
    (("COMMENT",), lambda cursor: {"comment": cursor.text("`COMMENT`")}),
    (("TBLPROPERTIES",), _properties),
    (
        ("PARTITIONED", "BY"),
        lambda cursor: {"partition_cols": parse_columns(cursor, "PARTITIONED BY")},
    ),
    (("CLUSTER", "BY"), _cluster_by),
    (("LOCATION",), _location),
    (("USING",), lambda cursor: {"format": cursor.identifier("a format").lower()}),
    (("WITH", "ROW", "FILTER"), _row_filter),
    (("ROW", "FILTER"), _row_filter),
    (("REFRESH", "POLICY"), _refresh_policy),
    (("SCHEDULE",), _schedule),
    (("TRIGGER", "ON", "UPDATE"), _trigger),
    (("DEFAULT", "COLLATION"), _collation),
)
