"""The rows of a Delta table, read without Spark where that makes no difference."""

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow
from deltalake import DeltaTable

from penstock._tables.delta_log import DeltaJvm
from penstock._tables.write.maintain import TARGET_BYTES, TableFiles, maintenance_session

_SCALAR = r"u?int\d+|string|bool|double|float|date32.*|timestamp.*|decimal.*"
_READABLE = {"deletionVectors", "columnMapping", "timestampNtz"}
_PLAIN = re.compile(rf"{_SCALAR}|list<\w+: (?:{_SCALAR})(?: not null)?>")


def stored_rows(
    spark: Any, folder: str | Path, *columns: str, key: Callable[[Any], Any] | None = None
) -> list[tuple[Any, ...]]:
    """The rows of a table, sorted; columns may be expressions.

    Delta's Spark jobs for one look at a table of three rows take two seconds of the processor.
    """
    folder = str(folder)
    if DeltaTable.is_deltatable(folder):
        table = DeltaTable(folder)
        types = {field.name: str(field.type) for field in pyarrow.schema(table.schema())}
        chosen = columns or tuple(types)
        is_plain = all(_PLAIN.fullmatch(types.get(column, "")) for column in chosen)
        if is_plain and _READABLE.issuperset(table.protocol().reader_features or ()):
            values = pyarrow.table(table.scan(columns=list(chosen))).to_pydict()
            columns_of = [list(map(_as_collected, values[name])) for name in chosen]
            return sorted(zip(*columns_of, strict=True), key=key)
    df = spark.read.format("delta").load(folder)
    df = df.selectExpr(*columns) if columns else df
    return sorted((tuple(row) for row in df.collect()), key=key)


def _as_collected(value: Any) -> Any:
    """As PySpark collects it: a timestamp without time zone, in the local one."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    return value


def arrow_rows(folder: str | Path) -> pyarrow.Table:
    """The rows that a table has now; queries of them need none of Delta's jobs."""
    table = DeltaTable(folder)
    return pyarrow.table(table.scan()).cast(pyarrow.schema(table.schema()))


def restore(spark: Any, folder: str | Path, version: int) -> None:
    """Go back to an earlier version, as RESTORE does, without Delta's jobs.

    `test_restore_rows` compares it with Delta's command.
    """
    if not DeltaJvm(spark).restore(str(folder), version):
        spark.sql(f"RESTORE TABLE delta.`{folder}` TO VERSION AS OF {version}")


def merge_files(spark: Any, folder: str | Path) -> None:
    """Merge small files, as OPTIMIZE does, without Delta's jobs."""
    delta = DeltaJvm(maintenance_session(spark))
    TableFiles(delta, str(folder)).compact(below=TARGET_BYTES)
