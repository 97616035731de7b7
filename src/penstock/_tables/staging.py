"""One job for two tables: a transaction that writes the files and is never committed.

Its schema is the target's plus the helper columns, partitioned by the destination first. The files
of `penstock_dest=table` are committed to the target as they are (a reader never looks at columns
that the table does not have), the others are moved into the quarantine table and committed there.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from penstock._tables.commits import RuleCounts
from penstock._tables.delta_log import DeltaJvm, TableMetadata
from penstock._tables.files import local_path
from penstock._tables.schema import as_nullable, has_identity, leaf_count, schema_json
from penstock.quality.rules import quoted
from penstock.quality.split import (
    DESTINATION,
    FAILED_RULES,
    MASK_PREFIX,
    ROW,
    SOURCE,
    TO_QUARANTINE,
    TO_TABLE,
    RowSplit,
    is_broken,
)

_INDEXED = "delta.dataSkippingNumIndexedCols"
_STATS_COLUMNS = "delta.dataSkippingStatsColumns"
_CONSTRAINT = "delta.constraints."
_DEFAULT_INDEXED = 32
_MASK_STATISTIC = re.compile(rf'"{MASK_PREFIX}\d+":\d+,|,?"{MASK_PREFIX}\d+":\d+(?=\}})')

RuleHistogram: TypeAlias = Counter[tuple[int | None, ...]]
"""Rows by the values of the mask columns."""

QUARANTINE_FIELDS = (
    StructField(FAILED_RULES, ArrayType(StringType())),
    StructField(ROW, StringType()),
    StructField(SOURCE, StringType()),
)


def can_stage(metadata: TableMetadata) -> bool:
    """Whether files written for a staging schema are valid files of this table.

    Not with column mapping (physical names), identity columns (their high-water mark is in the
    transaction that writes) and the old form of invariants.
    """
    configuration = metadata.configuration
    if configuration.get("delta.columnMapping.mode", "none").lower() != "none":
        return False
    if any(key.startswith("delta.enableIcebergCompat") for key in configuration):
        return False
    schema = metadata.schema
    has_invariants = any("delta.invariants" in (column.metadata or {}) for column in schema)
    return not has_invariants and not has_identity(schema)


def staging_metadata(
    delta: DeltaJvm, metadata: TableMetadata, schema: StructType, split: RowSplit
) -> Any:
    """Metadata of the staging transaction, as Delta's object.

    The target's constraints bind only the rows that go to it; the staging schema states them that
    way, so that Delta itself enforces them while it writes.

    Args:
        delta: The bridge.
        metadata: Of the target.
        schema: Of the target after evolution.
        split: The split whose DataFrame will be written.
    """
    masks = [StructField(name, LongType()) for name in split.masks]
    # With the same types as the DataFrame: nothing may reject a row that goes to quarantine.
    data = [StructField(c.name, as_nullable(c.dataType), True, c.metadata) for c in schema]
    helpers = list(QUARANTINE_FIELDS) if split.quarantine else []
    destination = StructField(DESTINATION, StringType())
    content = dict(metadata.content)
    content["schemaString"] = schema_json(StructType([*masks, *data, *helpers, destination]))
    content["partitionColumns"] = [DESTINATION, *metadata.partition_columns]
    content["configuration"] = _configuration(metadata, schema, split)
    return delta.action({"metaData": content})


def _configuration(metadata: TableMetadata, schema: StructType, split: RowSplit) -> dict[str, str]:
    found = metadata.configuration
    result = {key: value for key, value in found.items() if not key.startswith(_CONSTRAINT)}
    # Masks come first, so that counting them takes nothing from the table's own statistics.
    if _STATS_COLUMNS in found:
        result[_STATS_COLUMNS] = ",".join([*split.masks, found[_STATS_COLUMNS]])
    else:
        partitioned = {name.lower() for name in metadata.partition_columns}
        leaves = leaf_count([c for c in schema if c.name.lower() not in partitioned])
        indexed = int(found.get(_INDEXED, _DEFAULT_INDEXED))
        own = leaves if indexed < 0 else min(leaves, indexed)
        result[_INDEXED] = str(len(split.masks) + own)
    elsewhere = f"{DESTINATION} = '{TO_QUARANTINE}'"
    for key, value in found.items():
        if key.startswith(_CONSTRAINT):
            result[key] = f"{elsewhere} OR ({value})"
    for column in schema:
        if not column.nullable:
            key = f"{_CONSTRAINT}not_null_{column.name.lower()}"
            result[key] = f"{elsewhere} OR {quoted(column.name)} IS NOT NULL"
    return result


@dataclass
class StagedFiles:
    """What one staging job wrote, by destination.

    Attributes:
        clean: `AddFile` contents for the target.
        bad: `AddFile` contents for the quarantine table; paths are still below the target.
        clean_rows: Rows in `clean`.
        bad_rows: Rows in `bad`.
        rules: Counts per rule over both.
    """

    clean: list[dict[str, Any]]
    bad: list[dict[str, Any]]
    clean_rows: int
    bad_rows: int
    rules: dict[str, RuleCounts]


def sort_files(
    files: list[dict[str, Any]], split: RowSplit, count: Callable[[list[str]], RuleHistogram]
) -> StagedFiles:
    """Separate the files of a staging job and count their rows and broken rules.

    Counts come from the files that survive: a task that was retried or ran twice counts once.

    Args:
        files: `AddFile` contents.
        split: Whose DataFrame was written.
        count: How often each combination of masks occurs in files, given by the `path` of their
            `AddFile`; asked only for files with a row that breaks a rule.
    """
    result = StagedFiles([], [], 0, 0, {})
    to_count = []
    for file in files:
        values = dict(file["partitionValues"])
        is_bad = values.pop(DESTINATION, None) == TO_QUARANTINE
        statistics = json.loads(file["stats"])
        rows = int(statistics["numRecords"])
        nulls: Mapping[str, int] = statistics.get("nullCount", {})
        if any(nulls[mask] < rows for mask in split.masks):
            to_count.append(file["path"])
        moved = dict(file, partitionValues=values, stats=without_masks(file["stats"]))
        if is_bad:
            result.bad.append(moved)
            result.bad_rows += rows
        else:
            result.clean.append(moved)
            result.clean_rows += rows
    failed = rule_counts(count(to_count), split) if to_count else {}
    total = result.clean_rows + result.bad_rows
    result.rules = {
        rule: RuleCounts(total - failed.get(rule, 0), failed.get(rule, 0)) for rule in split.rules
    }
    return result


def rule_counts(histogram: RuleHistogram, split: RowSplit) -> dict[str, int]:
    """Rows that break each rule."""
    failed = dict.fromkeys(split.bits, 0)
    for masks, rows in histogram.items():
        values = dict(zip(split.masks, masks, strict=True))
        for rule, (mask, bit) in split.bits.items():
            if (values[mask] or 0) & bit:
                failed[rule] += rows
    return failed


def count_masks(spark: SparkSession, root: str, files: list[str], split: RowSplit) -> RuleHistogram:
    """Read the mask columns of files back.

    Args:
        spark: Reads files that are not on a disk of this machine.
        root: Of the table below which the files lie.
        files: `path` of their `AddFile`.
        split: Whose DataFrame was written.
    """
    here = local_path(root)
    histogram: RuleHistogram = Counter()
    if here is not None:
        for file in files:
            table = pq.ParquetFile(here / unquote(file)).read(columns=list(split.masks))
            counted = table.group_by(list(split.masks)).aggregate([([], "count_all")])
            for row in counted.to_pylist():
                histogram[tuple(row[mask] for mask in split.masks)] += row["count_all"]
        return histogram
    paths = [f"{root}/{unquote(file)}" for file in files]
    found = spark.read.parquet(*paths).groupBy(*split.masks).count().collect()
    for line in found:
        histogram[tuple(line[mask] for mask in split.masks)] += line["count"]
    return histogram


def without_masks(statistics: str) -> str:
    """A file's statistics without those of the mask columns.

    As text: parsing numbers in Python would lose digits of decimals. A quote inside of a value is
    escaped, so the pattern finds keys only.
    """
    return _MASK_STATISTIC.sub("", statistics)


def data_columns(split: RowSplit) -> list[Column]:
    """The user's columns of a split."""
    return [F.col(quoted(column)) for column in split.data_columns]


