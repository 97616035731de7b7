"""`AUTO CDC` and `APPLY CHANGES`: the clauses after the target, in any order."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock._model.cdc import CdcSpec, ScdType, TrackHistory
from penstock._model.similar import nearest
from penstock._sql.clauses import Clauses, in_any_order, unavailable
from penstock._sql.cursor import Cursor
from penstock._sql.names import parse_columns, parse_name
from penstock._sql.query_text import query_at
from penstock._sql.substitution import BEFORE_EXPRESSION
from penstock._sql.syntax import FlowBody, Query
from penstock._sql.tokens import TokenKind
from penstock.errors import DefinitionError


def parse_cdc(cursor: Cursor, what: str, *, once: bool) -> FlowBody:
    """Parse from `FROM` to the end of the statement `what`."""
    first = cursor.current
    if not cursor.at("FROM"):
        raise cursor.unexpected(f"`FROM STREAM(source)` in `{what}`", ("FROM",))
    body = _parse_source(cursor)
    words = [word for begin, _ in _CLAUSES for word in begin]
    clauses = in_any_order(cursor, _CLAUSES, f"a clause of `{what}`", words)
    for key, clause in (("keys", "KEYS (...)"), ("sequence_by", "SEQUENCE BY")):
        if key not in clauses:
            raise cursor.error(f"`{what}` needs `{clause}`", at=first)
    where = clauses.pop("where", None)
    if where is not None and body.source is None:
        raise cursor.error(
            "`WHERE` after a query", at=first, hint="put the condition into the query"
        )
    spec = CdcSpec(source="a query" if body.source is None else body.source.text, **clauses)
    _check(cursor, spec)
    return replace(body, cdc=spec, once=once, where=where)


def _check(cursor: Cursor, spec: CdcSpec) -> None:
    wrong = None
    if spec.scd_type is ScdType.ONE and spec.track_history != TrackHistory():
        wrong = ("TRACK HISTORY", "needs `STORED AS SCD TYPE 2`")
    elif spec.scd_type is ScdType.TWO and spec.apply_as_truncates is not None:
        wrong = ("APPLY AS TRUNCATE WHEN", "cannot be combined with `STORED AS SCD TYPE 2`")
    elif spec.ignore_null_updates and spec.columns_to_update is not None:
        wrong = ("IGNORE NULL UPDATES", "cannot be combined with `COLUMNS TO UPDATE`")
    if wrong is not None:
        raise DefinitionError(
            "CONFLICTING_PARAMETERS",
            f"`{wrong[0]}` {wrong[1]}",
            origin=cursor.source.origin(0),
            hint="remove one of the two",
        )


def _parse_source(cursor: Cursor) -> FlowBody:
    cursor.expect("FROM")
    if any(cursor.at("(", word) for word in ("SELECT", "WITH", "FROM")):
        return FlowBody(query=query_at(cursor, cursor.ahead(1), cursor.group()))
    start, first = cursor.position, cursor.current
    # A dataset may have the name `stream` or `snapshot`.
    has_name = cursor.ahead(1).kind in (TokenKind.WORD, TokenKind.QUOTED)
    has_name = has_name and not _at_clause(cursor, 1)
    if has_name and cursor.at("SNAPSHOT"):
        hint = "call `create_auto_cdc_from_snapshot_flow` in a Python source of the pipeline"
        raise unavailable(cursor, "`FROM SNAPSHOT` in SQL", first, hint=hint)
    is_stream = (has_name or cursor.at("STREAM", "(")) and cursor.accept("STREAM")
    closing = is_stream and cursor.accept("(")
    at_name = cursor.position
    if cursor.at("(") or cursor.at("SELECT"):
        raise cursor.error(
            "the events of a flow come from a dataset, or from a query in parentheses",
            hint="put the query in parentheses, without STREAM",
        )
    name = parse_name(cursor, "a dataset")
    shown = cursor.between(at_name)
    is_call = cursor.at("(")
    if is_call:
        cursor.group()
    if closing:
        cursor.expect(")")
    if is_call:
        text = f"SELECT * FROM {cursor.between(start)}"  # noqa: S608
        return FlowBody(query=query_at(cursor, first, text))
    if is_stream and cursor.at("WITH", "("):
        return FlowBody(query=_with_options(cursor, shown))
    return FlowBody(source=name, is_stream=is_stream)


def _with_options(cursor: Cursor, name: str) -> Query:
    """The query of a source with options: `STREAM name WITH (...)`."""
    start, first = cursor.position, cursor.expect("WITH")
    cursor.group()
    text = f"SELECT * FROM STREAM {name} {cursor.between(start)}"  # noqa: S608
    return query_at(cursor, first, text)


def _ignore_null_updates(cursor: Cursor) -> dict[str, Any]:
    if not cursor.accept("ON"):
        return {"ignore_null_updates": True}
    columns, rest = _columns_or_rest(cursor, "IGNORE NULL UPDATES ON")
    return {
        "ignore_null_updates": True,
        "ignore_null_columns": columns,
        "ignore_null_except_columns": rest,
    }


def _system_sequence(cursor: Cursor) -> dict[str, Any]:
    raise unavailable(cursor, "`SYSTEM SEQUENCE BY`", cursor.ahead(-3))


def _columns(cursor: Cursor) -> dict[str, Any]:
    columns, rest = _columns_or_rest(cursor, "COLUMNS")
    return {"columns": columns, "except_columns": rest}


def _columns_to_update(cursor: Cursor) -> dict[str, Any]:
    return {"columns_to_update": cursor.identifier("a column name in `COLUMNS TO UPDATE`")}


def _stored_as(cursor: Cursor) -> dict[str, Any]:
    if cursor.at("BITEMPORAL"):
        raise unavailable(cursor, "`STORED AS BITEMPORAL`", cursor.ahead(-2))
    if not cursor.accept("SCD", "TYPE"):
        raise cursor.unexpected("`SCD TYPE 1` or `SCD TYPE 2`", ("SCD", "TYPE"))
    if cursor.current.text not in tuple(ScdType):
        raise cursor.unexpected("`1` or `2` after `SCD TYPE`")
    return {"scd_type": ScdType(cursor.advance().text)}


def _track_history(cursor: Cursor) -> dict[str, Any]:
    columns, rest = _columns_or_rest(cursor, "TRACK HISTORY ON")
    return {"track_history": TrackHistory(columns=columns, except_columns=rest)}


def _columns_or_rest(
    cursor: Cursor, clause: str
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Parse `(a, b)`, `* EXCEPT (a, b)`, or `*`; return the listed and the excluded columns."""
    if not cursor.accept("*"):
        return parse_columns(cursor, clause), None
    if cursor.accept("EXCEPT"):
        return None, parse_columns(cursor, f"{clause} * EXCEPT")
    return None, None


