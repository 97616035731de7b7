"""For `foreach_batch_sink` functions: the current micro-batch and idempotent writes."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """The micro-batch that a function writes.

    It is identified by flow, epoch and batch id. The batch id alone is not unique: it starts at 0
    in every checkpoint of every flow.

    Attributes:
        pipeline: Name of the pipeline at the first start of the flow.
        flow: Name of the flow.
        epoch: Epoch of the flow's checkpoint, which changes after a full refresh or a rename.
        batch_id: Spark's id of the batch.
    """

    pipeline: str
    flow: str
    epoch: str
    batch_id: int

    @property
    def app_id(self) -> str:
        """Identifies the flow and its checkpoint: a `txnAppId` of Delta, or the key of a fence."""
        return f"{self.pipeline}/{self.flow}/batch/{self.epoch}"


class BatchTools(Protocol):
    """The engine's implementation of the functions of this module."""

    @property
    def batch(self) -> MicroBatch: ...

    def write_delta(
        self,
        df: "DataFrame",
        path: str,
        *,
        name: str,
        mode: str,
        partition_by: Sequence[str],
        options: Mapping[str, str],
    ) -> bool:
        """See `idempotent_delta_write`."""

    def once(self, action: Callable[[], object], name: str) -> bool:
        """See `once_per_batch`."""

    def each_row(self, df: "DataFrame", writer: object) -> None:
        """See `foreach_row`."""


_current: ContextVar[BatchTools | None] = ContextVar("penstock_batch", default=None)


@contextlib.contextmanager
def writing(tools: BatchTools) -> Iterator[None]:
    """Make the functions of this module available in this context."""
    token = _current.set(tools)
    try:
        yield
    finally:
        _current.reset(token)


def current_batch() -> MicroBatch:
    """The micro-batch that is written; for `foreach_batch_sink` functions.

    Raises:
        DefinitionError: `OUTSIDE_MICRO_BATCH`.
    """
    return _tools("current_batch").batch


def idempotent_delta_write(
    df: "DataFrame",
    path: str,
    *,
    name: str = "",
    mode: str = "append",
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> bool:
    """Write rows to a Delta table; a batch that is written again changes nothing.

    The commit carries the identity of the flow and the batch id (Delta's `txnAppId` and
    `txnVersion`). Where they are in the table already, the rows are evaluated, so that stateful
    queries continue, but not written.

    Args:
        df: The batch, or rows made of it.
        path: Of the table; it is created if it does not exist.
        name: Distinguishes several writes to one table in one batch. A name keeps its meaning from
            batch to batch.
        mode: `append` or `overwrite`.
        partition_by: Columns of a new table.
        options: Of Delta's writer, such as `mergeSchema`.

    Returns:
        Whether the rows were written now.

    Raises:
        DefinitionError: `OUTSIDE_MICRO_BATCH`; `BATCH_WRITE_REPEATED` if the batch has written
            this table under this name.
    """
    return _tools("idempotent_delta_write").write_delta(
        df, path, name=name, mode=mode, partition_by=partition_by, options=options or {}
    )


def once_per_batch(action: Callable[[], object], *, name: str) -> bool:
    """Call a function unless this batch has called it before.

    The call is recorded afterwards, in the pipeline's storage. If the process dies between the end
    of the action and the record, it is called again: at least once. For exactly once, let the
    system that is written to store `current_batch()` beside the rows.

    Args:
        action: Takes nothing.
        name: Distinguishes the actions of a function.

    Returns:
        Whether it was called now.

    Raises:
        DefinitionError: `OUTSIDE_MICRO_BATCH`.
    """
    return _tools("once_per_batch").once(action, name)


def foreach_row(df: "DataFrame", writer: object) -> None:
    """Call an object or a function with each row, as `writeStream.foreach` does.

    It runs in Spark's Python processes, a copy of `writer` for each partition. Its methods:
    `process(row)`; optionally `open(partition_id, batch_id)`, which may return `False` to skip the
    partition, and `close(error)`, which is always called.

    After a crash the rows are passed again with the same batch id, but perhaps in other partitions.
    So write by a key, or store `batch_id` beside the rows; a partition's number is no identity.

    Args:
        df: The batch, or rows made of it.
        writer: The object, or a function of a row.

    Raises:
        DefinitionError: `OUTSIDE_MICRO_BATCH` or `FOREACH_WRITER_INVALID`.
    """
    _tools("foreach_row").each_row(df, writer)


def _tools(function: str) -> BatchTools:
    tools = _current.get()
    if tools is None:
        raise DefinitionError(
            "OUTSIDE_MICRO_BATCH",
            f"{function} was called outside of a micro-batch",
            hint="call it in a function with @dp.foreach_batch_sink, on the thread that it runs on",
        )
    return tools
