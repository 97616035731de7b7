"""Column lineage of a flow, and locations in OpenLineage's naming."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*):(?://(?P<authority>[^/?#]*))?(?P<path>[^?#]*)(?:[?#].*)?",
    re.DOTALL,
)
_CONTAINER = re.compile(r"[\w$.\-]+")
_WITH_ACCOUNT = ("abfs", "abfss", "wasb", "wasbs")


@dataclass(frozen=True)
class LineageSource:
    """A source of a query: a dataset of the pipeline, or an external location as in OpenLineage."""

    dataset: str = ""
    namespace: str = ""
    name: str = ""

    def as_json(self) -> dict[str, str]:
        if self.dataset:
            return {"dataset": self.dataset}
        return {"namespace": self.namespace, "name": self.name}


@dataclass(frozen=True)
class ColumnInput:
    """A column of one of the `FlowLineage.sources`.

    The transformation is `IDENTITY`, `TRANSFORMATION` or `AGGREGATION`; for an influence, it is
    `FILTER`, `JOIN`, `GROUP_BY`, `SORT` or `WINDOW`.
    """

    source: int
    column: str
    transformation: str

    def as_json(self) -> list[Any]:
        return [self.source, self.column, self.transformation]


@dataclass(frozen=True, kw_only=True)
class FlowLineage:
    """Column lineage of one flow, as far as its plan shows it; sources in the order of the plan.

    `influences` are columns that decide which rows exist, or how they are grouped or ordered.
    """

    sources: tuple[LineageSource, ...] = ()
    columns: Mapping[str, tuple[ColumnInput, ...]] = field(default_factory=dict)
    influences: tuple[ColumnInput, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "sources": [source.as_json() for source in self.sources],
            "columns": {
                name: [influence.as_json() for influence in inputs]
                for name, inputs in self.columns.items()
            },
            "influences": [influence.as_json() for influence in self.influences],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "FlowLineage":
        """Parse the result of `as_json`; raises `ValueError` or `TypeError` if it is invalid."""
        sources = tuple(LineageSource(**source) for source in body.get("sources") or ())

        def inputs(listed: Any) -> tuple[ColumnInput, ...]:
            columns = tuple(ColumnInput(*column) for column in listed)
            if any(column.source not in range(len(sources)) for column in columns):
                raise ValueError("an input of a column has no source")
            return columns

        columns = (body.get("columns") or {}).items()
        return cls(
            sources=sources,
            columns={str(name): inputs(listed) for name, listed in columns},
            influences=inputs(body.get("influences") or ()),
        )


def place_of(uri: str) -> LineageSource:
    """Return a path or URI as OpenLineage namespace and name, without credentials."""
    match = _URI.fullmatch(uri)
    if match is None:
        return LineageSource(namespace="file", name=uri.rstrip("/") or "/")
    scheme = match["scheme"].lower()
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    authority, path = match["authority"] or "", match["path"].rstrip("/") or "/"
    if scheme in ("file", "dbfs") and not authority:
        return LineageSource(namespace=scheme, name="/" + path.lstrip("/"))
    user, at, host = authority.rpartition("@")
    if at and not (scheme in _WITH_ACCOUNT and _CONTAINER.fullmatch(user)):
        authority = host
    name = path if scheme in ("hdfs", *_WITH_ACCOUNT) else path.lstrip("/") or "/"
    return LineageSource(namespace=f"{scheme}://{authority}", name=name)
