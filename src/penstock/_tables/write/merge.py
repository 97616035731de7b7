"""Replaces all rows of some keys by Delta's MERGE."""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._model.sql_text import quoted
from penstock._tables.commits import CommitResult
from penstock._tables.jvm import dataframe
from penstock._tables.session_conf import own_session
from penstock._tables.write.cdc_events import START_AT, comparable
from penstock._tables.write.fenced import FencedTable, TableTransaction
from penstock._tables.write.key_joins import anti_join, key_names, of_keys
from penstock._tables.write.schema import columns_as

_ACTION = "penstock_action"
_WRITE_CONF = "spark.databricks.delta.write."
_CONSTRAINTS = "spark.sql.constraintPropagation.enabled"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def merge_rows(
    table: FencedTable,
    txn: TableTransaction,
    touched: DataFrame,
    rows: DataFrame,
    result: CommitResult,
    *,
    deletes: bool,
) -> int | None:
    """Replace all rows of some keys; see `KeyedTable.replace`."""
    from delta.tables import DeltaTable

    # MERGE starts its own transaction.
    txn = table.commit_evolution(txn, None)
    session = rows.sparkSession
    # Values are compared with those of the table, in which nested fields may have another order.
    known = {name.lower() for name in rows.columns}
    columns_of_table = [f for f in txn.metadata.schema if f.name.lower() in known]
    rows = rows.select(*columns_as(StructType(columns_of_table), rows.schema.fields))
    keys = key_names(touched)
    has_history = deletes and START_AT in rows.columns
    identity = [*keys, START_AT] if has_history else keys
    changes = rows.withColumn(_ACTION, F.lit(1))
    if deletes:
        if has_history:
            path = table.ref.path
            have = of_keys(session.read.format("delta").load(path), touched)
        else:
            # A key that the table does not have matches no row.
            have = touched.select(*[F.col("k").getField(key).alias(key) for key in keys])
        have = have.select(*[F.col(quoted(name)) for name in identity])
        gone = anti_join(have, rows.select(*[F.col(quoted(n)) for n in identity]))
        deletions = gone.withColumn(_ACTION, F.lit(0))
        changes = changes.unionByName(deletions, allowMissingColumns=True)
    stays = F.col(f"s.{_ACTION}") == 1
    columns: dict[str, str | Column] = {quoted(name): f"s.{quoted(name)}" for name in rows.columns}
    same = [
        comparable(F.col(f"t.{quoted(f.name)}"), f.dataType).eqNullSafe(
            comparable(F.col(f"s.{quoted(f.name)}"), f.dataType)
        )
        for f in rows.schema
    ]
    matches = [F.col(f"t.{quoted(n)}").eqNullSafe(F.col(f"s.{quoted(n)}")) for n in identity]
    # In a separate session: other flows and the user's code share this one.
    own = own_session(session, _merge_conf(table.app_id, result))
    (
        DeltaTable.forPath(own, table.ref.path)
        .alias("t")
        .merge(
            dataframe(own, changes._jdf.logicalPlan()).alias("s"),
            reduce(Column.__and__, matches),
        )
        .whenMatchedDelete(condition=~stays)
        .whenMatchedUpdate(condition=stays & ~reduce(Column.__and__, same), set=columns)
        .whenNotMatchedInsert(condition=stays, values=columns)
        .execute()
    )
    recorded = table.recorded(result.batch_id)
    return recorded.version if recorded else None


def _merge_conf(app_id: str, result: CommitResult) -> dict[str, str]:
    """The confs of one MERGE, with its transaction id and its record.

    MERGE takes both only from the session's configuration, and any later statement of this session
    would inherit them and be silently skipped.

    Constraint propagation of the optimizer is disabled: its time grows with the square of the
    number of columns, and for a history of 20 columns exceeds that of the rest of the MERGE.
    """
    settings = {_USER_METADATA: result.to_metadata(), _CONSTRAINTS: "false"}
    if result.batch_id is not None:
        settings[f"{_WRITE_CONF}txnAppId"] = app_id
        settings[f"{_WRITE_CONF}txnVersion"] = str(result.batch_id)
    return settings
