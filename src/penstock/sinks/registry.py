"""Built-in sinks, and those of other packages."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from penstock._model.exception_text import first_line
from penstock.errors import SetupError
from penstock.sinks.base import Sink
from penstock.sinks.delta import DeltaSink
from penstock.sinks.files import FileSink
from penstock.sinks.function import ForeachSink, FunctionSink
from penstock.sinks.jdbc.writer import JdbcSink
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.spark import ConsoleSink, MemorySink, NoopSink, SparkSink

GROUP = "penstock.sinks"
"""Entry points of other packages; each names a subclass of `Sink`."""

_SPARK = SparkSink()
_BUILT_IN: tuple[Sink, ...] = (
    KafkaSink(),
    DeltaSink(),
    FileSink(),
    JdbcSink(),
    FunctionSink(),
    ForeachSink(),
    ConsoleSink(),
    NoopSink(),
    MemorySink(),
)


def sink_of(sink_format: str) -> Sink:
    """The sink for a format, in any case; `SparkSink` for an unknown one."""
    return _sinks().get(sink_format.lower()) or _SPARK


@cache
def _sinks() -> Mapping[str, Sink]:
    by_format = {name: sink for sink in _BUILT_IN for name in sink.formats}
    for point in entry_points(group=GROUP):
        try:
            loaded = point.load()
            sink = loaded() if isinstance(loaded, type) and issubclass(loaded, Sink) else None
        except Exception as error:
            raise _invalid(point, f"cannot be loaded: {first_line(error)}") from error
        if sink is None:
            raise _invalid(point, "is not a subclass of penstock.sinks.base.Sink")
        for name in sink.formats:
            if by_format.setdefault(name.lower(), sink) is not sink:
                known = type(by_format[name.lower()]).__name__
                raise _invalid(point, f"gives the format {name!r}, which {known} has already")
    return by_format


def _invalid(point: EntryPoint, problem: str) -> SetupError:
    package = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    return SetupError(
        "SINK_CLASS_INVALID",
        f"entry point {point.name!r}{package} in the group {GROUP}: {point.value} {problem}",
        hint="correct that package, or remove it from the environment",
    )
