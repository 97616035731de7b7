"""Hooks of Delta's `DeltaTable`: names of datasets, and paths as Spark's readers take them."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from penstock._model.paths import real_path

if TYPE_CHECKING:
    from penstock._analysis.external_reads import ExternalReads


def wrap_delta_tables(active: "Callable[[], ExternalReads | None]") -> None:
    """Wrap the class for this process; `active` returns the redirect of the current context."""
    from delta.tables import DeltaTable, DeltaTableBuilder

    def located(path: str) -> str:
        redirect = active()
        return path if redirect is None else real_path(path, redirect.map_path)

    original_for_name = DeltaTable.forName.__func__  # type: ignore[attr-defined]

    def for_name(cls: Any, sparkSession: SparkSession, tableOrViewName: str) -> Any:
        redirect = active()
        path = redirect.delta_path(tableOrViewName) if redirect is not None else None
        if path is not None:
            return cls.forPath(sparkSession, path)
        return original_for_name(cls, sparkSession, tableOrViewName)

    original_for_path = DeltaTable.forPath.__func__  # type: ignore[attr-defined]

    def for_path(cls: Any, sparkSession: SparkSession, path: str, hadoopConf: Any = None) -> Any:
        return original_for_path(cls, sparkSession, located(path), hadoopConf or {})

    # A table that is not there by its path as it is written would be overwritten.
    original_is_table = DeltaTable.isDeltaTable.__func__  # type: ignore[attr-defined]

    def is_delta_table(cls: Any, sparkSession: SparkSession, identifier: str) -> bool:
        return bool(original_is_table(cls, sparkSession, located(identifier)))

    original_location = DeltaTableBuilder.location

    @functools.wraps(original_location)
    def location(self: Any, location: str) -> Any:
        return original_location(self, located(location))

    DeltaTable.forName = classmethod(for_name)  # type: ignore[assignment]
    DeltaTable.forPath = classmethod(for_path)  # type: ignore[assignment]
    DeltaTable.isDeltaTable = classmethod(is_delta_table)  # type: ignore[assignment]
    DeltaTableBuilder.location = location  # type: ignore[method-assign]
