"""Flows: a query function and where its rows go; and what analysis found out about one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock._model.cdc import CdcSpec, SnapshotSpec
from penstock._model.lineage import FlowLineage
from penstock._model.origin import SourceLocation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.errors import PenstockError

QueryFunction = Callable[[], "DataFrame | Any"]


class OutputMode(StrEnum):
    """Spark's output modes."""

    APPEND = "append"
    COMPLETE = "complete"
    UPDATE = "update"


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A query and its target.

    Attributes:
        name: Unique in the pipeline; the key of the flow's checkpoint. The flow that a dataset
            decorator makes has the name of the dataset as the user wrote it.
        target: Name of a dataset or a sink, as the user wrote it.
        once: Batch query that runs one time, and again only after a full refresh.
        output_mode: `None` lets analysis choose.
        spark_conf: Overrides the dataset's and the pipeline's configuration.
        implicit: Made by a dataset decorator rather than declared by itself.
        language: `PYTHON` or `SQL`.
        cdc: The rows of the query are change events, applied to the target that way.
        snapshot: The flow compares snapshots; its function is called only where they come from a
            dataset.
        depends_on: Names of datasets that must be done before the flow starts.
        replace_where: Condition of the target's rows that a batch query replaces.
    """

    name: str
    target: str
    function: QueryFunction = field(repr=False)
    origin: SourceLocation
    once: bool = False
    output_mode: OutputMode | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    implicit: bool = False
    language: str = "PYTHON"
    cdc: CdcSpec | None = None
    snapshot: SnapshotSpec | None = None
    depends_on: tuple[str, ...] = ()
    replace_where: "str | Column | None" = None

    @property
    def sink_reset(self) -> str:
        """For hints: what to run instead of `--full-refresh`, which sinks do not support.

        It continues a sentence with a semicolon; empty for flows that only write to tables.
        """
        if self.implicit or self.cdc is not None or self.snapshot is not None:
            return ""
        return (
            f"; for a sink, `penstock checkpoint reset {self.name} --from POSITION`: `earliest` "
            "writes all rows again, `latest` only new ones"
        )


@dataclass(frozen=True, kw_only=True)
class FlowAnalysis:
    """What one evaluation of a flow's (or a view's) query function found.

    Attributes:
        inputs: Keys (`DatasetName.key`) of the pipeline's datasets that it reads.
        external_inputs: What it reads from outside, as readable text (`kafka: orders`).
        schema_json: The DataFrame's schema, Spark's JSON form; of an auto CDC flow what its target
            gets: the chosen columns, and the two of the interval.
        output_mode: Declared or chosen; `None` for a batch query.
        merge_keys: Columns that identify a row of an update-mode flow.
        stateful_operators: One line per stateful operator of the plan, in plan order, without
            expression ids: equal lines mean that the state can be read again.
        growing_state: One sentence for each stateful operation whose state grows for ever.
        sequence_type: Of an auto CDC flow: the type that orders its events.
        changing_inputs: Keys of those inputs that auto CDC changes in place and that it reads as a
            plain stream: it ends at the first change.
        lineage: What its columns are made of; `None` if the plan does not tell.
        taken_for: Incomplete names that it reads, with the datasets that they were taken for.
        missing_folders: Of files that it reads; nothing is there yet, and it waits.
        unmatched_filters: `pathGlobFilter` and folder of files that it reads, where none of the
            files there has such a name.
        needs_ansi_off: Its query makes sense without ANSI mode only, and is analysed so.
        text_numbers: Expressions in which it takes a string for a number without a cast.
        widens_types: Whether a source of it lets types become wider; its table follows.
        refusal: Why Spark or the target cannot run it as a stream; the flow is not started.
        query: Digest of its query as declared, without where it reads; equal in all processes.
        runs_python: Whether it calls Python functions, whose code the digest does not cover.
        plain_streams: Keys of inputs that it reads as a stream of added rows: it ends when rows of
            them are replaced.
        streams: Keys of all inputs that it reads as a stream, also of their changes.
    """

    inputs: frozenset[str]
    external_inputs: tuple[str, ...]
    is_streaming: bool
    schema_json: str
    output_mode: OutputMode | None = None
    merge_keys: tuple[str, ...] = ()
    stateful_operators: tuple[str, ...] = ()
    growing_state: tuple[str, ...] = ()
    sequence_type: str | None = None
    changing_inputs: tuple[str, ...] = ()
    lineage: FlowLineage | None = None
    taken_for: tuple[tuple[str, str], ...] = ()
    missing_folders: tuple[str, ...] = ()
    unmatched_filters: tuple[tuple[str, str], ...] = ()
    needs_ansi_off: bool = False
    text_numbers: tuple[str, ...] = ()
    widens_types: bool = False
    refusal: "PenstockError | None" = None
    query: str = ""
    runs_python: bool = False
    plain_streams: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
