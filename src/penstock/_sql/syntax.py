"""Parsed statements, before names are resolved."""

from dataclasses import dataclass, field

from penstock._model.cdc import CdcSpec
from penstock._model.dataset import DatasetKind
from penstock._model.expectation import OnViolation
from penstock._sql.names import SqlName


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query as the user wrote it, with substituted values; `column` counts from 0."""

    text: str
    line: int
    column: int


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`CONSTRAINT name EXPECT (condition)`, with its line of the file."""

    name: str
    condition: str
    on_violation: OnViolation
    line: int


@dataclass(frozen=True, kw_only=True)
class ColumnName:
    """A column of a list without types: name and comment of a column of the query, by position."""

    name: str
    comment: str | None


@dataclass(frozen=True, kw_only=True)
class ColumnList:
    """The column list of a dataset: columns with types as DDL, or names only."""

    schema: str | None = None
    names: tuple[ColumnName, ...] = ()
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableClauses:
    """The clauses between the columns and the query of a dataset, in any order."""

    format: str | None = None
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    cluster_by_auto: bool = False
    path: str | None = None
    comment: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    row_filter: str | None = None
    refresh_policy: str | None = None


@dataclass(frozen=True, kw_only=True)
class CdcSource:
    """The source of change events: the name of a dataset, or a query in parentheses."""

    name: SqlName | None
    is_stream: bool
    query: "Query | None" = None


@dataclass(frozen=True, kw_only=True)
class FlowBody:
    """The rows of a query, or the change events of a source."""

    query: Query | None = None
    cdc: CdcSpec | None = None
    source: CdcSource | None = None
    once: bool = False
    replace_where: str | None = None


@dataclass(frozen=True, kw_only=True)
class CreateDataset:
    """A dataset, with the flow of the same statement, if any."""

    kind: DatasetKind
    name: SqlName
    is_temporary_view: bool
    private: bool
    columns: ColumnList
    clauses: TableClauses
    flow: FlowBody | None
    line: int


@dataclass(frozen=True, kw_only=True)
class CreateFlow:
    """A flow into another dataset; by default it has the name of its target."""

    name: str | None
    target: SqlName
    comment: str | None
    body: FlowBody
    line: int


@dataclass(frozen=True, kw_only=True)
class SetVariable:
    """`SET key = value`."""

    key: str
    value: str


@dataclass(frozen=True, kw_only=True)
class UseDefaults:
    """`USE`: default catalog and schema of later names; `None` = of the pipeline."""

    catalog: str | None
    schema: str | None


Declaration = CreateDataset | CreateFlow | SetVariable | UseDefaults
