"""Making tables and altering them to what is declared; cheap when nothing changed.

Most tables are made by a transaction of our own, which takes a tenth of the time of SQL. Delta
decides about protocol and table features in both cases.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, LongType, StructField, StructType

from penstock._model.exception_text import first_line
from penstock._model.origin import SourceLocation
from penstock._tables.damage import check_log
from penstock._tables.delta_log import DeltaJvm, TableMetadata, file_count
from penstock._tables.files import local_path
from penstock._tables.layout import TableRef
from penstock._tables.properties import check_properties
from penstock._tables.schema import (
    IDENTITY_EXPLICIT,
    IDENTITY_START,
    IDENTITY_STEP,
    LENGTHS,
    check_columns,
    compare,
    conformed,
    has_identity,
    plain_schema,
    reconcile,
    schema_json,
)
from penstock._tables.staging import QUARANTINE_FIELDS
from penstock._tables.widening import ENABLED, TypeChange, alter_types, widen
from penstock.errors import DefinitionError, PlanError

_EMPTY: Mapping[str, str] = MappingProxyType({})
_GENERATED = "delta.generationExpression"
_FORBIDDEN_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """What a table should be.

    Attributes:
        schema: Columns; of the query, or declared.
        declared: Whether the user declared the schema: then nullability, generated columns and
            comments count; a query's columns are all nullable.
        partition_cols: Identity partition columns.
        cluster_by: Liquid clustering columns.
        comment: Table comment; `None` leaves the one that is there.
        properties: `delta.*` and free keys. Keys that are no longer declared stay.
        replace_schema: The contents will be replaced with the next write, so a schema that does not
            fit is left to it.
        widen: Whether columns that are too narrow for the schema become wider in place. The
            property `delta.enableTypeWidening`, declared or of the table, counts before it; `None`
            forbids it all the same.
        cast: Whether rows will be cast to the types of the table where no value changes by that, so
            that narrower columns fit.
        origin: Where the dataset was declared.
    """

    schema: StructType
    declared: bool = False
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    replace_schema: bool = False
    widen: bool | None = False
    cast: bool = False
    origin: SourceLocation | None = None

    def table_schema(self) -> StructType:
        """The schema to store."""
        if not self.declared:
            return plain_schema(self.schema, nullable=True)
        return self.schema


@dataclass(frozen=True, kw_only=True)
class TableState:
    """What a table is right now.

    Attributes:
        id: Delta's id of the table; another one after it was dropped and made again.
        version: Newest version.
        schema: Columns.
        partition_columns: Identity partition columns.
        cluster_by: Liquid clustering columns.
        properties: Table properties.
        comment: Table comment.
    """

    id: str
    version: int
    schema: StructType
    partition_columns: tuple[str, ...]
    cluster_by: tuple[str, ...]
    properties: Mapping[str, str]
    comment: str | None


def parse_schema(
    spark: SparkSession, schema: str | StructType, *, origin: SourceLocation | None = None
) -> StructType:
    """A declared schema; DDL may have NOT NULL, COMMENT and GENERATED ... AS.

    Raises:
        DefinitionError: `SCHEMA_INVALID`.
    """
    if isinstance(schema, StructType):
        return schema
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    try:
        plan = parser.parsePlan(f"CREATE TABLE t (\n{schema}\n) USING delta")
        columns = plan.columns()
    except Exception as error:
        if not isinstance(error, ParseException) and "Py4J" not in type(error).__name__:
            raise
        raise DefinitionError(
            "SCHEMA_INVALID",
            f"the schema is not valid DDL: {first_line(error)}",
            origin=origin,
            hint="write `name TYPE [NOT NULL] [COMMENT 'text']`, separated by commas",
        ) from error
    jvm: Any = spark._jvm
    strings = jvm.org.apache.spark.sql.catalyst.util.CharVarcharUtils
    return StructType([_column(columns.apply(i), strings, origin) for i in range(columns.size())])


def table_state(spark: SparkSession, path: str) -> TableState | None:
    """The state of a table; `None` where there is none."""
    delta = DeltaJvm(spark)
    snapshot = delta.snapshot(path)
    if snapshot.version() < 0:
        return None
    return _state(delta, snapshot, delta.metadata(snapshot))


def read_version(spark: SparkSession, path: str) -> int | None:
    """The newest version of a table; `None` where there is none."""
    version = int(DeltaJvm(spark).snapshot(path).version())
    return version if version >= 0 else None


def prepare_table(spark: SparkSession, table: TableRef, spec: TableSpec) -> TableState:
    """Make a table, or bring the existing one in line; no commit when it is already.

    Raises:
        PlanError: `SCHEMA_INCOMPATIBLE`, `PARTITIONING_CHANGED`, `COLUMN_NAME_INVALID`,
            `PARTITION_COLUMN_UNKNOWN` or `TABLE_PROPERTY_INVALID`.
        SetupError: `TABLE_LOG_DAMAGED`.
    """
    delta = DeltaJvm(spark)
    _check_spec(table, spec)
    check_log(delta, table)
    snapshot = delta.snapshot(table.path)
    if snapshot.version() < 0:
        _create(delta, table, spec)
        created = table_state(spark, table.path)
        assert created is not None
        return created
    metadata = delta.metadata(snapshot)
    state = _state(delta, snapshot, metadata)
    if _alter(delta, table, spec, snapshot, metadata, state):
        altered = table_state(spark, table.path)
        assert altered is not None
        return altered
    return state


def prepare_quarantine(
    spark: SparkSession, quarantine: TableRef, target: TableState, *, replace_schema: bool = False
) -> TableState:
    """Make or evolve the quarantine table of a target: its columns, and why a row is there.

    Its columns become as wide as those of the target.

    Args:
        spark: Session.
        quarantine: The table.
        target: State of the table whose rows it takes.
        replace_schema: As in the target's `TableSpec`.
    """
    plain = plain_schema(target.schema, nullable=True, keep_comments=False)
    return prepare_table(
        spark,
        quarantine,
        TableSpec(
            schema=StructType([*plain.fields, *QUARANTINE_FIELDS]),
            partition_cols=target.partition_columns,
            comment="rows that broke a drop rule",
            replace_schema=replace_schema,
            widen=True,
        ),
    )


def reset_table(spark: SparkSession, table: TableRef) -> int | None:
    """Remove all rows in one commit, for a full refresh; nothing happens without a table.

    An empty table takes any schema and partitioning that `prepare_table` is asked for.

    Returns:
        The version that the commit made.

    Raises:
        SetupError: `TABLE_LOG_DAMAGED`.
    """
    delta = DeltaJvm(spark)
    check_log(delta, table)
    transaction = delta.begin(table.path)
    if transaction.snapshot().version() < 0:
        return None
    removed = [file.remove() for file in delta.items(transaction.filterFiles())]
    if not removed:
        return int(transaction.snapshot().version())
    operation = delta.write_operation("", overwrite=True)
    return int(transaction.commit(delta.seq(removed), operation))


# -- making ------------------------------------------------------------------------------------


def _check_spec(table: TableRef, spec: TableSpec) -> None:
    check_columns(spec.schema, table.name)
    names = {column.name.lower() for column in spec.schema}
    for column in (*spec.partition_cols, *spec.cluster_by):
        if column.split(".")[0].lower() not in names:
            raise PlanError(
                "PARTITION_COLUMN_UNKNOWN",
                f"{table.name} has no column {column!r} to partition or cluster by",
                origin=spec.origin,
            )
    if spec.properties.get("delta.columnMapping.mode", "none") == "none":
        for name in (column.name for column in spec.schema):
            if _FORBIDDEN_IN_NAMES.search(name):
                raise PlanError(
                    "COLUMN_NAME_INVALID",
                    f"column {name!r} of {table.name} has a character that a table column cannot"
                    " have",
                    origin=spec.origin,
                    hint="rename it with alias(), or set delta.columnMapping.mode to name",
                )


def _create(delta: DeltaJvm, table: TableRef, spec: TableSpec) -> None:
    schema = spec.table_schema()
    properties = _validated(delta, table, spec)
    if spec.cluster_by or has_identity(schema) or _has_default(schema):
        _build(delta, table, spec, schema, properties, replace=False)
        return
    transaction = delta.begin(table.path)
    content = _content(spec, schema, properties, transaction)
    metadata = delta.action({"metaData": content})
    transaction.updateMetadataForNewTable(metadata)
    transaction.commit(delta.seq([]), delta.create_operation(transaction.metadata()))


def _content(
    spec: TableSpec, schema: StructType, properties: Mapping[str, str], transaction: Any
) -> dict[str, Any]:
    canonical = {column.name.lower(): column.name for column in schema}
    content: dict[str, Any] = {
        "id": transaction.metadata().id(),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_json(schema),
        "partitionColumns": [canonical[name.lower()] for name in spec.partition_cols],
        "configuration": dict(properties),
        "createdTime": int(delta_clock(transaction)),
    }
    if spec.comment is not None:
        content["description"] = spec.comment
    return content


def delta_clock(transaction: Any) -> int:
    """Now, by the clock that the transaction's log uses, in milliseconds."""
    return int(transaction.clock().getTimeMillis())


