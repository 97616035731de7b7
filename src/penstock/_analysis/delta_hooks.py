"""Hooks of Delta's `DeltaTable`: names of datasets, and paths as Spark's readers take them."""

from typing import Any

from pyspark.sql import SparkSession

from penstock._analysis.hooks import active, replaces
from penstock._model.paths import real_path


def wrap_delta_tables() -> None:
    """Wrap the class for this process."""
    from delta.tables import DeltaTable, DeltaTableBuilder

    def located(path: str) -> str:
        redirect = active()
        return path if redirect is None else real_path(path, redirect.context.map_path)

    @replaces(DeltaTable, "forName")
    def for_name(original: Any, /, sparkSession: SparkSession, tableOrViewName: str) -> Any:
        redirect = active()
        path = redirect.delta_path(tableOrViewName) if redirect is not None else None
        if path is not None:
            return DeltaTable.forPath(sparkSession, path)
        return original(sparkSession, tableOrViewName)

    @replaces(DeltaTable, "forPath")
    def for_path(
        original: Any, /, sparkSession: SparkSession, path: str, hadoopConf: Any = None
    ) -> Any:
        return original(sparkSession, located(path), hadoopConf or {})

    # A table that is not there by its path as it is written would be overwritten.
    @replaces(DeltaTable, "isDeltaTable")
    def is_delta_table(original: Any, /, sparkSession: SparkSession, identifier: str) -> bool:
        return bool(original(sparkSession, located(identifier)))

    @replaces(DeltaTableBuilder, "location")
    def builder_location(original: Any, /, self: Any, location: str) -> Any:
        return original(self, located(location))
