"""Stream writers of declared sinks."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._analysis.evaluation import Evaluator
from penstock._analysis.sinks import checked_options, column_types
from penstock._execution.listener import WRITTEN
from penstock._execution.running import RunningQuery
from penstock._graph.dataflow import FlowNode
from penstock._model.dataset import Sink
from penstock._model.flow import OutputMode
from penstock._model.name import path_segment, resolve_name
from penstock._tables.layout import StorageLayout
from penstock.errors import ConnectorError
from penstock.sinks.base import BatchSink, OpenedSink, StreamSink, Write
from penstock.sinks.registry import sink_of


class SinkWriters:
    def __init__(
        self,
        spark: SparkSession,
        evaluator: Evaluator,
        layout: StorageLayout,
        pipeline: str,
        resolve_secrets: Callable[[str], str],
    ) -> None:
        self._spark = spark
        self._evaluator = evaluator
        self._layout = layout
        self._pipeline = pipeline
        self._resolve_secrets = resolve_secrets

    def writer(
        self,
        sink: Sink,
        node: FlowNode,
        df: DataFrame,
        epoch: str,
        checkpoint: str,
        running: RunningQuery,
        *,
        has_batches: bool = True,
    ) -> Any:
        """A stream writer for a flow, without name, checkpoint and trigger.

        Without `has_batches` (continuous processing, real-time mode) Spark writes.
        """
        flow, mode = node.flow, node.analysis.output_mode or OutputMode.APPEND
        system = sink_of(sink.format)
        try:
            options = checked_options(
                sink,
                column_types(df),
                mode,
                resolve_secrets=self._resolve_secrets,
                map_path=self._evaluator.map_path,
            )
            function = sink.write_batch
            opened = system.open(
                Write(
                    spark=self._spark,
                    pipeline=self._pipeline,
                    flow=flow,
                    epoch=epoch,
                    checkpoint=checkpoint,
                    schema=df.schema,
                    format=sink.format,
                    options=options,
                    has_batches=has_batches,
                    function=None if function is None else self._evaluator.redirecting(function),
                    map_path=self._evaluator.map_path,
                    table_path=self._table_path,
                    notes=f"{self._layout.state_dir}/batches/{path_segment(flow.name)}/{epoch}",
                )
            )
        except ConnectorError as error:
            error.origin = error.origin or sink.origin
            raise
        running.explains_failures(lambda text, batch: system.explain(text, flow, batch))
        if isinstance(opened, BatchSink):
            running.writes_batches(opened.write, opened.close)
        return stream_writer(opened, df, mode, running.on_batch, has_batches=has_batches)

    def _table_path(self, name: str) -> str:
        index = self._evaluator.index
        resolved = resolve_name(name, catalog=index.catalog, schema=index.schema)
        return self._layout.table_path(resolved)


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
