"""Tables that the pipeline reads but does not declare: mapped ones, and those in its own storage.

A name is looked up in the mapping of the settings (exact, then `schema.*`, then `catalog.*`), then
among the tables of the same storage root, which another pipeline may have written. What is left is
for Spark's own catalog.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from penstock._analysis.reader_hooks import Reader, own_read, reader_schema
from penstock._model.name import resolve_name, split_name
from penstock._model.pipeline import ExternalTable
from penstock._tables.files import local_path
from penstock._tables.layout import StorageLayout
from penstock.errors import DefinitionError

_BY_SUFFIX = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
    ".avro": "avro",
}
_CSV_DEFAULTS = {"header": "true", "inferSchema": "true"}


class ExternalTables:
    """Finds and reads tables from outside of the pipeline. Used on several threads.

    Args:
        spark: The session.
        tables: Of the settings: name, or name with `*` at its end, to where it lies.
        layout: Of the pipeline's storage.
        catalog: Default catalog.
        schema: Default schema.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: Mapping[str, ExternalTable],
        layout: StorageLayout,
        *,
        catalog: str,
        schema: str,
    ) -> None:
        self._spark = spark
        self._tables = {_plain(name): table for name, table in tables.items()}
        self._layout = layout
        self._defaults = {"catalog": catalog, "schema": schema}

    def find(self, name: str) -> ExternalTable | None:
        """Where the table of that name lies; `None` if neither mapped nor in the storage."""
        try:
            spelling_of_name = ".".join(split_name(name)).lower()
            resolved = resolve_name(name, **self._defaults)
        except ValueError:
            return None
        for spelling in (spelling_of_name, resolved.key):
            if spelling in self._tables:
                return _with_format(self._tables[spelling])
        for spelling in (spelling_of_name, resolved.key):
            if (table := self._below_wildcard(spelling)) is not None:
                return table
        path = self._layout.table_path(resolved)
        if self._exists(f"{path}/_delta_log"):
            return ExternalTable(path=path, format="delta")
        return None

    def place_of(self, name: str) -> str:
        """Where a table lies that has no place yet: in the storage, as a dataset would.

        Raises:
            DefinitionError: `INVALID_DATASET_NAME`.
        """
        try:
            return self._layout.table_path(resolve_name(name, **self._defaults))
        except ValueError as error:
            raise DefinitionError("INVALID_DATASET_NAME", str(error)) from None

    def read(self, table: ExternalTable, reader: Reader, name: str) -> DataFrame:
        """The rows of a table that `find` found; as a stream if the reader is one.

        Raises:
            DefinitionError: `EXTERNAL_TABLE_NOT_FOUND`: nothing lies there.
        """
        if not self._exists(table.path):
            raise DefinitionError(
                "EXTERNAL_TABLE_NOT_FOUND",
                f"table {name!r} is mapped to {table.path}, where nothing is",
                hint="correct its entry below `tables` in the settings, or put the data there",
            )
        with own_read():
            options = {**(_CSV_DEFAULTS if table.format == "csv" else {}), **table.options}
            source: Any = reader.format(table.format)
            if table.format != "delta" and reader_schema(reader) is None:
                schema: Any = table.schema
                if schema is None and isinstance(reader, DataStreamReader):
                    batch = self._spark.read.format(table.format).options(**options)
                    schema = batch.load(table.path).schema
                if schema is not None:
                    source = source.schema(schema)
            result: DataFrame = source.options(**options).load(table.path)
            return result

    def _below_wildcard(self, name: str) -> ExternalTable | None:
        parts = name.split(".")
        for kept in range(len(parts) - 1, 0, -1):
            table = self._tables.get(".".join((*parts[:kept], "*")))
            if table is None:
                continue
            place = "/".join((table.path.rstrip("/"), *parts[kept:]))
            if self._exists(place):
                return _with_format(_moved(table, place))
            for suffix in _BY_SUFFIX:
                if self._exists(place + suffix):
                    return _with_format(_moved(table, place + suffix))
            return _with_format(_moved(table, place))
        return None

    def _exists(self, path: str) -> bool:
        local = local_path(path)
        if local is not None:
            return any(local.parent.glob(local.name)) if "*" in path else local.exists()
        jvm: Any = self._spark._jvm
        place = jvm.org.apache.hadoop.fs.Path(path)
        system = place.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())
        return bool(system.globStatus(place))


def _plain(name: str) -> str:
    return name.replace("`", "").strip().lower()


def _moved(table: ExternalTable, path: str) -> ExternalTable:
    return ExternalTable(path=path, format=table.format, options=table.options, schema=table.schema)


def _with_format(table: ExternalTable) -> ExternalTable:
    """The table with the format that its files show, where the settings name none."""
    if table.format:
        return table
    shown = "delta"
    local = local_path(table.path)
    suffix = Path(table.path).suffix.lower()
    if suffix in _BY_SUFFIX:
        shown = _BY_SUFFIX[suffix]
    elif local is not None and local.is_dir() and not (local / "_delta_log").exists():
        suffixes = {entry.suffix.lower() for entry in local.rglob("*") if entry.is_file()}
        known = [_BY_SUFFIX[suffix] for suffix in sorted(suffixes) if suffix in _BY_SUFFIX]
        shown = known[0] if known else shown
    return ExternalTable(path=table.path, format=shown, options=table.options, schema=table.schema)