def _build(
    delta: DeltaJvm,
    table: TableRef,
    spec: TableSpec,
    schema: StructType,
    properties: Mapping[str, str],
    *,
    replace: bool,
) -> None:
    """Through Delta's builder: what a plain metadata action cannot say."""
    from delta.tables import DeltaTable, IdentityGenerator

    make = DeltaTable.replace if replace else DeltaTable.createIfNotExists
    # Delta compares the place with its own spelling of it, and takes `file:///x` for another one.
    local = local_path(table.path)
    builder = make(delta.spark).location(table.path if local is None else str(local))
    for column in schema:
        metadata = column.metadata or {}
        always, by_default = metadata.get(_GENERATED), None
        if IDENTITY_START in metadata:
            numbers = IdentityGenerator(metadata[IDENTITY_START], metadata[IDENTITY_STEP])
            by_default = numbers if metadata[IDENTITY_EXPLICIT] else None
            always = None if by_default else numbers
        builder = builder.addColumn(
            column.name,
            column.dataType,
            nullable=column.nullable,
            generatedAlwaysAs=always,
            generatedByDefaultAs=by_default,
            comment=metadata.get("comment"),
        )
    if spec.partition_cols:
        builder = builder.partitionedBy(*spec.partition_cols)
    if spec.cluster_by:
        builder = builder.clusterBy(*spec.cluster_by)
    if spec.comment is not None:
        builder = builder.comment(spec.comment)
    for key, value in properties.items():
        builder = builder.property(key, value)
    builder.execute()


