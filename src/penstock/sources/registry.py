"""The available sources: built-in ones, and those of other packages."""

from collections.abc import Mapping
from functools import cache

from penstock._model.plugins import by_format
from penstock.sources.base import OpenedSource, Read, Source
from penstock.sources.delta.source import DeltaSource
from penstock.sources.files.source import AutoLoaderSource, FileSource
from penstock.sources.jdbc.source import JdbcSource
from penstock.sources.kafka.source import EventHubSource, KafkaSource
from penstock.sources.kinesis.source import KinesisSource

GROUP = "penstock.sources"
"""Entry points of other packages; each names a subclass of `Source`."""


class SparkSource(Source):
    """Any other format of Spark, read from the position in its options."""

    def open(self, read: Read) -> OpenedSource:
        """See `Source.open`."""
        return OpenedSource(read.load(read.options), name=self.describe(read))


def source_of(source_format: str) -> Source:
    """The source for a format (case-insensitive); `SparkSource` if no source has the format."""
    return _sources().get(source_format.lower()) or _SPARK


_SPARK = SparkSource()
_BUILT_IN: tuple[Source, ...] = (
    KafkaSource(),
    EventHubSource(),
    KinesisSource(),
    DeltaSource(),
    FileSource(),
    AutoLoaderSource(),
    JdbcSource(),
)


@cache
def _sources() -> Mapping[str, Source]:
    return by_format(GROUP, Source, _BUILT_IN, condition="SOURCE_CLASS_INVALID")
