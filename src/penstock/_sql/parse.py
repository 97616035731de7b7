"""Parses one statement into one declaration."""

from collections.abc import Callable

from penstock._sql.create import not_supported, parse_create
from penstock._sql.cursor import Cursor
from penstock._sql.flow import parse_changes
from penstock._sql.names import parse_name
from penstock._sql.syntax import Declaration, SetVariable, UseDefaults
from penstock._sql.tokens import TokenKind, text_value

# Known statements that are reported with their second word.
_TWO_WORDS = ("INSERT", "ALTER", "DROP", "COMMENT", "REFRESH", "COPY", "ANALYZE", "DELETE", "MERGE")
_REFUSED = (
    *_TWO_WORDS,
    *("UPDATE", "TRUNCATE", "OPTIMIZE", "VACUUM", "GRANT", "REVOKE", "DENY", "DECLARE", "CALL"),
    *("EXECUTE", "BEGIN", "CACHE", "UNCACHE", "CLEAR", "RESET", "MSCK", "REPAIR", "RESTORE"),
    *("REORG", "CONVERT", "FSCK", "ADD", "UNDROP", "KILL", "PUT", "GET", "REMOVE", "LOAD", "SYNC"),
)
_AFTER_CREATE = (
    *("STREAMING", "MATERIALIZED", "LIVE", "TEMPORARY", "TEMP", "PRIVATE", "INCREMENTAL"),
    *("FLOW", "VIEW", "TABLE"),
)
_NO_VARIABLE = ("VARIABLE", "VAR", "TIME", "ROLE", "RECIPIENT")
_SCHEMA_WORDS = ("SCHEMA", "DATABASE", "NAMESPACE")


def parse_statement(cursor: Cursor) -> Declaration:
    """Parse a statement from its first word to its end."""
    first = cursor.current
    parser = _PARSERS.get(first.word)
    if parser is None:
        if first.word in _REFUSED:
            second = cursor.ahead(1).word if first.word in _TWO_WORDS else ""
            raise not_supported(cursor, f"{first.word} {second}".strip())
        raise cursor.unexpected(
            "a statement: `CREATE`, `APPLY CHANGES INTO`, `SET` or `USE`", (*_PARSERS, "SELECT")
        )
    check_single(cursor)
    declaration = parser(cursor)
    if not cursor.is_done:
        raise cursor.unexpected("the end of the statement")
    return declaration


def check_single(cursor: Cursor) -> None:
    """Report a missing `;`, which would make the next statement a part of the query."""
    if cursor.at("SHOW", "CREATE") or cursor.current.word == "EXPLAIN":
        return
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
    return second.word in _AFTER_CREATE and third.kind in (TokenKind.WORD, TokenKind.QUOTED)


def _parse_set(cursor: Cursor) -> SetVariable | UseDefaults:
    if cursor.at("SET", "CATALOG") and not cursor.at("SET", "CATALOG", "="):
        return _parse_use(cursor)
    cursor.expect("SET")
    if cursor.current.word in _NO_VARIABLE and cursor.ahead(1).word not in ("=", "."):
        raise not_supported(cursor, f"SET {cursor.current.word}")
    start = cursor.position
    while not cursor.is_done and not cursor.at("="):
        cursor.advance()
    key = cursor.between(start).strip("`").strip()
    if not key:
        raise cursor.unexpected("a key after `SET`")
    if not cursor.accept("="):
        raise cursor.unexpected(f"`=` and a value for `{key}`")
    return SetVariable(key=key, value=_parse_value(cursor))


def _parse_value(cursor: Cursor) -> str:
    """Parse the rest of the statement as written; a single string loses its quotes."""
    start, first = cursor.position, cursor.current
    while not cursor.is_done:
        cursor.advance()
    if cursor.position == start + 1 and first.kind is TokenKind.STRING:
        return text_value(first)
    return cursor.between(start)


def _parse_use(cursor: Cursor) -> UseDefaults:
    cursor.advance()
    first = cursor.current
    # A schema may have the name of a keyword: `USE schema`.
    named = cursor.ahead(1).kind is not TokenKind.END
    if named and cursor.accept("CATALOG"):
        parts, most, what = _parse_parts(cursor, "a catalog"), 1, "catalog"
    else:
        if named and cursor.current.word in _SCHEMA_WORDS and cursor.ahead(1).word != ".":
            cursor.advance()
        parts, most, what = _parse_parts(cursor, "a schema"), 2, "schema"
    if len(parts) > most:
        raise cursor.error(f"the name of a {what} has too many parts", at=first)
    if what == "catalog":
        return UseDefaults(catalog=parts[0], schema=None)
    return UseDefaults(catalog=parts[0] if len(parts) > 1 else None, schema=parts[-1])


def _parse_parts(cursor: Cursor, what: str) -> tuple[str, ...]:
    if cursor.current.kind is TokenKind.STRING:
        return (cursor.text(what),)
    return parse_name(cursor, what).parts


_PARSERS: dict[str, Callable[[Cursor], Declaration]] = {
    "CREATE": parse_create,
    "APPLY": parse_changes,
    "AUTO": parse_changes,
    "SET": _parse_set,
    "USE": _parse_use,
}
