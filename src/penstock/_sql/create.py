"""`CREATE` of tables and views, in the syntax of every version of the language."""

from collections.abc import Set

from penstock._model.dataset import DatasetKind
from penstock._model.origin import SourceLocation
from penstock._sql.clauses import parse_clauses
from penstock._sql.columns import parse_column_list
from penstock._sql.cursor import Cursor
from penstock._sql.flow import parse_create_flow, parse_inline_flow
from penstock._sql.names import parse_name
from penstock._sql.query_text import take_query
from penstock._sql.syntax import ColumnList, CreateDataset, CreateFlow, FlowBody
from penstock.errors import DefinitionError

_MODIFIERS = (
    *("PRIVATE", "TEMPORARY", "TEMP", "GLOBAL", "STREAMING", "INCREMENTAL", "LIVE", "MATERIALIZED"),
)
_TEMPORARY = {"TEMPORARY", "TEMP"}
_STREAMING = {"STREAMING", "INCREMENTAL"}
_OBJECTS = ("TABLE", "VIEW", "FLOW")
_ELSEWHERE = (
    *("FUNCTION", "SCHEMA", "DATABASE", "CATALOG", "VOLUME", "CONNECTION", "EXTERNAL", "INDEX"),
    *("PROCEDURE", "VARIABLE", "BLOOMFILTER", "RECIPIENT", "SHARE", "SINK", "POLICY", "WIDGET"),
)


def parse_create(cursor: Cursor) -> CreateDataset | CreateFlow:
    origin = cursor.source.origin(cursor.expect("CREATE").start)
    is_replaced = cursor.accept("OR")
    if is_replaced and not (cursor.accept("REFRESH") or cursor.accept("REPLACE")):
        raise cursor.unexpected("`REFRESH` after `OR`", ("REFRESH", "REPLACE"))
    modifiers: set[str] = set()
    while cursor.current.word in _MODIFIERS:
        modifiers.add(cursor.advance().word)
    if cursor.current.word in _ELSEWHERE:
        raise not_supported(cursor, f"CREATE {cursor.current.word}")
    if cursor.accept("FLOW"):
        if modifiers or is_replaced:
            raise cursor.error("a flow is created with `CREATE FLOW`, without modifiers")
        return parse_create_flow(cursor, origin)
    if cursor.current.word not in _OBJECTS:
        expected = "`STREAMING TABLE`, `MATERIALIZED VIEW`, `TEMPORARY VIEW` or `FLOW`"
        raise cursor.unexpected(expected, (*_OBJECTS, *_MODIFIERS))
    is_view = cursor.at("VIEW") and "MATERIALIZED" not in modifiers
    _check_modifiers(cursor, modifiers)
    cursor.advance()
    cursor.accept("IF", "NOT", "EXISTS")
    if is_view:
        return _parse_view(cursor, modifiers, origin)
    return _parse_table(cursor, modifiers, origin)


def _check_modifiers(cursor: Cursor, modifiers: Set[str]) -> None:
    """Refuse conflicting modifiers, at the keyword `TABLE` or `VIEW`."""
    is_table = cursor.at("TABLE")
    if "GLOBAL" in modifiers:
        raise not_supported(cursor, "CREATE GLOBAL TEMPORARY VIEW")
    if is_table and "MATERIALIZED" in modifiers:
        raise cursor.unexpected("`MATERIALIZED VIEW`", ("VIEW",))
    if modifiers & _STREAMING and "MATERIALIZED" in modifiers:
        raise cursor.error(
            "a dataset is a streaming table or a materialized view, not both",
            hint="write `CREATE STREAMING TABLE` or `CREATE MATERIALIZED VIEW`",
        )
    if not is_table and modifiers & _STREAMING and "LIVE" not in modifiers:
        raise cursor.unexpected("`TABLE` after `STREAMING`", ("TABLE",))


