"""Datasets: tables, materialized views and temporary views; and sinks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock._model.expectation import Expectation
from penstock._model.lineage import LineageSource
from penstock._model.origin import SourceLocation
from penstock._model.trigger import TriggerKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class DatasetKind(StrEnum):
    """Kind of a dataset, in Spark's terms."""

    STREAMING_TABLE = "streaming table"
    MATERIALIZED_VIEW = "materialized view"
    TEMPORARY_VIEW = "temporary view"


class LateRows(StrEnum):
    """What happens to rows that are older than the watermark."""

    DROP = "drop"
    """Dropped, as by Spark, and counted."""
    QUARANTINE = "quarantine"
    """Kept in the table's quarantine."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One declared dataset.

    Attributes:
        name: The name as written, with one to three parts.
        kind: `None` for `@table`: a streaming DataFrame makes it a streaming table, a batch
            DataFrame a materialized view.
        spark_conf: Settings of the flow that the decorator creates.
        table_properties: Properties of Delta and of users; `pipelines.*` are read by Penstock.
        partition_cols: Partition columns, without transforms; excludes `cluster_by`.
        cluster_by_auto: Accepted for compatibility; open-source Delta has no automatic clustering.
        schema: DDL string or StructType; checked against the schema of the query.
        path: Location of the table; `None` means the managed location.
        private: A table that is not published, or a view whose name has no schema.
        row_filter: Accepted for compatibility; refused at plan time because open-source Spark has
            no row filters.
        refresh_policy: `auto`, `incremental`, `incremental_strict` or `full`.
        format: Format of the table; only `delta` is supported.
        quarantine: Whether rows that fail a drop rule are kept in `<table>_quarantine`; `None`
            means the pipeline's default.
        is_quarantine_taken: Whether the pipeline declares a dataset with the name of the
            quarantine, which disables the quarantine.
        deduplicate_by: Key columns: rows whose key is already in the table are not added.
    """

    name: str
    kind: DatasetKind | None
    origin: SourceLocation
    comment: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    table_properties: Mapping[str, str] = field(default_factory=dict)
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    cluster_by_auto: bool = False
    schema: "str | StructType | None" = None
    path: str | None = None
    private: bool = False
    row_filter: str | None = None
    refresh_policy: str | None = None
    format: str | None = None
    quarantine: bool | None = None
    is_quarantine_taken: bool = False
    late_rows: LateRows = LateRows.DROP
    deduplicate_by: tuple[str, ...] = ()
    expectations: tuple[Expectation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SinkFacts:
    """Facts about a sink from its options, with secrets unresolved; see `penstock.sinks.base`.

    Attributes:
        is_keyed: Whether a row that is written again replaces the row with the same key.
        refuses_new_checkpoint: Whether it refuses rows of a new checkpoint of a flow as long as it
            contains rows of an earlier one.
        is_exclusive: Whether only one flow may write to it.
        location: Location that it writes to, as in OpenLineage; `None` if the options do not
            contain it.
        triggers: Supported triggers without micro-batches.
        needs_batches: Why it cannot be written without micro-batches although its system supports
            this; empty if it can.
        unbatched_warning: What its readers lose without micro-batches; empty if nothing.
    """

    is_keyed: bool = False
    refuses_new_checkpoint: bool = False
    is_exclusive: bool = False
    location: LineageSource | None = None
    triggers: frozenset[TriggerKind] = frozenset()
    needs_batches: str = ""
    unbatched_warning: str = ""


@dataclass(frozen=True, kw_only=True)
class Sink:
    """One declared sink: an external target that append flows and update flows write to.

    The options are never shown, as they may contain secrets. `write_batch` is set for the format
    `foreach_batch`: it receives the rows and the id of each micro-batch. The analysis sets `facts`.
    """

    name: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    origin: SourceLocation
    write_batch: "Callable[[DataFrame, int], object] | None" = field(default=None, repr=False)
    facts: SinkFacts = SinkFacts()
