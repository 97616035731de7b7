"""Settings of a pipeline, from the command line, the environment, its settings files and defaults.

The precedence for every setting: argument, then environment, then spec file, then default. A
`penstock.yaml`, or a spec file that `extends` another file, comes before the file below it.

=============  =====================  =================  ==================================
setting        environment            spec file          default
=============  =====================  =================  ==================================
name           PENSTOCK_NAME          name               name of the project's folder
storage        PENSTOCK_STORAGE       storage            the local folder
catalog        PENSTOCK_CATALOG       catalog            spark_catalog
schema         PENSTOCK_SCHEMA        database, schema,  default
                                      target
master         PENSTOCK_MASTER        master             Spark's own conf, else local[*]
quarantine     PENSTOCK_QUARANTINE    quarantine         true
continuous     PENSTOCK_CONTINUOUS    continuous         false
configuration  -                      configuration      (merged key by key)
parameters     -                      parameters         (merged key by key)
paths          -                      paths              (merged key by key)
tables         -                      tables             (merged key by key)
metastore      -                      catalog.type       tables are not registered
sources        -                      libraries          files that declare datasets; else jobs
local folder   PENSTOCK_LOCAL_DIR     -                  `.penstock` in the project's folder
pipeline       PENSTOCK_PIPELINE      extends.pipeline   the only one of the bundle
target         PENSTOCK_TARGET        extends.target     the default one of the file
defer_to       PENSTOCK_DEFER_TO      defer_to           everything is built
=============  =====================  =================  ==================================

The project's folder is that of the settings file, otherwise that of the source. References to
secrets are not resolved here, because settings are shown in plans. `storage` of a Databricks file
is not used, because it belongs to the workspace.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from penstock._model.export import LineageSettings, MetricsSettings, TelemetrySettings
from penstock._model.paths import PathMap, path_key
from penstock._model.pipeline import (
    DEFAULT_CATALOG,
    DEFAULT_SCHEMA,
    EventLogSettings,
    MaintenanceSettings,
    PipelineSettings,
)
from penstock._project.databricks.bundle import Choice
from penstock._project.deferral import with_deferral
from penstock._project.file_settings import FileSettings, merged_by
from penstock._project.locations import absolute_location, nearest_file, storage_uri
from penstock._project.packed import packed_project
from penstock._project.settings_file import SUFFIXES, existing_spec, find_spec, read_settings
from penstock._project.sources import declaring_files
from penstock._project.workspace_files import SourcePattern
from penstock.errors import SpecError

_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def load_settings(
    start: Path,
    *,
    spec: Path | None = None,
    name: str | None = None,
    storage: str | None = None,
    configuration: Mapping[str, str] | None = None,
    source: Path | None = None,
    catalog: str | None = None,
    schema: str | None = None,
    master: str | None = None,
    quarantine: bool | None = None,
    continuous: bool | None = None,
    parameters: Mapping[str, str] | None = None,
    paths: Mapping[str, str] | None = None,
    pipeline: str | None = None,
    target: str | None = None,
    defer_to: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> PipelineSettings:
    """Return the settings of the pipeline that `start` and the arguments select.

    A settings file is searched from the folder `start` upward; paths of arguments and of the
    environment are relative to it. A file means its folder, with the file as `source`. `source`, a
    file or folder, replaces the sources that the settings file lists; a folder with a settings file
    is a separate project, and a settings file is used as `spec`. Mappings override those of the
    files by key; for all other settings see the table of this module.

    Raises:
        SpecError: Something does not exist, is ambiguous or is not allowed.
    """
    environment = os.environ if environ is None else environ
    start = start.absolute()
    if start.is_file():
        start, source = start.parent, start if source is None else source
    if not start.is_dir():
        raise SpecError("SOURCE_NOT_FOUND", f"there is no folder {start}", hint=nearest_file(start))
    if source is not None:
        place = start / source
        if not place.exists():
            message = f"there is no file or folder {place}"
            raise SpecError("SOURCE_NOT_FOUND", message, hint=nearest_file(place))
        source = place.resolve()
    if source is not None and source.is_file() and source.suffix.lower() in SUFFIXES:
        spec, source = spec or source, None
    folder = start.resolve()
    if source is not None:
        folder = source.parent if source.is_file() else source
    choice = Choice(pipeline=pipeline, target=target, source=source, environ=environment)
    file = None if spec is None else existing_spec(start / spec)
    read = _read(folder, file, choice)
    given_storage = storage or environment.get("PENSTOCK_STORAGE")
    given_paths = _absolute(paths or {}, start.resolve())
    local_dir = _local_dir(environment.get("PENSTOCK_LOCAL_DIR"), start.resolve(), read.root)
    merged = merged_by(path_key, read.paths, given_paths)
    PathMap(merged)
    settings = PipelineSettings(
        name=_checked_name(name or environment.get("PENSTOCK_NAME") or read.name or read.root.name),
        storage=(
            storage_uri(given_storage, start.resolve())
            if given_storage
            else _outside(read.storage or storage_uri(local_dir, read.root), read.root, start)
        ),
        root=str(read.root),
        started_in=str(start.resolve()),
        catalog=(catalog or environment.get("PENSTOCK_CATALOG") or read.catalog or DEFAULT_CATALOG),
        schema=schema or environment.get("PENSTOCK_SCHEMA") or read.schema or DEFAULT_SCHEMA,
        configuration=MappingProxyType({**read.configuration, **(configuration or {})}),
        source_patterns=_patterns(source, read.sources, read.root),
        quarantine=_first_truth("QUARANTINE", quarantine, environment, read.quarantine, True),
        master=master or environment.get("PENSTOCK_MASTER") or read.master,
        continuous=_first_truth("CONTINUOUS", continuous, environment, read.continuous, False),
        parameters=MappingProxyType({**read.parameters, **(parameters or {})}),
        import_roots=tuple(dict.fromkeys(p for p in read.import_roots if p != str(read.root))),
        paths=MappingProxyType(merged),
        tables=MappingProxyType(dict(read.tables)),
        local_dir=local_dir,
        development=bool(read.development),
        shared_storage=bool(read.shared_storage),
        dependencies=read.dependencies,
        metastore=read.metastore,
        notes=read.notes,
        lint_ignore=read.lint_ignore,
        alerts=read.alerts,
        metrics=read.metrics or MetricsSettings(),
        lineage=read.lineage or LineageSettings(),
        events=read.events or EventLogSettings(),
        telemetry=read.telemetry or TelemetrySettings(),
        maintenance=read.maintenance or MaintenanceSettings(),
    )

    def of_target(name: str) -> PipelineSettings:
        other = _read(folder, file, replace(choice, target=name))
        return replace(
            settings,
            name=other.name or other.root.name,
            storage=other.storage or storage_uri(local_dir, other.root),
            shared_storage=bool(other.shared_storage),
            catalog=other.catalog or DEFAULT_CATALOG,
            schema=other.schema or DEFAULT_SCHEMA,
        )

    chosen = defer_to or environment.get("PENSTOCK_DEFER_TO")
    production = chosen or read.defer_to
    if production == read.target and not defer_to:
        production = None  # it is set for all targets
    relative_to = start.resolve() if chosen else read.root
    return with_deferral(settings, read, production, relative_to, of_target)


def _read(folder: Path, spec: Path | None, choice: Choice) -> FileSettings:
    file = find_spec(folder) if spec is None else spec
    read = None if file is None else read_settings(file, choice, explicit=spec is not None)
    if read is not None:
        return read
    notes: tuple[str, ...] = ()
    if file is not None:
        which = f" with {choice.source}" if choice.names_sources_in(file.parent) else ""
        notes = (f"{file} declares no pipeline{which}, so nothing is read from it",)
    return FileSettings(root=folder, notes=notes)


def _local_dir(configured: str | None, start: Path, root: Path) -> str:
    if configured:
        return os.path.normpath(start / Path(configured).expanduser())
    return str((start if root == packed_project() else root) / ".penstock")


def _outside(storage: str, root: Path, start: Path) -> str:
    """The storage; in a packed project, a relative one is in the folder where it is started.

    The project is in a cache folder, which may be deleted and differs after each change.
    """
    below = f"file://{root}/"
    if root == packed_project() and storage.startswith(below):
        return storage_uri(storage.removeprefix(below), start.resolve())
    return storage


def _absolute(paths: Mapping[str, str], folder: Path) -> dict[str, str]:
    absolute = {}
    for prefix, place in paths.items():
        try:
            absolute[prefix] = absolute_location(place, folder)
        except ValueError as error:
            raise SpecError(
                "PATHS_INVALID",
                f"`{place}`, which stands for the path `{prefix}`, {error}",
                hint="write a path, or an absolute URI (file:///data/raw, s3a://bucket/raw)",
            ) from None
    return absolute


def _checked_name(name: str) -> str:
    if not name.strip() or any(letter in "/\\" or not letter.isprintable() for letter in name):
        raise SpecError(
            "SPEC_INVALID",
            f"the pipeline's name {name!r} is blank, or has a slash or a control character",
            hint="give it a `name` in the spec file, or with PENSTOCK_NAME",
        )
    return name.strip()


def _first_truth(
    setting: str,
    argument: bool | None,
    environ: Mapping[str, str],
    from_files: bool | None,
    default: bool,
) -> bool:
    if argument is not None:
        return argument
    variable = f"PENSTOCK_{setting}"
    if text := environ.get(variable):
        if text.lower() not in _TRUTHS:
            raise SpecError("SPEC_INVALID", f"{variable} is {text!r}, but must be true or false")
        return _TRUTHS[text.lower()]
    return default if from_files is None else from_files


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _patterns(
    source: Path | None, sources: tuple[SourcePattern, ...], root: Path
) -> tuple[str, ...]:
    if source is not None and source != root:
        if source.is_file():
            return (_shown(source, root),)
        # Other files next to the pipeline's sources, such as maintenance, are not sources.
        declaring = tuple(_shown(path, root) for path in declaring_files(source))
        return declaring or (f"{_shown(source, root)}/**",)
    return tuple(
        text if folder == root else os.path.normpath(os.path.relpath(folder / text, root))
        for folder, text in sources
    )
