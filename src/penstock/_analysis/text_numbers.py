"""Strings that a query takes for numbers without a cast, read off Spark's analysed plan."""

import logging
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from penstock._spark.generated_names import without_generated_names
from penstock._spark.plans import analyzed, iterate, kind_of, shown_expression, walk

_CAST = "CAST("
_logger = logging.getLogger(__name__)


def text_numbers(df: DataFrame) -> tuple[str, ...]:
    """The expressions in which Spark itself casts a string to a number, in ANSI mode.

    A string that is no number fails the batch there. Never raises: it is for a note only.
    """
    try:
        return tuple(dict.fromkeys(_implicit(df)))
    except Exception as error:
        _logger.debug("implicit casts are not known: %s", error)
        return ()


def _implicit(df: DataFrame) -> Iterator[str]:
    jvm: Any = df.sparkSession._jvm
    pretty = jvm.org.apache.spark.sql.catalyst.util.__getattr__("package$").__getattr__("MODULE$")
    by_user = jvm.org.apache.spark.sql.catalyst.expressions.Cast.USER_SPECIFIED_CAST()
    for node in walk(analyzed(df)):
        for named in iterate(node.expressions()):
            expression = named.child() if kind_of(named) == "Alias" else named
            # Only the pretty form leaves casts out that Spark has added: two calls tell most
            # expressions apart, a walk takes some for each part of one.
            text = str(pretty.toPrettySQL(expression, False))
            if str(expression.sql()).count(_CAST) > text.count(_CAST):
                shown = without_generated_names(text).replace("`", "")
                yield from _casts(expression, shown, by_user)


def _casts(expression: Any, text: str, by_user: Any) -> Iterator[str]:
    if (
        kind_of(expression) == "Cast"
        and expression.getTagValue(by_user).isEmpty()
        and str(expression.evalMode().toString()) == "ANSI"
        and str(expression.child().dataType().typeName()) == "string"
        and kind_of(expression.dataType()).rstrip("$") in _NUMBERS
    ):
        yield f"{shown_expression(expression.child())} in {text}"
    for child in iterate(expression.children()):
        yield from _casts(child, text, by_user)


_NUMBERS = frozenset(
    f"{name}Type" for name in ("Byte", "Short", "Integer", "Long", "Float", "Double", "Decimal")
)
