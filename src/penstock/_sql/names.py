"""Names of datasets in SQL."""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock._model.name import split_name
from penstock._model.sql_text import quoted
from penstock._sql.cursor import Cursor
from penstock._sql.tokens import TokenKind, text_value

_PLAIN = re.compile(r"\w+")
_MOST_PARTS = 3


@dataclass(frozen=True)
class SqlName:
    """A name as the user wrote it, without backticks and without a leading `LIVE`."""

    parts: tuple[str, ...]
    is_live: bool = False

    @property
    def text(self) -> str:
        """The name for a declaration, with backticks where needed."""
        return ".".join(part if _PLAIN.fullmatch(part) else quoted(part) for part in self.parts)

    @property
    def shown(self) -> str:
        """The name for the key of a flow, without backticks."""
        return ".".join(self.parts)


def parse_name(cursor: Cursor, what: str) -> SqlName:
    """Parse a name: parts and dots, or `IDENTIFIER('...')`; `what` is for messages."""
    first = cursor.current
    if cursor.at("IDENTIFIER", "("):
        computed = computed_name(cursor)
        if computed is None:
            raise cursor.error(
                "only strings are allowed in an `IDENTIFIER` that names " + what,
                hint="write `IDENTIFIER('schema.name')`; parameters are strings, and so are `||`, "
                "`concat`, `concat_ws`, `lower`, `upper` and `trim` of strings",
            )
        parts = computed
    else:
        parts = [cursor.identifier(f"the name of {what}")]
        while cursor.accept("."):
            parts.append(cursor.identifier(f"the name of {what}"))
        dash = cursor.current
        if dash.word == "-" and dash.start == cursor.ahead(-1).end:
            raise cursor.error(
                "a name with `-` needs backticks", at=first, hint="write `` `my-name` ``"
            )
    is_live = len(parts) > 1 and parts[0].lower() == "live"
    parts = parts[1:] if is_live else parts
    if len(parts) > _MOST_PARTS:
        raise cursor.error("a name has at most three parts", at=first)
    return SqlName(tuple(parts), is_live)


def computed_name(cursor: Cursor) -> list[str] | None:
    """Parse `IDENTIFIER` of constant strings and return the parts of the name.

    Strings are joined by `||`, `concat` or `concat_ws`, and changed by `lower`, `upper` or `trim`.
    For any other expression, which Spark has to compute, the cursor does not move.
    """
    start = cursor.position
    if cursor.accept("IDENTIFIER", "("):
        text = _joined(cursor)
        if text is not None and cursor.accept(")"):
            with contextlib.suppress(ValueError):
                return list(split_name(text))
    cursor.position = start
    return None


def _joined(cursor: Cursor) -> str | None:
    text = _text(cursor)
    while text is not None and cursor.accept("||"):
        more = _text(cursor)
        text = None if more is None else text + more
    return text


def _text(cursor: Cursor) -> str | None:
    if cursor.current.kind is TokenKind.STRING:
        return text_value(cursor.advance())
    if cursor.accept("("):
        inner = _joined(cursor)
        return inner if cursor.accept(")") else None
    function = _TEXT_FUNCTIONS.get(cursor.current.word)
    if function is None or cursor.ahead(1).word != "(":
        return None
    cursor.position += 2
    arguments: list[str] = []
    while True:
        argument = _joined(cursor)
        if argument is None:
            return None
        arguments.append(argument)
        if cursor.accept(")"):
            return function(arguments)
        if not cursor.accept(","):
            return None


def _only(change: Callable[[str], str]) -> Callable[[Sequence[str]], str | None]:
    return lambda texts: change(texts[0]) if len(texts) == 1 else None


_TEXT_FUNCTIONS: Mapping[str, Callable[[Sequence[str]], str | None]] = {
    "CONCAT": "".join,
    "CONCAT_WS": lambda texts: texts[0].join(texts[1:]),
    "LOWER": _only(str.lower),
    "LCASE": _only(str.lower),
    "UPPER": _only(str.upper),
    "UCASE": _only(str.upper),
    "TRIM": _only(lambda text: text.strip(" ")),
}


def parse_columns(cursor: Cursor, clause: str) -> tuple[str, ...]:
    """Parse column names, in parentheses or not; `clause` is for messages."""
    closing = cursor.accept("(")
    columns: list[str] = []
    while True:
        token = cursor.current
        column = cursor.identifier(f"a column name in `{clause}`")
        if cursor.at("."):
            raise cursor.error(
                f"`{clause}` takes names of columns, without a table or a field", at=token
            )
        if cursor.at("("):
            raise cursor.error(f"`{clause}` takes names of columns, not expressions", at=token)
        if column.lower() in [known.lower() for known in columns]:
            raise cursor.error(f"`{clause}` lists column {column!r} more than once", at=token)
        columns.append(column)
        if not cursor.accept(","):
            break
    if closing and not cursor.accept(")"):
        raise cursor.unexpected("`,` or `)`")
    return tuple(columns)
