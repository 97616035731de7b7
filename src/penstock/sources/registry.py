"""The sources that there are: built-in ones, and those of other packages."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from penstock.errors import SetupError
from penstock.sources.base import OpenedSource, Read, Source
from penstock.sources.delta.source import DeltaSource
from penstock.sources.files.source import AutoLoaderSource, FileSource
from penstock.sources.jdbc.source import JdbcSource
from penstock.sources.kafka.source import EventHubSource, KafkaSource
from penstock.sources.kinesis.source import KinesisSource

GROUP = "penstock.sources"
"""Entry points of other packages; each names a subclass of `Source`."""


class SparkSource(Source):
    """A format that only Spark knows: read from where its options say."""

    def open(self, read: Read) -> OpenedSource:
        """See `Source.open`."""
        return OpenedSource(read.load(read.options), name=self.describe(read))


def source_of(source_format: str) -> Source:
    """The source for a format, in any case; `SparkSource` for one that no source has."""
    return _sources().get(source_format.lower()) or _SPARK


_SPARK = SparkSource()


@cache
def _sources() -> Mapping[str, Source]:
    made: list[Source] = [
        KafkaSource(),
        EventHubSource(),
        KinesisSource(),
        DeltaSource(),
        FileSource(),
        AutoLoaderSource(),
        JdbcSource(),
    ]
    for point in entry_points(group=GROUP):
        loaded = point.load()
        if not (isinstance(loaded, type) and issubclass(loaded, Source)):
            raise SetupError(
                "SOURCE_INVALID",
                f"entry point {point.name!r} of the group {GROUP} names {point.value}, which is "
                "not a subclass of penstock.sources.base.Source",
                hint="correct the entry point of that package, or remove the package",
            )
        made.append(loaded())
    return {name: source for source in made for name in source.formats}
