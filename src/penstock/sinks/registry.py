"""The sinks that there are: built-in ones, and those of other packages."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from penstock.errors import SetupError
from penstock.sinks.base import Sink
from penstock.sinks.delta import DeltaSink
from penstock.sinks.files import FileSink
from penstock.sinks.function import ForeachSink, FunctionSink
from penstock.sinks.jdbc.sink import JdbcSink
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.spark import ConsoleSink, MemorySink, NoopSink, SparkSink

GROUP = "penstock.sinks"
"""Entry points of other packages; each names a subclass of `Sink`."""

_SPARK = SparkSink()


def sink_of(sink_format: str) -> Sink:
    """The sink for a format, in any case; `SparkSink` for one that no sink has.

    Raises:
        SetupError: `SINK_INVALID`: the entry point of another package names something else.
    """
    return _sinks().get(sink_format.lower()) or _SPARK


@cache
def _sinks() -> Mapping[str, Sink]:
    made: list[Sink] = [
        KafkaSink(),
        DeltaSink(),
        FileSink(),
        JdbcSink(),
        FunctionSink(),
        ForeachSink(),
        ConsoleSink(),
        NoopSink(),
        MemorySink(),
    ]
    for point in entry_points(group=GROUP):
        loaded = point.load()
        if not (isinstance(loaded, type) and issubclass(loaded, Sink)):
            raise SetupError(
                "SINK_INVALID",
                f"entry point {point.name!r} of the group {GROUP} names {point.value}, which is "
                "not a subclass of penstock.sinks.base.Sink",
                hint="correct the entry point of that package, or remove the package",
            )
        made.append(loaded())
    return {name: sink for sink in made for name in sink.formats}
