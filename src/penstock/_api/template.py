"""What the dataset decorators have in common: checked parameters, waiting for a function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock._api.arguments import Arguments
from penstock._api.query import is_query_function
from penstock._model.dataset import Dataset, DatasetKind, LateRows
from penstock._model.flow import Flow, OutputMode
from penstock.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import Column

_REFRESH_POLICIES = ("auto", "incremental", "incremental_strict", "full")


@dataclass(frozen=True, kw_only=True)
class DatasetTemplate:
    """A dataset whose name, function and place are not all known yet.

    Attributes:
        name: As given; `None` takes the function's.
        properties: Fields of `Dataset`, checked.
        output_mode: Of the implicit flow.
        replace_where: Of the implicit flow.
    """

    name: str | None
    properties: dict[str, Any]
    output_mode: OutputMode | None
    replace_where: "str | Column | None" = None

    @classmethod
    def parse(
        cls,
        arguments: Arguments,
        *,
        kind: DatasetKind | None,
        name: object,
        comment: object,
        spark_conf: object,
        table_properties: object = None,
        partition_cols: object = None,
        cluster_by: object = None,
        cluster_by_auto: object = None,
        schema: object = None,
        path: object = None,
        row_filter: object = None,
        private: object = None,
        temporary: object = None,
        refresh_policy: object = None,
        format: object = None,
        quarantine: object = None,
        late_rows: object = None,
        deduplicate_by: object = None,
        output_mode: OutputMode | None = None,
        replace_where: object = None,
    ) -> "DatasetTemplate":
        """Check the arguments of a dataset; what is wrong is recorded."""
        partitions = arguments.columns("partition_cols", partition_cols)
        clusters = arguments.columns("cluster_by", cluster_by)
        if partitions and clusters:
            arguments.registry.record(
                DefinitionError(
                    "CONFLICTING_PARAMETERS",
                    f"`{arguments.function}`: `partition_cols` and `cluster_by` exclude each other",
                    origin=arguments.origin,
                    hint="keep one of the two",
                )
            )
        window = arguments.row_condition("replace_where", replace_where)
        if window is not None:
            kind = DatasetKind.STREAMING_TABLE  # whose rows stay, though the query is a batch query
        if window is not None and output_mode is not None:
            arguments.registry.record(
                DefinitionError(
                    "CONFLICTING_PARAMETERS",
                    f"`{arguments.function}`: `replace_where` and `output_mode` exclude each other",
                    origin=arguments.origin,
                    hint="an output mode belongs to a stream; keep `replace_where` alone",
                )
            )
        hidden = [
            arguments.flag("private", private),
            arguments.flag("temporary", temporary),
        ]
        properties: dict[str, Any] = {
            "kind": kind,
            "comment": arguments.free_text("comment", comment),
            "spark_conf": arguments.mapping("spark_conf", spark_conf),
            "table_properties": arguments.mapping("table_properties", table_properties),
            "partition_cols": partitions,
            "cluster_by": clusters,
            "cluster_by_auto": bool(arguments.flag("cluster_by_auto", cluster_by_auto)),
            "schema": arguments.schema(schema),
            "path": arguments.text("path", path),
            "private": any(hidden),
            "row_filter": arguments.text("row_filter", row_filter),
            "refresh_policy": arguments.choice("refresh_policy", refresh_policy, _REFRESH_POLICIES),
            "format": arguments.text("format", format),
            "quarantine": arguments.flag("quarantine", quarantine),
            "deduplicate_by": arguments.columns("deduplicate_by", deduplicate_by),
        }
        late = arguments.choice("late_rows", late_rows, list(LateRows))
        if late is not None:
            properties["late_rows"] = LateRows(late)
        return cls(
            name=arguments.dataset_name("name", name),
            properties=properties,
            output_mode=output_mode,
            replace_where=window,
        )

    def declare(self, arguments: Arguments, function: Callable[..., Any]) -> None:
        """Add the dataset that `function` defines, and its flow, to the registry."""
        if not is_query_function(arguments, function):
            arguments.registry.excuse(function)
            return
        name = self.name or arguments.dataset_name("name", getattr(function, "__name__", None))
        if name is None:
            arguments.registry.excuse(function)
            if not hasattr(function, "__name__"):
                arguments.reject("name", "must be given: the function has no name of its own")
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
