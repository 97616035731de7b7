"""`SET` and `USE`, which apply to the statements after them."""

from penstock._sql.create import not_supported
from penstock._sql.cursor import Cursor
from penstock._sql.names import parse_name
from penstock._sql.syntax import SetVariable, UseDefaults
from penstock._sql.tokens import TokenKind, text_value

_NO_VARIABLE = ("VARIABLE", "VAR", "TIME", "ROLE", "RECIPIENT")
_SCHEMA_WORDS = ("SCHEMA", "DATABASE", "NAMESPACE")


def parse_set(cursor: Cursor) -> SetVariable | UseDefaults:
    """Parse `SET key = value` or `SET CATALOG name`."""
    cursor.expect("SET")
    if cursor.at("CATALOG") and not cursor.at("CATALOG", "="):
        return _parse_use(cursor)
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
    """The rest of the statement as written; a single string without its quotes."""
    start, first = cursor.position, cursor.current
    while not cursor.is_done:
        cursor.advance()
    if cursor.position == start + 1 and first.kind is TokenKind.STRING:
        return text_value(first)
    return cursor.between(start)


def parse_use(cursor: Cursor) -> UseDefaults:
    """Parse `USE CATALOG c`, `USE SCHEMA s` and `USE [c.]s`."""
    cursor.expect("USE")
    return _parse_use(cursor)


def _parse_use(cursor: Cursor) -> UseDefaults:
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
    if not cursor.is_done:
        raise cursor.unexpected("the end of the statement")
    if what == "catalog":
        return UseDefaults(catalog=parts[0], schema=None)
    return UseDefaults(catalog=parts[0] if len(parts) > 1 else None, schema=parts[-1])


def _parse_parts(cursor: Cursor, what: str) -> tuple[str, ...]:
    if cursor.current.kind is TokenKind.STRING:
        return (cursor.text(what),)
    return parse_name(cursor, what).parts
