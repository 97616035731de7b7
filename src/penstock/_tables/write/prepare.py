"""Creates tables and alters them to their declaration; cheap if nothing changed.

Most tables are created by a transaction of our own, which takes a tenth of the time of SQL. Delta
chooses protocol and table features in both cases.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from penstock._model.exception_text import first_line
from penstock._model.origin import SourceLocation
from penstock._tables.delta_log import DeltaJvm, TableMetadata, file_count
from penstock._tables.files import local_path
from penstock._tables.layout import TableRef
from penstock._tables.read.damage import check_log
from penstock._tables.write.schema import (
    FORBIDDEN_IN_NAMES,
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
from penstock._tables.write.staging import QUARANTINE_FIELDS
from penstock._tables.write.widening import ENABLED, TypeChange, alter_types, widen
from penstock.errors import DefinitionError, PlanError

_GENERATED = "delta.generationExpression"
_FEATURE = "delta.feature."


OWNER = "penstock.pipeline"
"""Table property: the pipeline that writes a table in a storage that several of them share."""


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """The declaration of a table.

    With a `declared` schema, its nullability, generated columns and comments apply; a query's
    columns are all nullable. With `widen`, columns that are too narrow are widened in place; the
    property `delta.enableTypeWidening`, declared or of the table, takes precedence, and `None`
    forbids widening in any case.
    """

    schema: StructType
    declared: bool = False
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    comment: str | None = None  # None leaves the existing one
    properties: Mapping[str, str] = field(default_factory=dict)  # existing ones stay
    replace_schema: bool = False  # the next write replaces all rows, and an incompatible schema
    widen: bool | None = False
    cast: bool = False  # rows are cast if no value changes, so narrower columns fit
    origin: SourceLocation | None = None
    owner: str | None = None  # the pipeline, in a storage that several of them share


@dataclass(frozen=True, kw_only=True)
class TableState:
    """The newest version of a table; `id` changes when the table is dropped and recreated."""

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
    """A declared schema; DDL may have NOT NULL, COMMENT and GENERATED ... AS."""
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
    delta = DeltaJvm(spark)
    snapshot = delta.snapshot(path)
    return _state(delta, snapshot) if snapshot.version() >= 0 else None


def read_version(spark: SparkSession, path: str) -> int | None:
    version = DeltaJvm(spark).version(path)
    return version if version >= 0 else None


def prepare_table(spark: SparkSession, table: TableRef, spec: TableSpec) -> TableState:
    """Create a table, or alter the existing one; no commit if nothing changed."""
    delta = DeltaJvm(spark)
    _check_spec(table, spec)
    check_log(delta, table)
    snapshot = delta.snapshot(table.path)
    if snapshot.version() < 0:
        _create(delta, table, spec)
        return _state(delta, delta.snapshot(table.path))
    state = _state(delta, snapshot)
    _check_owner(table, spec, state)
    if _alter(delta, table, spec, snapshot, state):
        return _state(delta, delta.snapshot(table.path))
    return state


def _check_owner(table: TableRef, spec: TableSpec, state: TableState) -> None:
    owner = state.properties.get(OWNER)
    if owner == spec.owner:
        return
    change = f"UNSET TBLPROPERTIES ('{OWNER}')"
    if spec.owner is not None:
        change = f"SET TBLPROPERTIES ('{OWNER}' = '{spec.owner}')"
    origin = f"by pipeline {owner!r}" if owner else "without the setting `shared_storage`"
    raise PlanError(
        "TABLE_OF_ANOTHER_PIPELINE",
        f"table {table.name} was created {origin}",
        origin=spec.origin,
        hint="choose another name for the table; or give it to this pipeline, whose flows then "
        f"read their sources from the beginning: ALTER TABLE delta.`{table.path}` {change}",
    )


def prepare_quarantine(
    spark: SparkSession, quarantine: TableRef, target: TableState, *, replace_schema: bool = False
) -> TableState:
    """Create or alter the quarantine table of a target; it is widened with the target."""
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
    """Remove all rows in one commit; the newest version, `None` without a table.

    `prepare_table` can then change schema and partitioning in any way.
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


