"""The contract of a sink: a system outside of the pipeline's tables that flows write to.

A `Sink` is a system, identified by the names of its formats. Its `open` creates an `OpenedSink` for
one flow, before the query starts. There are two kinds: a `BatchSink` writes each micro-batch
itself, a `StreamSink` leaves the writing to a stream writer of Spark. Another package adds a system
with an entry point `penstock.sinks` that names a subclass of `Sink`; no other code changes.
docs/adding-a-sink.md has a complete example.

Only `open` must be implemented. After a crash a batch is written again with the same rows, the same
id and the same epoch: a sink that stores the last id of each epoch delivers exactly once, any other
sink at least once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock._model.dataset import SinkFacts
from penstock._model.flow import Flow, OutputMode
from penstock._model.lineage import place_of
from penstock._model.paths import real_path
from penstock._observe.events import Event, EventOrigin, FlowMetrics, FlowProgress, FlowStatus
from penstock._tables.files import StorageFiles
from penstock._tables.read.checkpoint_files import batches
from penstock.errors import CheckpointError, ConnectorError, PenstockError


@dataclass(frozen=True, kw_only=True)
class Write:
    """A flow that writes to a sink, before its query starts.

    Attributes:
        spark: The session.
        pipeline: Name of the pipeline.
        flow: The flow.
        epoch: Epoch of the checkpoint. Batch ids start at 0 in each epoch.
        checkpoint: Folder of the checkpoint; may not exist yet.
        schema: Schema of the query.
        format: Format, as in `create_sink`.
        options: Options of the sink, mapped and checked, with secrets resolved.
        has_batches: False for continuous processing and real-time mode, which need a `StreamSink`.
        function: Function of a `foreach_batch_sink`.
        map_path: Returns the location that a path in the user's code is mapped to.
        table_path: Returns the location of a table in the pipeline's storage by its name.
        notes: Folder for data about batches, specific to the epoch.
    """

    spark: SparkSession
    pipeline: str
    flow: Flow
    epoch: str
    checkpoint: str
    schema: StructType
    format: str
    options: Mapping[str, str]
    has_batches: bool = True
    function: Callable[..., object] | None = None
    map_path: Callable[[str], str] = str
    table_path: Callable[[str], str] = str
    notes: str = ""


@dataclass(frozen=True, kw_only=True)
class SinkCommit:
    """What one batch wrote to a sink.

    Attributes:
        rows: Number of rows in the batch; `None` if the sink does not count them.
        is_upsert: Whether rows were merged rather than added.
        replayed: Whether an earlier attempt has already written the batch.
    """

    rows: int | None
    is_upsert: bool = False
    replayed: bool = False

    def event(self, origin: EventOrigin, message: str) -> Event:
        """The `flow_progress` event with the counts of the batch."""
        metrics = FlowMetrics(
            num_output_rows=None if self.is_upsert else self.rows,
            num_upserted_rows=self.rows if self.is_upsert else None,
        )
        return Event(origin, FlowProgress(FlowStatus.RUNNING, metrics), message)


class OpenedSink:
    """The writes of one flow, from the start of its query to its end.

    Attributes:
        observes_rows: Whether the query counts the rows, because the writer does not.
    """

    observes_rows: ClassVar[bool] = True


class StreamSink(OpenedSink):
    """A stream writer of Spark: `writeStream.format(...).options(...)`. Spark commits the batches.

    Args:
        format: Format of the writer.
        options: Options of the writer.
    """

    def __init__(self, format: str, options: Mapping[str, str]) -> None:
        self.format = format
        self.options = options


class BatchSink(OpenedSink, ABC):
    """Writes micro-batches itself. Not thread-safe: a flow has one batch at a time."""

    observes_rows = False

    @abstractmethod
    def write(self, df: DataFrame, batch_id: int) -> SinkCommit:
        """Write one micro-batch unless it is already written; called by `foreachBatch`.

        A batch that is already written must still be evaluated (`evaluate`): a stateful query
        updates its state while it computes the rows.

        Args:
            df: The rows; the same if the batch is written again.
            batch_id: Id of the batch, starting at 0 in each epoch.

        Raises:
            PenstockError: The write failed; `retryable` states whether a restart can succeed.
        """

    def close(self) -> None:  # most writers keep nothing open
        """Release resources after the end of the query; called at most once, on its own thread."""


class Sink(ABC):
    """A system that flows write to. There is one stateless object per process.

    Attributes:
        formats: Format names for `create_sink`, in lower case.
        refused_modes: Unsupported output modes, with the reason.
        instead: Alternative to the unsupported output modes.
        is_transient: Whether its data is lost when the process ends, so that its flows start over.
    """

    formats: ClassVar[Sequence[str]] = ()
    refused_modes: ClassVar[Mapping[OutputMode, str]] = {}
    instead: ClassVar[str] = ""
    is_transient: ClassVar[bool] = False

    @property
    def modes(self) -> tuple[OutputMode, ...]:
        """The output modes that the sink supports, with any options."""
        every = (OutputMode.APPEND, OutputMode.COMPLETE, OutputMode.UPDATE)
        return tuple(mode for mode in every if mode not in self.refused_modes)

    def facts(self, options: Mapping[str, str]) -> SinkFacts:
        """Facts about the sink from its options, without resolving secrets. Never raises."""
        path = option(options, "path")
        return SinkFacts(location=place_of(path) if path and "${" not in path else None)

    def map_options(
        self, options: Mapping[str, str], map_path: Callable[[str], str]
    ) -> dict[str, str]:
        """The options with mapped paths and addresses; see the setting `paths`."""
        return {
            name: real_path(value, map_path) if name.lower() == "path" and value.strip() else value
            for name, value in options.items()
        }

    def endpoints(self, options: Mapping[str, str]) -> Sequence[str]:
        """Addresses that a write connects to, for the requirements of a project."""
        return []

    def check_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """Check the options; returns those of the writer, with defaults.

        Args:
            options: Mapped options, with secrets resolved.

        Raises:
            ConnectorError: The options are invalid.
        """
        return dict(options)

    def check_query(  # noqa: B027  # most sinks take every query
        self, options: Mapping[str, str], columns: Mapping[str, str], mode: OutputMode
    ) -> None:
        """Refuse a query that cannot be written with these options, before the update starts.

        Makes no connections.

        Args:
            options: Options from `check_options`.
            columns: Column names of the query, and Spark's simple names of their types.
            mode: Output mode of the flow; one of `modes`.

        Raises:
            ConnectorError: The columns or the mode are not compatible with the options.
        """

    @abstractmethod
    def open(self, write: Write) -> OpenedSink:
        """Create the writer of a flow.

        Called before each start of the query, on the thread that starts it.

        Raises:
            PenstockError: The system is not available, or does not accept the query's rows.
        """

    def explain(self, text: str, flow: Flow, batch_id: int | None) -> PenstockError | None:
        """The error for a failure of a flow that this system caused; `None` if it did not.

        Args:
            text: Full text of the failure, including its causes in the JVM.
            flow: The flow that failed.
            batch_id: The micro-batch in flight, if known.
        """
        return None


def option(options: Mapping[str, str], name: str) -> str:
    """The value of an option, by its case-insensitive name; empty if it is not set."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), "")


