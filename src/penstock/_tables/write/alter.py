"""Alters an existing table to match its declaration."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.types import StructField, StructType

from penstock._model.sql_text import delta_table, literal, quoted
from penstock._tables.delta_log import DeltaJvm, file_count
from penstock._tables.layout import TableRef
from penstock._tables.write.create import create_table
from penstock._tables.write.schema import (
    KEPT_METADATA,
    LENGTHS,
    absent_key,
    compare,
    conformed,
    reconcile,
    schema_json,
)
from penstock._tables.write.table_spec import (
    FEATURE,
    TableSpec,
    TableState,
    check_properties,
    check_spec,
)
from penstock._tables.write.widening import ENABLED, TypeChange, alter_types, widen
from penstock.errors import PlanError


def alter_table(
    delta: DeltaJvm, table: TableRef, spec: TableSpec, snapshot: Any, state: TableState
) -> bool:
    """Alter a table to match its declaration; returns whether anything was changed."""
    wide, changes = _widening(spec, state)
    spec = _as_cast(spec, wide)
    fits = _fits(spec, replace(state, schema=wide))
    if not fits or _has_other_columns(spec, wide):
        # A table without rows can be changed in any way.
        if file_count(snapshot) == 0:
            create_table(delta, table, spec, replace=True)
            return True
        if not fits:
            _refuse(table, spec, replace(state, schema=wide))
    changed = _set_properties(delta, table, spec, state)
    if changes:
        alter_types(delta, table, changes, origin=spec.origin)
        changed = True
    if changed:  # column mapping gives each column an id and a physical name
        state = replace(state, schema=delta.metadata(delta.snapshot(table.path)).schema)
    if _folded(spec.cluster_by) != _folded(state.cluster_by):
        columns = ", ".join(quoted(*name) for name in spec.clustering()) or "NONE"
        clause = f"({columns})" if spec.cluster_by else columns
        delta.spark.sql(f"ALTER TABLE {delta_table(table.path)} CLUSTER BY {clause}")
        changed = True
    schema = _evolved(spec, state)
    is_described = spec.comment in (None, state.comment)
    if is_described and schema_json(schema) == schema_json(state.schema):
        return changed
    transaction = delta.begin(table.path)
    before = delta.metadata(transaction)
    content = dict(before.content, schemaString=schema_json(schema))
    if not is_described:
        content["description"] = spec.comment
    transaction.updateMetadata(delta.action({"metaData": content}), False)
    operation = delta.alter_operation(before.jvm, transaction.metadata())
    transaction.commit(delta.seq([]), operation)
    return True


def planned_changes(
    table: TableRef, spec: TableSpec, state: TableState, *, has_rows: bool
) -> list[str]:
    """The changes that `alter_table` would make, for messages; raises the same errors."""
    check_spec(table.name, spec)
    wide, widened = _widening(spec, state)
    spec, before = _as_cast(spec, wide), replace(state, schema=wide)
    fits = _fits(spec, before)
    if not has_rows and (not fits or _has_other_columns(spec, wide)):
        return ["the table, which has no rows, is created again"]
    if not fits:
        _refuse(table, spec, before)
    changes = [f"column {change}" for change in widened]
    if not (spec.replace_schema and compare(wide, spec.schema).conflicts):
        changes += [f"column {name!r} is new" for name in compare(wide, spec.schema).added]
    differing = _differing(spec, state.properties)
    changes += [f"property {name} = {value}" for name, value in differing.items()]
    if _folded(spec.cluster_by) != _folded(state.cluster_by):
        changes.append(f"clustered by {', '.join(spec.cluster_by) or 'nothing'}")
    if spec.comment not in (None, state.comment):
        changes.append(f"comment {spec.comment!r}")
    if not changes and schema_json(_evolved(spec, before)) != schema_json(state.schema):
        changes.append("nullability, comments or lengths of columns")
    return changes


def _folded(columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(column.lower() for column in columns)


def _as_cast(spec: TableSpec, table: StructType) -> TableSpec:
    if not spec.cast:
        return spec
    return replace(spec, schema=conformed(spec.schema, table))


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
    if _is_repartitioned(spec, state) or absent_key(state.schema, spec.keys, ""):
        return False
    difference = compare(state.schema, spec.schema)
    return (spec.replace_schema or not difference.conflicts) and not _tightened(spec, state)


def _has_other_columns(spec: TableSpec, table: StructType) -> bool:
    """Whether the table has columns that are not in its query, which its writer would refuse."""
    return not spec.declared and bool(compare(table, spec.schema).missing)


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
    if error := absent_key(state.schema, spec.keys, table.name):
        error.origin = spec.origin
        raise error
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


def _set_properties(delta: DeltaJvm, table: TableRef, spec: TableSpec, state: TableState) -> bool:
    differing = _differing(spec, state.properties)
    if not differing:
        return False
    check_properties(delta.spark, spec.properties, name=table.name, origin=spec.origin)
    pairs = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in differing.items())
    delta.spark.sql(f"ALTER TABLE {delta_table(table.path)} SET TBLPROPERTIES ({pairs})")
    return True


def _differing(spec: TableSpec, have: Mapping[str, str]) -> dict[str, str]:
    known = {key.lower(): value for key, value in have.items()}
    return {
        key: str(value)
        for key, value in spec.properties.items()
        if not key.lower().startswith(FEATURE) and known.get(key.lower()) != str(value)
    }


def _evolved(spec: TableSpec, state: TableState) -> StructType:
    if spec.replace_schema and compare(state.schema, spec.schema).conflicts:
        return state.schema
    declared = {column.name.lower(): column for column in spec.schema if spec.declared}
    columns = []
    for column in compare(state.schema, spec.schema).merged:
        wanted = declared.get(column.name.lower())
        nullable, metadata = column.nullable, dict(column.metadata or {})
        metadata.pop(LENGTHS, None)  # only a declaration limits the values of later updates
        if wanted is not None:
            nullable = column.nullable or wanted.nullable
            known = wanted.metadata or {}
            metadata |= {key: known[key] for key in KEPT_METADATA if known.get(key) is not None}
        columns.append(StructField(column.name, column.dataType, nullable, metadata))
    return StructType(columns)
