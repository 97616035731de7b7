"""Stream writers of declared sinks."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock._analysis.sinks import checked_options
from penstock._execution.flow_query import FlowQueries
from penstock._execution.listener import WRITTEN
from penstock._execution.running import RunningQuery
from penstock._graph.dataflow import FlowNode
from penstock._model.dataset import Sink
from penstock._model.flow import OutputMode
from penstock._model.name import path_segment, resolve_name
from penstock._model.paths import path_key
from penstock._tables.files import StorageFiles
from penstock.errors import ConnectorError
from penstock.sinks.base import BatchSink, OpenedSink, SinkCommit, StreamSink, Write, option
from penstock.sinks.registry import sink_of


def sink_writer(
    queries: FlowQueries,
    sink: Sink,
    node: FlowNode,
    df: DataFrame,
    epoch: str,
    running: RunningQuery,
) -> Any:
    """A stream writer for a flow into a sink, without name, checkpoint and trigger.

    If `running` has no batches (continuous processing, real-time mode), Spark writes the rows.
    """
    flow, mode = node.flow, node.analysis.output_mode or OutputMode.APPEND
    system, layout, evaluator = sink_of(sink.format), queries.tables.layout, queries.evaluator
    files = StorageFiles(queries.spark)
    index = evaluator.index

    def table_path(name: str) -> str:
        return layout.table_path(resolve_name(name, catalog=index.catalog, schema=index.schema))

    # Of two drivers, a database accepts the one that has opened its sink last.
    files.check_lease()
    try:
        options = checked_options(sink, df, mode, evaluator.context)
        function = sink.write_batch
        opened = system.open(
            Write(
                spark=queries.spark,
                pipeline=queries.state.pipeline_of(flow.name),
                flow=flow,
                epoch=epoch,
                checkpoint=layout.checkpoint_path(flow.name, epoch),
                schema=df.schema,
                format=sink.format,
                options=options,
                has_batches=running.has_batches,
                function=None if function is None else evaluator.redirecting(function),
                map_path=evaluator.context.map_path,
                table_path=table_path,
                notes=f"{layout.state_dir}/batches/{path_segment(flow.name)}/{epoch}",
            )
        )
        if isinstance(opened, StreamSink):
            _check_place(option(opened.options, "path"), queries)
    except ConnectorError as error:
        error.origin = error.origin or sink.origin
        raise
    running.explains_failures(lambda text, batch: system.explain(text, flow, batch))
    if isinstance(opened, BatchSink):
        write_batch = opened.write

        def write(df: DataFrame, batch_id: int) -> SinkCommit:
            # A driver that was suspended must not write an old batch after newer ones.
            files.check_lease()
            return write_batch(df, batch_id)

        running.writes_batches(write, opened.close)
    return stream_writer(opened, df, mode, running.on_batch, has_batches=running.has_batches)


def _check_place(path: str, queries: FlowQueries) -> None:
    """Refuse a sink that writes to the folder of a table of the pipeline."""
    place = path_key(path) or ""
    for key, table in queries.tables.paths.items():
        if f"{place}/".startswith(f"{path_key(table)}/"):
            raise ConnectorError(
                "SINK_OPTION_REFUSED",
                f"the sink's location {path} is table {key} of this pipeline",
                hint="write to it with an append flow whose target is the table; or choose another "
                "location",
            )


def stream_writer(
    opened: OpenedSink,
    df: DataFrame,
    mode: OutputMode,
    on_batch: Callable[[DataFrame, int], None],
    *,
    has_batches: bool = True,
) -> Any:
    """A stream writer into a sink; `on_batch` receives the batches of a `BatchSink`."""
    if opened.observes_rows and has_batches:
        df = df.observe(WRITTEN, F.count(F.lit(1)).alias(WRITTEN))
    writer: Any = df.writeStream.outputMode(mode.value)
    if isinstance(opened, StreamSink):
        return writer.format(opened.format).options(**opened.options)
    return writer.foreachBatch(on_batch)
