"""Folders of files as sinks: exactly once for readers that use Spark's log of the folder."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from penstock._model.dataset import SinkFacts
from penstock._model.flow import OutputMode
from penstock._tables.files import StorageFiles
from penstock._tables.read.checkpoint_files import batches
from penstock.errors import CheckpointError
from penstock.sinks.base import (
    OpenedSink,
    Write,
    check_checkpoint,
    check_names,
    option,
    require_location,
)
from penstock.sinks.spark import SparkSink
from penstock.sources.files.source import FORMATS

_LOG = "_spark_metadata"


class FileSink(SparkSink):
    """Adds files; the log in `_spark_metadata` lists the committed ones.

    Spark identifies batches only by their id: it skips batches of another flow, or of a new
    checkpoint, if their id is in the log.
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
        check_names(write.schema)
        folder = option(write.options, "path")
        files, flow, log = StorageFiles(write.spark), write.flow, f"{folder}/{_LOG}"
        logged = [name.removesuffix(".compact") for name in files.names(log)]
        last = max((int(name) for name in logged if name.isdecimal()), default=-1)
        check_checkpoint(write, last, f"the log {log}")
        finished = batches(files, write.checkpoint, "commits")
        if finished and last < finished[-1]:
            raise CheckpointError(
                "SINK_BEHIND",
                f"flow {flow.name!r} has finished batch {finished[-1]}, but the log {log} "
                + (f"ends at batch {last}" if last >= 0 else "is empty")
                + ": the folder is another one or has lost its log. Spark cannot read a folder "
                "whose log does not begin at batch 0 or has a gap",
                flow=flow.name,
                origin=flow.origin,
                hint="restore the folder or the earlier `path`; or give the flow a new checkpoint "
                f"and an empty folder: `penstock checkpoint reset {flow.name} --from latest` for "
                "new rows only, `--from earliest` for all rows",
            )
        return super().open(write)