def _validated(delta: DeltaJvm, table: TableRef, spec: TableSpec) -> dict[str, str]:
    return check_properties(delta.spark, spec.properties, name=table.name, origin=spec.origin)


# -- altering ----------------------------------------------------------------------------------


def _alter(
    delta: DeltaJvm,
    table: TableRef,
    spec: TableSpec,
    snapshot: Any,
    metadata: TableMetadata,
    state: TableState,
) -> bool:
    wide, changes = _widening(spec, state)
    spec = _as_cast(spec, wide)
    if not _fits(table, spec, replace(state, schema=wide)):
        # Without rows there is nothing that could not be changed.
        if file_count(snapshot) > 0:
            _refuse(table, spec, replace(state, schema=wide))
        _replace_empty(delta, table, spec)
        return True
    changed = _set_properties(delta, table, spec, metadata)
    if changes:
        alter_types(delta, table, changes, origin=spec.origin)
        metadata = delta.metadata(delta.snapshot(table.path))
        state = replace(state, schema=metadata.schema)
        changed = True
    if tuple(c.lower() for c in spec.cluster_by) != tuple(c.lower() for c in state.cluster_by):
        columns = ", ".join(f"`{column}`" for column in spec.cluster_by) or "NONE"
        clause = f"({columns})" if spec.cluster_by else columns
        delta.spark.sql(f"ALTER TABLE delta.`{table.path}` CLUSTER BY {clause}")
        changed = True
    schema = _evolved(spec, state)
    comment = spec.comment if spec.comment is not None else metadata.comment
    if comment == metadata.comment and schema_json(schema) == schema_json(metadata.schema):
        return changed
    transaction = delta.begin(table.path)
    content = dict(delta.metadata(transaction).content, schemaString=schema_json(schema))
    if comment is not None:
        content["description"] = comment
    transaction.updateMetadata(delta.action({"metaData": content}), False)
    operation = delta.alter_operation(metadata.jvm, transaction.metadata())
    transaction.commit(delta.seq([]), operation)
    return True


