"""Replaces the rows of a table by those of another table in one commit, and restores them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from penstock._model.exception_text import first_line
from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm, TableMetadata
from penstock._tables.layout import TableRef
from penstock._tables.write.fenced import FencedTable
from penstock._tables.write.prepare import reset_table
from penstock.errors import PlanError

_MAPPING = "delta.columnMapping."


def swap_rows(
    spark: SparkSession, *, target: TableRef, source: TableRef, flow: str, app_id: str, last: int
) -> CommitResult:
    """Replace the rows, columns and partitions of a table; id, properties and history stay.

    Readers see the old rows or the new ones. The commit records batch `last` of `app_id` (-1 =
    none), so a writer with that app id continues after it. Called again, it does nothing.
    """
    delta = DeltaJvm(spark)
    table = FencedTable(delta, target, app_id)
    batch_id = last if last >= 0 else None
    txn = table.begin(batch_id)
    result = CommitResult(flow=flow, app_id=app_id, batch_id=batch_id, version=None)
    if txn.is_committed:
        return table.recorded(batch_id) or replace(result, replayed=True)
    shape = _shape(delta.metadata(delta.snapshot(source.path)))
    if shape != _shape(txn.metadata):
        metadata = delta.action({"metaData": dict(txn.metadata.content, **shape)})
        txn.jvm.updateMetadataForTableOverwrite(metadata)
    rows = spark.read.format("delta").load(source.path)
    added = delta.write_files(txn.jvm, rows)
    result = replace(result, rows_written=rows.count())
    actions = [*table.removals(txn), *added]
    version = table.commit(txn, actions, batch_id, result, complete=True)
    return replace(result, version=version)


def _shape(metadata: TableMetadata) -> dict[str, Any]:
    """Columns and partition columns, without the ids of column mapping."""
    schema = json.loads(metadata.content["schemaString"])
    return {
        "schemaString": json.dumps(_unmapped(schema), separators=(",", ":")),
        "partitionColumns": list(metadata.partition_columns),
    }


def _unmapped(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {
            key: _unmapped(value) for key, value in part.items() if not key.startswith(_MAPPING)
        }
    return [_unmapped(item) for item in part] if isinstance(part, list) else part


def restore_rows(spark: SparkSession, table: TableRef, version: int) -> None:
    """Restore an earlier version of a table in a commit; -1 = no rows."""
    if version < 0:
        reset_table(spark, table)
        return
    try:
        spark.sql(f"RESTORE TABLE delta.`{table.path}` TO VERSION AS OF {version}").collect()
    except Exception as error:
        raise PlanError(
            "MIGRATION_NOT_POSSIBLE",
            f"{table.name} cannot be restored to version {version}: {first_line(error)}",
            hint="VACUUM or log retention has deleted its files; --full-refresh "
            f"{table.name} recomputes the table",
        ) from error
