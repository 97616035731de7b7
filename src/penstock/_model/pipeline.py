"""The immutable definition of a pipeline, and its settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from penstock._model.alert import AlertSettings
from penstock._model.dataset import Dataset, Sink
from penstock._model.export import LineageSettings, MetricsSettings, TelemetrySettings
from penstock._model.flow import Flow
from penstock._model.name import DatasetName, path_segment
from penstock._model.origin import SourceLocation

_EMPTY: Mapping[str, Any] = MappingProxyType({})

PIPELINES = "pipelines"
"""Folder in a shared storage that contains a folder per pipeline."""
DEFAULT_CATALOG = "spark_catalog"
DEFAULT_SCHEMA = "default"
"""Catalog and schema that complete names if the settings do not set them."""


@dataclass(frozen=True, kw_only=True)
class ExternalTable:
    """A table that the pipeline reads but does not declare.

    `path` is an absolute path or URI of a folder or a file; for a name that ends in `*`, it is the
    folder of its schemas or tables. `format` (in lower case) and `schema` (as DDL) are inferred
    from the files if they are not set.
    """

    path: str
    format: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None


@dataclass(frozen=True, kw_only=True)
class MetastoreSettings:
    """The Hive metastore in which tables are registered, with settings of Hive.

    Without an address, a Derby database below the storage root is used.
    """

    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EventLogSettings:
    """Retention of the event log, and the Delta tables that it is copied to.

    Updates that have ended are deleted after `keep_days`. The details of single batches are deleted
    after `keep_progress_days`, and the oldest ones if an update has more than `max_progress_mb`
    (MiB) of them; their sums are kept. `table` has a row per event, `quality_table` a row per batch
    and rule. `None` means never, no limit, or no table.
    """

    keep_days: float | None = None
    keep_progress_days: float | None = 30.0
    max_progress_mb: float | None = 256.0
    table: str | None = None
    quality_table: str | None = None

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(name for name in (self.table, self.quality_table) if name is not None)


@dataclass(frozen=True, kw_only=True)
class MaintenanceSettings:
    """When updates compact, cluster and VACUUM tables.

    A table is compacted if this removes at least `min_small_files` files. The intervals are between
    two runs of Z-order or clustering, and of VACUUM (`None` means never), of a table.
    """

    enabled: bool = True
    min_small_files: int = 50
    optimize_interval_hours: float = 24.0
    vacuum_interval_hours: float | None = 24.0


@dataclass(frozen=True, kw_only=True)
class Deferral:
    """The deployed pipeline whose tables are read instead of building unchanged datasets.

    `name` is its target, or its storage, for messages; the other fields are as in
    `PipelineSettings`.
    """

    name: str
    storage: str
    home: str
    catalog: str
    schema: str

    def deployed_name(self, name: DatasetName, *, catalog: str, schema: str) -> DatasetName:
        """The name in the deployed pipeline of a dataset of a pipeline with these defaults."""
        if name.catalog.lower() != catalog.lower():
            return name
        is_default = name.schema.lower() == schema.lower()
        return DatasetName(self.catalog, self.schema if is_default else name.schema, name.name)


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """The settings from the settings files, the environment and the command line.

    Attributes:
        name: Label of the pipeline; part of the writer's app ids.
        storage: Root URI (`file:///...`, `s3a://...`) of tables, checkpoints, events and state.
        shared_storage: Whether other pipelines use the same root.
        root: Folder of the project on this machine, which contains the source files.
        started_in: Working directory of the command, in which relative paths are searched second.
        configuration: Spark and custom keys that source files read with `spark.conf.get`.
        source_patterns: File paths, or folders ending in `/**`, relative to `root`.
        quarantine: Whether rows that violate a drop rule are kept in `<table>_quarantine`.
        master: Spark master URL; `None` means `local[*]` unless Spark's own conf sets it.
        continuous: Whether the pipeline runs until it is stopped.
        import_roots: Absolute folders that source files import from, in addition to the root and
            the folder of the file.
        dependencies: Python requirements in pip's syntax; they are not installed.
        paths: Replacements of paths in source files by prefix, for `PathMap`.
        tables: Tables that the pipeline reads but does not declare, by the name that it uses.
        metastore: Metastore in which tables are registered under their names; `None` for none.
        notes: One sentence for each setting that was read but has no effect here.
        lint_ignore: Ids of rules of `penstock lint` that are accepted everywhere.
        local_dir: Folder on this machine for the event log and logs of a remote storage, and the
            default storage; empty means `.penstock` in the root.
        defer: Deployed pipeline from which unchanged datasets are read.
    """

    name: str
    storage: str
    root: str
    shared_storage: bool = False
    started_in: str = field(default="", compare=False)
    catalog: str = DEFAULT_CATALOG
    schema: str = DEFAULT_SCHEMA
    configuration: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    source_patterns: tuple[str, ...] = ()
    quarantine: bool = True
    master: str | None = None
    continuous: bool = False
    development: bool = False
    parameters: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    import_roots: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    tables: Mapping[str, ExternalTable] = field(default_factory=lambda: _EMPTY)
    metastore: MetastoreSettings | None = None
    notes: tuple[str, ...] = ()
    lint_ignore: tuple[str, ...] = ()
    alerts: AlertSettings = field(default_factory=AlertSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    lineage: LineageSettings = field(default_factory=LineageSettings)
    events: EventLogSettings = field(default_factory=EventLogSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    maintenance: MaintenanceSettings = field(default_factory=MaintenanceSettings)
    local_dir: str = field(default="", compare=False)
    defer: Deferral | None = None

    @property
    def local_folder(self) -> str:
        """The absolute path of `local_dir`."""
        return self.local_dir or f"{self.root}/.penstock"

    @property
    def home(self) -> str:
        """Root URI of checkpoints, events and state: a separate folder in a shared storage."""
        if not self.shared_storage:
            return self.storage
        return f"{self.storage.rstrip('/')}/{PIPELINES}/{path_segment(self.name)}"

    @property
    def registered_catalog(self) -> str | None:
        """The catalog whose tables are registered in the metastore; `None` without one."""
        return None if self.metastore is None else self.catalog


@dataclass(frozen=True, kw_only=True)
class EventHook:
    """A user function that is called with every event of an update, in the format of the event log.

    It is disabled after more than `max_consecutive_failures`; `None` means never.
    """

    name: str
    function: Callable[[dict[str, Any]], Any] = field(repr=False)
    max_consecutive_failures: int | None = None
    origin: SourceLocation


@dataclass(frozen=True, kw_only=True)
class PipelineDefinition:
    """Everything that the source files of a pipeline declared, in order."""

    datasets: tuple[Dataset, ...] = ()
    sinks: tuple[Sink, ...] = ()
    flows: tuple[Flow, ...] = ()
    hooks: tuple[EventHook, ...] = ()
    warnings: tuple[str, ...] = ()
