"""Checks of the declarations, options and queries of sinks."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os.path import normpath

from pyspark.sql import DataFrame

from penstock._analysis.context import ReadContext
from penstock._graph.index import DefinitionIndex
from penstock._model.dataset import Sink
from penstock._model.flow import OutputMode
from penstock._model.paths import local_path, path_key
from penstock._model.similar import nearest
from penstock._spark import plans
from penstock._spark.session import has_format
from penstock.errors import ConnectorError, PenstockError
from penstock.sinks.base import option
from penstock.sinks.registry import sink_formats, sink_of
from penstock.sources.base import OpenedSource


def with_sink_facts(index: DefinitionIndex) -> DefinitionIndex:
    """The declarations with the facts about their sinks."""
    return replace(
        index,
        sinks={
            name: replace(sink, facts=sink_of(sink.format).facts(sink.options))
            for name, sink in index.sinks.items()
        },
    )


def note_endpoints(index: DefinitionIndex, context: ReadContext) -> None:
    """Record the endpoints of sinks as assumptions, if there are any."""
    for sink in index.sinks.values():
        system = sink_of(sink.format)
        # A path that cannot be mapped is reported by a run.
        with contextlib.suppress(PenstockError):
            options = system.map_options(sink.options, context.map_path)
            if context.assumptions is not None:
                context.assumptions.servers |= dict.fromkeys(system.endpoints(options))


def checked_options(
    sink: Sink, df: DataFrame, mode: OutputMode, context: ReadContext
) -> dict[str, str]:
    """The options of a sink for its writer, checked against a query."""
    system = sink_of(sink.format)
    if not system.formats and not has_format(df.sparkSession, sink.format):
        near = nearest(sink.format, sink_formats())
        if near is not None or context.assumptions is None:  # its jar may be missing here
            raise ConnectorError(
                "SINK_FORMAT_NOT_SUPPORTED",
                f"sink {sink.name!r}: Spark has no format {sink.format!r}",
                hint=f"did you mean {near!r}?"
                if near is not None
                else "correct the format; or add its jar to `spark.jars.packages`, or register its "
                "Python data source in a source file",
            )
    options = system.map_options(context.resolved(sink.options), context.map_path)
    options = system.check_options(options)
    system.check_query(options, column_types(df), mode)
    return options


def check_place(
    sink: Sink, options: Mapping[str, str], df: DataFrame, sources: Sequence[OpenedSource]
) -> None:
    """Refuse a sink whose location is also a source of its flow.

    Each update would read the rows that the previous one has written; for a topic, a filter may
    exclude them. In a folder with the log of a file sink, Spark only reads the files in that log
    and ignores all others.
    """
    path = option(options, "path")
    place, local = path_key(path), local_path(path)
    file = f"{path.rstrip('/') if local is None else normpath(local)}/part-0.{sink.format}"
    location = sink_of(sink.format).facts(options).location
    if not path and location is not None and not plans.has_filter(df):
        place = file = f"{location.namespace}/{location.name}"
    for source in sources:
        if place and (place in map(path_key, source.paths) or source.includes(file)):
            raise ConnectorError(
                "SINK_OPTION_REFUSED",
                f"the sink's location {place} is read by its own flow",
                hint="choose another location for the sink",
            )


def column_types(df: DataFrame) -> dict[str, str]:
    """Names of columns, and Spark's simple names of their types."""
    return {column.name: column.dataType.simpleString() for column in df.schema}
