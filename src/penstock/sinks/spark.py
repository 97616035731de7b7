"""Sinks that Spark provides: those for debugging, and Python data sources."""

from collections.abc import Mapping
from typing import ClassVar

from penstock._model.dataset import SinkFacts
from penstock._model.trigger import TriggerKind
from penstock.sinks.base import OpenedSink, Sink, StreamSink, Write


class SparkSink(Sink):
    """A sink of Spark's stream writer; the delivery guarantee depends on the format."""

    triggers: ClassVar[frozenset[TriggerKind]] = frozenset()

    def facts(self, options: Mapping[str, str]) -> SinkFacts:
        return SinkFacts(location=super().facts(options).location, triggers=self.triggers)

    def open(self, write: Write) -> OpenedSink:
        return StreamSink(write.format, write.options)


class ConsoleSink(SparkSink):
    """Prints rows; a repeated batch is printed again."""

    formats = ("console",)
    triggers = frozenset({TriggerKind.CONTINUOUS, TriggerKind.REAL_TIME})


class NoopSink(SparkSink):
    """Computes rows and discards them."""

    formats = ("noop",)
    triggers = frozenset({TriggerKind.CONTINUOUS})


class MemorySink(SparkSink):
    """A temporary view with the name of the flow.

    Spark refuses to resume from its checkpoint: earlier rows would be missing.
    """

    formats = ("memory",)
    triggers = frozenset({TriggerKind.CONTINUOUS})
    is_transient = True
