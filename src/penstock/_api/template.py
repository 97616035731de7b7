"""The common part of the dataset decorators: parameters, their checks, and declarations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from penstock._api.arguments import Arguments, ColumnNames, ConfValues
from penstock._api.expectations import Rules
from penstock._api.query import is_query_function, own_name
from penstock._model.dataset import Dataset, DatasetKind, LateRows
from penstock._model.expectation import Expectation
from penstock._model.flow import Flow, OutputMode

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

V = TypeVar("V")

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
    private: bool | None
    temporary: bool | None


class StreamingTableArguments(StoredArguments, total=False):
    expect_all: Rules | None
    expect_all_or_drop: Rules | None
    expect_all_or_fail: Rules | None
    expect_all_or_quarantine: Rules | None
    late_rows: str | None
    deduplicate_by: ColumnNames | None


class MaterializedViewArguments(NamedArguments, StoredArguments, total=False):
    refresh_policy: str | None


class TableArguments(NamedArguments, StoredArguments, total=False):
    replace_where: "str | Column | None"
    replace_using: object
    sequence_by: object
    output_mode: str | None
    late_rows: str | None
    deduplicate_by: ColumnNames | None


class CreateTableArguments(TableArguments, StreamingTableArguments, total=False):
    """Parameters of `create_table`, on a function or without one."""


@dataclass(frozen=True, kw_only=True)
class DatasetTemplate:
    """The arguments of a dataset whose name, function and origin may not be known yet.

    Attributes:
        name: Name of the dataset; `None` means that of the function.
        properties: Fields of `Dataset`, checked.
        output_mode: Output mode of the implicit flow.
        replace_where: Condition of the implicit flow.
    """

    name: str | None
    properties: dict[str, Any]
    output_mode: OutputMode | None
    replace_where: "str | Column | None"

    @classmethod
    def parse(
        cls, arguments: Arguments, kind: DatasetKind | None, values: Mapping[str, object]
    ) -> "DatasetTemplate":
        """Check the arguments of a dataset, by parameter; records errors."""

        def checked(check: Callable[[str, object], V], parameter: str) -> V:
            return check(parameter, values.get(parameter))

        mode = arguments.choice("output_mode", values.get("output_mode"), list(OutputMode))
        partitions = checked(arguments.columns, "partition_cols")
        clusters = checked(arguments.columns, "cluster_by")
        if partitions and clusters:
            arguments.conflict("partition_cols", "cluster_by")
        window = checked(arguments.row_condition, "replace_where")
        if window is not None:
            kind = DatasetKind.STREAMING_TABLE  # with a batch query; other rows are kept
            if mode is not None:
                hint = "an output mode belongs to a stream; keep `replace_where` alone"
                arguments.conflict("replace_where", "output_mode", hint=hint)
        for parameter in ("replace_using", "sequence_by"):
            arguments.unavailable(parameter, values.get(parameter))
        policy = arguments.choice("refresh_policy", values.get("refresh_policy"), _REFRESH_POLICIES)
        late_rows = arguments.choice("late_rows", values.get("late_rows"), list(LateRows))
        hidden = [checked(arguments.flag, name) for name in ("private", "temporary")]
        properties: dict[str, Any] = {
            "kind": kind,
            "comment": checked(arguments.free_text, "comment"),
            "spark_conf": checked(arguments.mapping, "spark_conf"),
            "table_properties": checked(arguments.mapping, "table_properties"),
            "partition_cols": partitions,
            "cluster_by": clusters,
            "cluster_by_auto": bool(checked(arguments.flag, "cluster_by_auto")),
            "schema": arguments.schema(values.get("schema")),
            "path": checked(arguments.text, "path"),
            "private": kind is DatasetKind.TEMPORARY_VIEW or any(hidden),
            "row_filter": checked(arguments.text, "row_filter"),
            "refresh_policy": policy,
            "format": checked(arguments.text, "format"),
            "quarantine": checked(arguments.flag, "quarantine"),
            "deduplicate_by": checked(arguments.columns, "deduplicate_by"),
            "late_rows": LateRows(late_rows or LateRows.DROP),
        }
        return cls(
            name=checked(arguments.dataset_name, "name"),
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
