"""The rows of a table that a flow replaces: its condition as a fixed text."""

from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock._model.exception_text import first_line
from penstock._model.expectation import Expectation, OnViolation
from penstock._model.flow import Flow
from penstock.errors import DefinitionError, DefinitionErrors, PenstockError
from penstock.quality.rules import check_expectations, condition_column


@dataclass(frozen=True)
class Window:
    """What a flow replaces now.

    Attributes:
        df: Rows of its query that fulfil the condition.
        where: The condition as SQL text that means the same at any time.
    """

    df: DataFrame
    where: str


def window_of(df: DataFrame, flow: Flow) -> Window:
    """Fix the condition of a flow at this moment, and keep the rows of its query that fulfil it.

    The rows of the table and those of the query are looked at by different jobs. With
    `current_date()` in the condition these would see different windows around midnight, and a row
    could be lost or twice in the table. So functions of time become the values that they have now.

    Args:
        df: The query with the types of its table; a batch query.
        flow: With `replace_where`.

    Raises:
        DefinitionError: `REPLACE_WHERE_INVALID`.
    """
    assert flow.replace_where is not None
    rule = Expectation(
        name="replace_where",
        condition=flow.replace_where,
        on_violation=OnViolation.WARN,
        origin=flow.origin,
    )
    # Without the query, so that only its result's columns are found.
    empty = df.sparkSession.createDataFrame([], df.schema)
    try:
        column = condition_column(df.sparkSession, rule)
        try:
            plan: Any = empty.where(column)._jdf.queryExecution().analyzed()
        except AnalysisException as error:
            raise _invalid(flow, first_line(error)) from error
        check_expectations(empty, [replace(rule, condition=column)])
        fixed = _at_this_moment(df, plan)
        if not fixed.deterministic():
            raise _invalid(flow, "it depends on chance")
        where = str(fixed.sql())
        kept = df.where(F.expr(where))
    except AnalysisException as error:
        raise _invalid(flow, first_line(error)) from error
    except (DefinitionError, DefinitionErrors) as error:
        if error.condition == "REPLACE_WHERE_INVALID":
            raise
        raise _invalid(flow, _reason(error)) from error
    return Window(kept, where)


def _at_this_moment(df: DataFrame, plan: Any) -> Any:
    optimizer: Any = df.sparkSession._jvm.org.apache.spark.sql.catalyst.optimizer  # type: ignore[union-attr]
    return getattr(optimizer, "ComputeCurrentTime$").__getattr__("MODULE$").apply(plan).condition()


def _reason(error: PenstockError) -> str:
    return error.message.partition("cannot be used: ")[2] or error.message


def _invalid(flow: Flow, reason: str) -> DefinitionError:
    return DefinitionError(
        "REPLACE_WHERE_INVALID",
        f"flow {flow.name!r}: `replace_where` cannot be used: {reason}",
        origin=flow.origin,
        hint="a condition over the columns of the table that looks at one row only",
    )