def _parse_view(cursor: Cursor, modifiers: Set[str], origin: SourceLocation) -> CreateDataset:
    name = parse_name(cursor, "a view")
    at_columns = cursor.current
    columns = parse_column_list(cursor) if cursor.at("(") else ColumnList()
    if columns.schema is not None:
        raise cursor.error(
            "the columns of a view have no types",
            at=at_columns,
            hint="list names only, and write casts into the query",
        )
    before = cursor.current
    clauses = parse_clauses(cursor, ends=("AS",))
    clauses.pop("table_properties", None)
    if any(value for name, value in clauses.items() if name != "comment"):
        raise cursor.error(
            "a view is not stored: its only clauses are `COMMENT` and `TBLPROPERTIES`",
            at=before,
            hint="make it a `MATERIALIZED VIEW`, or remove the clauses",
        )
    return CreateDataset(
        kind=DatasetKind.TEMPORARY_VIEW,
        name=name,
        private=bool(modifiers & {*_TEMPORARY, "LIVE"}),
        columns=columns,
        clauses=clauses,
        flow=_parse_query(cursor),
        origin=origin,
    )


def _parse_table(cursor: Cursor, modifiers: Set[str], origin: SourceLocation) -> CreateDataset:
    streaming = bool(modifiers & _STREAMING)
    plain = not modifiers & {*_STREAMING, "LIVE", "MATERIALIZED"}
    kind = DatasetKind.STREAMING_TABLE if streaming or plain else DatasetKind.MATERIALIZED_VIEW
    first = cursor.ahead(-1)
    name = parse_name(cursor, f"a {kind.value}")
    at_columns = cursor.current
    columns = parse_column_list(cursor) if cursor.at("(") else ColumnList()
    before = cursor.current
    clauses = parse_clauses(cursor, ends=("AS", "FLOW"))
    if kind is DatasetKind.STREAMING_TABLE and "refresh_policy" in clauses:
        raise cursor.error(
            "a streaming table has no `REFRESH POLICY`",
            at=before,
            hint="remove it, or create a materialized view",
        )
    flow: FlowBody | None = None
    if plain and not cursor.at("FLOW"):
        raise DefinitionError(
            "SQL_STATEMENT_NOT_SUPPORTED",
            f"`CREATE TABLE {name.text}` creates a table without a flow",
            origin=cursor.source.origin(first.start),
            hint="write `CREATE STREAMING TABLE` (each row once) or `CREATE MATERIALIZED VIEW` "
            "(always equal to its query)",
        )
    if kind is DatasetKind.MATERIALIZED_VIEW:
        flow = _parse_query(cursor)
    elif cursor.accept("FLOW"):
        flow = parse_inline_flow(cursor)
    elif not cursor.is_done:
        flow = _parse_query(cursor)
    if columns.names and (flow is None or flow.cdc is not None):
        raise cursor.error(
            f"column {columns.names[0].name!r} has no type, and there is no query to take it from",
            at=at_columns,
            hint="give all columns types, or remove the list",
        )
    return CreateDataset(
        kind=kind,
        name=name,
        private=bool(modifiers & {*_TEMPORARY, "PRIVATE"}),
        columns=columns,
        clauses=clauses,
        flow=flow,
        origin=origin,
    )


def _parse_query(cursor: Cursor) -> FlowBody:
    if not cursor.accept("AS") and not cursor.at("SELECT"):
        raise cursor.unexpected("`AS` and a query", ("AS",))
    return FlowBody(query=take_query(cursor, "AS"))


def not_supported(cursor: Cursor, statement: str) -> DefinitionError:
    """Return the error for a statement that is not supported in a source of a pipeline."""
    return DefinitionError(
        "SQL_STATEMENT_NOT_SUPPORTED",
        f"`{statement}` is not supported in a source of a pipeline",
        origin=cursor.source.origin(0),
        hint="a source contains `CREATE STREAMING TABLE`, `CREATE MATERIALIZED VIEW`, "
        "`CREATE TEMPORARY VIEW`, `CREATE FLOW`, `APPLY CHANGES INTO`, `SET` and `USE`; run "
        "anything else outside of the pipeline",
    )