def _expression_clause(
    key: str, *words: str
) -> tuple[tuple[str, ...], Callable[[Cursor], dict[str, Any]]]:
    def parse(cursor: Cursor) -> dict[str, Any]:
        start = cursor.position
        cursor.skip_while(lambda: not (_at_clause(cursor) or _at_misspelt_clause(cursor, start)))
        text = cursor.between(start)
        if not text:
            raise cursor.unexpected(f"an expression after `{' '.join(words)}`")
        return {key: text}

    return words, parse


def _at_clause(cursor: Cursor, ahead: int = 0) -> bool:
    """Whether a clause begins here; a single keyword may be a column of an expression."""
    here = [cursor.ahead(ahead + count).word for count in range(4)]
    if here[0] == "WHERE":
        return True
    if here[0] == "KEYS":
        return here[1] == "("
    if here[0] == "COLUMNS":
        listed = cursor.ahead(ahead + 1).kind in (TokenKind.WORD, TokenKind.QUOTED)
        return here[1] in ("(", "*") or (listed and here[1] not in _OPERATORS)
    return any(here[: len(words)] == list(words) for words, _ in _CLAUSES if len(words) > 1)


def _at_misspelt_clause(cursor: Cursor, start: int) -> bool:
    """Whether a word follows a complete expression and is similar to a clause."""
    here, before = cursor.current, cursor.ahead(-1)
    if cursor.position == start or here.kind is not TokenKind.WORD or here.word in _OPERATORS:
        return False
    if before.word in (*_OPERATORS, *BEFORE_EXPRESSION):
        return False
    if before.kind is TokenKind.SYMBOL and before.word != ")":
        return False
    words = {words[0] for words, _ in _CLAUSES}
    return here.word not in words and nearest(here.text, words) is not None


_OPERATORS = (
    *("AND", "OR", "NOT", "IS", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "DIV"),
    *("THEN", "ELSE", "END", "WHEN", "AS"),
)
_CLAUSES: Clauses = (
    (("KEYS",), lambda cursor: {"keys": parse_columns(cursor, "KEYS")}),
    (("IGNORE", "NULL", "UPDATES"), _ignore_null_updates),
    _expression_clause("where", "WHERE"),
    _expression_clause("apply_as_deletes", "APPLY", "AS", "DELETE", "WHEN"),
    _expression_clause("apply_as_truncates", "APPLY", "AS", "TRUNCATE", "WHEN"),
    _expression_clause("sequence_by", "SEQUENCE", "BY"),
    (("SYSTEM", "SEQUENCE", "BY"), _system_sequence),
    (("COLUMNS", "TO", "UPDATE"), _columns_to_update),
    (("COLUMNS",), _columns),
    (("STORED", "AS"), _stored_as),
    (("TRACK", "HISTORY", "ON"), _track_history),
)
