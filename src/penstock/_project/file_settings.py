"""The common form of settings files of all kinds, and how one is merged over another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from penstock._model.alert import AlertSettings
from penstock._model.export import LineageSettings, MetricsSettings, TelemetrySettings
from penstock._model.name import split_name
from penstock._model.paths import path_key
from penstock._model.pipeline import (
    EventLogSettings,
    ExternalTable,
    MaintenanceSettings,
    MetastoreSettings,
)
from penstock._project.workspace_files import SourcePattern

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """Settings of files; `None` or empty means not set.

    `target` is the selected one of the `targets`; `own_targets` are those of a spec file.
    `defer_to` is a target, or a storage.
    """

    root: Path
    name: str | None = None
    storage: str | None = None
    catalog: str | None = None
    schema: str | None = None
    master: str | None = None
    quarantine: bool | None = None
    shared_storage: bool | None = None
    continuous: bool | None = None
    development: bool | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[SourcePattern, ...] = ()
    import_roots: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, ExternalTable] = field(default_factory=dict)
    metastore: MetastoreSettings | None = None
    notes: tuple[str, ...] = ()
    lint_ignore: tuple[str, ...] = ()
    alerts: AlertSettings = field(default_factory=AlertSettings)
    metrics: MetricsSettings | None = None
    lineage: LineageSettings | None = None
    events: EventLogSettings | None = None
    telemetry: TelemetrySettings | None = None
    maintenance: MaintenanceSettings | None = None
    target: str | None = None
    targets: tuple[str, ...] = ()
    own_targets: tuple[str, ...] = ()
    defer_to: str | None = None

    def over(self, base: "FileSettings") -> "FileSettings":
        """Merge these settings over others; these take precedence.

        `configuration`, `parameters`, `paths` and `tables` are merged by key, and some lists are
        concatenated.
        """
        roots = [*self.import_roots, *base.import_roots]
        if base.root != self.root:
            roots.append(str(base.root))
        own = {name: value for name, value in vars(self).items() if value not in (None, "", ())}
        merged: dict[str, Any] = {
            "configuration": {**base.configuration, **self.configuration},
            "parameters": {**base.parameters, **self.parameters},
            "import_roots": tuple(dict.fromkeys(roots)),
            "paths": merged_by(path_key, base.paths, self.paths),
            "tables": merged_by(table_key, base.tables, self.tables),
            "alerts": self.alerts if self.alerts.rules or self.alerts.targets else base.alerts,
        }
        for name in ("dependencies", "notes", "targets", "lint_ignore"):
            merged[name] = tuple(dict.fromkeys([*getattr(base, name), *getattr(self, name)]))
        return replace(base, **own | merged)


def merged_by(
    key_of: Callable[[str], object], base: Mapping[str, _T], over: Mapping[str, _T]
) -> dict[str, _T]:
    """Merge two mappings; spellings with the same `key_of` are the same key."""
    said = set(map(key_of, over))
    return {**{name: value for name, value in base.items() if key_of(name) not in said}, **over}


def table_key(name: str) -> tuple[str, ...]:
    """Return a key that is equal for equal table names, or raise `ValueError`."""
    return tuple(part.lower() for part in split_name(name))
