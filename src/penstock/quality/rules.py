"""Expectations: their checks, and their conditions as Columns that never fail a query."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, NullType, StructType

from penstock._model.dataset import DatasetKind
from penstock._model.exception_text import first_line
from penstock._model.expectation import Expectation
from penstock._model.similar import nearest
from penstock._model.sql_text import quoted
from penstock.errors import DefinitionError, DefinitionErrors

# Expectations are shared, reviewed less than code, and run with all permissions: they must not call
# arbitrary Java or read other data. The expression tree is checked only if it matches this pattern.
_SUSPECT = re.compile(
    r"(?i)reflect|java_method|\b(select|from|values|table|exists|sql|url|file|ai_\w+)\b"
)
_NO_HASH = re.compile(r"\b(map|variant|interval|void|geo)")
_REFUSED_FUNCTIONS = frozenset({"reflect", "java_method", "try_reflect"})
_HASHABLE_FIRST = ("boolean", "byte", "short", "integer", "long", "date", "timestamp", "double")


def check_expectations(
    df: DataFrame,
    expectations: Sequence[Expectation],
    kind: DatasetKind | None = None,
    *,
    finds_hidden: bool = False,
    are_stored: bool = False,
) -> None:
    """Check expectations against the columns of their dataset, which has this kind.

    With `finds_hidden`, they may use columns that `hidden_plan` finds. Rows that `are_stored` have
    only the columns of the table.

    Raises:
        DefinitionErrors: Several are invalid.
        DefinitionError: One is invalid: not valid SQL, an unknown column, not a boolean, or it
            reads other data or calls Java.
    """
    errors: list[DefinitionError] = []
    parsed: list[tuple[Expectation, Column]] = []
    for rule in expectations:
        if rule.unique or rule.rows is not None:
            errors += _check_whole(df, rule, kind)
            continue
        try:
            parsed.append((rule, condition_column(df.sparkSession, rule)))
        except DefinitionError as error:
            errors.append(error)
    if not _sound(df, [column for _, column in parsed]):
        for rule, column in parsed:
            try:
                _check_one(df, rule, column, are_stored=are_stored)
            except DefinitionError as error:
                if finds_hidden and hidden_plan(df, column) is not None:
                    continue
                errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        # With assumptions about missing sources, the analysis looks for the column in the cause.
        causes = [error.__cause__ for error in errors if error.__cause__ is not None]
        raise DefinitionErrors(errors) from (causes[0] if causes else None)


def condition_column(spark: SparkSession, rule: Expectation) -> Column:
    """The condition as a Column.

    Raises `DefinitionError` for invalid SQL, subqueries, and calls of Java methods.
    """
    if isinstance(rule.condition, Column):
        # Its expressions are only available after analysis: see `check_expectations`.
        return rule.condition
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    try:
        # Parsed separately, so that an unbalanced bracket cannot match generated SQL.
        expression = parser.parseExpression(rule.condition)
    except ParseException as error:
        raise _invalid(rule, first_line(error)) from error
    if _SUSPECT.search(rule.condition):
        _refuse(rule, expression)
    return F.expr(rule.condition)


def hidden_plan(df: DataFrame, condition: Column) -> Any:
    """The plan of a filter by columns that the query does not return; `None` if not possible."""
    if _SUSPECT.search(str(condition)):
        return None
    try:
        plan: Any = df.where(condition)._jdf.queryExecution().analyzed()
    except AnalysisException:
        return None
    # Spark adds the columns below the filter and removes them above it. To an aggregation, it would
    # add an aggregate, or the value of an arbitrary row.
    if str(plan.nodeName()) != "Project":
        return None
    before: Any = df._jdf.queryExecution().analyzed()
    return plan if _group_widths(plan) == _group_widths(before) else None


def _group_widths(plan: Any) -> list[int]:
    is_grouped = str(plan.nodeName()) in ("Aggregate", "Deduplicate")
    widths = [int(plan.output().size())] if is_grouped else []
    children = plan.children()
    for position in range(children.size()):
        widths += _group_widths(children.apply(position))
    return widths


def tolerant(spark: SparkSession, condition: Column, guard: Column) -> Column:
    """A boolean that is true if the condition is true, and false if it is false, NULL or fails.

    Under ANSI mode `cast(s AS INT) > 0` raises for `s = 'abc'`; one bad value must violate the rule
    of its row, not the flow. Catalyst's `TryEval` turns an error into NULL. That is not sufficient:
    a common subexpression of two rules would be hoisted out of both and evaluated unprotected. Only
    conditional branches are exempt from hoisting, so the rule becomes one, with a guard that is
    always true and opaque to the optimizer.
    """
    jvm: Any = spark._jvm
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    guarded = F.when(guard, condition)
    attempt = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(utils.expression(guarded._jc))
    return F.coalesce(Column(utils.column(attempt)), F.lit(False))


def row_guard(schema: StructType, columns: Sequence[Column] = ()) -> Column:
    """A condition that is true for every row and opaque to the optimizer, for `tolerant`.

    Without `columns`, those of the schema are resolved by name.
    """
    types = [field.dataType for field in schema]
    hashable = [i for i, kind in enumerate(types) if not _NO_HASH.search(kind.simpleString())]
    cheap = [i for i, kind in enumerate(types) if kind.typeName() in _HASHABLE_FIRST]
    chosen = next(iter(cheap or hashable), None)
    if chosen is None:
        # Not `monotonically_increasing_id()`, which streaming queries do not support.
        seed = F.spark_partition_id()
    else:
        seed = columns[chosen] if columns else F.col(quoted(schema.names[chosen]))
    # A population count is at most 64, which Catalyst does not infer.
    return F.bit_count(F.hash(seed)) < 100


def _sound(df: DataFrame, columns: Sequence[Column]) -> bool:
    """Whether a single analysis shows that all rules are valid."""
    if not columns:
        return True
    if any(_SUSPECT.search(str(column)) for column in columns):
        return False
    try:
        selected = df.select(*[c.alias(f"rule{i}") for i, c in enumerate(columns)])
    except AnalysisException:
        return False
    return row_wise(df, selected) and all(_boolean(field.dataType) for field in selected.schema)


def _check_one(df: DataFrame, rule: Expectation, column: Column, *, are_stored: bool) -> None:
    try:
        selected = df.select(column.alias("rule"))
    except AnalysisException as error:
        near = nearest_column(error, df.columns)
        hint = f"did you mean {near!r}?" if near else None
        if are_stored:
            hint = "stored rows have only the columns of the table: add this one to the query"
        raise _invalid(rule, first_line(error), hint=hint) from error
    if not row_wise(df, selected):
        raise _invalid(rule, "it aggregates, uses a window or makes rows")
    if _SUSPECT.search(str(column)):
        _refuse(rule, selected._jdf.queryExecution().analyzed().projectList().head())
    data_type = selected.schema[0].dataType
    if not _boolean(data_type):
        raise _invalid(rule, f"it is {data_type.simpleString().upper()}, not a BOOLEAN")


def _check_whole(
    df: DataFrame, rule: Expectation, kind: DatasetKind | None
) -> Iterator[DefinitionError]:
    reason, hint = "", "put it on a materialized view"
    if df.isStreaming:
        reason = "it needs all rows of a table, which a stream never has"
        hint += "; for a stream use dropDuplicatesWithinWatermark"
    elif kind is DatasetKind.STREAMING_TABLE:
        reason = "it needs all rows of a table, and each batch has only a part of them"
    elif kind is DatasetKind.TEMPORARY_VIEW and rule.rows is not None:
        reason = "it needs the number of rows, and a temporary view is not stored"
        hint += " that reads this one"
    if reason:
        yield _invalid(rule, reason, hint=hint)
    known = {column.lower(): column for column in df.columns}
    for column in rule.unique:
        if column.lower() not in known:
            near = nearest(column, df.columns, cutoff=0.5)
            yield _invalid(
                rule,
                f"there is no column {column!r}",
                hint=f"did you mean {near!r}?" if near else None,
            )


def _boolean(data_type: DataType) -> bool:
    return isinstance(data_type, (BooleanType, NullType))


def row_wise(df: DataFrame, selected: DataFrame) -> bool:
    """Whether Spark added only a projection to the query."""
    plan: Any = selected._jdf.queryExecution().analyzed()
    if str(plan.nodeName()) != "Project":
        return False
    below: Any = df._jdf.queryExecution().analyzed()
    return bool(plan.child().equals(below))


def _refuse(rule: Expectation, expression: Any) -> None:
    reason = next(refusals(expression), None)
    if reason is not None:
        raise _invalid(rule, reason, hint="an expectation can only use the columns of one row")


def refusals(expression: Any) -> Iterator[str]:
    """The reasons why a parsed or analyzed expression is refused."""
    kind = str(expression.getClass().getSimpleName())
    if "Subquery" in kind or kind in ("Exists", "ListQuery", "InSubquery"):
        yield "it contains a subquery"
        return
    if kind == "UnresolvedFunction":
        name = str(expression.nameParts().last()).lower()
        if name in _REFUSED_FUNCTIONS:
            yield f"it calls {name}()"
    if kind in ("CallMethodViaReflection", "TryReflect"):
        yield f"it calls a Java method by {kind}"
    children = expression.children()
    for position in range(children.size()):
        yield from refusals(children.apply(position))


def nearest_column(error: AnalysisException, columns: Sequence[str]) -> str | None:
    """The column whose name is most similar to an unresolved name."""
    parameters = error.getMessageParameters() or {}
    name = parameters.get("objectName", "").replace("`", "")
    if not name:
        return None
    return nearest(name.rsplit(".", 1)[-1], columns, cutoff=0.5)


def _invalid(rule: Expectation, reason: str, *, hint: str | None = None) -> DefinitionError:
    return DefinitionError(
        "EXPECTATION_INVALID",
        f"expectation {rule.name!r} cannot be used: {reason}",
        origin=rule.origin,
        hint=hint,
    )
