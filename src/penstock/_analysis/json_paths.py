"""`column:a.b[0]` on columns of type STRING, as in Databricks SQL.

Open-source Spark supports the operator on VARIANT only. Its parser returns the path in the form of
`get_json_object`, which replaces the operator. Results are strings or NULL.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock._analysis.sql_names import SUBQUERIES, substituted
from penstock._model.sql_text import literal, quoted
from penstock._spark.plans import analyzed, kind_of
from penstock._tables.jvm import iterate

# Part of Spark's message for the operator on a type other than VARIANT.
_NOT_VARIANT = "COLUMN_IS_NOT_VARIANT_TYPE"
_NESTED = frozenset({"struct", "map", "array"})


def with_json_paths(
    query: Callable[[Callable[[str], str]], DataFrame], spark: SparkSession
) -> DataFrame:
    """Call `query` with a function that it applies to its SQL, and once more if Spark refuses it.

    In the first call, the function changes nothing; in the second, it replaces every `column:path`.
    """
    try:
        return query(str)
    except (PySparkException, Py4JJavaError) as error:
        if _NOT_VARIANT not in str(error):
            raise
        df = query(partial(_spell_json_paths, spark))
        if _reads_nested(analyzed(df)):
            raise
        return df


def _spell_json_paths(spark: Any, text: str) -> str:
    """Replace every `column:path` of a query by `get_json_object`."""
    text = substituted(spark, text)
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    accesses = {_range(access): (access, name) for access, name in _in_plan(plan)}
    for start, end in sorted(accesses, reverse=True):
        access, name = accesses[start, end]
        inner_start, inner_end = _range(access.children().head())
        column, path = text[inner_start:inner_end], literal(str(access.field()))
        call = f"get_json_object(CAST({column} AS STRING), {path})"
        if name is not None:
            call += f" AS {quoted(name)}"
        text = text[:start] + call + text[end:]
    return text


def _reads_nested(plan: Any) -> bool:
    """Whether an analysed plan reads a JSON path of a STRUCT, MAP or ARRAY.

    Their cast to STRING is not JSON, so every path in it would be NULL.
    """
    return any(map(_takes_nested, iterate(plan.expressions()))) or any(
        map(_reads_nested, iterate(plan.children()))
    )


def _takes_nested(expression: Any) -> bool:
    kind = kind_of(expression)
    if kind == "GetJsonObject":
        cast = expression.children().head()
        if kind_of(cast) == "Cast":
            return str(cast.children().head().dataType().typeName()) in _NESTED
    if kind in SUBQUERIES and _reads_nested(expression.plan()):
        return True
    return any(map(_takes_nested, iterate(expression.children())))


def _in_plan(plan: Any) -> Iterator[tuple[Any, str | None]]:
    """The accesses to JSON paths, each with a column name if it is a whole selected column."""
    kind = kind_of(plan)
    selected = kind in ("Project", "Aggregate")
    for expression in iterate(plan.expressions()):
        yield from _in_expression(expression, is_column=selected)
    for child in iterate(plan.children()):
        yield from _in_plan(child)
    if kind == "UnresolvedWith":
        for relation in iterate(plan.cteRelations()):
            yield from _in_plan(relation._2())


def _in_expression(expression: Any, *, is_column: bool) -> Iterator[tuple[Any, str | None]]:
    kind = kind_of(expression)
    if kind == "SemiStructuredExtract":
        yield expression, None
        return
    if kind in SUBQUERIES:
        yield from _in_plan(expression.plan())
    for child in iterate(expression.children()):
        if kind == "Alias" and kind_of(child) == "SemiStructuredExtract":
            # The parser names a selected column after the path.
            is_whole = is_column and _range(expression) == _range(child)
            yield child, str(expression.name()) if is_whole else None
        else:
            yield from _in_expression(child, is_column=False)


def _range(expression: Any) -> tuple[int, int]:
    origin = expression.origin()
    return int(origin.startIndex().get()), int(origin.stopIndex().get()) + 1