def _as_cast(spec: TableSpec, table: StructType) -> TableSpec:
    """The wish with the types that its rows will have when they are written to a table."""
    if not spec.cast:
        return spec
    kinds = conformed(spec.schema, table)
    columns = [
        StructField(column.name, kind, column.nullable, column.metadata)
        for column, kind in zip(spec.schema, kinds, strict=True)
    ]
    return replace(spec, schema=StructType(columns))


def _widening(spec: TableSpec, state: TableState) -> tuple[StructType, tuple[TypeChange, ...]]:
    """The table's schema with the columns that are made wider, and what changes in it."""
    declared = {key.lower(): str(value).lower() for key, value in spec.properties.items()}
    kept = {key.lower(): value.lower() for key, value in state.properties.items()}
    said = declared.get(ENABLED.lower(), kept.get(ENABLED.lower()))
    wanted = spec.widen if said is None else said == "true"
    if not wanted or spec.widen is None or spec.replace_schema:
        return state.schema, ()
    return widen(state.schema, spec.schema)


def _fits(table: TableRef, spec: TableSpec, state: TableState) -> bool:
    """Whether the existing table can take the wish without losing its rows."""
    wanted = tuple(name.lower() for name in spec.partition_cols)
    if wanted != tuple(name.lower() for name in state.partition_columns):
        return False
    if spec.cluster_by and state.partition_columns:
        return False
    difference = compare(state.schema, spec.schema)
    return (spec.replace_schema or not difference.conflicts) and not _tightened(spec, state)


def _tightened(spec: TableSpec, state: TableState) -> tuple[str, ...]:
    if not spec.declared or spec.replace_schema:
        return ()
    nullable = {column.name.lower() for column in state.schema if column.nullable}
    return tuple(c.name for c in spec.schema if not c.nullable and c.name.lower() in nullable)


def _refuse(table: TableRef, spec: TableSpec, state: TableState) -> None:
    way_out = f"take the change back, or rebuild the table: --full-refresh {table.name}"
    if tuple(n.lower() for n in spec.partition_cols) != tuple(
        n.lower() for n in state.partition_columns
    ) or (spec.cluster_by and state.partition_columns):
        have = ", ".join(state.partition_columns) or "nothing"
        want = ", ".join(spec.partition_cols or spec.cluster_by) or "nothing"
        raise PlanError(
            "PARTITIONING_CHANGED",
            f"{table.name} is partitioned by {have}, declared is {want}",
            origin=spec.origin,
            hint=way_out,
        )
    if tightened := _tightened(spec, state):
        raise PlanError(
            "SCHEMA_INCOMPATIBLE",
            f"column {tightened[0]!r} of {table.name} is declared NOT NULL, but was not",
            origin=spec.origin,
            hint=way_out,
        )
    try:
        reconcile(
            state.schema,
            spec.schema,
            name=table.name,
            allow_missing=True,
            declared=spec.declared,
        )
    except PlanError as error:
        if spec.widen is not None and widen(state.schema, spec.schema)[1]:
            way = f"set the table property {ENABLED} to true to make it wider in place"
            error.hint = f"{error.hint}; or {way}"
        raise


def _replace_empty(delta: DeltaJvm, table: TableRef, spec: TableSpec) -> None:
    schema = spec.table_schema()
    properties = _validated(delta, table, spec)
    if spec.cluster_by or has_identity(schema) or _has_default(schema):
        _build(delta, table, spec, schema, properties, replace=True)
        return
    transaction = delta.begin(table.path)
    content = _content(spec, schema, properties, transaction)
    content["configuration"] = {**delta.metadata(transaction).configuration, **properties}
    transaction.updateMetadataForTableOverwrite(delta.action({"metaData": content}))
    transaction.commit(delta.seq([]), delta.replace_operation())


