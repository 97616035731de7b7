"""One job for two tables: a transaction that writes the files and is never committed.

Its schema is the target's plus the helper columns, partitioned by the destination first. Files with
`penstock_dest=table` are committed to the target, the others are written into the folder of the
quarantine table and committed there. Helper columns that are NULL in all valid rows are left out of
the target's files; readers ignore the others.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from penstock._model.expectation import FAILED_RULES, ROW, SOURCE
from penstock._model.sql_text import quoted
from penstock._tables.commits import RuleCounts
from penstock._tables.delta_log import DeltaJvm, TableMetadata
from penstock._tables.files import hadoop_path, local_path
from penstock._tables.write.schema import COLUMN_MAPPING, has_identity, leaf_count, schema_json
from penstock.quality.split import DESTINATION, MASK_PREFIX, TO_QUARANTINE, TO_TABLE, RowSplit

_INDEXED = "delta.dataSkippingNumIndexedCols"
_STATS_COLUMNS = "delta.dataSkippingStatsColumns"
_CONSTRAINT = "delta.constraints."
_DEFAULT_INDEXED = 32
_MASK_STATISTIC = re.compile(rf'"{MASK_PREFIX}\d+":\d+,|,?"{MASK_PREFIX}\d+":\d+(?=\}})')

RuleHistogram: TypeAlias = Counter[tuple[int | None, ...]]
"""Rows by the values of the mask columns."""

BAD_FOLDER = f"{DESTINATION}={TO_QUARANTINE}"
QUARANTINE_FIELDS = (
    StructField(FAILED_RULES, ArrayType(StringType())),
    StructField(ROW, StringType()),
    StructField(SOURCE, StringType()),
)


def can_stage(delta: DeltaJvm, metadata: TableMetadata) -> bool:
    """Whether files written for a staging schema are valid files of this table.

    Not with column mapping (physical names), IcebergCompat, identity columns (the transaction that
    writes has their high-water mark) and invariants of the old form; nor in a borrowed session
    without Penstock's Java classes.
    """
    if not delta.has_own_classes:
        return False
    configuration = metadata.configuration
    if configuration.get(COLUMN_MAPPING, "none").lower() != "none":
        return False
    if any(key.startswith("delta.enableIcebergCompat") for key in configuration):
        return False
    schema = metadata.schema
    has_invariants = any("delta.invariants" in (column.metadata or {}) for column in schema)
    return not has_invariants and not has_identity(schema)


def staging_metadata(
    delta: DeltaJvm, metadata: TableMetadata, schema: StructType, split: RowSplit
) -> Any:
    """Metadata of the staging transaction, given the target's and its schema after evolution.

    The target's constraints apply only to the rows for the target; the staging schema states them
    that way, so that Delta itself enforces them while it writes.
    """
    masks = [StructField(name, LongType()) for name in split.masks]
    helpers = list(QUARANTINE_FIELDS) if split.quarantine else []
    destination = StructField(DESTINATION, StringType())
    content = dict(metadata.content)
    # Data columns are nullable: no constraint may reject a row for the quarantine.
    content["schemaString"] = schema_json(
        StructType([*masks, *schema.toNullable(), *helpers, destination])
    )
    content["partitionColumns"] = [DESTINATION, *metadata.partition_columns]
    content["configuration"] = _configuration(metadata, schema, split)
    return delta.action({"metaData": content})


def _configuration(metadata: TableMetadata, schema: StructType, split: RowSplit) -> dict[str, str]:
    have = metadata.configuration
    quarantined = f"{DESTINATION} = '{TO_QUARANTINE}'"
    result = {
        key: f"{quarantined} OR ({value})" if key.startswith(_CONSTRAINT) else value
        for key, value in have.items()
    }
    # Masks come first, so that their statistics do not displace those of the table's columns.
    if _STATS_COLUMNS in have:
        result[_STATS_COLUMNS] = ",".join([*split.masks, have[_STATS_COLUMNS]])
    else:
        partitioned = {name.lower() for name in metadata.partition_columns}
        leaves = leaf_count([c for c in schema if c.name.lower() not in partitioned])
        indexed = int(have.get(_INDEXED, _DEFAULT_INDEXED))
        own = leaves if indexed < 0 else min(leaves, indexed)
        result[_INDEXED] = str(len(split.masks) + own)
    if not metadata.partition_columns:  # neither table has the destination column
        result["delta.writePartitionColumnsToParquet"] = "false"
    for path in _required(schema):
        key = f"{_CONSTRAINT}penstock_not_null_{'.'.join(path).lower()}"
        result[key] = f"{quarantined} OR {quoted(*path)} IS NOT NULL"
    return result


def _required(schema: StructType, *parents: str) -> Iterator[tuple[str, ...]]:
    """Columns and struct fields that are NOT NULL; Delta does not allow NOT NULL elsewhere."""
    for column in schema:
        if not column.nullable:
            yield (*parents, column.name)
        if isinstance(column.dataType, StructType):
            yield from _required(column.dataType, *parents, column.name)


@dataclass
class RowCounts:
    """Rows of one batch by destination, and by rule over both."""

    clean_rows: int
    bad_rows: int
    rules: dict[str, RuleCounts]
    by: Counter[int] = field(default_factory=Counter)  # valid rows per value of a column


def sort_files(
    spark: SparkSession, files: list[dict[str, Any]], split: RowSplit, roots: tuple[str, str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], RowCounts]:
    """Group `AddFile` contents by destination, and count their rows and violated rules.

    Counts come from the final files: a task that was retried or speculated counts once. Only files
    with a row that violates a rule are read. `roots` are the folders of good and bad files.
    """
    good, bad, counts = [], [], RowCounts(0, 0, {})
    to_count = []
    for file in files:
        values = dict(file["partitionValues"])
        is_bad = values.pop(DESTINATION, None) == TO_QUARANTINE
        statistics = json.loads(file["stats"])
        rows = int(statistics["numRecords"])
        nulls: Mapping[str, int] = statistics.get("nullCount", {})
        if any(nulls[mask] < rows for mask in split.masks):
            to_count.append(f"{roots[is_bad]}/{unquote(file['path'])}")
        final = dict(file, partitionValues=values, stats=without_masks(file["stats"]))
        if is_bad:
            bad.append(final)
            counts.bad_rows += rows
        else:
            good.append(final)
            counts.clean_rows += rows
    masks = count_masks(spark, to_count, split) if to_count else RuleHistogram()
    counts.rules = _rule_counts(masks, split, counts.clean_rows + counts.bad_rows)
    return good, bad, counts


def _rule_counts(histogram: RuleHistogram, split: RowSplit, total: int) -> dict[str, RuleCounts]:
    failed = dict.fromkeys(split.rules, 0)
    for masks, rows in histogram.items():
        values = dict(zip(split.masks, masks, strict=True))
        for rule, (mask, bit) in split.bits.items():
            if (values[mask] or 0) & bit:
                failed[rule] += rows
    return {rule: RuleCounts(total - rows, rows) for rule, rows in failed.items()}


def count_masks(spark: SparkSession, files: list[str], split: RowSplit) -> RuleHistogram:
    """Read the mask columns of files back (with Spark from remote storage) and count them."""
    histogram: RuleHistogram = Counter()
    local = [path for path in map(local_path, files) if path is not None]
    if len(local) == len(files):
        for file in local:
            table = pq.ParquetFile(file).read(columns=list(split.masks))
            counted = table.group_by(list(split.masks)).aggregate([([], "count_all")])
            for row in counted.to_pylist():
                histogram[tuple(row[mask] for mask in split.masks)] += row["count_all"]
        return histogram
    # Without a schema, Spark would run a job that reads the footers.
    masks = StructType([StructField(mask, LongType()) for mask in split.masks])
    rows = spark.read.schema(masks).parquet(*files)
    for row in rows.groupBy(*split.masks).count().collect():
        histogram[tuple(row[mask] for mask in split.masks)] += row["count"]
    return histogram


def without_masks(statistics: str) -> str:
    """A file's statistics without those of the mask columns.

    Edited as a string: parsing numbers in Python would lose digits of decimals. Quotes within
    values are escaped, so the pattern matches keys only.
    """
    return _MASK_STATISTIC.sub("", statistics)


def data_columns(split: RowSplit) -> list[Column]:
    return [F.col(quoted(column)) for column in split.data_columns]


def valid_rows(batch: DataFrame, split: RowSplit | None) -> DataFrame:
    if split is None:
        return batch
    return batch.where(F.col(DESTINATION) == TO_TABLE).select(*data_columns(split))


def counted_columns(split: RowSplit, by: str | None) -> list[str]:
    return [DESTINATION, *split.masks, *([] if by is None else [by])]


def count_values(histogram: Mapping[tuple[Any, ...], int], split: RowSplit | None) -> RowCounts:
    """The counts of a batch, given its rows by the values of `counted_columns`."""
    if split is None:
        return RowCounts(sum(histogram.values()), 0, {})
    counts, masks = RowCounts(0, 0, {}), RuleHistogram()
    for (destination, *values), rows in histogram.items():
        masks[tuple(values[: len(split.masks)])] += rows
        if destination != TO_TABLE:
            counts.bad_rows += rows
        else:
            counts.clean_rows += rows
            if len(values) > len(split.masks):
                counts.by[values[-1]] += rows
    counts.rules = _rule_counts(masks, split, counts.clean_rows + counts.bad_rows)
    return counts


def delete_files(delta: DeltaJvm, files: Iterable[str], table: str) -> None:
    """Delete data files (`path` of `AddFile`) that are in no version of a table."""
    here = local_path(table)
    for file in files:
        relative = unquote(file)
        if here is not None:
            path = here / relative
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        else:
            system, remote = hadoop_path(delta.spark, f"{table}/{relative}")
            system.delete(remote, False)
