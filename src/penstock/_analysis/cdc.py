"""Auto CDC in the engine: what a flow's declaration means for its target."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from penstock._analysis.reader_hooks import reader_options
from penstock._analysis.table_sources import SchemaSource
from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._graph.index import DefinitionIndex
from penstock._graph.replacing import replaces_rows
from penstock._model.cdc import CdcSpec, ScdType
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation
from penstock._tables.cdc_events import END_AT, START_AT, EventShape, TargetShape, resolve
from penstock.errors import DefinitionError, PlanError
from penstock.sources.base import OpenedSource, Position

_TOMBSTONES = (
    "pipelines.cdc.tombstoneGCThresholdInSeconds",
    "pipelines.applyChanges.tombstoneGCThresholdInSeconds",
)
_READS_CHANGES = {"skipchangecommits", "ignorechanges", "readchangefeed", "readchangedata"}


def event_shape(df: DataFrame, flow: Flow, flows: Sequence[Flow]) -> EventShape:
    """What the rows of an auto CDC flow mean.

    Args:
        df: The query of the flow.
        flow: The flow.
        flows: All flows into its target.
    """
    assert flow.cdc is not None
    specs: list[CdcSpec] = [other.cdc for other in flows if other.cdc is not None]
    shape = TargetShape.of(specs)
    return resolve(df, flow.cdc, shape, flow=flow.name, origin=flow.origin)


def tombstone_seconds(
    dataset: DatasetNode, node: FlowNode, configuration: Mapping[str, str]
) -> float | None:
    """For how long deleted keys are remembered; `None` = for ever.

    Raises:
        PlanError: `TABLE_PROPERTY_INVALID`.
    """
    levels = (
        node.flow.spark_conf,
        dataset.declared.spark_conf,
        dataset.declared.table_properties,
        configuration,
    )
    for level in levels:
        for key in _TOMBSTONES:
            if key not in level:
                continue
            try:
                seconds = float(level[key])
            except ValueError:
                seconds = -1.0
            if not 0 <= seconds < float("inf"):
                raise PlanError(
                    "TABLE_PROPERTY_INVALID",
                    f"{key} of {dataset.display!r} is {level[key]!r}",
                    origin=dataset.declared.origin,
                    hint="give a number of seconds",
                )
            return seconds
    return None


def check_declared(
    declared: StructType, scd_type: ScdType, wanted: StructType, origin: SourceLocation
) -> None:
    """Check the declared schema of a target.

    Raises:
        DefinitionError: `CDC_SCHEMA_INCOMPLETE`: a table with history must have both columns of the
            interval, with the type that orders its events.
    """
    if scd_type is ScdType.ONE:
        return
    have = {field.name.lower(): field.dataType.simpleString() for field in declared}
    for name in (START_AT, END_AT):
        kind = wanted[name].dataType.simpleString()
        if have.get(name.lower()) != kind:
            column = have.get(name.lower())
            problem = "is missing" if column is None else f"is {column.upper()}"
            raise DefinitionError(
                "CDC_SCHEMA_INCOMPLETE",
                f"the declared schema of a table with history needs {name} {kind.upper()}, the type"
                f" that orders its events; there it {problem}",
                origin=origin,
                hint=f"add `{START_AT} {kind.upper()}, {END_AT} {kind.upper()}` to the schema, or "
                "leave the schema out",
            )


class CdcAwareSource(SchemaSource):
    """Stand-ins for analysis that know which tables are changed in place.

    Args:
        index: The declarations.
    """

    def __init__(self, index: DefinitionIndex) -> None:
        super().__init__()
        self._index = index
        self._streamed: dict[str, None] = {}

    def take_streamed(self) -> tuple[str, ...]:
        """Tables with auto CDC that were read as a plain stream since the last call."""
        taken = tuple(self._streamed)
        self._streamed.clear()
        return taken

    def stream(self, key: str, reader: DataStreamReader, position: Position) -> OpenedSource:
        """See `TableSource.stream`.

        Raises:
            DefinitionError: `REPLACE_WHERE_TARGET_STREAMED`.
        """
        dataset = self._index.datasets[key]
        options = {name.lower(): value for name, value in reader_options(reader).items()}
        if not any(options.get(name, "").lower() == "true" for name in _READS_CHANGES):
            if any(replaces_rows(flow) for flow in dataset.flows):
                shown = self._index.display(key)
                raise DefinitionError(
                    "REPLACE_WHERE_TARGET_STREAMED",
                    f"{shown!r} is read as a stream, but its flow replaces rows of it",
                    hint='read its change feed: spark.readStream.option("readChangeFeed", "true")'
                    f'.table("{shown}"); or read it as a batch; or skip changed rows with option '
                    '"skipChangeCommits"',
                )
            if any(is_cdc(flow) for flow in dataset.flows):
                self._streamed[key] = None
        return super().stream(key, reader, position)
