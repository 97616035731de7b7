"""`read` and `read_stream`, which query functions use to read datasets.

Reading needs Spark, which `_api` does not import: `_analysis` provides a `DatasetReader` while
query functions run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from penstock._model.origin import capture_origin
from penstock.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DatasetReader(Protocol):
    """Reads datasets by name. Called any number of times, on the thread of a query function.

    Exceptions propagate to the user's function, and to its caller.
    """

    def read(self, name: str) -> "DataFrame":
        """Return the dataset with a name, as written by the user, as a batch DataFrame."""

    def read_stream(self, name: str) -> "DataFrame":
        """Return the dataset with a name, as written by the user, as a streaming DataFrame."""

    def query(self, text: str, *, catalog: str | None, schema: str | None) -> "DataFrame":
        """Return the result of a SQL query over datasets of the pipeline.

        Args:
            text: One query.
            catalog: Default catalog of its names; `None` means the pipeline's.
            schema: Default schema of its names; `None` means the pipeline's.
        """


_reader: ContextVar[DatasetReader | None] = ContextVar("penstock_reader", default=None)


@contextmanager
def reading(reader: DatasetReader) -> Iterator[None]:
    """Use `reader` for `read` and `read_stream` in this context."""
    token = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(token)


def read(name: str) -> "DataFrame":
    """Return a dataset of the pipeline as a batch DataFrame; only inside of a query function.

    Args:
        name: One to three parts, with or without a leading `LIVE.`.

    Raises:
        DefinitionError: Called anywhere else.
    """
    return _current("read", name).read(name)


def read_stream(name: str) -> "DataFrame":
    """Return a dataset of the pipeline as a streaming DataFrame; else as `read`."""
    return _current("read_stream", name).read_stream(name)


readStream = read_stream


def query(text: str, *, catalog: str | None = None, schema: str | None = None) -> "DataFrame":
    """Return the result of a SQL query; for the query functions of SQL definitions.

    Args:
        text: One query; names of datasets in any style.
        catalog: Default catalog of its names; `None` means the pipeline's.
        schema: Default schema of its names; `None` means the pipeline's.

    Raises:
        DefinitionError: Called outside of a query function.
    """
    return _current("query", text).query(text, catalog=catalog, schema=schema)


def _current(function: str, name: object) -> DatasetReader:
    reader = _reader.get()
    if reader is None:
        raise DefinitionError(
            "OUTSIDE_PIPELINE",
            f"`{function}` was called outside of a query function",
            origin=capture_origin(),
            hint="call it inside of a function under `@table`, `@materialized_view`, "
            "`@temporary_view` or `@append_flow`, in a file that `penstock run` starts",
        )
    if not isinstance(name, str):
        raise DefinitionError(
            "INVALID_PARAMETER",
            f"`{function}` reads a dataset by its name, a string, not {type(name).__name__}",
            origin=capture_origin(),
        )
    return reader
