"""The rows of a Delta table, read without Spark where the result is the same."""

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

    With Spark, reading a table of three rows would take two seconds of processor time.
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
    """The value that PySpark collects: a timestamp without time zone, in local time."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    return value


def arrow_rows(folder: str | Path) -> pyarrow.Table:
    """The current rows of a table; queries of them need no Spark jobs of Delta."""
    table = DeltaTable(folder)
    return pyarrow.table(table.scan()).cast(pyarrow.schema(table.schema()))


def restore(spark: Any, folder: str | Path, version: int) -> None:
    """Restore an earlier version like RESTORE, without Delta's jobs.

    `test_restore_rows` compares it with Delta's command.
    """
    if not DeltaJvm(spark).restore(str(folder), version):
        spark.sql(f"RESTORE TABLE delta.`{folder}` TO VERSION AS OF {version}")


def merge_files(spark: Any, folder: str | Path) -> None:
    """Merge small files like OPTIMIZE, without Delta's jobs."""
    delta = DeltaJvm(maintenance_session(spark))
    TableFiles(delta, str(folder)).compact(below=TARGET_BYTES)
