"""The column list of a dataset: columns and constraints."""

from dataclasses import dataclass

from penstock._model.expectation import Expectation, OnViolation
from penstock._sql.cursor import Cursor
from penstock._sql.syntax import ColumnList, ColumnName
from penstock._sql.tokens import Token, TokenKind
from penstock.errors import DefinitionError

_OPTIONS = (
    *("COMMENT", "NOT", "NULL", "GENERATED", "DEFAULT", "COLLATE", "MASK", "CONSTRAINT"),
    *("PRIMARY", "FOREIGN", "REFERENCES", "UNIQUE", "CHECK"),
)
# Constraints that are informational.
_INFORMATION = ("PRIMARY", "FOREIGN", "REFERENCES", "UNIQUE", "CHECK")
_AFTER_TYPE = (",", ")", "<", "COMMENT", "NOT", "GENERATED", "DEFAULT", "COLLATE", "MASK")
_TABLE_CONSTRAINTS = (("PRIMARY", "KEY"), ("FOREIGN", "KEY"), ("UNIQUE", "("), ("CHECK", "("))


@dataclass(frozen=True)
class _Column:
    token: Token
    name: str
    ddl: str | None
    comment: str | None


def parse_column_list(cursor: Cursor) -> ColumnList:
    cursor.expect("(")
    columns: list[_Column] = []
    rules: list[Expectation] = []
    while True:
        if _at_constraint(cursor):
            rule = _parse_constraint(cursor)
            if rule is not None:
                rules.append(rule)
        else:
            columns.append(_parse_column(cursor))
        if cursor.accept(")"):
            break
        if cursor.at("EXPECT"):
            raise cursor.unexpected("`CONSTRAINT name` before an expectation")
        if not cursor.accept(","):
            raise cursor.unexpected("`,` or `)` in the column list", (*_OPTIONS, "ON"))
    _check(cursor, columns)
    typed = [column.ddl for column in columns if column.ddl is not None]
    return ColumnList(
        schema=",\n".join(typed) or None,
        names=()
        if typed
        else tuple(ColumnName(name=column.name, comment=column.comment) for column in columns),
        rules=tuple(rules),
    )


def _check(cursor: Cursor, columns: list[_Column]) -> None:
    first_typed = next((column for column in columns if column.ddl is not None), None)
    seen: set[str] = set()
    for column in columns:
        if first_typed is not None and column.ddl is None:
            raise cursor.error(
                f"column {column.name!r} has no type, but column {first_typed.name!r} has one",
                at=column.token,
                hint="give all columns types, or none",
            )
        if column.name.lower() in seen:
            raise cursor.error(f"column {column.name!r} is listed twice", at=column.token)
        seen.add(column.name.lower())


# -- constraints --------------------------------------------------------------------------------


def _at_constraint(cursor: Cursor) -> bool:
    if any(cursor.at(*words) for words in _TABLE_CONSTRAINTS):
        return True
    # A column may have the name `constraint`.
    return cursor.at("CONSTRAINT") and cursor.ahead(2).word not in _AFTER_TYPE


def _parse_constraint(cursor: Cursor) -> Expectation | None:
    if not cursor.at("CONSTRAINT"):
        _skip_information(cursor)
        return None
    first = cursor.expect("CONSTRAINT")
    name = cursor.identifier("the name of a constraint")
    if cursor.current.word in _INFORMATION:
        _skip_information(cursor)
        return None
    if not cursor.accept("EXPECT"):
        raise cursor.unexpected(
            f"`EXPECT (condition)` for constraint {name!r}", ("EXPECT", *_INFORMATION)
        )
    condition = cursor.group()
    origin = cursor.source.origin(first.start)
    if not condition:
        raise DefinitionError(
            "INVALID_EXPECTATION", f"the condition of {name!r} is blank", origin=origin
        )
    violation = _parse_violation(cursor)
    return Expectation(name=name, condition=condition, on_violation=violation, origin=origin)


_ACTIONS = (
    (OnViolation.DROP, "DROP", "ROW"),
    (OnViolation.FAIL, "FAIL", "UPDATE"),
    (OnViolation.WARN, "WARN", "ROW"),
)


