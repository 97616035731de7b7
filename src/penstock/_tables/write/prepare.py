"""Creates tables, or alters them to match their declaration; cheap if nothing changed."""

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock._model.sql_text import delta_table, literal
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import TableRef
from penstock._tables.read.damage import check_log
from penstock._tables.write.alter import alter_table
from penstock._tables.write.create import create_table
from penstock._tables.write.schema import column_mapping, plain_schema
from penstock._tables.write.staging import QUARANTINE_FIELDS
from penstock._tables.write.table_spec import OWNER, TableSpec, TableState, check_spec, state_of
from penstock.errors import PlanError


def prepare_table(spark: SparkSession, table: TableRef, spec: TableSpec) -> TableState:
    """Create a table, or alter the existing one; no commit if nothing changed."""
    delta = DeltaJvm(spark)
    check_spec(table.name, spec)
    check_log(delta, table)
    snapshot = delta.snapshot(table.path)
    if snapshot.version() < 0:
        create_table(delta, table, spec)
        return state_of(delta, delta.snapshot(table.path))
    state = state_of(delta, snapshot)
    _check_owner(table, spec, state)
    if alter_table(delta, table, spec, snapshot, state):
        return state_of(delta, delta.snapshot(table.path))
    return state


def _check_owner(table: TableRef, spec: TableSpec, state: TableState) -> None:
    owner = state.properties.get(OWNER)
    if owner == spec.owner:
        return
    change = f"UNSET TBLPROPERTIES ('{OWNER}')"
    if spec.owner is not None:
        change = f"SET TBLPROPERTIES ('{OWNER}' = {literal(spec.owner)})"
    origin = f"by pipeline {owner!r}" if owner else "without the setting `shared_storage`"
    raise PlanError(
        "TABLE_OF_ANOTHER_PIPELINE",
        f"table {table.name} was created {origin}",
        origin=spec.origin,
        hint="choose another name for the table; or give it to this pipeline, whose flows then "
        f"read their sources from the beginning: ALTER TABLE {delta_table(table.path)} {change}",
    )


def prepare_quarantine(
    spark: SparkSession, quarantine: TableRef, target: TableState, *, replace_schema: bool = False
) -> TableState:
    """Create or alter the quarantine table of a target; columns are widened as in the target."""
    plain = plain_schema(target.schema, nullable=True, keep_comments=False)
    schema = StructType([*plain.fields, *QUARANTINE_FIELDS])
    reserved = {field.name for field in QUARANTINE_FIELDS}
    for column in plain.names:
        if column.lower() in reserved:
            raise PlanError(
                "COLUMN_NAME_RESERVED",
                f"{quarantine.name} cannot have a column {column!r}: the name is reserved there",
                hint="rename the column, or set quarantine=False for the table",
            )
    return prepare_table(
        spark,
        quarantine,
        TableSpec(
            schema=schema,
            partition_cols=target.partition_columns,
            comment="rows that violated a drop rule",
            properties=column_mapping(schema),
            replace_schema=replace_schema,
            widen=True,
        ),
    )