def count_rows(kept: DataFrame, split: RowSplit) -> StagedFiles:
    """Count a persisted batch by destination and rule, without files."""
    return count_rows_and(kept, split, {})[0]


def count_rows_and(
    kept: DataFrame, split: RowSplit, more: Mapping[str, Column]
) -> tuple[StagedFiles, dict[str, int]]:
    """Count a persisted batch as `count_rows` does, and whatever else, in the same job.

    Args:
        kept: The batch, with the split's helper columns.
        split: Its split.
        more: Further counts by name.
    """
    sums = [
        F.count(F.when(is_broken(*place), 1)).alias(f"rule_{number}")
        for number, place in enumerate(split.bits.values())
    ]
    is_bad = F.when(F.col(DESTINATION) != TO_TABLE, 1)
    row: Any = kept.agg(
        F.count(F.lit(1)).alias("total"),
        F.count(is_bad).alias("bad"),
        *sums,
        *[column.alias(f"more_{name}") for name, column in more.items()],
    ).first()
    total, bad = int(row["total"]), int(row["bad"])
    failed = {rule: int(row[f"rule_{number}"]) for number, rule in enumerate(split.bits)}
    rules = {
        rule: RuleCounts(total - failed.get(rule, 0), failed.get(rule, 0)) for rule in split.rules
    }
    others = {name: int(row[f"more_{name}"]) for name in more}
    return StagedFiles([], [], total - bad, bad, rules), others
