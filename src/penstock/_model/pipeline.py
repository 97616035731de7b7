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
"""Folder of a shared storage with a folder per pipeline."""
DEFAULT_CATALOG = "spark_catalog"
DEFAULT_SCHEMA = "default"
"""What completes names where the settings say nothing."""


@dataclass(frozen=True, kw_only=True)
class ExternalTable:
    """A table that the pipeline reads but does not declare.

    `path` is an absolute path or URI of a folder or a file; of a name that ends in `*`, the folder
    of its schemas or tables. `format`, in lower case, and `schema`, as DDL, are those that the
    files show if they are not set.
    """

    path: str
    format: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None


@dataclass(frozen=True, kw_only=True)
class MetastoreSettings:
    """The Hive metastore that tables are registered in, with settings of Hive.

    Without an address, it is a Derby database below the storage root.
    """

    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EventLogSettings:
    """What the event log keeps, and the Delta tables that it is copied to.

    Updates that have ended are deleted after `keep_days`. The details of single batches are deleted
    after `keep_progress_days`, and their sums are kept; of one update, the newest MiB stay. The
    tables have a row per event, and a row per batch and rule. `None` = never, all, no table.
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

    A compaction must be able to remove `min_small_files`. The intervals are between two runs of
    Z-order or clustering, and of VACUUM (`None` = never), of a table.
    """

    enabled: bool = True
    min_small_files: int = 50
    optimize_interval_hours: float = 24.0
    vacuum_interval_hours: float | None = 24.0


@dataclass(frozen=True, kw_only=True)
class Deferral:
    """The deployed pipeline whose tables are read instead of building unchanged datasets.

    `name` is its target, else its storage, for messages; the others are as of `PipelineSettings`.
    """

    name: str
    storage: str
    home: str
    catalog: str
    schema: str

    def deployed_name(self, name: DatasetName, *, catalog: str, schema: str) -> DatasetName:
        """The name there of a dataset of a pipeline with these defaults."""
        if name.catalog.lower() != catalog.lower():
            return name
        is_default = name.schema.lower() == schema.lower()
        return DatasetName(self.catalog, self.schema if is_default else name.schema, name.name)


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """What the settings files, the environment and the command line say.

    Attributes:
        name: Label of the pipeline; part of the writer's app ids.
        storage: Root URI (`file:///...`, `s3a://...`) of tables, checkpoints, events and state.
        shared_storage: Whether other pipelines use the same root.
        root: Folder of the project on this machine; source files are found below it.
        started_in: Folder from which it was started; the second place of relative paths.
        configuration: Spark and free keys that source files read with `spark.conf.get`.
        source_patterns: File paths, or folders ending in `/**`, relative to `root`.
        quarantine: Whether rows that violate a drop rule are kept in `<table>_quarantine`.
        master: Spark master URL; `None` means `local[*]` unless Spark's own conf says otherwise.
        continuous: Whether the pipeline is meant to run until it is stopped.
        import_roots: Absolute folders that source files import from, besides root and their own.
        dependencies: Python requirements as pip understands them; nothing installs them.
        paths: From a prefix of paths in source files to what stands for it here, for `PathMap`.
        tables: Tables that the pipeline reads but does not make, by the name that it uses.
        metastore: Where tables are registered under their names; `None` = nowhere.
        notes: One sentence for each thing that was read but has no effect here.
        lint_ignore: Ids of rules of `penstock lint` that are accepted everywhere.
        local_dir: Folder on this machine for the event log and logs of a remote storage, and the
            default storage; empty = `.penstock` in the root.
        defer: From where datasets are read that are deployed there as they are declared.
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
        """Root URI of checkpoints, events and state: a folder of its own in a shared storage."""
        if not self.shared_storage:
            return self.storage
        return f"{self.storage.rstrip('/')}/{PIPELINES}/{path_segment(self.name)}"

    @property
    def registered_catalog(self) -> str | None:
        """The catalog whose tables are registered in the metastore; `None` without one."""
        return None if self.metastore is None else self.catalog


@dataclass(frozen=True, kw_only=True)
class EventHook:
    """A function of the user that gets every event of an update, in the shape of the event log.

    After more than `max_consecutive_failures` in a row it is disabled; `None` = never.
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