def _set_properties(
    delta: DeltaJvm, table: TableRef, spec: TableSpec, metadata: TableMetadata
) -> bool:
    have = metadata.configuration
    known = {key.lower(): value for key, value in have.items()}
    wanted = {
        key: str(value)
        for key, value in spec.properties.items()
        if not key.lower().startswith("delta.feature.")
    }
    differing = {k: v for k, v in wanted.items() if known.get(k.lower()) != v}
    if not differing:
        return False
    _validated(delta, table, replace(spec, properties=differing))
    pairs = ", ".join(f"{_literal(k)} = {_literal(v)}" for k, v in differing.items())
    delta.spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ({pairs})")
    return True


def _evolved(spec: TableSpec, state: TableState) -> StructType:
    if spec.replace_schema and compare(state.schema, spec.schema).conflicts:
        return state.schema
    merged = compare(state.schema, spec.schema).merged
    if not spec.declared:
        return merged
    declared = {column.name.lower(): column for column in spec.schema}
    columns = []
    for column in merged:
        wish = declared.get(column.name.lower())
        nullable, metadata = column.nullable, dict(column.metadata or {})
        if wish is not None:
            nullable = column.nullable or wish.nullable
            comment = (wish.metadata or {}).get("comment")
            if comment is not None:
                metadata["comment"] = comment
        columns.append(StructField(column.name, column.dataType, nullable, metadata))
    return StructType(columns)


# -- small parts -------------------------------------------------------------------------------


def _state(delta: DeltaJvm, snapshot: Any, metadata: TableMetadata) -> TableState:
    return TableState(
        id=metadata.id,
        version=int(snapshot.version()),
        schema=metadata.schema,
        partition_columns=metadata.partition_columns,
        cluster_by=delta.clustering_columns(snapshot),
        properties=metadata.configuration,
        comment=metadata.comment,
    )


def _column(definition: Any, strings: Any, origin: SourceLocation | None) -> StructField:
    import json

    metadata: dict[str, Any] = {}
    # Delta stores strings, and what was declared beside them.
    kind = definition.dataType()
    if strings.hasCharVarchar(kind):
        metadata[LENGTHS] = str(kind.catalogString())
    if definition.comment().isDefined():
        metadata["comment"] = definition.comment().get()
    generated = definition.generationExpression()
    if generated.isDefined():
        metadata[_GENERATED] = generated.get()
    if definition.defaultValue().isDefined():
        raise DefinitionError(
            "SCHEMA_INVALID",
            f"column {definition.name()!r}: DEFAULT has no meaning for a table that only its flows"
            " write",
            origin=origin,
            hint="compute the value in the query, or use GENERATED ALWAYS AS (expression)",
        )
    data_type = _data_type(json.loads(strings.replaceCharVarcharWithString(kind).json()))
    identity = definition.identityColumnSpec()
    if identity.isDefined():
        if not isinstance(data_type, LongType):
            raise DefinitionError(
                "SCHEMA_INVALID",
                f"column {definition.name()!r}: an identity column is BIGINT, not "
                + data_type.simpleString().upper(),
                origin=origin,
                hint=f"write `{definition.name()} BIGINT GENERATED ALWAYS AS IDENTITY`",
            )
        numbers = identity.get()
        metadata[IDENTITY_START] = int(numbers.getStart())
        metadata[IDENTITY_STEP] = int(numbers.getStep())
        metadata[IDENTITY_EXPLICIT] = bool(numbers.isAllowExplicitInsert())
    return StructField(definition.name(), data_type, bool(definition.nullable()), metadata)


def _data_type(content: Any) -> DataType:
    holder = {
        "type": "struct",
        "fields": [{"name": "x", "type": content, "nullable": True, "metadata": {}}],
    }
    return StructType.fromJson(holder)[0].dataType


def _has_default(schema: StructType) -> bool:
    return any("CURRENT_DEFAULT" in (column.metadata or {}) for column in schema)


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
