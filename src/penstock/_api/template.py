"""What the dataset decorators have in common: their parameters, checked, and what they declare."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from penstock._api.arguments import Arguments, ColumnNames, ConfValues
from penstock._api.expectations import Rules
from penstock._api.query import is_query_function, own_name
from penstock._model.dataset import Dataset, DatasetKind, LateRows
from penstock._model.expectation import Expectation
from penstock._model.flow import Flow, OutputMode

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_REFRESH_POLICIES = ("auto", "incremental", "incremental_strict", "full")


class CommonArguments(TypedDict, total=False):
    comment: str | None
    spark_conf: ConfValues | None


class NamedArguments(TypedDict, total=False):
    name: str | None


class ViewArguments(NamedArguments, CommonArguments, total=False):
    """Parameters of `temporary_view`."""


class StoredArguments(CommonArguments, total=False):
    """Parameters of every dataset that is a Delta table."""

    table_properties: ConfValues | None
    partition_cols: ColumnNames | None
    cluster_by: ColumnNames | None
    cluster_by_auto: bool | None
    schema: "str | StructType | None"
    path: str | None
    row_filter: str | None
    format: str | None
    quarantine: bool | None


class StreamingTableArguments(StoredArguments, total=False):
    expect_all: Rules | None
    expect_all_or_drop: Rules | None
    expect_all_or_fail: Rules | None
    expect_all_or_quarantine: Rules | None
    late_rows: str | None
    deduplicate_by: ColumnNames | None


class QueryArguments(NamedArguments, StoredArguments, total=False):
    private: bool | None
    temporary: bool | None


class MaterializedViewArguments(QueryArguments, total=False):
    refresh_policy: str | None


class TableArguments(QueryArguments, total=False):
    replace_where: "str | Column | None"
    output_mode: str | None
    late_rows: str | None
    deduplicate_by: ColumnNames | None


class CreateTableArguments(TableArguments, StreamingTableArguments, total=False):
    """Parameters of `create_table`, on a function or without one."""


@dataclass(frozen=True, kw_only=True)
class DatasetTemplate:
    """A dataset whose name, function and origin may not be known yet.

    Attributes:
        name: `None` takes the name of the function.
        properties: Fields of `Dataset`, checked.
        output_mode: Of the implicit flow.
        replace_where: Of the implicit flow.
    """

    name: str | None
    properties: dict[str, Any]
    output_mode: OutputMode | None
    replace_where: "str | Column | None"

    @classmethod
    def parse(
        cls, arguments: Arguments, kind: DatasetKind | None, values: Mapping[str, object]
    ) -> "DatasetTemplate":
        """Check the arguments of a dataset, by parameter; wrong ones are recorded."""
        value_of = values.get
        mode = arguments.choice("output_mode", value_of("output_mode"), list(OutputMode))
        partitions = arguments.columns("partition_cols", value_of("partition_cols"))
        clusters = arguments.columns("cluster_by", value_of("cluster_by"))
        if partitions and clusters:
            arguments.conflict("partition_cols", "cluster_by")
        window = arguments.row_condition("replace_where", value_of("replace_where"))
        if window is not None:
            kind = DatasetKind.STREAMING_TABLE  # keeps its other rows, with a batch query
            if mode is not None:
                arguments.conflict(
                    "replace_where",
                    "output_mode",
                    hint="an output mode belongs to a stream; keep `replace_where` alone",
                )
        hidden = [arguments.flag(name, value_of(name)) for name in ("private", "temporary")]
        properties: dict[str, Any] = {
            "kind": kind,
            "comment": arguments.free_text("comment", value_of("comment")),
            "spark_conf": arguments.mapping("spark_conf", value_of("spark_conf")),
            "table_properties": arguments.mapping("table_properties", value_of("table_properties")),
            "partition_cols": partitions,
            "cluster_by": clusters,
            "cluster_by_auto": bool(arguments.flag("cluster_by_auto", value_of("cluster_by_auto"))),
            "schema": arguments.schema(value_of("schema")),
            "path": arguments.text("path", value_of("path")),
            "private": any(hidden),
            "row_filter": arguments.text("row_filter", value_of("row_filter")),
            "refresh_policy": arguments.choice(
                "refresh_policy", value_of("refresh_policy"), _REFRESH_POLICIES
            ),
            "format": arguments.text("format", value_of("format")),
            "quarantine": arguments.flag("quarantine", value_of("quarantine")),
            "deduplicate_by": arguments.columns("deduplicate_by", value_of("deduplicate_by")),
        }
        late_rows = arguments.choice("late_rows", value_of("late_rows"), list(LateRows))
        if late_rows is not None:
            properties["late_rows"] = LateRows(late_rows)
        return cls(
            name=arguments.dataset_name("name", value_of("name")),
            properties=properties,
            output_mode=OutputMode(mode) if mode else None,
            replace_where=window,
        )

    def declare(self, arguments: Arguments, function: Callable[..., Any]) -> None:
        """Add the dataset that `function` defines, and its flow, to the registry."""
        if not is_query_function(arguments, function):
            arguments.registry.excuse(function)
            return
        name = self.name or own_name(arguments, function, arguments.dataset_name)
        if name is None:
            arguments.registry.excuse(function)
            return
        dataset = Dataset(name=name, origin=arguments.origin, **self.properties)
        flow = Flow(
            name=name,
            target=name,
            function=function,
            origin=arguments.origin,
            output_mode=self.output_mode,
            replace_where=self.replace_where,
            spark_conf=dataset.spark_conf,
            comment=dataset.comment,
            implicit=True,
        )
        arguments.registry.add_dataset(dataset, function=function, flow=flow)

    def without_query(self, arguments: Arguments, rules: tuple[Expectation, ...] = ()) -> Dataset:
        """The streaming table of this name, which other flows write to."""
        properties = {**self.properties, "kind": DatasetKind.STREAMING_TABLE}
        return Dataset(
            name=str(self.name), origin=arguments.origin, expectations=rules, **properties
        )
