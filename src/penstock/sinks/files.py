"""Folders of files as sinks: exactly once for readers that know Spark's log of the folder."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from penstock._model.dataset import SinkFacts
from penstock._model.flow import OutputMode
from penstock._tables.files import StorageFiles
from penstock.errors import CheckpointError
from penstock.sinks.base import OpenedSink, Write, option, require_location
from penstock.sinks.spark import SparkSink
from penstock.sources.files.source import FORMATS

_LOG = "_spark_metadata"


class FileSink(SparkSink):
    """Adds files; the log in `_spark_metadata` lists the valid ones.

    Spark identifies batches by their id alone: it skips those of another flow, or of a new
    checkpoint, whose id is in the log.
    """

    formats: ClassVar[Sequence[str]] = FORMATS
    refused_modes: ClassVar[Mapping[OutputMode, str]] = {
        OutputMode.UPDATE: "files cannot be changed",
        OutputMode.COMPLETE: "files would hold every version of the result",
    }
    instead = (
        "add withWatermark before the aggregation, so that it runs in append mode; or write a "
        "table of the pipeline"
    )

    def facts(self, options: Mapping[str, str]) -> SinkFacts:
        location = super().facts(options).location
        return SinkFacts(location=location, refuses_new_checkpoint=True, is_exclusive=True)

    def check_options(self, options: Mapping[str, str]) -> dict[str, str]:
        require_location("file", options, "path")
        return dict(options)

    def open(self, write: Write) -> OpenedSink:
        folder, flow = option(write.options, "path"), write.flow
        files = StorageFiles(write.spark)
        is_new = not _batches(files.names(f"{write.checkpoint}/offsets"))
        if is_new and _batches(files.names(f"{folder}/{_LOG}")):
            raise CheckpointError(
                "SINK_CHECKPOINT_LOST",
                f"flow {flow.name!r} starts with a new checkpoint, but the log of {folder} has the "
                "batches of an earlier one or of another flow: Spark would skip new batches "
                "with the same ids, and their rows would be lost",
                flow=flow.name,
                origin=flow.origin,
                hint="restore the pipeline's storage; or write to another folder; or empty "
                f"this one with {_LOG}",
            )
        return super().open(write)


def _batches(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.removesuffix(".compact").isdecimal()]
