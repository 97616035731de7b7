"""Column lineage of a dataset, for its page."""

from collections.abc import Iterable, Sequence
from typing import Any

from penstock._model.lineage import ColumnInput, FlowLineage, LineageSource

_MAX_INPUTS = 20
_MAX_COLUMNS = 2000


def lineage_view(flows: Iterable[FlowLineage]) -> dict[str, Any] | None:
    """Lineage of a dataset from that of its flows; `None` if no plan has lineage.

    `columns` are by name, `influences` determine which rows there are. Each input has `dataset` (of
    the pipeline, or empty), `place` (outside of it), `column` and `how`.
    """
    columns: dict[str, list[dict[str, str]]] = {}
    influences: list[dict[str, str]] = []
    known = False
    for flow in flows:
        known = True
        sources = [_source(source) for source in flow.sources]
        for name, inputs in list(flow.columns.items())[:_MAX_COLUMNS]:
            _extend(columns.setdefault(name, []), sources, inputs)
        _extend(influences, sources, flow.influences)
    return {"columns": columns, "influences": influences} if known else None


def _source(source: LineageSource) -> dict[str, str]:
    place = "" if source.dataset else f"{source.namespace} {source.name}".strip()
    return {"dataset": source.dataset, "place": place}


def _extend(
    columns: list[dict[str, str]], sources: list[dict[str, str]], inputs: Sequence[ColumnInput]
) -> None:
    for column in inputs:
        entry = sources[column.source] | {"column": column.column, "how": column.transformation}
        if entry not in columns and len(columns) < _MAX_INPUTS:
            columns.append(entry)
