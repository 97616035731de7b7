"""The settings of a spec file in the common form of all settings files."""

import os
from pathlib import Path

from penstock._model.pipeline import ExternalTable, MetastoreSettings
from penstock._project.databricks.lakeflow import (
    cluster_configuration,
    dependencies,
    editable_folders,
    foreign_notes,
    library_notes,
)
from penstock._project.documents import Node
from penstock._project.file_settings import FileSettings
from penstock._project.locations import absolute_location, nearest_file, storage_uri
from penstock._project.spec_file import Library, PipelineSpec
from penstock._project.workspace_files import SourcePattern, WorkspaceFiles
from penstock.errors import SpecError


def spec_settings(spec: PipelineSpec, document: Node) -> FileSettings:
    """Return the settings of a spec file; its paths are relative to its folder."""
    root = document.file.parent.resolve()
    files = WorkspaceFiles(root)
    read = {key for library in spec.libraries for key in library.model_fields_set}
    required = tuple(dependencies(document))
    return FileSettings(
        root=root,
        name=spec.name,
        storage=None if not spec.storage else storage_uri(spec.storage, root),
        catalog=spec.catalog.name,
        schema=spec.database or spec.schema_ or spec.target,
        master=spec.master,
        quarantine=spec.quarantine,
        shared_storage=spec.shared_storage,
        continuous=spec.continuous,
        development=spec.development,
        configuration={**cluster_configuration(document), **spec.configuration},
        parameters=spec.parameters,
        sources=tuple(
            pattern
            for at, library in enumerate(spec.libraries)
            for pattern in _source(library, document.at(("libraries", at)), files)
        ),
        import_roots=(*_import_roots(spec, document, root), *editable_folders(required)),
        dependencies=required,
        paths={prefix: _place(document, root, "paths", prefix) for prefix in spec.paths},
        tables={name: _table(spec, document, root, name) for name in spec.tables},
        metastore=MetastoreSettings(options=spec.catalog.options) if spec.catalog.type else None,
        lint_ignore=tuple(spec.lint.ignore),
        alerts=spec.alerts.settings(),
        metrics=None if spec.metrics is None else spec.metrics.settings(),
        lineage=None if spec.lineage is None else spec.lineage.settings(),
        events=None if spec.events is None else spec.events.settings(),
        telemetry=None if spec.opentelemetry is None else spec.opentelemetry.settings(),
        maintenance=None if spec.maintenance is None else spec.maintenance.settings(),
        defer_to=spec.defer_to,
        notes=(*foreign_notes(document), *library_notes(read - {"file", "glob", "notebook"})),
    )


def _source(library: Library, entry: Node, files: WorkspaceFiles) -> tuple[SourcePattern, ...]:
    # Paths of files and globs are kept as written; they are checked when sources are collected.
    if library.file is not None:
        return ((files.root, library.file.path),)
    if library.glob is not None:
        return ((files.root, library.glob.include),)
    if library.notebook is not None:
        return (files.file(entry, library.notebook.path, "notebook"),)
    return ()


def _import_roots(spec: PipelineSpec, document: Node, root: Path) -> tuple[str, ...]:
    if not spec.root_path:
        return ()
    folder = Path(os.path.normpath(root / Path(spec.root_path).expanduser()))
    if not folder.is_dir():
        named = document.at(("root_path",))
        raise SpecError(
            "SOURCE_NOT_FOUND",
            f"{named.origin.file}: `root_path` is {folder}, which is not a folder",
            origin=named.origin,
            hint=nearest_file(folder),
        )
    return (str(folder),)


def _table(spec: PipelineSpec, document: Node, root: Path, name: str) -> ExternalTable:
    table = spec.tables[name]
    named = document.at(("tables", name, "format"))
    if table.format is not None and not table.format.strip():
        raise named.error(f"`tables.{name}.format` is blank")
    return ExternalTable(
        path=_place(document, root, "tables", name, "path"),
        format=(table.format or "").strip().lower(),
        options=dict(table.options),
        schema=table.schema_,
    )


def _place(document: Node, root: Path, *keys: str) -> str:
    part = document.at(keys)
    assert isinstance(part.value, str)
    try:
        return absolute_location(part.value, root)
    except ValueError as error:
        raise part.error(
            f"the path `{part.value}` of `{'.'.join(keys[:2])}` {error}",
            hint="write a path, or an absolute URI (file:///data/raw, s3a://bucket/raw)",
        ) from None