def _parse_violation(cursor: Cursor) -> OnViolation:
    if not cursor.accept("ON"):
        return OnViolation.WARN
    cursor.expect("VIOLATION")
    for action, word, rest in _ACTIONS:
        if cursor.accept(word):
            cursor.accept(rest)  # omitted in many projects
            return action
    raise cursor.unexpected("`DROP ROW` or `FAIL UPDATE`", ("DROP", "FAIL"))


def _skip_information(cursor: Cursor) -> None:
    cursor.skip_while(lambda: cursor.current.word not in (",", ")"))


# -- columns ------------------------------------------------------------------------------------


def _parse_column(cursor: Cursor) -> _Column:
    token = cursor.current
    start = cursor.position
    name = cursor.identifier("a column or `CONSTRAINT`")
    pieces = [cursor.between(start)]
    has_type = cursor.current.kind is TokenKind.WORD and cursor.current.word not in _OPTIONS
    if has_type:
        pieces.append(_parse_type(cursor))
    comment: str | None = None
    while cursor.current.word in _OPTIONS:
        start, option = cursor.position, cursor.current
        if cursor.accept("COMMENT"):
            comment = cursor.text("`COMMENT`")
            pieces.append(cursor.between(start))
        elif _parse_kept_option(cursor):
            if not has_type:
                raise cursor.error(
                    f"column {name!r} needs a type for `{cursor.between(start)}`", at=option
                )
            pieces.append(cursor.between(start))
        elif cursor.at("MASK"):
            raise _mask(cursor, name)
        elif not cursor.accept("NULL"):
            _skip_column_constraint(cursor)
    return _Column(token, name, " ".join(pieces) if has_type else None, comment)


def _parse_type(cursor: Cursor) -> str:
    start = cursor.position
    opening = cursor.advance()
    if opening.word == "INTERVAL":
        while cursor.current.kind is TokenKind.WORD and cursor.current.word not in _OPTIONS:
            cursor.advance()
    if cursor.at("("):
        cursor.group()
    if cursor.at("<>"):
        cursor.advance()
    elif cursor.at("<"):
        depth = 0
        while not cursor.is_done:
            depth += {"<": 1, ">": -1}.get(cursor.current.word, 0)
            cursor.advance()
            if depth == 0:
                break
        else:
            raise cursor.error("the `<` of this type is never closed", at=opening)
    return cursor.between(start)


def _parse_kept_option(cursor: Cursor) -> bool:
    """Parse an option that is part of the DDL; return whether there was one."""
    if cursor.accept("NOT"):
        cursor.expect("NULL")
        return True
    if cursor.accept("COLLATE"):
        cursor.identifier("a collation")
        return True
    if cursor.accept("DEFAULT"):
        cursor.skip_while(
            lambda: (
                cursor.current.word not in (",", ")", "COMMENT") and not cursor.at("NOT", "NULL")
            )
        )
        return True
    if cursor.accept("GENERATED"):
        if not cursor.accept("ALWAYS") and not cursor.accept("BY", "DEFAULT"):
            raise cursor.unexpected("`ALWAYS AS` or `BY DEFAULT AS`", ("ALWAYS", "BY"))
        cursor.expect("AS")
        if cursor.accept("IDENTITY"):
            if cursor.at("("):
                cursor.group()
        else:
            cursor.group()
        return True
    return False


def _skip_column_constraint(cursor: Cursor) -> None:
    if cursor.accept("CONSTRAINT"):
        cursor.identifier("the name of a constraint")
    if cursor.current.word not in _INFORMATION:
        raise cursor.unexpected("`PRIMARY KEY`, `FOREIGN KEY` or `CHECK`", _INFORMATION)
    cursor.advance()
    cursor.skip_while(
        lambda: (
            cursor.current.word not in (",", ")", "COMMENT", "MASK", "GENERATED", "DEFAULT")
            and not cursor.at("NOT", "NULL")
        )
    )


def _mask(cursor: Cursor, column: str) -> DefinitionError:
    return DefinitionError(
        "COLUMN_MASK_NOT_SUPPORTED",
        f"column {column!r} has a mask, which open-source Spark and Delta do not support: "
        "every reader of the table would see the values",
        origin=cursor.source.origin(cursor.current.start),
        hint="compute the masked value in the query",
    )
