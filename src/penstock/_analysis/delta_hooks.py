"""Hooks of Delta's `DeltaTable`: names of datasets, and mapped paths as in Spark's readers."""

from typing import Any

from penstock._analysis.hooks import Reads, redirects


def wrap_delta_tables() -> None:
    """Wrap the class for this process."""
    from delta.tables import DeltaTable, DeltaTableBuilder

    @redirects(DeltaTable, "forName")
    def for_name(reads: Reads, original: Any, /, sparkSession: Any, tableOrViewName: str) -> Any:
        path = reads.delta_path(tableOrViewName)
        if path is not None:
            return DeltaTable.forPath(sparkSession, path)
        return original(sparkSession, tableOrViewName)

    @redirects(DeltaTable, "forPath")
    def for_path(
        reads: Reads, original: Any, /, sparkSession: Any, path: str, hadoopConf: Any = None
    ) -> Any:
        return original(sparkSession, reads.real_path(path), hadoopConf or {})

    # With the unmapped path, user code would find no table and overwrite the existing one.
    @redirects(DeltaTable, "isDeltaTable")
    def is_delta_table(reads: Reads, original: Any, /, sparkSession: Any, identifier: str) -> bool:
        return bool(original(sparkSession, reads.real_path(identifier)))

    @redirects(DeltaTableBuilder, "location")
    def builder_location(reads: Reads, original: Any, /, self: Any, location: str) -> Any:
        return original(self, reads.real_path(location))
