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

_EMPTY: Mapping[str, str] = MappingProxyType({})

PIPELINES = "pipelines"
"""Folder of a shared storage with a folder per pipeline."""
DEFAULT_CATALOG = "spark_catalog"
DEFAULT_SCHEMA = "default"
"""What completes names where the settings say nothing."""


@dataclass(frozen=True, kw_only=True)
class ExternalTable:
    """A table that the pipeline reads but does not declare.

    Attributes:
        path: Where it lies: absolute path or URI of a folder or a file. Of a name that ends in `*`,
            the folder of its schemas or tables.
        format: Spark's name of their format, in lower case; empty = as the files show.
        options: Of the reader.
        schema: DDL; `None` = as the files show.
    """

    path: str
    format: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    schema: str | None = None


@dataclass(frozen=True, kw_only=True)
class MetastoreSettings:
    """The Hive metastore that tables are registered in.

    Attributes:
        options: Settings of Hive; without an address, the metastore is a Derby database below the
            storage root.
    """

    options: Mapping[str, str] = field(default_factory=lambda: _EMPTY)


_NO_TABLES: Mapping[str, ExternalTable] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class EventLogSettings:
    """What the event log keeps, and the Delta tables that it is copied to.

    Attributes:
        keep_days: After so many days an update that has ended is deleted; `None` = never.
        keep_progress_days: After so many days the details of single batches are deleted, and their
            sums are kept; `None` = never.
        max_progress_mb: So many MiB of them stay of an update, the newest ones; `None` = all.
        table: Name of a table with a row per event; `None` = no table.
        quality_table: Name of a table with a row per batch and rule; `None` = no table.
    """

    keep_days: float | None = None
    keep_progress_days: float | None = 30.0
    max_progress_mb: float | None = 256.0
    table: str | None = None
    quality_table: str | None = None

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables."""
        return tuple(name for name in (self.table, self.quality_table) if name is not None)


@dataclass(frozen=True, kw_only=True)
class MaintenanceSettings:
    """Maintenance of the pipeline's tables.

    Attributes:
        enabled: Whether updates maintain tables.
        min_small_files: Small files that a compaction must be able to remove.
        optimize_interval_hours: Between two runs of Z-order or clustering of a table.
        vacuum_interval_hours: Between two runs of VACUUM of a table; `None` = never.
    """

    enabled: bool = True
    min_small_files: int = 50
    optimize_interval_hours: float = 24.0
    vacuum_interval_hours: float | None = 24.0


@dataclass(frozen=True, kw_only=True)
class Deferral:
    """The deployed pipeline whose tables are read instead of building unchanged datasets.

    Attributes:
        name: Its target, else its storage; for messages.
        storage: Root URI of its tables; only read.
        home: As of `PipelineSettings`.
        catalog: Its default catalog.
        schema: Its default schema.
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
        catalog: Default catalog of names with fewer than three parts.
        schema: Default schema of one-part names.
        configuration: Spark and free keys that source files read with `spark.conf.get`.
        source_patterns: File paths, or folders ending in `/**`, relative to `root`.
        quarantine: Whether rows that break a drop rule are kept in `<table>_quarantine`.
        master: Spark master URL; `None` means `local[*]` unless Spark's own conf says otherwise.
        continuous: Whether the pipeline is meant to run until it is stopped.
        development: Whether its settings mark it as one under development.
        parameters: Named values of the pipeline, apart from its configuration.
        import_roots: Absolute folders that source files import from, besides root and their own.
        dependencies: Python requirements as pip understands them; nothing installs them.
        paths: From a prefix of paths in source files to what stands for it here: absolute paths or
            URIs. `penstock._model.paths.PathMap` applies them.
        tables: Tables that the pipeline reads but does not make, by the name that it uses.
        metastore: Where tables are registered under their names; `None` = nowhere.
        notes: One sentence for each thing that was read but has no effect here.
        lint_ignore: Ids of rules of `penstock lint` that are accepted everywhere.
        alerts: Alert rules and targets.
        metrics: The endpoint for Prometheus.
        lineage: OpenLineage events.
        events: What the event log keeps, and the tables that it is copied to.
        telemetry: Metrics and traces over OpenTelemetry's protocol.
        maintenance: Compaction, clustering and VACUUM of tables.
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
    tables: Mapping[str, ExternalTable] = field(default_factory=lambda: _NO_TABLES)
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
    """A function of the user that gets every event of an update.

    Attributes:
        name: Of the function.
        function: Takes an event as a dictionary in the shape of the event log.
        max_consecutive_failures: After more failures in a row it is disabled; `None` = never.
        origin: Where it was declared.
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