def check_properties(
    spark: SparkSession, properties: Mapping[str, str], *, name: str, origin: SourceLocation | None
) -> dict[str, str]:
    """Table properties with `delta.*` keys in Delta's own spelling."""
    declared = {str(key): str(value) for key, value in properties.items()}
    if not any(key.lower().startswith("delta.") for key in declared):
        return declared
    delta = DeltaJvm(spark)
    for key in declared:
        feature = key.lower().removeprefix(_FEATURE)
        if key.lower().startswith(_FEATURE) and not delta.has_feature(feature):
            raise PlanError(
                "TABLE_PROPERTY_INVALID",
                f"{key} of {name} is not supported: open-source Delta Lake does not know the table "
                "feature, or it requires catalog-managed commits, and tables are written by path",
                origin=origin,
            )
    try:
        return delta.validated_properties(declared)
    except Exception as error:
        raise PlanError(
            "TABLE_PROPERTY_INVALID",
            f"a table property of {name} is refused by Delta: {first_line(error)}",
            origin=origin,
        ) from error


# -- creating ----------------------------------------------------------------------------------


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
            if FORBIDDEN_IN_NAMES.search(name):
                raise PlanError(
                    "COLUMN_NAME_INVALID",
                    f"column {name!r} of {table.name} has a character that is not allowed in "
                    "column names",
                    origin=spec.origin,
                    hint="rename it with alias(), or set delta.columnMapping.mode to name",
                )


def _create(delta: DeltaJvm, table: TableRef, spec: TableSpec, *, replace: bool = False) -> None:
    schema = spec.schema if spec.declared else plain_schema(spec.schema, nullable=True)
    properties = check_properties(delta.spark, spec.properties, name=table.name, origin=spec.origin)
    if _needs_builder(spec, schema):
        _build(delta, table, spec, schema, properties, replace=replace)
        return
    transaction = delta.begin(table.path)
    content = _content(spec, schema, properties, transaction)
    if replace:
        content["configuration"] = {**delta.metadata(transaction).configuration, **properties}
        transaction.updateMetadataForTableOverwrite(delta.action({"metaData": content}))
        operation = delta.replace_operation()
    else:
        transaction.updateMetadataForNewTable(delta.action({"metaData": content}))
        operation = delta.create_operation(transaction.metadata())
    transaction.commit(delta.seq([]), operation)


def _needs_builder(spec: TableSpec, schema: StructType) -> bool:
    has_default = any("CURRENT_DEFAULT" in (column.metadata or {}) for column in schema)
    return bool(spec.cluster_by) or has_identity(schema) or has_default


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
        "createdTime": int(transaction.clock().getTimeMillis()),
    }
    if spec.comment is not None:
        content["description"] = spec.comment
    return content


def _build(
    delta: DeltaJvm,
    table: TableRef,
    spec: TableSpec,
    schema: StructType,
    properties: Mapping[str, str],
    *,
    replace: bool,
) -> None:
    from delta.tables import DeltaTable, IdentityGenerator

    make = DeltaTable.replace if replace else DeltaTable.createIfNotExists
    # Delta compares locations as strings, and `file:///x` would differ from its own spelling.
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


# -- altering ----------------------------------------------------------------------------------


def _alter(
    delta: DeltaJvm, table: TableRef, spec: TableSpec, snapshot: Any, state: TableState
) -> bool:
    metadata = delta.metadata(snapshot)
    wide, changes = _widening(spec, state)
    spec = _as_cast(spec, wide)
    if not _fits(spec, replace(state, schema=wide)):
        # A table without rows can be changed in any way.
        if file_count(snapshot) > 0:
            _refuse(table, spec, replace(state, schema=wide))
        _create(delta, table, spec, replace=True)
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
    if not spec.cast:
        return spec
    kinds = conformed(spec.schema, table)
    columns = [
        StructField(column.name, kind, column.nullable, column.metadata)
        for column, kind in zip(spec.schema, kinds, strict=True)
    ]
    return replace(spec, schema=StructType(columns))


