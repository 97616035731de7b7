"""Sinks that are user functions, called for each micro-batch, and the helpers for them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pyspark.sql import DataFrame

from penstock._api.batches import MicroBatch, writing
from penstock._model.paths import path_key, real_path
from penstock._spark.call_sites import user_columns
from penstock._spark.failures import flow_error, traced_text
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import StorageFiles
from penstock._tables.kill_points import kill_point
from penstock._tables.write.fenced import last_number
from penstock._tables.write.table_spec import read_version
from penstock.errors import ConnectorError, DefinitionError, PenstockError
from penstock.sinks.base import (
    BatchSink,
    OpenedSink,
    Sink,
    SinkCommit,
    Write,
    check_checkpoint,
    evaluate,
)
from penstock.sinks.kafka import KafkaSink


class FunctionSink(Sink):
    """A function with `@dp.foreach_batch_sink`, which is called again if a batch is repeated."""

    formats = ("foreach_batch",)

    def open(self, write: Write) -> OpenedSink:
        if write.function is None:
            raise _without_function(write.format)
        return FunctionSinkWriter(write, write.function)


class ForeachSink(Sink):
    """`foreach` and `foreachBatch`, which are methods of `writeStream`, not formats."""

    formats = ("foreach", "foreachbatch")

    def check_options(self, options: Mapping[str, str]) -> dict[str, str]:
        raise _without_function(self.formats[0])

    def open(self, write: Write) -> OpenedSink:
        raise _without_function(write.format)


def _without_function(sink_format: str) -> ConnectorError:
    return ConnectorError(
        "SINK_FORMAT_NOT_SUPPORTED",
        f"a sink of format {sink_format!r} has no place for a function or an object",
        hint="put @dp.foreach_batch_sink on a function of the batch; in it, "
        "penstock.batches.foreach_row hands rows to a ForeachWriter",
    )


class FunctionSinkWriter(BatchSink):
    """Calls a function for each batch of a flow; paths and tables resolve as in source files."""

    def __init__(self, write: Write, function: Callable[..., object]) -> None:
        self._opened = write
        self._function = function

    def write(self, df: DataFrame, batch_id: int) -> SinkCommit:
        opened, flow = self._opened, self._opened.flow
        kill_point("before_write", flow.name, batch_id)
        batch = MicroBatch(
            pipeline=opened.pipeline, flow=flow.name, epoch=opened.epoch, batch_id=batch_id
        )
        tools = _Tools(opened, batch)
        try:
            with writing(tools), user_columns():
                self._function(df, batch_id)
        except PenstockError as error:
            if error.origin is None:
                error.origin = flow.origin
            raise
        except BaseException as error:  # otherwise, Java would wait for a response forever
            # Only its text: a TypeError in user code is not a bug in Penstock.
            text = traced_text(error)
            missing_topic = KafkaSink().explain(text, flow, batch_id)  # functions may use Kafka
            raise missing_topic or flow_error(text, flow, batch_id=batch_id) from error
        kill_point("after_target_commit", flow.name, batch_id)
        return SinkCommit(rows=None)


class _Tools:
    """Implements `BatchTools`."""

    def __init__(self, opened: Write, batch: MicroBatch) -> None:
        self.batch = batch
        self._opened = opened
        self._spark = opened.spark
        self._written: set[tuple[str, str]] = set()

    def write_delta(
        self,
        df: DataFrame,
        path: str,
        *,
        name: str,
        mode: str,
        partition_by: Sequence[str],
        options: Mapping[str, str],
    ) -> bool:
        location = real_path(path, self._opened.map_path)
        place = path_key(location) or location  # the same for every spelling
        if (place, name) in self._written:
            raise DefinitionError(
                "BATCH_WRITE_REPEATED",
                f"batch {self.batch.batch_id} writes {path} twice"
                + (f" under the name {name!r}" if name else ""),
                hint="the second write would be skipped as a repetition of the first: give each "
                'one a name, idempotent_delta_write(df, path, name="...")',
            )
        self._written.add((place, name))
        app_id = f"{self.batch.app_id}/{name}" if name else self.batch.app_id
        exists = read_version(self._spark, location) is not None
        last = last_number(DeltaJvm(self._spark), location, app_id) if exists else -1
        if last >= self.batch.batch_id:
            check_checkpoint(self._opened, last, location)
            evaluate(df)
            return False
        # Both options also guard against a concurrent commit since the check above.
        writer = df.write.format("delta").mode(mode).options(**options)
        writer = writer.option("txnAppId", app_id).option("txnVersion", self.batch.batch_id)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.save(location)
        return True

    def each_row(self, df: DataFrame, writer: Any) -> None:
        if not callable(writer.process if hasattr(writer, "process") else writer):
            raise DefinitionError(
                "FOREACH_WRITER_INVALID",
                f"foreach_row got {type(writer).__name__}, which has no method `process`",
                hint="give a function of a row, or an object with process(row) and, if it needs "
                "them, open(partition_id, batch_id) and close(error)",
            )
        df.rdd.mapPartitionsWithIndex(_task(writer, self.batch.batch_id)).count()

    def once(self, action: Callable[[], object], name: str) -> bool:
        files = StorageFiles(self._spark)
        note = f"{self._opened.notes}/{quote(name, safe='')}"
        known = files.read(note)
        # If the process died while it wrote the file, there is no number in it.
        if known is not None and known.isdecimal() and int(known) >= self.batch.batch_id:
            return False
        action()
        files.write(note, str(self.batch.batch_id))
        return True


def _task(writer: Any, batch_id: int) -> Callable[[int, Iterable[Any]], Iterator[Any]]:
    """A function that passes the rows of a partition to an object or a function."""
    is_object = hasattr(writer, "process")

    def task(partition: int, rows: Iterable[Any]) -> Iterator[Any]:
        is_open, error = True, None
        if is_object and hasattr(writer, "open"):
            is_open = writer.open(partition, batch_id)
        try:
            if is_open:
                for row in rows:
                    (writer.process if is_object else writer)(row)
        except Exception as raised:
            error = raised
            raise
        finally:
            if is_object and hasattr(writer, "close"):
                writer.close(error)
        return iter(())

    return task
