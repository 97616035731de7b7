"""Hooks of PySpark's batch writer: paths and tables that user code writes."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pyspark.sql.readwriter import DataFrameWriter

from penstock._model.paths import real_path
from penstock._model.sql_text import delta_table

if TYPE_CHECKING:
    from penstock._analysis.external_reads import ExternalReads

ROW_FORMATS = ("json", "csv", "parquet", "orc", "text", "xml")
"""Formats that readers and writers have a method for."""
PATH_OPTION = "path"


def wrap_writer(
    active: "Callable[[], ExternalReads | None]",
    unhooked: Callable[[], AbstractContextManager[None]],
) -> None:
    """Map paths; a table by name is written to Delta files in the pipeline's storage.

    `active` returns the redirect of the current context, `unhooked` disables the hooks.
    """

    def path_writer(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def write(self: Any, path: Any = None, *args: Any, **kwargs: Any) -> None:
            redirect = active()
            if redirect is not None and isinstance(path, str):
                path = real_path(path, redirect.map_path)
            with unhooked():
                original(self, path, *args, **kwargs)

        return write

    for name in ("save", *ROW_FORMATS):
        if hasattr(DataFrameWriter, name):
            setattr(DataFrameWriter, name, path_writer(getattr(DataFrameWriter, name)))
    original_option = DataFrameWriter.option

    @functools.wraps(original_option)
    def option(self: DataFrameWriter, key: str, value: Any) -> DataFrameWriter:
        redirect = active()
        if redirect is not None and key.lower() == PATH_OPTION and isinstance(value, str):
            value = real_path(value, redirect.map_path)
        return original_option(self, key, value)

    def options(self: DataFrameWriter, **values: Any) -> DataFrameWriter:
        for key, value in values.items():
            option(self, key, value)
        return self

    DataFrameWriter.option = option  # type: ignore[method-assign]
    DataFrameWriter.options = functools.wraps(DataFrameWriter.options)(options)  # type: ignore[method-assign]
    original_table = DataFrameWriter.saveAsTable

    @functools.wraps(original_table)
    def save_as_table(
        self: DataFrameWriter,
        name: str,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> None:
        redirect = active()
        if redirect is None:
            original_table(self, name, format, mode, partitionBy, **options)
            return
        path = redirect.delta_path(name) or redirect.new_table(name)
        with unhooked():
            self.save(path, "delta", mode, partitionBy, **options)

    original_insert = DataFrameWriter.insertInto

    @functools.wraps(original_insert)
    def insert_into(self: DataFrameWriter, tableName: str, overwrite: bool | None = None) -> None:
        redirect = active()
        path = redirect.delta_path(tableName) if redirect is not None else None
        if path is None:
            original_insert(self, tableName, overwrite)
            return
        with unhooked():
            original_insert(self, delta_table(path), overwrite)

    DataFrameWriter.saveAsTable = save_as_table  # type: ignore[method-assign]
    DataFrameWriter.insertInto = insert_into  # type: ignore[method-assign]
