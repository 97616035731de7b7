"""`table`, `materialized_view`, `temporary_view` and `create_streaming_table`."""

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
def table(query_function: F) -> F: ...
@overload
def table(
    query_function: None = None,
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
    quarantine: bool | None = None,
    late_rows: str | None = None,
    deduplicate_by: ColumnNames | None = None,
) -> Callable[[F], F]: ...
@checked_call
def table(
    query_function: Callable[..., Any] | None = None,
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
    quarantine: bool | None = None,
    late_rows: str | None = None,
    deduplicate_by: ColumnNames | None = None,
) -> Any:
    """Define a table by a query function.

    A streaming DataFrame makes it a streaming table, a batch DataFrame a materialized view. Used
    bare (`@table`) or called (`@table(name="orders")`). `None` always means "not given".

    Args:
        query_function: Takes nothing, returns a DataFrame. It may be called several times and
            must not have side effects.
        name: One to three parts; the name of the function if not given.
        comment: Comment of the table.
        spark_conf: Settings of the flow; they win over those of the pipeline.
        table_properties: Delta and free properties; `pipelines.*` are for Penstock.
        partition_cols: Partition columns; excludes `cluster_by`.
        cluster_by: Clustering columns.
        cluster_by_auto: Accepted for compatibility.
        schema: DDL text or StructType that the query must fit.
        path: Storage location instead of the managed one.
        row_filter: Accepted for compatibility.
        private: Keep the table inside of the pipeline.
        temporary: Older spelling of `private`.
        replace_where: Condition of rows: in every update, the rows of the table that fulfil it are
            replaced by those that the query, which must be a batch query, gives for it now.
        format: Only `delta` is written.
        output_mode: `append`, `complete` or `update`; chosen by the query if not given.
        quarantine: Whether rows that break a drop rule are kept in `<table>_quarantine`.
        late_rows: `drop` or `quarantine`: what becomes of rows that come after the watermark has
            passed them. Spark drops them, which is counted; `quarantine` keeps them.
        deduplicate_by: Columns that identify a row. A row whose key the table has already is not
            added; a row with a NULL in its key always is.

    Returns:
        The function itself, or a decorator that returns it.
    """
    arguments = Arguments("table")
    mode = arguments.choice("output_mode", output_mode, list(OutputMode))
    template = DatasetTemplate.parse(
        arguments,
        kind=None,
        name=name,
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
        late_rows=late_rows,
        deduplicate_by=deduplicate_by,
        output_mode=OutputMode(mode) if mode else None,
        replace_where=replace_where,
    )
    return decorator(arguments, query_function, template.declare)


@overload
def materialized_view(query_function: F) -> F: ...
@overload
def materialized_view(
    query_function: None = None,
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
    refresh_policy: str | None = None,
    format: str | None = None,
    quarantine: bool | None = None,
) -> Callable[[F], F]: ...
@checked_call
def materialized_view(
    query_function: Callable[..., Any] | None = None,
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
    refresh_policy: str | None = None,
    format: str | None = None,
    quarantine: bool | None = None,
) -> Any:
    """Define a materialized view: always equal to the result of one batch query.

    Args:
        query_function: Takes nothing, returns a batch DataFrame. It may be called several times
            and must not have side effects.
        name: One to three parts; the name of the function if not given.
        comment: Comment of the table.
        spark_conf: Settings of the flow; they win over those of the pipeline.
        table_properties: Delta and free properties; `pipelines.*` are for Penstock.
        partition_cols: Partition columns; excludes `cluster_by`.
        cluster_by: Clustering columns.
        cluster_by_auto: Accepted for compatibility.
        schema: DDL text or StructType that the query must fit.
        path: Storage location instead of the managed one.
        row_filter: Accepted for compatibility.
        private: Keep the view inside of the pipeline.
        temporary: Older spelling of `private`.
        refresh_policy: `auto`, `incremental`, `incremental_strict` or `full`.
        format: Only `delta` is written.
        quarantine: Whether rows that break a drop rule are kept in `<table>_quarantine`.

    Returns:
        The function itself, or a decorator that returns it.
    """
    arguments = Arguments("materialized_view")
    template = DatasetTemplate.parse(
        arguments,
        kind=DatasetKind.MATERIALIZED_VIEW,
        name=name,
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
        refresh_policy=refresh_policy,
        format=format,
        quarantine=quarantine,
    )
    return decorator(arguments, query_function, template.declare)


