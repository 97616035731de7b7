"""Hooks of PySpark's writers: paths and tables that user code writes, and queries it starts."""

from typing import Any

from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock._analysis.hooks import Reads, own_read, redirects
from penstock._model.sql_text import delta_table

ROW_FORMATS = ("json", "csv", "parquet", "orc", "text", "xml")
"""Formats for which readers and writers have a method."""
PATH_OPTION = "path"


def wrap_writer() -> None:
    """Map paths, write tables by name to the pipeline's storage, and check starts of queries."""

    def write(
        reads: Reads, original: Any, /, self: Any, path: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if isinstance(path, str):
            path = reads.real_path(path)
        with own_read():
            original(self, path, *args, **kwargs)

    for name in ("save", *ROW_FORMATS):
        if hasattr(DataFrameWriter, name):
            redirects(DataFrameWriter, name)(write)

    @redirects(DataFrameWriter, "option")
    def option(reads: Reads, original: Any, /, self: DataFrameWriter, key: str, value: Any) -> Any:
        if key.lower() == PATH_OPTION and isinstance(value, str):
            value = reads.real_path(value)
        return original(self, key, value)

    @redirects(DataFrameWriter, "options")
    def options(_: Any, __: Any, /, self: DataFrameWriter, **values: Any) -> DataFrameWriter:
        for key, value in values.items():
            option(self, key, value)
        return self

    @redirects(DataFrameWriter, "saveAsTable")
    def save_as_table(
        reads: Reads,
        _: Any,
        /,
        self: DataFrameWriter,
        name: str,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> None:
        path = reads.delta_path(name) or reads.context.external_tables.location_of(name)
        with own_read():
            self.save(path, "delta", mode, partitionBy, **options)

    @redirects(DataFrameWriter, "insertInto")
    def insert_into(
        reads: Reads, original: Any, /, self: Any, tableName: str, overwrite: bool | None = None
    ) -> None:
        path = reads.delta_path(tableName)
        with own_read():
            original(self, tableName if path is None else delta_table(path), overwrite)

    def start(reads: Reads, original: Any, /, self: Any, *args: Any, **kwargs: Any) -> Any:
        reads.check_start()
        return original(self, *args, **kwargs)

    for name in ("start", "toTable"):
        redirects(DataStreamWriter, name)(start)
