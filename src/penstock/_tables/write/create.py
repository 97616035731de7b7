"""Creates tables, and removes their rows.

Most tables are created by a direct transaction, which takes a tenth of the time of SQL. Delta
chooses protocol and table features in both cases.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from penstock._model.sql_text import quoted
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import local_path
from penstock._tables.jvm import iterate
from penstock._tables.layout import TableRef
from penstock._tables.read.damage import check_log
from penstock._tables.read.live_files import LiveFiles
from penstock._tables.write.schema import (
    has_identity,
    plain_schema,
    schema_json,
)
from penstock._tables.write.table_spec import TableSpec, check_properties

_DEFAULTS = ("CURRENT_DEFAULT", "EXISTS_DEFAULT")


def create_table(
    delta: DeltaJvm, table: TableRef, spec: TableSpec, *, replace: bool = False
) -> None:
    schema = _declared(spec.schema) if spec.declared else plain_schema(spec.schema, nullable=True)
    properties = check_properties(delta.spark, spec.properties, name=table.name, origin=spec.origin)
    if spec.cluster_by or has_identity(schema):
        _build(delta, table, spec, schema, properties, replace=replace)
        return
    transaction = delta.begin(table.path, writes=True)
    content = _content(spec, schema, properties, transaction)
    if replace:
        content["configuration"] = {**delta.metadata(transaction).configuration, **properties}
        transaction.updateMetadataForTableOverwrite(delta.action({"metaData": content}))
        operation = delta.write_operation(overwrite=True, new_schema=True)
    else:
        transaction.updateMetadataForNewTable(delta.action({"metaData": content}))
        operation = delta.create_operation(transaction.metadata())
    transaction.commit(delta.seq([]), operation)


def _declared(schema: StructType) -> StructType:
    """Declared columns without default values, which have no effect: flows write all columns."""
    columns = []
    for column in schema:
        metadata = {k: v for k, v in (column.metadata or {}).items() if k not in _DEFAULTS}
        columns.append(StructField(column.name, column.dataType, column.nullable, metadata))
    return StructType(columns)


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
    from delta.tables import DeltaTable

    make = DeltaTable.replace if replace else DeltaTable.createIfNotExists
    # Delta compares locations as strings, and `file:///x` would differ from its own spelling.
    local = local_path(table.path)
    location = table.path if local is None else str(local)
    builder = make(delta.spark).location(location).addColumns(schema)
    if spec.partition_cols:
        builder = builder.partitionedBy(*spec.partition_cols)
    if spec.cluster_by:
        builder = builder.clusterBy(*(quoted(*name) for name in spec.clustering()))
    if spec.comment is not None:
        builder = builder.comment(spec.comment)
    for key, value in properties.items():
        builder = builder.property(key, value)
    builder.execute()


def reset_table(spark: SparkSession, table: TableRef) -> int | None:
    """Remove all rows in one commit; returns the newest version, `None` if there is no table.

    `prepare_table` can then change schema and partitioning in any way.
    """
    delta = DeltaJvm(spark)
    check_log(delta, table)
    transaction = delta.begin(table.path)
    if transaction.snapshot().version() < 0:
        return None
    transaction.readWholeTable()
    removed = list(iterate(LiveFiles(delta, table.path).removals(transaction.snapshot())))
    if not removed:
        return int(transaction.snapshot().version())
    operation = delta.write_operation("", overwrite=True)
    return int(transaction.commit(delta.seq(removed), operation))
