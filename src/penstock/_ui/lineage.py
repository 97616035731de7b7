"""What the columns of a dataset are made of, for its page."""

from collections.abc import Iterable, Mapping
from typing import Any

_MAX_INPUTS = 20
_MAX_COLUMNS = 2000


def lineage_view(bodies: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Lineage of a dataset from that of its flows; `None` where no plan told it.

    Args:
        bodies: Of `column_lineage` events.

    Returns:
        `columns`: by name, what each is made of; `influences`: what decides which rows there are.
        Each input has `dataset` (of the pipeline, or empty), `place` (outside of it), `column` and
        `how`.
    """
    columns: dict[str, list[dict[str, str]]] = {}
    influences: list[dict[str, str]] = []
    known = False
    for body in bodies:
        known = True
        sources = [_source(one) for one in body.get("sources") or ()]
        for name, inputs in list((body.get("columns") or {}).items())[:_MAX_COLUMNS]:
            _extend(columns.setdefault(str(name), []), sources, inputs)
        _extend(influences, sources, body.get("influences") or ())
    return {"columns": columns, "influences": influences} if known else None


def _source(body: Mapping[str, Any]) -> dict[str, str]:
    dataset = str(body.get("dataset") or "")
    namespace, name = str(body.get("namespace") or ""), str(body.get("name") or "")
    return {"dataset": dataset, "place": "" if dataset else f"{namespace} {name}".strip()}


def _extend(found: list[dict[str, str]], sources: list[dict[str, str]], inputs: Any) -> None:
    for number, column, how in inputs:
        one = {**sources[number], "column": str(column), "how": str(how)}
        if one not in found and len(found) < _MAX_INPUTS:
            found.append(one)
