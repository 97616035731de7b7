"""Names in SQL text: located with Spark's parser, replaced in place.

The parser returns each relation and each table function with its position in the text, so the rest
of the user's SQL is not changed. Common table expressions shadow datasets of the same name;
subqueries are included.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession

from penstock._model.spark_version import is_marked, mark_streams, require_spark
from penstock._model.sql_text import quoted
from penstock._spark.generated_names import VIEW_PREFIX
from penstock._spark.plans import kind_of
from penstock._sql.tokens import TokenKind, tokens_of
from penstock._tables.jvm import iterate

_STREAM = re.compile(r"\s*STREAM\s*\(?\s*", re.IGNORECASE)
_PART = r"(?:`(?:[^`]|``)+`|[\w$]+)"
_NAME = re.compile(rf"{_PART}(?:\s*\.\s*{_PART})*")
# Nodes between the name of a stream and its alias. The position of a stream, but not of a table,
# includes their clauses.
_CLAUSES_OF_STREAM = {
    "UnresolvedSubqueryColumnAliases",
    "UnresolvedEventTimeWatermark",
    "NamedStreamingRelation",
}
# Statements that change the rows of their first child.
_CHANGES = {"UpdateTable", "DeleteFromTable", "MergeIntoTable"}
# Spark's parser adds this option to a table that a statement changes.
_PRIVILEGES = "__required_write_privileges__"
_TABLE_QUERY = re.compile(r"\bTABLE\s*$", re.IGNORECASE)
SUBQUERIES = {
    "ScalarSubquery",
    "Exists",
    "ListQuery",
    "LateralSubquery",
    "FunctionTableSubqueryArgumentExpression",
}


@dataclass(frozen=True, kw_only=True)
class RelationReference:
    """A table name in SQL text, and the options of its `WITH` clause.

    `is_streaming`: inside `STREAM`; `is_time_travel`: a version or a timestamp of it is read;
    `is_changed`: the statement changes its rows; `is_hint`: it is the argument of a hint;
    `alias_at`: where an alias can be added; `None` if it has one, or if another clause follows.
    """

    start: int
    end: int
    parts: tuple[str, ...]
    alias_at: int | None = None
    is_streaming: bool = False
    is_time_travel: bool = False
    is_changed: bool = False
    is_hint: bool = False
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def name(self) -> str:
        """The name, each part in backticks."""
        return quoted(*self.parts)


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """A table-valued function in SQL text, such as `read_files(...)`; the name is in lower case.

    `arguments` are names (`None` if positional) and Spark's expressions; `is_streaming`: inside
    `STREAM`.
    """

    start: int
    end: int
    name: str
    arguments: tuple[tuple[str | None, Any], ...]
    is_streaming: bool = False


NameReference = RelationReference | FunctionCall
_view_numbers = itertools.count()


def rewrite_names(
    spark: Any, text: str, change: Callable[[NameReference], str | None], *, aliased: bool = False
) -> str:
    """Replace table names and calls of table functions in one SQL statement.

    `change` is called for every relation and every table function; if it returns `None`, the name
    is kept. With `aliased`, the last part of a replaced name becomes its alias, so that
    `name.column` and `schema.name.column` still resolve. The text must be `substituted`. It is
    returned unchanged if Spark cannot parse it: Spark raises the error when the text is run.
    """
    marked = mark_streams(text)
    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(marked)
    except Exception as error:
        if "ParseException" in type(error).__name__ or "ParseException" in str(error):
            return text
        raise
    text = marked
    references = _names(plan, frozenset(), streaming=False)
    replacements: list[tuple[int, int, str]] = []
    hints: list[RelationReference] = []
    renamed: dict[str, str] = {}
    aliases: dict[tuple[str, ...], str] = {}
    for reference in sorted(references, key=lambda reference: reference.start):
        if isinstance(reference, RelationReference) and reference.is_hint:
            hints.append(reference)
            continue
        if replacements and reference.start < replacements[-1][1]:
            continue  # an argument of a call that is replaced as a whole
        replacement = change(reference)
        if replacement is None and is_marked(text, reference.start):
            require_spark("4.2", f"STREAM of {text[reference.start : reference.end]}")
        if replacement is not None:
            replacements.append((reference.start, reference.end, replacement))
            if isinstance(reference, RelationReference) and reference.alias_at is not None:
                at, alias = reference.alias_at, quoted(reference.parts[-1])
                if aliased:
                    replacements.append((at, at, f" AS {alias}"))
                    aliases[tuple(part.lower() for part in reference.parts)] = alias
                renamed[reference.name.lower()] = alias if aliased else replacement
    for hint in hints:
        replacements.append((hint.start, hint.end, renamed.get(hint.name.lower(), hint.name)))
    replacements += _qualifiers(text, aliases)
    for start, end, replacement in sorted(replacements, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


def _qualifiers(
    text: str, aliases: Mapping[tuple[str, ...], str]
) -> Iterator[tuple[int, int, str]]:
    """Positions of names of several parts before a column, as in `live.orders.id`; their alias."""
    tokens = [token for token in tokens_of(text) if token.kind is not TokenKind.COMMENT]
    words = ["", *(token.text.strip("`").lower() for token in tokens)]
    for parts, alias in aliases.items():
        sought = [word for part in parts for word in (part, ".")]
        for at in range(len(tokens) if len(parts) > 1 else 0):
            if words[at + 1 : at + 1 + len(sought)] == sought and words[at] != ".":
                yield tokens[at].start, tokens[at + len(sought) - 2].end, alias


def substituted(spark: Any, text: str) -> str:
    """The text after Spark's own substitution of `${}`.

    The positions of its parser refer to this text, although `sqlText` of a plan is the original.
    """
    if "${" not in text:
        return text
    sessions = SparkSession._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    # Spark reads the values from the active session of the thread, which may be another one.
    sessions.setActiveSession(spark._jsparkSession)
    try:
        variables = spark._jvm.org.apache.spark.sql.internal.VariableSubstitution()
        return str(variables.substitute(text))
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def as_view(df: Any) -> str:
    """Register a DataFrame as a temporary view; return its name for a query."""
    name = f"{VIEW_PREFIX}{next(_view_numbers)}"
    df.createOrReplaceTempView(name)
    return f"`{name}`"


def _names(
    plan: Any,
    hidden: frozenset[str],
    *,
    streaming: bool,
    time_travel: bool = False,
    aliased: bool = False,
    changed: bool = False,
) -> Iterator[NameReference]:
    kind = kind_of(plan)
    if kind == "UnresolvedRelation":
        parts = tuple(iterate(plan.multipartIdentifier()))
        if not (len(parts) == 1 and parts[0].lower() in hidden and not plan.isStreaming()):
            reference = _reference(plan, parts, aliased)
            yield replace(reference, is_time_travel=time_travel, is_changed=changed)
        return
    if kind == "UnresolvedTableValuedFunction":
        yield _call(plan, streaming)
        for expression in iterate(plan.functionArgs()):
            yield from _in_expression(expression, hidden)
        return
    if kind == "RelationTimeTravel":  # a leaf whose relation is not among its children
        yield from _names(plan.relation(), hidden, streaming=False, time_travel=True, aliased=True)
        return
    if kind == "UnresolvedWith":
        names = hidden
        for relation in iterate(plan.cteRelations()):
            own = {relation._1().lower()}
            inside = names | own if plan.allowRecursion() else names
            yield from _names(relation._2(), inside, streaming=False)
            names = names | own
        yield from _names(plan.child(), names, streaming=False)
        return
    if kind == "UnresolvedHint":
        for parameter in iterate(plan.parameters()):
            if kind_of(parameter) == "UnresolvedAttribute":
                _, start, end = _position(parameter.origin(), streaming=False)
                parts = tuple(iterate(parameter.nameParts()))
                yield RelationReference(start=start, end=end, parts=parts, is_hint=True)
    if kind not in _CLAUSES_OF_STREAM or not plan.isStreaming():
        aliased = kind in ("SubqueryAlias", "Sample", *_CLAUSES_OF_STREAM)
    if kind == "InsertIntoStatement":  # its table is not among its children, and has no alias
        yield from _names(plan.table(), hidden, streaming=False, aliased=True, changed=True)
    for number, child in enumerate(iterate(plan.children())):
        yield from _names(
            child,
            hidden,
            streaming=kind == "NamedStreamingRelation",
            aliased=aliased,
            changed=(changed and kind == "SubqueryAlias") or (kind in _CHANGES and number == 0),
        )
    for expression in iterate(plan.expressions()):
        yield from _in_expression(expression, hidden)


def _in_expression(expression: Any, hidden: frozenset[str]) -> Iterator[NameReference]:
    if kind_of(expression) in SUBQUERIES:
        yield from _names(expression.plan(), hidden, streaming=False)
    for child in iterate(expression.children()):
        yield from _in_expression(child, hidden)


def _position(origin: Any, *, streaming: bool) -> tuple[str, int, int]:
    """The whole text, the start of a name and the end of its node."""
    full_text: str = origin.sqlText().get()
    start, end = origin.startIndex().get(), origin.stopIndex().get() + 1
    # Below STREAM, the origin also covers the keyword, the parentheses and an alias.
    prefix = _STREAM.match(full_text, start, end) if streaming else None
    return full_text, prefix.end() if prefix else start, end


def _reference(plan: Any, parts: tuple[str, ...], aliased: bool) -> RelationReference:
    streaming = bool(plan.isStreaming())
    full_text, start, end = _position(plan.origin(), streaming=streaming)
    streaming = streaming or is_marked(full_text, start)
    name = _NAME.match(full_text, start, end)
    entries = iterate(plan.options().asCaseSensitiveMap().entrySet())
    options = {pair.getKey(): pair.getValue() for pair in entries}
    options.pop(_PRIVILEGES, None)
    if _TABLE_QUERY.search(full_text, 0, start) or (options and not streaming):
        aliased = True
    return RelationReference(
        start=start,
        end=name.end() if name else end,
        parts=parts,
        alias_at=None if aliased else end,
        is_streaming=streaming,
        options=options,
    )


def _call(plan: Any, streaming: bool) -> FunctionCall:
    full_text, start, end = _position(plan.origin(), streaming=streaming)
    streaming = streaming or is_marked(full_text, start)
    arguments: list[tuple[str | None, Any]] = []
    for expression in iterate(plan.functionArgs()):
        if kind_of(expression) == "NamedArgumentExpression":
            arguments.append((str(expression.key()), expression.value()))
        else:
            arguments.append((None, expression))
    return FunctionCall(
        start=start,
        end=_closing_parenthesis(full_text, start, end),
        name=".".join(iterate(plan.name())).lower(),
        arguments=tuple(arguments),
        is_streaming=streaming,
    )


def _closing_parenthesis(text: str, start: int, end: int) -> int:
    depth = 0
    for token in tokens_of(text[start:end]):
        depth += {"(": 1, ")": -1}.get(token.word, 0)
        if token.word == ")" and depth == 0:
            return start + token.end
    return end
