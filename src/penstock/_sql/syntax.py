"""Parsed statements, before names are resolved."""

from dataclasses import dataclass
from typing import Any

from penstock._model.cdc import CdcSpec
from penstock._model.dataset import DatasetKind
from penstock._model.expectation import Expectation
from penstock._model.origin import SourceLocation
from penstock._sql.names import SqlName


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query as the user wrote it, with substituted values; `column` counts from 0."""

    text: str
    line: int
    column: int


@dataclass(frozen=True, kw_only=True)
class ColumnName:
    """A column of a list without types: renames and comments a column of the query by position."""

    name: str
    comment: str | None


@dataclass(frozen=True, kw_only=True)
class ColumnList:
    """The column list of a dataset: columns with types as DDL, or names only."""

    schema: str | None = None
    names: tuple[ColumnName, ...] = ()
    rules: tuple[Expectation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FlowBody:
    """The rows of a query, or of the dataset `source`, which only flows of change events have."""

    query: Query | None = None
    cdc: CdcSpec | None = None
    source: SqlName | None = None
    is_stream: bool = False  # whether the source has `STREAM`
    where: str | None = None  # condition on the rows of the source
    once: bool = False
    replace_where: str | None = None


@dataclass(frozen=True, kw_only=True)
class CreateDataset:
    """A dataset, with the flow of the same statement, if any; `clauses` are fields of `Dataset`."""

    kind: DatasetKind
    name: SqlName
    private: bool
    columns: ColumnList
    clauses: dict[str, Any]
    flow: FlowBody | None
    origin: SourceLocation


@dataclass(frozen=True, kw_only=True)
class CreateFlow:
    """A flow into another dataset; by default it has the name of its target."""

    name: str | None
    target: SqlName
    comment: str | None
    body: FlowBody
    origin: SourceLocation


@dataclass(frozen=True, kw_only=True)
class SetVariable:
    """`SET key = value`."""

    key: str
    value: str


@dataclass(frozen=True, kw_only=True)
class UseDefaults:
    """`USE`: default catalog and schema of later names; `None` means the pipeline's."""

    catalog: str | None
    schema: str | None


Declaration = CreateDataset | CreateFlow | SetVariable | UseDefaults
