"""Parses one statement into one declaration."""

from collections.abc import Callable

from penstock._sql.create import not_supported, parse_create
from penstock._sql.cursor import Cursor
from penstock._sql.flow import parse_changes
from penstock._sql.session import parse_set, parse_use
from penstock._sql.syntax import Declaration
from penstock._sql.tokens import TokenKind

_PARSERS: dict[str, Callable[[Cursor], Declaration]] = {
    "CREATE": parse_create,
    "APPLY": lambda cursor: parse_changes(cursor, _line(cursor)),
    "AUTO": lambda cursor: parse_changes(cursor, _line(cursor)),
    "SET": parse_set,
    "USE": parse_use,
}
# Known statements that are reported with their second word.
_TWO_WORDS = ("INSERT", "ALTER", "DROP", "COMMENT", "REFRESH", "COPY", "ANALYZE", "DELETE", "MERGE")
_REFUSED = (
    *_TWO_WORDS,
    *("UPDATE", "TRUNCATE", "OPTIMIZE", "VACUUM", "GRANT", "REVOKE", "DENY", "DECLARE", "CALL"),
    *("EXECUTE", "BEGIN", "CACHE", "UNCACHE", "CLEAR", "RESET", "MSCK", "REPAIR", "RESTORE"),
    *("REORG", "CONVERT", "FSCK", "ADD", "UNDROP", "KILL", "PUT", "GET", "REMOVE", "LOAD", "SYNC"),
)
_BEHIND_CREATE = (
    *("STREAMING", "MATERIALIZED", "LIVE", "TEMPORARY", "TEMP", "PRIVATE", "INCREMENTAL"),
    *("FLOW", "VIEW", "TABLE"),
)


def parse_statement(cursor: Cursor) -> Declaration:
    """Parse a statement from its first word to its end.

    Raises:
        DefinitionError: It is wrong, or not supported in a source of a pipeline.
    """
    first = cursor.current
    parser = _PARSERS.get(first.word)
    if parser is None:
        if first.word in _REFUSED:
            second = cursor.ahead(1).word if first.word in _TWO_WORDS else ""
            raise not_supported(cursor, f"{first.word} {second}".strip())
        raise cursor.unexpected(
            "a statement: `CREATE`, `APPLY CHANGES INTO`, `SET` or `USE`", (*_PARSERS, "SELECT")
        )
    _refuse_second_statement(cursor)
    declaration = parser(cursor)
    if not cursor.is_done:
        raise cursor.unexpected("the end of the statement")
    return declaration


def _line(cursor: Cursor) -> int:
    return cursor.source.line(cursor.current.start)


def _refuse_second_statement(cursor: Cursor) -> None:
    """Report a missing `;`, which would make the next statement a part of the query."""
    depth = 0
    while not cursor.is_done:
        depth += {"(": 1, ")": -1}.get(cursor.advance().word, 0)
        if depth == 0 and _at_statement(cursor):
            raise cursor.error("expected `;` before this statement")
    cursor.position = 0


def _at_statement(cursor: Cursor) -> bool:
    if cursor.at("APPLY", "CHANGES", "INTO"):
        return cursor.ahead(-1).word != "AS"
    if not cursor.at("CREATE"):
        return False
    second, third = cursor.ahead(1), cursor.ahead(2)
    if second.word == "OR":
        return third.word in ("REFRESH", "REPLACE")
    return second.word in _BEHIND_CREATE and third.kind in (TokenKind.WORD, TokenKind.QUOTED)
