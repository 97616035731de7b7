"""Relations in SQL text: found with Spark's own parser, replaced in place.

The parser gives each relation with its position in the text, so everything else of the user's SQL
stays as written. Common table expressions shadow datasets of the same name, subqueries are
searched too.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_STREAM = re.compile(r"\s*STREAM\s*\(?\s*", re.IGNORECASE)
_IDENTIFIER = re.compile(r"(`(?:[^`]|``)+`|[\w$]+)(\s*\.\s*(`(?:[^`]|``)+`|[\w$]+))*")
_SUBQUERIES = {
    "ScalarSubquery",
    "Exists",
    "ListQuery",
    "LateralSubquery",
    "FunctionTableSubqueryArgumentExpression",
}


@dataclass(frozen=True, kw_only=True)
class RelationReference:
    """A table name in SQL text.

    Attributes:
        start: First character of the identifier.
        end: Behind its last character.
        name: The name, each part in backticks.
        is_streaming: Whether it stands below `STREAM`.
    """

    start: int
    end: int
    name: str
    is_streaming: bool


def rewrite_relations(
    spark: Any, text: str, replace: Callable[[RelationReference], str | None]
) -> str:
    """Replace table names in a query.

    Args:
        spark: A classic SparkSession; only its parser is used.
        text: One SQL statement.
        replace: Called for every relation; `None` leaves it as it is.

    Returns:
        The text with replaced names; unchanged when it is not a query that Spark can parse (Spark
        will say why when it runs it).
    """
    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except Exception as error:
        if "ParseException" in type(error).__name__ or "ParseException" in str(error):
            return text
        raise
    references = sorted(_relations(plan, frozenset()), key=lambda found: -found[0].start)
    for reference, full_text in references:
        # Positions refer to the text after Spark's own ${} substitution.
        text = full_text if reference is references[0][0] else text
        replacement = replace(reference)
        if replacement is not None:
            text = text[: reference.start] + replacement + text[reference.end :]
    return text


def _iterate(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _relations(plan: Any, hidden: frozenset[str]) -> Iterator[tuple[RelationReference, str]]:
    kind = plan.getClass().getSimpleName()
    if kind == "UnresolvedRelation":
        parts = list(_iterate(plan.multipartIdentifier()))
        streaming = bool(plan.isStreaming())
        if not (len(parts) == 1 and parts[0].lower() in hidden and not streaming):
            yield _reference(plan.origin(), parts, streaming)
        return
    if kind == "RelationTimeTravel":  # a leaf whose relation is not among its children
        yield from _relations(plan.relation(), hidden)
        return
    if kind == "UnresolvedWith":
        names = hidden
        for relation in _iterate(plan.cteRelations()):
            yield from _relations(relation._2(), names)
            names = names | {relation._1().lower()}
        yield from _relations(plan.child(), names)
        return
    for child in _iterate(plan.children()):
        yield from _relations(child, hidden)
    for expression in _iterate(plan.expressions()):
        yield from _in_expression(expression, hidden)


def _in_expression(
    expression: Any, hidden: frozenset[str]
) -> Iterator[tuple[RelationReference, str]]:
    if expression.getClass().getSimpleName() in _SUBQUERIES:
        yield from _relations(expression.plan(), hidden)
    for child in _iterate(expression.children()):
        yield from _in_expression(child, hidden)


def _reference(origin: Any, parts: list[str], streaming: bool) -> tuple[RelationReference, str]:
    full_text: str = origin.sqlText().get()
    start, end = origin.startIndex().get(), origin.stopIndex().get() + 1
    segment = full_text[start:end]
    # Below STREAM the origin covers the keyword, the parentheses and an alias as well.
    prefix = _STREAM.match(segment) if streaming else None
    offset = prefix.end() if prefix else 0
    identifier = _IDENTIFIER.match(segment, offset)
    stop = identifier.end() if identifier else len(segment)
    name = ".".join("`" + part.replace("`", "``") + "`" for part in parts)
    return (
        RelationReference(
            start=start + offset, end=start + stop, name=name, is_streaming=streaming
        ),
        full_text,
    )