def _widening(spec: TableSpec, state: TableState) -> tuple[StructType, tuple[TypeChange, ...]]:
    declared = {key.lower(): str(value).lower() for key, value in spec.properties.items()}
    have = {key.lower(): value.lower() for key, value in state.properties.items()}
    enabled = declared.get(ENABLED.lower(), have.get(ENABLED.lower()))
    widens = spec.widen if enabled is None else enabled == "true"
    if not widens or spec.widen is None or spec.replace_schema:
        return state.schema, ()
    return widen(state.schema, spec.schema)


def _fits(spec: TableSpec, state: TableState) -> bool:
    """Whether the existing table can be altered without losing its rows."""
    if _is_repartitioned(spec, state):
        return False
    difference = compare(state.schema, spec.schema)
    return (spec.replace_schema or not difference.conflicts) and not _tightened(spec, state)


def _is_repartitioned(spec: TableSpec, state: TableState) -> bool:
    want = [name.lower() for name in spec.partition_cols]
    have = [name.lower() for name in state.partition_columns]
    return want != have or bool(spec.cluster_by and have)


def _tightened(spec: TableSpec, state: TableState) -> tuple[str, ...]:
    if not spec.declared or spec.replace_schema:
        return ()
    nullable = {column.name.lower() for column in state.schema if column.nullable}
    return tuple(c.name for c in spec.schema if not c.nullable and c.name.lower() in nullable)


def _refuse(table: TableRef, spec: TableSpec, state: TableState) -> None:
    way_out = f"revert the change, or rebuild the table: --full-refresh {table.name}"
    if _is_repartitioned(spec, state):
        have = ", ".join(state.partition_columns) or "nothing"
        want = ", ".join(spec.partition_cols or spec.cluster_by) or "nothing"
        raise PlanError(
            "PARTITIONING_CHANGED",
            f"{table.name} is partitioned by {have}, but declared with {want}",
            origin=spec.origin,
            hint=way_out,
        )
    if tightened := _tightened(spec, state):
        raise PlanError(
            "SCHEMA_INCOMPATIBLE",
            f"column {tightened[0]!r} of {table.name} is declared NOT NULL, but is nullable in "
            "the table",
            origin=spec.origin,
            hint=way_out,
        )
    try:
        reconcile(
            state.schema, spec.schema, name=table.name, allow_missing=True, declared=spec.declared
        )
    except PlanError as error:
        if spec.widen is not None and widen(state.schema, spec.schema)[1]:
            way = f"set the table property {ENABLED} to true to widen the column in place"
            error.hint = f"{error.hint}; or {way}"
        raise


def _set_properties(
    delta: DeltaJvm, table: TableRef, spec: TableSpec, metadata: TableMetadata
) -> bool:
    have = metadata.configuration
    known = {key.lower(): value for key, value in have.items()}
    differing = {
        key: str(value)
        for key, value in spec.properties.items()
        if not key.lower().startswith(_FEATURE) and known.get(key.lower()) != str(value)
    }
    if not differing:
        return False
    check_properties(delta.spark, differing, name=table.name, origin=spec.origin)
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
        wanted = declared.get(column.name.lower())
        nullable, metadata = column.nullable, dict(column.metadata or {})
        if wanted is not None:
            nullable = column.nullable or wanted.nullable
            comment = (wanted.metadata or {}).get("comment")
            if comment is not None:
                metadata["comment"] = comment
        columns.append(StructField(column.name, column.dataType, nullable, metadata))
    return StructType(columns)


# -- parts -------------------------------------------------------------------------------------


def _state(delta: DeltaJvm, snapshot: Any) -> TableState:
    metadata = delta.metadata(snapshot)
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
    metadata: dict[str, Any] = {}
    # Delta stores STRING, and the declared type in the metadata.
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
            f"column {definition.name()!r}: DEFAULT has no effect, as only flows write the table",
            origin=origin,
            hint="compute the value in the query, or use GENERATED ALWAYS AS (expression)",
        )
    plain = json.loads(strings.replaceCharVarcharWithString(kind).json())
    data_type = StructField.fromJson({"name": "x", "type": plain, "nullable": True}).dataType
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


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
