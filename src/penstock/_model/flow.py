"""Flows (a query function and its target), and the result of their analysis."""

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
        name: Unique in the pipeline; the key of the flow's checkpoint. A flow that a dataset
            decorator creates has the name of the dataset as the user wrote it.
        target: Name of a dataset or a sink, as the user wrote it.
        once: Whether the batch query runs only once, and again only after a full refresh.
        output_mode: `None` means that the analysis chooses it.
        spark_conf: Overrides the dataset's and the pipeline's configuration.
        implicit: Whether a dataset decorator created it.
        language: `PYTHON` or `SQL`.
        cdc: How the rows of the query, which are change events, are applied to the target.
        snapshot: How snapshots are compared; the function of the flow is called only if they come
            from a dataset.
        depends_on: Names of datasets that must be completed before the flow starts.
        replace_where: Condition for the rows of the target that a batch query replaces.
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

    def session_confs(self, of_target: Mapping[str, str]) -> dict[str, str]:
        """The confs of Spark for the query; the flow overrides the `spark_conf` of its target."""
        conf = {**of_target, **self.spark_conf}
        return {key: value for key, value in conf.items() if not key.startswith("pipelines.")}

    @property
    def sink_reset(self) -> str:
        """The command for hints instead of `--full-refresh`, which sinks do not support.

        It continues a sentence after a semicolon; empty for flows that only write to tables.
        """
        if self.implicit or self.cdc is not None or self.snapshot is not None:
            return ""
        return (
            f"; for a sink, `penstock checkpoint reset {self.name} --from POSITION`: `earliest` "
            "writes all rows again, `latest` only new ones"
        )


@dataclass(frozen=True, kw_only=True)
class FlowAnalysis:
    """Result of one evaluation of a flow's (or a view's) query function.

    Attributes:
        inputs: Keys (`DatasetName.key`) of the pipeline's datasets that it reads.
        external_inputs: Sources outside of the pipeline, as readable text (`kafka: orders`).
        schema_json: Schema of the DataFrame in Spark's JSON form; for an auto CDC flow, the columns
            of its target: the selected columns, and the two of the interval.
        output_mode: Declared or chosen output mode; `None` for a batch query.
        merge_keys: Columns that identify a row of an update-mode flow.
        stateful_operators: One line per stateful operator of the plan, in plan order, without
            expression ids: equal lines mean that the state can be restored.
        growing_state: One sentence for each stateful operation whose state grows forever.
        sequence_type: Type of the column that orders the events of an auto CDC flow.
        changing_inputs: Keys of the inputs that auto CDC changes in place and that it reads as a
            plain stream, which fails at the first change.
        lineage: Lineage of its columns; `None` if it cannot be derived from the plan.
        taken_for: Incomplete names that it reads, and the datasets that they were resolved to.
        missing_folders: Folders that it reads files from and that do not exist yet.
        unmatched_filters: `pathGlobFilter` and folder of files that it reads, if no file name in
            the folder matches.
        needs_ansi_off: Whether the query is only valid without ANSI mode, and runs without it.
        text_numbers: Expressions that use a string as a number without a cast.
        widens_types: Whether a source widens types; those of the table are widened as well.
        refusal: Why Spark or the target cannot run it as a stream; the flow is not started.
        query: Digest of its query as declared, without the locations of its streams; equal in all
            processes.
        runs_python: Whether it calls Python functions, whose code the digest does not cover.
        plain_streams: Keys of inputs that it reads as a stream of added rows, which fails when rows
            of them are replaced.
        streams: Keys of all inputs that it reads as a stream, including change data feeds.
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
