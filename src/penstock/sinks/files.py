"""Folders of files as sinks: exactly once for readers that know Spark's log of the folder."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from penstock._model.flow import OutputMode
from penstock.sinks.base import require_location
from penstock.sinks.spark import SparkSink
from penstock.sources.files.source import FORMATS


class FileSink(SparkSink):
    """Adds files; the log in `_spark_metadata` says which of them count."""

    formats: ClassVar[Sequence[str]] = FORMATS
    refused_modes: ClassVar[Mapping[OutputMode, str]] = {
        OutputMode.UPDATE: "files cannot be changed",
        OutputMode.COMPLETE: "files would hold every version of the result",
    }
    instead = (
        "add withWatermark before the aggregation, so that it runs in append mode; or write a "
        "table of the pipeline"
    )

    def check_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """See `Sink.check_options`."""
        require_location("file", options, "path")
        return dict(options)
