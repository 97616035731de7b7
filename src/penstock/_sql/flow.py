"""Flows: `CREATE FLOW`, `APPLY CHANGES INTO`, and flows in the statement of a table."""

from penstock._model.origin import SourceLocation
from penstock._sql.cdc import parse_cdc
from penstock._sql.clauses import unavailable
from penstock._sql.cursor import Cursor
from penstock._sql.names import SqlName, parse_name
from penstock._sql.query_text import FIRST_WORDS, at_query, take_query
from penstock._sql.syntax import CreateFlow, FlowBody
from penstock._sql.tokens import TokenKind
from penstock.errors import DefinitionError

_AFTER_TARGET = ("BY", "FROM", "REPLACE", "SELECT", "WITH", "VALUES")


def parse_create_flow(cursor: Cursor, origin: SourceLocation) -> CreateFlow:
    first = cursor.current
    name = parse_name(cursor, "a flow")
    if len(name.parts) > 1 or name.is_live:
        raise DefinitionError(
            "INVALID_NAME",
            f"the name of flow {name.shown!r} has dots",
            origin=cursor.source.origin(first.start),
            hint="a flow has one part; put a name with dots in `backticks`",
        )
    comment = cursor.text("`COMMENT`") if cursor.accept("COMMENT") else None
    if not cursor.accept("AS"):
        raise cursor.unexpected("`AS` or `COMMENT`", ("AS", "COMMENT"))
    if cursor.at("INSERT"):
        target, body = _parse_insert_into(cursor)
    elif cursor.at("AUTO") or cursor.at("APPLY"):
        target, body = _parse_changes_into(cursor)
    else:
        raise cursor.unexpected("`INSERT INTO` or `AUTO CDC INTO`", ("INSERT", "AUTO", "APPLY"))
    return CreateFlow(name=name.shown, target=target, comment=comment, body=body, origin=origin)


def parse_changes(cursor: Cursor) -> CreateFlow:
    """Parse `APPLY CHANGES INTO` or `AUTO CDC INTO` as a statement, named by its target."""
    origin = cursor.source.origin(cursor.current.start)
    target, body = _parse_changes_into(cursor)
    return CreateFlow(name=None, target=target, comment=None, body=body, origin=origin)


def parse_inline_flow(cursor: Cursor) -> FlowBody:
    """Parse a flow after `FLOW` in the statement of a table."""
    if cursor.at("IMPORT", "CHECKPOINT"):
        raise unavailable(cursor, "`IMPORT CHECKPOINT`", cursor.current)
    if cursor.accept("AUTO", "CDC"):
        return parse_cdc(cursor, "AUTO CDC", once=cursor.accept("ONCE"))
    if cursor.at("INSERT") or cursor.at("REPLACE"):
        cursor.accept("INSERT")
        once = cursor.accept("ONCE")
        return _parse_insert(cursor, once=once)
    raise cursor.unexpected(
        "`AUTO CDC`, `INSERT` or `REPLACE WHERE` after `FLOW`", ("AUTO", "INSERT", "REPLACE")
    )


def _parse_changes_into(cursor: Cursor) -> tuple[SqlName, FlowBody]:
    if cursor.accept("AUTO"):
        cursor.expect("CDC")
        what = "AUTO CDC"
    else:
        cursor.expect("APPLY", "CHANGES")
        what = "APPLY CHANGES"
    once = _parse_into(cursor)
    target = parse_name(cursor, "the target")
    return target, parse_cdc(cursor, what, once=once)


def _parse_insert_into(cursor: Cursor) -> tuple[SqlName, FlowBody]:
    first = cursor.expect("INSERT")
    if cursor.at("OVERWRITE"):
        raise cursor.error("a flow does not overwrite its target", at=first, hint="`INSERT INTO`")
    once = _parse_into(cursor)
    if not cursor.at("TABLE", "."):
        cursor.accept("TABLE")
    target = parse_name(cursor, "the target")
    _refuse_column_list(cursor)
    return target, _parse_insert(cursor, once=once)


def _parse_into(cursor: Cursor) -> bool:
    """Parse `INTO` with an optional `ONCE` on either side; return whether it is there."""
    once = cursor.accept("ONCE")
    cursor.expect("INTO")
    # A dataset may have the name `once`.
    following = cursor.ahead(1)
    is_name = (
        following.kind in (TokenKind.WORD, TokenKind.QUOTED) and following.word not in _AFTER_TARGET
    )
    return (is_name and cursor.accept("ONCE")) or once


def _refuse_column_list(cursor: Cursor) -> None:
    """Refuse `INSERT INTO t (a, b) SELECT ...`; a query may be in parentheses."""
    start, first = cursor.position, cursor.current
    if cursor.at("("):
        cursor.group()
        listed = at_query(cursor) or cursor.at("BY", "NAME")
        cursor.position = start
        if listed and cursor.ahead(1).word not in (*FIRST_WORDS, "("):
            raise cursor.error(
                "a flow has no list of columns: they are matched by name",
                at=first,
                hint="select the columns under the names of the target",
            )


def _parse_insert(cursor: Cursor, *, once: bool) -> FlowBody:
    replace_where: str | None = None
    by_name = cursor.accept("BY", "NAME")  # on either side of the condition
    first = cursor.current
    if cursor.at("REPLACE", "USING"):
        raise unavailable(cursor, "`REPLACE USING`", first)
    if cursor.accept("REPLACE", "WHERE"):
        if once:
            raise cursor.error(
                "a flow that replaces rows runs in every update, not once",
                at=first,
                hint="remove `ONCE`",
            )
        start = cursor.position
        starts = ("SELECT", "WITH", "VALUES")
        cursor.skip_while(lambda: not (cursor.at("BY", "NAME") or cursor.current.word in starts))
        replace_where = cursor.between(start)
        if not replace_where:
            raise cursor.unexpected("a condition after `REPLACE WHERE`")
        by_name = cursor.accept("BY", "NAME") or by_name
    query = take_query(cursor, "BY NAME" if by_name else "INSERT INTO")
    return FlowBody(query=query, once=once, replace_where=replace_where)
