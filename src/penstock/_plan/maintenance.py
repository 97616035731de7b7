"""Derives the maintenance of a table from its properties and flows."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DataflowGraph, DatasetNode
from penstock._graph.replacing import replaces_rows
from penstock._model.dataset import DatasetKind
from penstock._model.flow import OutputMode
from penstock._model.origin import SourceLocation
from penstock.errors import SpecError

AUTO_COMPACT = "delta.autoOptimize.autoCompact"
MANAGED = "pipelines.autoOptimize.managed"
Z_ORDER = "pipelines.autoOptimize.zOrderCols"

_AUTO_OPTIMIZE = "delta.autooptimize"
_COMPACTS = ("true", "auto", "legacy")


@dataclass(frozen=True, kw_only=True)
class TableMaintenance:
    """The maintenance of one table; its intervals are in the settings."""

    compacts: bool  # small files are merged while flows write
    compacts_at_end: bool  # also at the end of an update: a table property enables compaction
    # Compaction must not overlap with the batches of the table's flows: the batches remove files,
    # so one of the two would fail.
    alone: bool
    z_order: tuple[str, ...]  # columns of Z-order
    vacuums: bool  # with a declared path, only if `MANAGED` is true


def table_maintenance(
    graph: DataflowGraph, node: DatasetNode, stored: Mapping[str, str]
) -> TableMaintenance:
    """The maintenance of a table; declared properties override the `stored` ones.

    Raises:
        SpecError: `SETTING_INVALID`: A property has an invalid value.
    """
    declared, origin = node.declared, node.declared.origin
    properties = {k.lower(): str(v) for k, v in {**stored, **declared.table_properties}.items()}
    text = properties.get(MANAGED.lower())
    managed = None if text is None else boolean(MANAGED, text, origin)
    auto = properties.get(AUTO_COMPACT.lower(), properties.get(_AUTO_OPTIMIZE))
    auto = None if auto is None else auto.strip().lower()
    flows = [graph.flows[name] for name in node.flows]
    # Rows that a flow replaces in each update need no compaction. The rows of a view are replaced
    # only by complete refreshes.
    is_view = node.kind is DatasetKind.MATERIALIZED_VIEW
    is_replaced = any(
        flow.analysis.output_mode is OutputMode.COMPLETE
        or replaces_rows(flow.flow)
        or flow.flow.snapshot is not None
        for flow in flows
    )
    wants = managed is not False and not is_replaced
    orders = wants and not declared.cluster_by and not is_view
    columns = properties.get(Z_ORDER.lower(), "").split(",") if orders else ()
    return TableMaintenance(
        compacts=wants and auto in (None, *_COMPACTS),
        compacts_at_end=wants and auto in _COMPACTS,
        alone=is_view
        or bool(declared.deduplicate_by)
        or any(
            is_cdc(flow.flow) or flow.analysis.output_mode is OutputMode.UPDATE for flow in flows
        ),
        z_order=tuple(name.strip().strip("`") for name in columns if name.strip()),
        vacuums=managed is True or (managed is None and declared.path is None),
    )


def boolean(what: str, text: str, origin: SourceLocation | None = None) -> bool:
    value = text.strip().lower()
    if value not in ("true", "false"):
        message = f"{what} is {text!r}"
        raise SpecError("SETTING_INVALID", message, origin=origin, hint="set it to true or false")
    return value == "true"
