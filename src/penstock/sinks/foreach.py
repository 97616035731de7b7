"""Objects of the user that take row by row: the contract of Spark's `foreach`, in a micro-batch."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame

from penstock.errors import DefinitionError


def write_rows(df: DataFrame, writer: Any, batch_id: int) -> None:
    """Hand each row of a micro-batch to an object or a function; see `batches.foreach_row`."""
    process = writer if callable(writer) and not hasattr(writer, "process") else None
    if process is None and not callable(getattr(writer, "process", None)):
        raise DefinitionError(
            "FOREACH_WRITER_INVALID",
            f"foreach_row got {type(writer).__name__}, which has no method `process`",
            hint="give a function of a row, or an object with process(row) and, if it needs them, "
            "open(partition_id, batch_id) and close(error)",
        )
    task = _row_by_row(process) if process is not None else _opened_and_closed(writer, batch_id)
    df.rdd.mapPartitionsWithIndex(task).count()


Task = Callable[[int, Iterable[Any]], Iterator[Any]]


def _row_by_row(process: Callable[[Any], object]) -> Task:
    def task(_: int, rows: Iterable[Any]) -> Iterator[Any]:
        for row in rows:
            process(row)
        return iter(())

    return task


def _opened_and_closed(writer: Any, batch_id: int) -> Task:
    def task(partition: int, rows: Iterable[Any]) -> Iterator[Any]:
        is_open, error = True, None
        if hasattr(writer, "open"):
            is_open = writer.open(partition, batch_id)
        try:
            if is_open:
                for row in rows:
                    writer.process(row)
        except Exception as raised:
            error = raised
            raise
        finally:
            if hasattr(writer, "close"):
                writer.close(error)
        return iter(())

    return task