@overload
def temporary_view(query_function: F) -> F: ...
@overload
def temporary_view(
    query_function: None = None,
    *,
    name: str | None = None,
    comment: str | None = None,
    spark_conf: ConfValues | None = None,
) -> Callable[[F], F]: ...
@checked_call
def temporary_view(
    query_function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    comment: str | None = None,
    spark_conf: ConfValues | None = None,
) -> Any:
    """Define a view that only this pipeline sees. It is never stored.

    Args:
        query_function: Takes nothing, returns a batch or streaming DataFrame.
        name: The name of the function if not given.
        comment: Free text.
        spark_conf: Settings of the query.

    Returns:
        The function itself, or a decorator that returns it.
    """
    arguments = Arguments("temporary_view")
    template = DatasetTemplate.parse(
        arguments,
        kind=DatasetKind.TEMPORARY_VIEW,
        name=name,
        comment=comment,
        spark_conf=spark_conf,
    )
    return decorator(arguments, query_function, template.declare)


@checked_call
def create_streaming_table(
    name: str,
    *,
    comment: str | None = None,
    spark_conf: ConfValues | None = None,
    table_properties: ConfValues | None = None,
    partition_cols: ColumnNames | None = None,
    cluster_by: ColumnNames | None = None,
    cluster_by_auto: bool | None = None,
    schema: "str | StructType | None" = None,
    path: str | None = None,
    row_filter: str | None = None,
    format: str | None = None,
    expect_all: Rules | None = None,
    expect_all_or_drop: Rules | None = None,
    expect_all_or_fail: Rules | None = None,
    expect_all_or_quarantine: Rules | None = None,
    quarantine: bool | None = None,
    late_rows: str | None = None,
    deduplicate_by: ColumnNames | None = None,
) -> None:
    """Define a streaming table that flows of `append_flow` feed.

    Args:
        name: One to three parts.
        comment: Comment of the table.
        spark_conf: Settings of its flows; they win over those of the pipeline.
        table_properties: Delta and free properties; `pipelines.*` are for Penstock.
        partition_cols: Partition columns; excludes `cluster_by`.
        cluster_by: Clustering columns.
        cluster_by_auto: Accepted for compatibility.
        schema: DDL text or StructType that the flows must fit.
        path: Storage location instead of the managed one.
        row_filter: Accepted for compatibility.
        format: Only `delta` is written.
        expect_all: Rules whose violations are kept and counted: name to condition.
        expect_all_or_drop: Rules whose violations go to quarantine: name to condition.
        expect_all_or_fail: Rules whose violations fail the flow: name to condition.
        expect_all_or_quarantine: As `expect_all_or_drop`; quarantine is on for this table then.
        quarantine: Whether rows that break a drop rule are kept in `<table>_quarantine`.
        late_rows: `drop` or `quarantine`: what becomes of rows that come after the watermark has
            passed them. Spark drops them, which is counted; `quarantine` keeps them.
        deduplicate_by: Columns that identify a row. A row whose key the table has already is not
            added; a row with a NULL in its key always is.
    """
    arguments = Arguments("create_streaming_table")
    template = DatasetTemplate.parse(
        arguments,
        kind=DatasetKind.STREAMING_TABLE,
        name=name,
        comment=comment,
        spark_conf=spark_conf,
        table_properties=table_properties,
        partition_cols=partition_cols,
        cluster_by=cluster_by,
        cluster_by_auto=cluster_by_auto,
        schema=schema,
        path=path,
        row_filter=row_filter,
        format=format,
        quarantine=quarantine,
        late_rows=late_rows,
        deduplicate_by=deduplicate_by,
    )
    rules = [
        *parse_rules(arguments, "expect_all", expect_all, OnViolation.WARN),
        *parse_rules(arguments, "expect_all_or_drop", expect_all_or_drop, OnViolation.DROP),
        *parse_rules(arguments, "expect_all_or_fail", expect_all_or_fail, OnViolation.FAIL),
        *parse_rules(
            arguments,
            "expect_all_or_quarantine",
            expect_all_or_quarantine,
            OnViolation.QUARANTINE,
        ),
    ]
    if name is None:
        arguments.reject("name", "must be given")
    if template.name is not None:
        arguments.registry.add_dataset(
            Dataset(
                name=template.name,
                origin=arguments.origin,
                expectations=tuple(rules),
                **template.properties,
            )
        )


view = temporary_view
create_view = temporary_view
create_target_table = create_streaming_table
create_streaming_live_table = create_streaming_table
