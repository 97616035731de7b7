"""The sources that there are: built-in ones, and those of other packages."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from penstock._model.exception_text import first_line
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
    by_format: dict[str, Source] = {}
    for source in _BUILT_IN:
        by_format |= dict.fromkeys(source.formats, source)
    for point in entry_points(group=GROUP):
        source = _loaded(point)
        for name in source.formats:
            known = by_format.setdefault(name.lower(), source)
            if known is not source:
                raise _invalid(
                    point, f"gives the format {name!r}, which {type(known).__name__} has already"
                )
    return by_format


def _loaded(point: EntryPoint) -> Source:
    try:
        loaded = point.load()
        source = loaded() if isinstance(loaded, type) and issubclass(loaded, Source) else None
    except Exception as error:
        raise _invalid(point, f"cannot be loaded: {first_line(error)}") from error
    if source is None:
        raise _invalid(point, "is not a subclass of penstock.sources.base.Source")
    return source


def _invalid(point: EntryPoint, problem: str) -> SetupError:
    package = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    return SetupError(
        "SOURCE_CLASS_INVALID",
        f"entry point {point.name!r}{package} in the group {GROUP}: {point.value} {problem}",
        hint="correct that package, or remove it from the environment",
    )
