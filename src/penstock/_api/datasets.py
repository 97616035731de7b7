"""`table`, `materialized_view`, `temporary_view`, `create_streaming_table` and `create_table`."""

from collections.abc import Callable
from typing import Any, Unpack, overload

from penstock._api.arguments import Arguments, F, aliased, checked_call
from penstock._api.expectations import parse_parameters
from penstock._api.query import decorator
from penstock._api.template import (
    CreateTableArguments,
    DatasetTemplate,
    MaterializedViewArguments,
    StreamingTableArguments,
    TableArguments,
    ViewArguments,
)
from penstock._model.dataset import DatasetKind


@overload
def table(query_function: F) -> F: ...
@overload
def table(query_function: None = None, **options: Unpack[TableArguments]) -> Callable[[F], F]: ...
@checked_call
def table(
    query_function: Callable[..., Any] | None = None, **options: Unpack[TableArguments]
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
        schema: DDL string or StructType of the table; the rows of the query are converted to it.
        path: Storage location instead of the managed one.
        row_filter: Refused: open-source Spark has no row filters.
        private: Do not register the table in a metastore.
        temporary: Older spelling of `private`.
        replace_where: Condition of rows: in every update, the rows of the table that match it are
            replaced by the matching rows of the query, which must be a batch query.
        replace_using: Not available yet.
        sequence_by: Not available yet.
        format: Only `delta` is written.
        output_mode: `append`, `complete` or `update`; chosen by the query if not given.
        quarantine: Whether rows that violate a drop rule are kept in `<table>_quarantine`.
        late_rows: `drop` or `quarantine`: what happens to rows older than the watermark. Spark
            drops them, which is counted; `quarantine` keeps them.
        deduplicate_by: Columns that identify a row. A row whose key the table has already is not
            added; a row with a NULL in its key always is.

    Returns:
        The function itself, or a decorator that returns it.
    """
    arguments = Arguments("table")
    template = DatasetTemplate.parse(arguments, None, options)
    return decorator(arguments, query_function, template.declare)


@overload
def materialized_view(query_function: F) -> F: ...
@overload
def materialized_view(
    query_function: None = None, **options: Unpack[MaterializedViewArguments]
) -> Callable[[F], F]: ...
@checked_call
def materialized_view(
    query_function: Callable[..., Any] | None = None, **options: Unpack[MaterializedViewArguments]
) -> Any:
    """Define a materialized view: always equal to the result of one batch query.

    Args:
        query_function: Takes nothing, returns a batch DataFrame. It may be called several times
            and must not have side effects.
        refresh_policy: `auto` (default), `incremental`, `incremental_strict` or `full`; see
            docs/materialized-views.md.
        **options: The others as for `table`.

    Returns:
        The function itself, or a decorator that returns it.
    """
    arguments = Arguments("materialized_view")
    template = DatasetTemplate.parse(arguments, DatasetKind.MATERIALIZED_VIEW, options)
    return decorator(arguments, query_function, template.declare)


@overload
def temporary_view(query_function: F) -> F: ...
@overload
def temporary_view(
    query_function: None = None, **options: Unpack[ViewArguments]
) -> Callable[[F], F]: ...
@checked_call
def temporary_view(
    query_function: Callable[..., Any] | None = None, **options: Unpack[ViewArguments]
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
    template = DatasetTemplate.parse(arguments, DatasetKind.TEMPORARY_VIEW, options)
    return decorator(arguments, query_function, template.declare)


@checked_call
def create_streaming_table(name: str, **options: Unpack[StreamingTableArguments]) -> None:
    """Define a streaming table that append flows or auto CDC flows write to.

    Args:
        name: One to three parts.
        spark_conf: Settings of its flows; they win over those of the pipeline.
        expect_all: Rules whose violations are kept and counted: name to condition.
        expect_all_or_drop: Rules whose violations go to quarantine: name to condition.
        expect_all_or_fail: Rules whose violations fail the flow: name to condition.
        expect_all_or_quarantine: As `expect_all_or_drop`; quarantine is on for this table then.
        **options: The others as for `table`.
    """
    arguments = Arguments("create_streaming_table")
    template = DatasetTemplate.parse(
        arguments, DatasetKind.STREAMING_TABLE, {**options, "name": name}
    )
    rules = parse_parameters(arguments, options)
    if name is None:
        arguments.reject("name", "must be given")
    if template.name is not None:
        arguments.registry.add_dataset(template.without_query(arguments, rules))


@overload
def create_table(query_function: F) -> F: ...
@overload
def create_table(
    query_function: str | None = None, **options: Unpack[CreateTableArguments]
) -> Any: ...
@checked_call
def create_table(
    query_function: Callable[..., Any] | str | None = None, **options: Unpack[CreateTableArguments]
) -> Any:
    """Define a table: by a query function as `table` does, or an empty one for append flows.

    On a function it is `table` under its old name. Called with a string, with rules, or with a
    name and then put on no function, it is `create_streaming_table`.

    Args:
        query_function: The query function; or the name of the empty table.
        replace_where: As for `table`; only on a function.
        output_mode: As for `table`; only on a function.
        **options: The others as for `table` and `create_streaming_table`; with rules the table is
            an empty one.

    Returns:
        The function itself, or a decorator that returns it.
    """
    arguments = Arguments("create_table")
    name = options.get("name")
    empty_name = query_function if isinstance(query_function, str) else None
    if empty_name is not None and name is not None:
        arguments.reject("name", f"is given twice: {empty_name!r} and {name!r}")
    template = DatasetTemplate.parse(
        arguments, None, {**options, "name": name if empty_name is None else empty_name}
    )
    rules = parse_parameters(arguments, options)
    if empty_name is not None or rules:
        for parameter in ("replace_where", "output_mode"):
            if options.get(parameter) is not None:
                arguments.reject(parameter, "belongs to a query, and this table has none")
        if empty_name is None and name is None:
            arguments.reject("name", "must be given")
        if template.name is not None:
            arguments.registry.add_dataset(template.without_query(arguments, rules))
        return None
    if query_function is not None or template.name is None:
        return decorator(arguments, query_function, template.declare)
    withdraw = arguments.registry.add_unless(template.without_query(arguments))

    def declare(applied: Arguments, function: Callable[..., Any]) -> None:
        withdraw()
        template.declare(applied, function)

    empty_or_decorator = decorator(arguments, None, declare)
    arguments.registry.unapplied.pop(arguments)  # the call alone declares an empty table
    return empty_or_decorator


view = aliased("view", temporary_view)
create_view = aliased("create_view", temporary_view)
create_target_table = aliased("create_target_table", create_streaming_table)
create_streaming_live_table = aliased("create_streaming_live_table", create_streaming_table)
