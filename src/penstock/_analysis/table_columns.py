"""Checks of the columns in a table's declaration against its query."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, TimestampType

from penstock._model.dataset import Dataset
from penstock._model.flow import Flow, OutputMode
from penstock._tables.write.schema import has_identity
from penstock._tables.write.table_spec import parse_schema
from penstock.errors import DefinitionError


def declared_schema(spark: SparkSession, declared: Dataset) -> StructType | None:
    """The declared columns of a dataset; `None` if the columns of its query apply."""
    if declared.schema is None:
        return None
    return parse_schema(spark, declared.schema, origin=declared.origin)


def check_columns(df: DataFrame, flow: Flow, mode: OutputMode | None, declared: Dataset) -> None:
    """Refuse partitions by a field of a struct or by local time; check the de-duplication."""
    fields = {field.name.lower(): field for field in df.schema}
    for column in declared.partition_cols:
        known = fields.get(column.lower())
        if known is not None and isinstance(known.dataType, TimestampType):
            _check_time_zone(df.sparkSession, column, declared)
        outer, dot, inner = column.partition(".")
        parent = fields.get(outer.lower())
        if not dot or column.lower() in fields or parent is None:
            continue
        if isinstance(parent.dataType, StructType):
            raise DefinitionError(
                "PARTITION_COLUMN_NESTED",
                f"{declared.name!r} cannot be partitioned by {column!r}: {inner!r} is a field of "
                f"the struct {outer!r}, and a partition column must be a top-level column",
                origin=declared.origin,
                hint="df.transform(penstock.timing.window_columns) replaces a window by "
                f"{outer}_start and {outer}_end; then partition by {column.replace('.', '_')!r}",
            )
    if declared.deduplicate_by:
        _check_deduplication(df, flow, mode, declared)


def _check_time_zone(spark: SparkSession, column: str, declared: Dataset) -> None:
    """Refuse a time zone with repeated hours: Spark writes partition values as local time."""
    jvm: Any = spark._jvm
    zone = spark.conf.get("spark.sql.session.timeZone")
    times = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils
    now = jvm.java.time.Instant.now()
    if times.getZoneId(zone).getRules().nextTransition(now) is not None:
        raise DefinitionError(
            "PARTITION_TIME_AMBIGUOUS",
            f"{declared.name!r} cannot be partitioned by the TIMESTAMP {column!r} in the session "
            f"time zone {zone}: partition values are stored as local time, so an hour that is "
            "repeated at the end of daylight saving time would be merged with the one before",
            origin=declared.origin,
            hint=f"partition by a date, such as to_date({column}), or set "
            "spark.sql.session.timeZone to UTC",
        )


def _check_deduplication(
    df: DataFrame, flow: Flow, mode: OutputMode | None, declared: Dataset
) -> None:
    reason = ""
    known = {name.lower() for name in df.columns}
    unknown = [column for column in declared.deduplicate_by if column.lower() not in known]
    if unknown:
        reason = f"the query has no column {unknown[0]!r}"
    elif flow.cdc is not None or flow.snapshot is not None:
        reason = "an auto CDC table has one row per key already"
    elif mode is None and not flow.once:
        reason = "its query is not a stream: use dropDuplicates in it"
    elif mode in (OutputMode.COMPLETE, OutputMode.UPDATE):
        reason = f"in {mode.value} mode rows are replaced, not added"
    if reason:
        raise DefinitionError(
            "DEDUPLICATION_NOT_AVAILABLE",
            f"flow {flow.name!r} cannot deduplicate by {', '.join(declared.deduplicate_by)}: "
            f"{reason}",
            origin=flow.origin,
            hint=f"columns: {', '.join(df.columns)}" if unknown else None,
        )


def check_identity(
    schema: StructType, flow: Flow, mode: OutputMode | None, declared: Dataset
) -> None:
    """Refuse an identity column if rows are changed after they were written."""
    if not has_identity(schema):
        return
    reason = ""
    if flow.cdc is not None or flow.snapshot is not None:
        reason = "auto CDC changes its rows"
    elif mode is OutputMode.UPDATE:
        reason = f"flow {flow.name!r} updates its rows"
    if reason:
        raise DefinitionError(
            "SCHEMA_INVALID",
            f"{declared.name!r} cannot have an identity column: {reason}, and Delta would number "
            "them again each time",
            origin=declared.origin,
            hint="give it to a streaming table that only adds rows, or compute a key of the row's "
            "columns, such as xxhash64(...)",
        )
