"""The rows of a Delta table, read without Spark where that makes no difference."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
from deltalake import DeltaTable

_SCALAR = r"u?int\d+|string|bool|double|float|date32.*|decimal.*"
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
        if is_plain and not table.protocol().reader_features:
            values = table.to_pyarrow_table(columns=list(chosen)).to_pydict()
            return sorted(zip(*(values[name] for name in chosen), strict=True), key=key)
    df = spark.read.format("delta").load(folder)
    df = df.selectExpr(*columns) if columns else df
    return sorted((tuple(row) for row in df.collect()), key=key)
