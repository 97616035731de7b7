"""From a declared sink to a stream writer: one place that knows every kind."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._engine.evaluation import Evaluator
from penstock._engine.listener import WRITTEN
from penstock._engine.running import RunningQuery
from penstock._engine.surroundings import resolved_options
from penstock._graph.dataflow import FlowNode
from penstock._model.dataset import Sink
from penstock._model.flow import OutputMode
from penstock._model.name import resolve_name
from penstock._model.paths import real_path
from penstock._tables.layout import StorageLayout, path_segment
from penstock.errors import ConnectorError
from penstock.sinks.function import FunctionSinkWriter
from penstock.sinks.jdbc import JdbcSinkWriter
from penstock.sinks.jdbc_options import jdbc_sink_options
from penstock.sinks.kafka import KafkaSinkWriter
from penstock.sources.kafka.options import prepare_sink_options
from penstock.sources.registry import source_of


def forgets(sink: Sink) -> bool:
    """Whether what a sink holds ends with the process: its flows start over each time.

    Spark refuses to go on from a checkpoint of its memory sink: the rows before would be missing.
    """
    return sink.format.lower() == "memory"


class SinkWriters:
    """Makes the writers of flows into sinks.

    Args:
        spark: The pipeline's session.
        evaluator: For paths, and for functions of the user.
        layout: Where Delta sinks with a `tableName` lie.
        pipeline: Its name.
        resolve_secrets: Fills `${secret:...}` in options.
    """

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
        running: RunningQuery,
        *,
        in_batches: bool = True,
    ) -> Any:
        """A stream writer for a flow, without name, checkpoint and trigger.

        Args:
            sink: Where it writes to.
            node: The flow.
            df: Its query.
            epoch: Of its checkpoint.
            running: Takes the batches of sinks that Penstock writes itself.
            in_batches: Off for continuous processing and real-time mode, where Spark writes.

        Raises:
            ConnectorError: The sink cannot be written like this.
        """
        mode = node.analysis.output_mode or OutputMode.APPEND
        stream = df.writeStream.outputMode(mode.value)
        if sink.write_batch is not None:
            function = self._function_writer(sink.write_batch, node, epoch)
            running.writes_batches(function.write, sink.name)
            return stream.foreachBatch(running.on_batch)
        try:
            return self._system_writer(sink, node, df, epoch, running, stream, in_batches)
        except ConnectorError as error:
            if error.origin is None:
                error.origin = sink.origin
            raise

    def _function_writer(
        self, function: Callable[..., object], node: FlowNode, epoch: str
    ) -> FunctionSinkWriter:
        segment = path_segment(node.flow.name)
        return FunctionSinkWriter(
            self._spark,
            self._evaluator.redirecting(function),
            pipeline=self._pipeline,
            flow=node.flow,
            epoch=epoch,
            notes=f"{self._layout.state_dir}/batches/{segment}/{epoch}",
            map_path=self._evaluator.map_path,
        )

    def _system_writer(
        self,
        sink: Sink,
        node: FlowNode,
        df: DataFrame,
        epoch: str,
        running: RunningQuery,
        stream: Any,
        in_batches: bool,
    ) -> Any:
        kind = sink.format.lower()
        resolved = resolved_options(sink.options, self._resolve_secrets)
        resolved = source_of(kind).map_options(resolved, self._evaluator.map_path)
        if kind == "jdbc":
            options = jdbc_sink_options(resolved)
            writer = JdbcSinkWriter(
                self._spark, options, pipeline=self._pipeline, flow=node.flow, epoch=epoch
            )
            writer.start(df.schema)
            running.writes_batches(writer.write, sink.name)
            return stream.foreachBatch(running.on_batch)
        prepared = prepare_sink_options(resolved) if kind == "kafka" else resolved
        if in_batches:
            stream = df.observe(WRITTEN, F.count(F.lit(1)).alias(WRITTEN)).writeStream
            stream = stream.outputMode((node.analysis.output_mode or OutputMode.APPEND).value)
        if kind == "kafka":
            has_ids = [prepared.pop(name) for name in list(prepared) if name.lower() == "rowids"]
            if in_batches and "false" not in [text.strip().lower() for text in has_ids]:
                sender = KafkaSinkWriter(prepared, flow=node.flow.name, epoch=epoch)
                running.writes_batches(sender.write, sink.name)
                return stream.foreachBatch(running.on_batch)
        table = prepared.pop("tableName", None) if kind == "delta" else None
        if "path" in prepared:
            prepared["path"] = real_path(prepared["path"], self._evaluator.map_path)
        stream = stream.format(sink.format).options(**prepared)
        return stream if table is None else stream.option("path", self._table_location(table))

    def _table_location(self, name: str) -> str:
        """Where a Delta sink's `tableName` lies: below the storage root, as a dataset would."""
        index = self._evaluator.index
        resolved = resolve_name(name, catalog=index.catalog, schema=index.schema)
        return self._layout.table_path(resolved)
