"""Folders of files as sinks: exactly once for readers that know Spark's log of the folder."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from penstock._model.dataset import SinkFacts
from penstock._model.flow import OutputMode
from penstock._tables.files import StorageFiles
from penstock.sinks.base import OpenedSink, Write, check_checkpoint, option, require_location
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
        folder = option(write.options, "path")
        names = StorageFiles(write.spark).names(f"{folder}/{_LOG}")
        logged = [name.removesuffix(".compact") for name in names]
        last = max((int(name) for name in logged if name.isdecimal()), default=-1)
        check_checkpoint(write, last, f"the log {folder}/{_LOG}")
        return super().open(write)
