"""`create_table`: of old a decorator, by now also a function that makes an empty table."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from penstock._api.arguments import Arguments, ColumnNames, ConfValues, F, checked_call
from penstock._api.expectations import Rules, parse_rules
from penstock._api.query import decorator
from penstock._api.template import DatasetTemplate
from penstock._model.dataset import Dataset, DatasetKind
from penstock._model.expectation import OnViolation
from penstock._model.flow import OutputMode

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


@overload
def create_table(query_function: F) -> F: ...
@overload
def create_table(
    query_function: str | None = None,
    *,
    name: str | None = None,
    comment: str | None = None,
    spark_conf: ConfValues | None = None,
    table_properties: ConfValues | None = None,
    partition_cols: ColumnNames | None = None,
    cluster_by: ColumnNames | None = None,
    cluster_by_auto: bool | None = None,
    schema: "str | StructType | None" = None,
    path: str | None = None,
    row_filter: str | None = None,
    private: bool | None = None,
    temporary: bool | None = None,
    replace_where: "str | Column | None" = None,
    format: str | None = None,
    output_mode: str | None = None,
    expect_all: Rules | None = None,
    expect_all_or_drop: Rules | None = None,
    expect_all_or_fail: Rules | None = None,
    quarantine: bool | None = None,
) -> Any: ...
@checked_call
def create_table(
    query_function: Callable[..., Any] | str | None = None,
    *,
    name: str | None = None,
    comment: str | None = None,
    spark_conf: ConfValues | None = None,
    table_properties: ConfValues | None = None,
    partition_cols: ColumnNames | None = None,
    cluster_by: ColumnNames | None = None,
    cluster_by_auto: bool | None = None,
    schema: "str | StructType | None" = None,
    path: str | None = None,
    row_filter: str | None = None,
    private: bool | None = None,
    temporary: bool | None = None,
    replace_where: "str | Column | None" = None,
    format: str | None = None,
    output_mode: str | None = None,
    expect_all: Rules | None = None,
    expect_all_or_drop: Rules | None = None,
    expect_all_or_fail: Rules | None = None,
    quarantine: bool | None = None,
) -> Any:
    """Define a table: by a query function as `table` does, or an empty one for append flows.

    On a function it is `table` under its old name. Called with a text, with rules, or with a
    name and then put on no function, it is `create_streaming_table`.

    Args:
        query_function: The query function; or the name of the empty table.
        name: One to three parts; the name of the function if not given.
        comment: Comment of the table.
        spark_conf: Settings of its flows; they win over those of the pipeline.
        table_properties: Delta and free properties; `pipelines.*` are for Penstock.
        partition_cols: Partition columns; excludes `cluster_by`.
        cluster_by: Clustering columns.
        cluster_by_auto: Accepted for compatibility.
        schema: DDL text or StructType that the rows must fit.
        path: Storage location instead of the managed one.
        row_filter: Accepted for compatibility.
        private: Keep the table inside of the pipeline.
        temporary: Older spelling of `private`.
        replace_where: As of `table`; only on a function.
        format: Only `delta` is written.
        output_mode: As of `table`; only on a function.
        expect_all: Rules of an empty table whose violations are kept and counted.
        expect_all_or_drop: Rules of an empty table whose violations go to quarantine.
        expect_all_or_fail: Rules of an empty table whose violations fail the flow.
        quarantine: Whether rows that break a drop rule are kept in `<table>_quarantine`.

    Returns:
        The function itself, or a decorator that returns it.
    """
    arguments = Arguments("create_table")
    name_argument = query_function if isinstance(query_function, str) else None
    if name_argument is not None and name is not None:
        arguments.reject("name", f"is given twice: {name_argument!r} and {name!r}")
    mode = arguments.choice("output_mode", output_mode, list(OutputMode))
    template = DatasetTemplate.parse(
        arguments,
        kind=None,
        name=name_argument if name_argument is not None else name,
        comment=comment,
        spark_conf=spark_conf,
        table_properties=table_properties,
        partition_cols=partition_cols,
        cluster_by=cluster_by,
        cluster_by_auto=cluster_by_auto,
        schema=schema,
        path=path,
        row_filter=row_filter,
        private=private,
        temporary=temporary,
        format=format,
        quarantine=quarantine,
        output_mode=OutputMode(mode) if mode else None,
        replace_where=replace_where,
    )
    rules = (
        *parse_rules(arguments, "expect_all", expect_all, OnViolation.WARN),
        *parse_rules(arguments, "expect_all_or_drop", expect_all_or_drop, OnViolation.DROP),
        *parse_rules(arguments, "expect_all_or_fail", expect_all_or_fail, OnViolation.FAIL),
    )
    if name_argument is not None or rules:
        for parameter, value in (("replace_where", replace_where), ("output_mode", output_mode)):
            if value is not None:
                arguments.reject(parameter, "belongs to a query, and this table has none")
        if template.name is None and name_argument is None and name is None:
            arguments.reject("name", "must be given")
        if template.name is not None:
            arguments.registry.add_dataset(_empty(arguments, template, rules))
        return None
    if query_function is not None or template.name is None:
        return decorator(arguments, query_function, template.declare)
    withdraw = arguments.registry.add_unless(_empty(arguments, template, ()))

    def declare(applied: Arguments, function: Callable[..., Any]) -> None:
        withdraw()
        template.declare(applied, function)

    return decorator(arguments, None, declare)


def _empty(arguments: Arguments, template: DatasetTemplate, rules: tuple[Any, ...]) -> Dataset:
    properties = {**template.properties, "kind": DatasetKind.STREAMING_TABLE}
    return Dataset(
        name=str(template.name), origin=arguments.origin, expectations=rules, **properties
    )
