"""What statements say, before it is known under which names and for whom."""

from dataclasses import dataclass, field

from penstock._model.cdc import CdcSpec
from penstock._model.dataset import DatasetKind
from penstock._model.expectation import OnViolation
from penstock._sql.names import SqlName


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query.

    Attributes:
        text: As the user wrote it, with values filled in.
        line: Of the file, on which it begins.
        column: Characters before it on that line.
    """

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
    """A column of a list without types: the query's column at that place gets name and comment."""

    name: str
    comment: str | None


@dataclass(frozen=True, kw_only=True)
class ColumnList:
    """What stands in parentheses behind the name of a dataset.

    Attributes:
        schema: Columns with types, as DDL; `None` if there are none.
        names: Columns without types.
        rules: Expectations.
    """

    schema: str | None = None
    names: tuple[ColumnName, ...] = ()
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableClauses:
    """What stands between the columns and the query of a dataset, in any order."""

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
    """Where a flow reads change events.

    Attributes:
        name: Of a dataset; `None` for a query.
        is_stream: Whether the dataset is read as a stream.
        query: In parentheses in the place of a name.
    """

    name: SqlName | None
    is_stream: bool
    query: "Query | None" = None


@dataclass(frozen=True, kw_only=True)
class FlowBody:
    """What a flow does to its target: the rows of a query, or the events of a source.

    Attributes:
        query: `None` for change events.
        cdc: How events are applied; its source is as the user wrote it.
        source: Of the events.
        once: Runs one time.
        replace_where: Rows of the target that the query replaces.
    """

    query: Query | None = None
    cdc: CdcSpec | None = None
    source: CdcSource | None = None
    once: bool = False
    replace_where: str | None = None


@dataclass(frozen=True, kw_only=True)
class CreateDataset:
    """A dataset, with the flow that stands in the same statement, if any does."""

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
    """A flow into a dataset that is declared elsewhere; without a name it has its target's."""

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
    """`USE`: catalog and schema of the names after it; `None` keeps the schema's default."""

    catalog: str | None
    schema: str | None


Declaration = CreateDataset | CreateFlow | SetVariable | UseDefaults
