"""Tables that the pipeline reads but does not declare: mapped tables, and tables in its storage.

A name is resolved by the `tables` of the settings (exact, then `schema.*`, then `catalog.*`), then
by the storage root, where another pipeline may have written the table, then by the storage of
`defer_to`, then by the metastore if tables are registered in one, then by Spark's catalog.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from penstock._analysis.hooks import own_read
from penstock._analysis.reader_hooks import Reader, reader_state
from penstock._model.name import DatasetName, resolve_name, split_name
from penstock._model.pipeline import Deferral, ExternalTable
from penstock._tables.files import local_path
from penstock._tables.layout import StorageLayout
from penstock._tables.metastore import HiveMetastore
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
    """Resolves and reads external tables. Used by several threads.

    The keys of `tables` from the settings are names, or names that end with `*`. `located` are the
    paths of the pipeline's own tables and quarantines by key, set when it is known which of them
    are deferred. `used` are the names in `tables` that were looked up.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: Mapping[str, ExternalTable],
        layout: StorageLayout,
        *,
        catalog: str,
        schema: str,
        metastore: HiveMetastore | None = None,
        production: Deferral | None = None,
    ) -> None:
        self._spark = spark
        self._tables = {_plain(name): table for name, table in tables.items()}
        self._layout = layout
        self._metastore, self._catalog = metastore, catalog.lower()
        self._defaults = {"catalog": catalog, "schema": schema}
        self._production = production
        self.located: dict[str, str] = {}
        self.used: set[str] = set()

    def find(self, name: str) -> ExternalTable | None:
        """The table of a name; `None` if it is not mapped, in the storage or in the metastore."""
        try:
            spelling_of_name = ".".join(split_name(name)).lower()
            resolved = resolve_name(name, **self._defaults)
        except ValueError:
            return None
        for spelling in (spelling_of_name, resolved.key):
            if spelling in self._tables:
                self.used.add(spelling)
                return _with_format(self._tables[spelling])
        for spelling in (spelling_of_name, resolved.key):
            if (table := self._below_wildcard(spelling)) is not None:
                return table
        for path in self._paths(resolved):
            if self._exists(f"{path}/_delta_log"):
                return ExternalTable(path=path, format="delta")
        if self._metastore is not None and resolved.catalog.lower() == self._catalog:
            location = self._metastore.delta_location(resolved.schema, resolved.name)
            return None if location is None else ExternalTable(path=location, format="delta")
        return None

    def leave(self, name: str) -> None:
        """Remove the mapping of a name that is used for a dataset."""
        self._tables.pop(_plain(name), None)
        self.used.add(name)

    def _paths(self, name: DatasetName) -> Iterator[str]:
        """Possible paths of a table: in the storage, then in that of the deployed pipeline."""
        if name.key in self.located:
            yield self.located[name.key]
            return
        yield self._layout.table_path(name)
        if self._production is not None:
            deployed = self._production.deployed_name(name, **self._defaults)
            yield StorageLayout(self._production.storage).table_path(deployed)

    def location_of(self, name: str) -> str:
        """The path of a new table, which is in the storage like that of a dataset."""
        try:
            return self._layout.table_path(resolve_name(name, **self._defaults))
        except ValueError as error:
            raise DefinitionError("INVALID_DATASET_NAME", str(error)) from None

    def read(
        self,
        table: ExternalTable,
        reader: Reader,
        name: str,
        load: Callable[[Reader, Callable[[], DataFrame]], DataFrame],
    ) -> DataFrame:
        """The rows of a table, as a stream for a stream reader; `load` opens the source."""
        if not self._exists(table.path):
            raise DefinitionError(
                "EXTERNAL_TABLE_NOT_FOUND",
                f"table {name!r} is mapped to {table.path}, which does not exist",
                hint="correct its entry under `tables` in the settings, or create the path",
            )
        with own_read():
            options = {**(_CSV_DEFAULTS if table.format == "csv" else {}), **table.options}
            source: Any = reader.format(table.format)
            if not _is_delta(table) and reader_state(reader).schema is None:
                schema: Any = table.schema
                if schema is None and isinstance(reader, DataStreamReader):
                    batch = self._spark.read.format(table.format).options(**options)
                    schema = batch.load(table.path).schema
                if schema is not None:
                    source = source.schema(schema)
            source = source.options(**options)
        reader_state(source).paths = (table.path,)
        return load(source, partial(source.load, table.path))

    def _below_wildcard(self, name: str) -> ExternalTable | None:
        parts = name.split(".")
        for kept in range(len(parts) - 1, 0, -1):
            table = self._tables.get(".".join((*parts[:kept], "*")))
            if table is None:
                continue
            path = "/".join((table.path.rstrip("/"), *parts[kept:]))
            names = (path, *(path + suffix for suffix in _BY_SUFFIX))
            existing = next(filter(self._exists, names), path)
            return _with_format(replace(table, path=existing))
        return None

    def is_there(self, table: ExternalTable) -> bool:
        """Whether the files of a table exist; it may be mapped to a path without files."""
        return self._exists(f"{table.path}/_delta_log" if _is_delta(table) else table.path)

    def _exists(self, path: str) -> bool:
        local = local_path(path)
        if local is not None and (local.exists() or not any(sign in path for sign in "*?[{")):
            return local.exists()
        jvm: Any = self._spark._jvm
        hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
        conf = self._spark._jsparkSession.sessionState().newHadoopConf()
        return bool(hadoop_path.getFileSystem(conf).globStatus(hadoop_path))


def _plain(name: str) -> str:
    return name.replace("`", "").strip().lower()


def _is_delta(table: ExternalTable) -> bool:
    return table.format == "delta"


def _with_format(table: ExternalTable) -> ExternalTable:
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
    return replace(table, format=shown)
