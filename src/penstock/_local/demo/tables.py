"""Reads Delta tables with delta-rs.

It shares no code with the writers of the tables, so that the account is independent of them.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable


def opened(path: Path, version: int | None = None) -> DeltaTable | None:
    """A version of a table, by default the newest; `None` without a table."""
    return DeltaTable(path, version=version) if DeltaTable.is_deltatable(str(path)) else None


def read_rows(table: DeltaTable | None, columns: Sequence[str]) -> pa.Table:
    """The rows of a table, none without one; timestamps are UTC microseconds."""
    if table is None:
        return pa.table({name: pa.array([], pa.null()) for name in columns})
    return table.to_pyarrow_table(columns=list(columns))
