"""The registry of built-in sinks and of sinks from other packages."""

from collections.abc import Iterable, Mapping
from functools import cache

from penstock._model.plugins import by_format
from penstock.sinks.base import Sink
from penstock.sinks.delta import DeltaSink
from penstock.sinks.files import FileSink
from penstock.sinks.function import ForeachSink, FunctionSink
from penstock.sinks.jdbc.sink import JdbcSink
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.notification.sink import MailSink, WebhookSink
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
    WebhookSink(),
    MailSink(),
    ConsoleSink(),
    NoopSink(),
    MemorySink(),
)


def sink_of(sink_format: str) -> Sink:
    """The sink for a format, case-insensitive; `SparkSink` for an unknown format."""
    return _sinks().get(sink_format.lower()) or _SPARK


def sink_formats() -> Iterable[str]:
    """The formats that are not only Spark's, in lower case."""
    return _sinks()


@cache
def _sinks() -> Mapping[str, Sink]:
    return by_format(GROUP, Sink, _BUILT_IN, condition="SINK_CLASS_INVALID")
