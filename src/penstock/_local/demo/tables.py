"""Reads Delta tables with delta-rs.

It shares no code with the writers of the tables, so that the account is independent of them.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow.fs import FileSystem, SubTreeFileSystem


def opened(path: Path, version: int | None = None) -> DeltaTable | None:
    """A version of a table, by default the newest; `None` without a table."""
    return DeltaTable(path, version=version) if DeltaTable.is_deltatable(str(path)) else None


def read_rows(table: DeltaTable | None, columns: Sequence[str]) -> pa.Table:
    """The rows of a table, none without one; timestamps are UTC microseconds."""
    if table is None:
        return pa.table({name: pa.array([], pa.null()) for name in columns})
    # Spark writes times as INT96, whose nanoseconds do not reach the year 9999.
    options = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    # Not delta-rs' file system, which calls Python: Arrow's threads may close its files after the
    # last row was returned, and abort the process if the interpreter is already exiting.
    files, root = FileSystem.from_uri(table.table_uri)
    dataset = table.to_pyarrow_dataset(
        filesystem=SubTreeFileSystem(root, files), parquet_read_options=options
    )
    return dataset.to_table(columns=list(columns))
