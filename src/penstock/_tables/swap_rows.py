"""The rows of a table replaced by those of another one, in one commit; and back."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from penstock._model.exception_text import first_line
from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm, TableMetadata
from penstock._tables.fenced import FencedTable
from penstock._tables.layout import TableRef
from penstock._tables.prepare import reset_table
from penstock.errors import PlanError

_MAPPING = "delta.columnMapping."


def swap_rows(
    spark: SparkSession, *, target: TableRef, made: TableRef, flow: str, app_id: str, last: int
) -> CommitResult:
    """Replace the rows, columns and partitions of a table by those of another one.

    Readers see the old rows or the new ones. The commit says that the batches up to `last` of
    `app_id` are in, so whoever writes under that identity goes on behind them. Called again, it
    does nothing.

    Args:
        spark: The session.
        target: The table; it keeps its identity, properties and history.
        made: Where the rows are.
        flow: Name of the flow, for the record.
        app_id: Under which `made` was written.
        last: Its last batch there; -1 if there was none.
    """
    delta = DeltaJvm(spark)
    table = FencedTable(delta, target, app_id)
    batch_id = last if last >= 0 else None
    begun = table.begin(batch_id)
    result = CommitResult(flow=flow, app_id=app_id, batch_id=batch_id, version=None)
    if begun.done:
        return table.recorded(batch_id) or replace(result, replayed=True)
    wanted = delta.metadata(delta.snapshot(made.path))
    content = dict(begun.metadata.content, **_shape(wanted))
    if _shape(wanted) != _shape(begun.metadata):
        metadata = delta.action({"metaData": content})
        begun.transaction.updateMetadataForTableOverwrite(metadata)
    rows = spark.read.format("delta").load(made.path)
    added = list(delta.items(begun.transaction.writeFiles(rows._jdf)))
    result = replace(result, rows_written=rows.count())
    actions = [*table.removals(begun), *added]
    version = table.commit(begun, actions, batch_id, result, complete=True)
    return replace(result, version=version)


def _shape(metadata: TableMetadata) -> dict[str, Any]:
    """Columns and partition columns, without what column mapping has numbered."""
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
    """Bring a table back to an earlier version, by a commit; -1 = to no rows.

    Raises:
        PlanError: `MIGRATION_NOT_POSSIBLE`: the version, or files of it, are gone.
    """
    if version < 0:
        reset_table(spark, table)
        return
    try:
        spark.sql(f"RESTORE TABLE delta.`{table.path}` TO VERSION AS OF {version}").collect()
    except Exception as error:
        raise PlanError(
            "MIGRATION_NOT_POSSIBLE",
            f"{table.name} cannot go back to version {version}: {first_line(error)}",
            hint="what VACUUM or the retention of the log removed is gone; --full-refresh "
            f"{table.name} computes it anew",
        ) from error
