"""Values in SQL text: `${key}` of the configuration and `:name` of the parameters."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from penstock._model.missing import assumed_value
from penstock._model.similar import nearest
from penstock._model.sql_text import literal
from penstock._sql.source import Edit, SqlSource
from penstock._sql.tokens import Token, TokenKind
from penstock.errors import DefinitionError

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
# Spark's scopes of variables; all of them are the configuration here.
_SCOPE = re.compile(r"(?:spark|sparkconf|hivevar|hiveconf):", re.IGNORECASE)
# Not replaced: the reader resolves the secret, so that it stays out of the query.
_LOOKED_UP_LATER = "secret:"
# An expression follows these words, so that `:` is not a JSON path of the previous word.
BEFORE_EXPRESSION = {
    *("ALL", "AND", "ANY", "BETWEEN", "BY", "CASE", "DISTINCT", "DIV", "ELSE", "ESCAPE", "EXCEPT"),
    *("FILTER", "HAVING", "ILIKE", "IN", "INTERVAL", "IS", "LIKE", "LIMIT", "NOT", "OF", "OFFSET"),
    *("ON", "OR", "OVER", "QUALIFY", "REGEXP", "RLIKE", "SELECT", "SET", "SOME", "THEN", "USING"),
    *("VALUES", "WHEN", "WHERE", "CATALOG", "SCHEMA", "FROM", "TO"),
}


def substitute_variables(
    source: SqlSource, tokens: Sequence[Token], variables: Mapping[str, str]
) -> SqlSource:
    """Replace `${key}`, also in names and strings, but not in comments."""
    comments = [
        (token.start, token.end)
        for token in tokens
        # A hint looks like a comment, but is part of the query.
        if token.kind is TokenKind.COMMENT and not token.text.startswith("/*+")
    ]
    edits = []
    for match in _REFERENCE.finditer(source.text):
        index = bisect_right(comments, (match.start(), len(source.text))) - 1
        if index >= 0 and match.start() < comments[index][1]:
            continue
        key = _SCOPE.sub("", match.group(1).strip(), count=1)
        if key.lower().startswith(_LOOKED_UP_LATER):
            continue
        value = variables.get(key)
        if value is None and key:
            value = assumed_value(key)
        if value is None:
            raise _unknown_variable(key, source, match.start(), variables)
        edits.append(Edit(match.start(), match.end(), value))
    return source.replaced(edits)


def _unknown_variable(
    key: str, source: SqlSource, offset: int, variables: Mapping[str, str]
) -> DefinitionError:
    close = nearest(key, variables)
    hint = f"did you mean `${{{close}}}`?" if close else ""
    if key:
        hint = hint or (
            f"add it to the settings, `configuration: {{{key}: ...}}`, "
            f"or set it before with `SET {key} = ...`"
        )
    return DefinitionError(
        "SQL_VARIABLE_UNKNOWN",
        f"`${{{key}}}` is neither in the pipeline's `configuration` nor set before",
        origin=source.origin(offset),
        hint=hint or "write a key between the braces",
    )


def substitute_parameters(
    source: SqlSource, tokens: Sequence[Token], parameters: Mapping[str, str]
) -> SqlSource:
    """Replace `:name` by its value as a string literal.

    JSON paths (`a:b`), casts (`a::int`) and types (`STRUCT<a: INT>`) are kept.
    """
    by_lower = {key.lower(): value for key, value in parameters.items()}
    edits = []
    for colon, name in _markers(tokens):
        value = parameters.get(name.text, by_lower.get(name.text.lower()))
        if value is None:
            value = assumed_value(name.text)
        if value is None:
            raise _unknown_parameter(name, source, parameters)
        edits.append(Edit(colon.start, name.end, literal(value)))
    return source.replaced(edits)


def _markers(tokens: Sequence[Token]) -> Iterator[tuple[Token, Token]]:
    before: Token | None = None
    significant = (token for token in tokens if token.kind is not TokenKind.COMMENT)
    for colon, name in pairwise(significant):
        marked = colon.word == ":" and name.kind is TokenKind.WORD and name.start == colon.end
        if marked and (before is None or _begins_expression(before, colon)):
            yield colon, name
        before = colon


def _begins_expression(before: Token, colon: Token) -> bool:
    if before.kind is TokenKind.SYMBOL:
        return before.word not in (")", "]", "}", ":")
    if before.kind is TokenKind.WORD:
        # `limit:int` is a field of a struct, `LIMIT :n` is not.
        return before.word in BEFORE_EXPRESSION and before.end < colon.start
    return False


def _unknown_parameter(
    name: Token, source: SqlSource, parameters: Mapping[str, str]
) -> DefinitionError:
    close = nearest(name.text, parameters)
    return DefinitionError(
        "SQL_PARAMETER_UNKNOWN",
        f"`:{name.text}` is not a parameter of the pipeline",
        origin=source.origin(name.start),
        hint=f"did you mean `:{close}`?"
        if close
        else f"add it to the settings, `parameters: {{{name.text}: ...}}`",
    )
