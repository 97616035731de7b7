"""Hooks of PySpark's batch writer: paths and tables that user code writes."""

from typing import Any

from pyspark.sql.readwriter import DataFrameWriter

from penstock._analysis.hooks import active, own_read, replaces
from penstock._model.paths import real_path
from penstock._model.sql_text import delta_table

ROW_FORMATS = ("json", "csv", "parquet", "orc", "text", "xml")
"""Formats that readers and writers have a method for."""
PATH_OPTION = "path"


def wrap_writer() -> None:
    """Map paths; a table by name is written to Delta files in the pipeline's storage."""

    def write(original: Any, /, self: Any, path: Any = None, *args: Any, **kwargs: Any) -> None:
        redirect = active()
        if redirect is not None and isinstance(path, str):
            path = real_path(path, redirect.context.map_path)
        with own_read():
            original(self, path, *args, **kwargs)

    for name in ("save", *ROW_FORMATS):
        if hasattr(DataFrameWriter, name):
            replaces(DataFrameWriter, name)(write)

    @replaces(DataFrameWriter, "option")
    def option(original: Any, /, self: DataFrameWriter, key: str, value: Any) -> Any:
        redirect = active()
        if redirect is not None and key.lower() == PATH_OPTION and isinstance(value, str):
            value = real_path(value, redirect.context.map_path)
        return original(self, key, value)

    @replaces(DataFrameWriter, "options")
    def options(_: Any, /, self: DataFrameWriter, **values: Any) -> DataFrameWriter:
        for key, value in values.items():
            option(self, key, value)
        return self

    @replaces(DataFrameWriter, "saveAsTable")
    def save_as_table(
        original: Any,
        /,
        self: DataFrameWriter,
        name: str,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> None:
        redirect = active()
        if redirect is None:
            original(self, name, format, mode, partitionBy, **options)
            return
        path = redirect.delta_path(name) or redirect.context.external_tables.location_of(name)
        with own_read():
            self.save(path, "delta", mode, partitionBy, **options)

    @replaces(DataFrameWriter, "insertInto")
    def insert_into(
        original: Any, /, self: DataFrameWriter, tableName: str, overwrite: bool | None = None
    ) -> None:
        redirect = active()
        path = redirect.delta_path(tableName) if redirect is not None else None
        if path is None:
            original(self, tableName, overwrite)
            return
        with own_read():
            original(self, delta_table(path), overwrite)