def require_location(kind: str, options: Mapping[str, str], *names: str) -> None:
    """Refuse options without a location, and options that Spark's writer does not support.

    Raises:
        ConnectorError: `SINK_OPTION_MISSING`, `SINK_OPTION_REFUSED`.
    """
    if not any(option(options, name).strip() for name in names):
        shown = " or ".join(f"`{name}`" for name in names)
        raise ConnectorError("SINK_OPTION_MISSING", f"a {kind} sink needs option {shown}")
    if option(options, "checkpointLocation"):
        raise ConnectorError(
            "SINK_OPTION_REFUSED",
            "option `checkpointLocation` cannot be set: each flow has a checkpoint that Penstock "
            "manages",
            hint="remove it",
        )
    if option(options, "partitionBy"):
        raise ConnectorError(
            "SINK_OPTION_REFUSED",
            "option `partitionBy` has no effect: a stream writer takes no partition columns from "
            "its options",
            hint="write to a table of the pipeline with partition_cols; or write the batches with "
            "@dp.foreach_batch_sink and idempotent_delta_write(df, path, partition_by=[...]); a "
            "Delta table that exists keeps its partitions",
        )


def check_names(schema: StructType) -> None:
    """Refuse duplicate column names, which Spark writes to files that it cannot read.

    Raises:
        ConnectorError: `SINK_SCHEMA_INCOMPATIBLE`.
    """
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise ConnectorError(
            "SINK_SCHEMA_INCOMPATIBLE",
            f"two columns of the query are named {twice[0]}",
            hint="give one of them another name with alias(), or drop it",
        )


def check_checkpoint(write: Write, last: int, place: str) -> None:
    """Refuse a checkpoint that lacks the last batch of its target: new batches would be skipped.

    A batch is planned in the checkpoint before it is written. If the checkpoint lacks it, the
    checkpoint is new or an older copy, or the target has the batches of another flow.

    Raises:
        CheckpointError: `SINK_CHECKPOINT_LOST`.
    """
    flow, planned = write.flow, batches(StorageFiles(write.spark), write.checkpoint, "offsets")
    if last > (planned[-1] if planned else -1):
        ends = f"a checkpoint that ends at batch {planned[-1]}" if planned else "a new checkpoint"
        raise CheckpointError(
            "SINK_CHECKPOINT_LOST",
            f"flow {flow.name!r} starts with {ends}, but {place} has batches up to {last}, of a "
            "newer or earlier checkpoint or of another flow: new batches with the same ids would "
            "be skipped, and their rows would be lost",
            flow=flow.name,
            origin=flow.origin,
            hint="restore the pipeline's storage, or the checkpoint from a copy that is as new as "
            "the target; or write to another place; or empty this one with its log of batches, and "
            f"run `penstock checkpoint reset {flow.name} --from earliest`",
        )


def evaluate(df: DataFrame) -> None:
    """Compute the rows of a batch that is not written again."""
    df.write.format("noop").mode("overwrite").save()
