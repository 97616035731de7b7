"""Declares the statements of SQL text in the active registry."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock._api.registry import Registry, active_registry
from penstock._model.dataset import Dataset, DatasetKind
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation
from penstock._sql.cursor import Cursor
from penstock._sql.names import SqlName
from penstock._sql.parse import check_single, parse_statement
from penstock._sql.queries import ChangeEvents, SqlQuery
from penstock._sql.source import SqlSource
from penstock._sql.statements import Statement, split_statements
from penstock._sql.substitution import substitute_parameters, substitute_variables
from penstock._sql.syntax import (
    ColumnName,
    CreateDataset,
    CreateFlow,
    Declaration,
    FlowBody,
    SetVariable,
)
from penstock._sql.tokens import tokens_of
from penstock.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass
class SqlContext:
    """State between the statements of a file; shared by the cells of a notebook.

    `variables` replace `${key}` and `parameters` `:name`. `catalog` and `schema` are set by `USE`;
    `None` means the pipeline's. `settings` are set by `SET`, for later flows. `pipeline_schema` is
    the schema of names after a `USE CATALOG` without a schema.
    """

    variables: dict[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    catalog: str | None = None
    schema: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    pipeline_schema: str = "default"

    def qualified(self, name: SqlName) -> SqlName:
        """Return a name qualified by the last `USE`, unless it has `LIVE`."""
        parts = name.parts
        if name.is_live or (self.catalog is None and self.schema is None):
            return name
        if len(parts) == 1:
            parts = (self.schema or self.pipeline_schema, *parts)
        if len(parts) == 2 and self.catalog is not None:
            parts = (self.catalog, *parts)
        return SqlName(parts)


def declare_sql(
    text: str,
    *,
    file: str,
    context: SqlContext,
    first_line: int = 1,
    declarations_only: bool = False,
) -> None:
    """Declare the statements of SQL text. Errors are recorded, never raised.

    A wrong statement declares nothing; later statements are still declared. With
    `declarations_only`, for the SQL cells of a notebook in another language, statements that are
    not supported in a pipeline are skipped.
    """
    registry = active_registry("SQL")
    declarer = _Declarer(registry, context)
    for raw in split_statements(SqlSource.of(text, file=file, first_line=first_line)):
        try:
            if raw.error is None and raw.is_display:
                check_single(Cursor(raw.source, raw.tokens))
                continue
            for declaration in _declarations(raw, context):
                declarer.declare(declaration)
        except DefinitionError as error:
            if not (declarations_only and error.condition == "SQL_STATEMENT_NOT_SUPPORTED"):
                registry.record(error)


def _declarations(raw: Statement, context: SqlContext) -> Iterator[Declaration]:
    """Substitute values and parse; a value with a `;` may result in several statements."""
    if raw.error is not None:
        raise raw.error
    filled = substitute_variables(raw.source, raw.tokens, context.variables)
    for statement in split_statements(filled):
        if statement.error is not None:
            raise statement.error
        if statement.is_display:
            continue
        source = substitute_parameters(statement.source, statement.tokens, context.parameters)
        yield parse_statement(Cursor(source, tokens_of(source.text)))


@dataclass(frozen=True)
class _Declarer:
    """Adds parsed statements to the registry, with the current names and settings."""

    registry: Registry
    context: SqlContext

    def declare(self, declaration: Declaration) -> None:
        """Add a statement to the registry, or change the context."""
        context = self.context
        if isinstance(declaration, CreateDataset):
            self._dataset(declaration)
        elif isinstance(declaration, CreateFlow):
            self._flow(declaration)
        elif isinstance(declaration, SetVariable):
            context.variables[declaration.key] = declaration.value
            context.settings[declaration.key] = declaration.value
        else:
            # `USE CATALOG` resets the schema; `USE SCHEMA` keeps the catalog.
            context.catalog = declaration.catalog or context.catalog
            context.schema = declaration.schema

    def _dataset(self, statement: CreateDataset) -> None:
        name, settings = statement.name, dict(self.context.settings)
        # A temporary view belongs to the pipeline as a whole, not to a schema.
        if not statement.private or statement.kind is not DatasetKind.TEMPORARY_VIEW:
            name = self.context.qualified(name)
        dataset = Dataset(
            name=name.text,
            kind=statement.kind,
            origin=statement.origin,
            spark_conf=settings,
            schema=statement.columns.schema,
            private=statement.private,
            expectations=statement.columns.rules,
            **statement.clauses,
        )
        if statement.flow is None:
            self.registry.add_dataset(dataset)
            return
        columns, origin = statement.columns.names, statement.origin
        flow = Flow(
            name=name.text,
            target=name.text,
            function=self._function(name.shown, statement.flow, columns, origin),
            origin=origin,
            spark_conf=settings,
            comment=dataset.comment,
            implicit=True,
            language="SQL",
        )
        flow = self._with_body(flow, statement.flow)
        self.registry.add_dataset(dataset, function=flow.function, flow=flow)

    def _flow(self, statement: CreateFlow) -> None:
        target = self.context.qualified(statement.target)
        name = statement.name or target.shown
        flow = Flow(
            name=name,
            target=target.text,
            function=self._function(name, statement.body, (), statement.origin),
            origin=statement.origin,
            spark_conf=dict(self.context.settings),
            comment=statement.comment,
            language="SQL",
        )
        self.registry.add_flow(self._with_body(flow, statement.body))

    def _with_body(self, flow: Flow, body: FlowBody) -> Flow:
        cdc = body.cdc
        if cdc is not None and body.source is not None:
            cdc = replace(cdc, source=self.context.qualified(body.source).text)
        return replace(flow, once=body.once, replace_where=body.replace_where, cdc=cdc)

    def _function(
        self, name: str, body: FlowBody, columns: tuple[ColumnName, ...], origin: SourceLocation
    ) -> "Callable[[], DataFrame]":
        if body.source is not None:
            return ChangeEvents(
                __name__=name,
                source=self.context.qualified(body.source).text,
                # Events that are applied once may be read as a batch.
                is_stream=body.is_stream or not body.once,
                where=body.where,
            )
        assert body.query is not None  # a body has a source or a query
        return SqlQuery(
            __name__=name,
            query=body.query,
            catalog=self.context.catalog,
            schema=self.context.schema,
            columns=columns,
            origin=origin,
        )
