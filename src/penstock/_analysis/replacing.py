"""`replace_where`: the condition of the rows that a flow replaces, at a fixed time."""

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
    """Rows of a query that match the condition `where`, without functions of time."""

    df: DataFrame
    where: str


def window_of(df: DataFrame, flow: Flow) -> Window:
    """Fix the condition of a flow at the current time, and select the matching rows of its query.

    Different jobs evaluate it for the rows of the table and of the query. With `current_date()`,
    these would differ around midnight, and a row could be lost or duplicated. Functions of time are
    therefore replaced by their current values.
    """
    assert flow.replace_where is not None
    rule = Expectation(
        name="replace_where",
        condition=flow.replace_where,
        on_violation=OnViolation.WARN,
        origin=flow.origin,
    )
    # Without the query, so that only the columns of its result resolve.
    empty = df.sparkSession.createDataFrame([], df.schema)
    try:
        column = condition_column(df.sparkSession, rule)
        plan: Any = empty.where(column)._jdf.queryExecution().analyzed()
        check_expectations(empty, [replace(rule, condition=column)])
        optimizer: Any = df.sparkSession._jvm.org.apache.spark.sql.catalyst.optimizer  # type: ignore[union-attr]
        current_time = getattr(optimizer, "ComputeCurrentTime$").__getattr__("MODULE$")
        fixed = current_time.apply(plan).condition()
        if not fixed.deterministic():
            raise _invalid(flow, "it is not deterministic")
        where = str(fixed.sql())
        kept = df.where(F.expr(where))
    except AnalysisException as error:
        raise _invalid(flow, first_line(error)) from error
    except (DefinitionError, DefinitionErrors) as error:
        if error.condition == "REPLACE_WHERE_INVALID":
            raise
        raise _invalid(flow, _reason(error)) from error
    return Window(kept, where)


def _reason(error: PenstockError) -> str:
    return error.message.partition("cannot be used: ")[2] or error.message


def _invalid(flow: Flow, reason: str) -> DefinitionError:
    return DefinitionError(
        "REPLACE_WHERE_INVALID",
        f"flow {flow.name!r}: `replace_where` cannot be used: {reason}",
        origin=flow.origin,
        hint="write a condition that uses only the columns of one row of the table",
    )
