"""Settings of a pipeline as Databricks writes them: JSON or YAML of its UI, REST API and bundles.

Reading is tolerant: keys that choose compute, people or schedules of a workspace have no effect
here and become notes, as do unknown keys.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from penstock._model.similar import nearest
from penstock._project.documents import Node, list_of, text_of, texts_of, truth_of
from penstock._project.file_settings import FileSettings
from penstock._project.workspace_files import SourcePattern, WorkspaceFiles
from penstock.errors import SpecError

# Keys that only Databricks' own files have, by the text of their note.
_WITHOUT_EFFECT: Mapping[str, tuple[str, ...]] = {
    "ignored (workspace compute); set `master` and `configuration` for Spark instead": (
        "clusters",
        "photon",
        "serverless",
        "serverless_compute_id",
        "edition",
        "channel",
    ),
    "ignored (no notifications are sent)": ("notifications",),
    "ignored (the event log is in the storage root; `events.table` copies it to a table)": (
        "event_log",
    ),
    "ignored (Penstock does not schedule updates)": ("restart_window", "trigger"),
    "ignored (all libraries are used)": ("filters",),
    "ignored (applies to the workspace only)": (
        "budget_policy_id",
        "usage_policy_id",
        "permissions",
        "run_as",
        "tags",
    ),
}
# Identity and state of a deployed pipeline: no effect is expected, so there is no note.
_SILENT = {
    "allow_duplicate_names",
    "creator_user_name",
    "data_sampling",
    "deployment",
    "dry_run",
    "expected_last_modified",
    "id",
    "inherited_parameters",
    "last_modified",
    "lifecycle",
    "pipeline_id",
    "pipeline_type",
    "uuid",
}
_REFUSED = {
    "gateway_definition": "an ingestion gateway",
    "ingestion_definition": "a managed ingestion pipeline",
}
READ_KEYS = (
    "name",
    "catalog",
    "schema",
    "target",
    "database",
    "storage",
    "configuration",
    "parameters",
    "libraries",
    "root_path",
    "environment",
    "continuous",
    "development",
)
"""Keys that have an effect here."""
FOREIGN_KEYS = frozenset(
    {*(key for keys in _WITHOUT_EFFECT.values() for key in keys), *_SILENT, *_REFUSED}
)
"""Keys that only the settings files of Databricks have."""

_CLUSTER_ONLY = {"spark.master", "spark.databricks.cluster.profile"}
_SECRET = re.compile(r"\{\{\s*secrets/([\w.\-]+)/([\w.\-]+)\s*\}\}")
_SHUFFLE_MANAGER = "spark.shuffle.manager"
_EDITABLE = re.compile(r"(?:-e|--editable)[ =]\s*(/[^\[]*)(?:\[.*)?")
_SHUFFLES_OF_DATABRICKS = ("org.apache.spark.shuffle.streaming.", "com.databricks.")
_WORKSPACE_PATH = re.compile(r"/(?:Workspace|Repos|Users|Shared)/", re.IGNORECASE)
# After an option, a relative path need not begin with a dot; a URL has a colon. Extras may follow.
_LOCAL_REQUIREMENT = re.compile(
    r"(?P<option>(?:-e|--editable|-r|--requirement)[ =](?!\s*/|.*:))?\s*"
    r"(?P<path>(?(option)[^\[]+|\.\.?/[^\[]*))(?P<extras>.*)"
)


def unwrapped(document: Node) -> Node:
    """Return the settings in a response of the REST API, or the document itself."""
    inside = document.get("spec")
    if inside is not None and (document.get("pipeline_id") or inside.get("libraries")):
        return inside
    return document


def looks_foreign(document: Node) -> bool:
    """Whether a document has keys that only Databricks writes."""
    return any(key in FOREIGN_KEYS for key, _ in document.items())


def is_ingestion(pipeline: Node) -> bool:
    """Whether a pipeline has no source files: Databricks' own connectors feed it."""
    return any(pipeline.get(key) is not None for key in _REFUSED)


def read_lakeflow(
    pipeline: Node, files: WorkspaceFiles, *, without_sources: bool = False
) -> FileSettings:
    """Read the settings of one pipeline; references of a bundle are filled in.

    `without_sources`: other sources were selected, so the listed ones may be missing.
    """
    refuse_ingestion(pipeline)
    catalog, schema = _default_names(pipeline)
    listed = [] if without_sources else list_of(pipeline.get("libraries"), "libraries")
    sources, packages, notes_on_libraries = _libraries(listed, files)
    notes = [*foreign_notes(pipeline)]
    known = {*READ_KEYS, *FOREIGN_KEYS}
    for key in (key for key, _ in pipeline.items() if key not in known):
        near = nearest(key, READ_KEYS, cutoff=0.8)
        notes.append(f"`{key}`: ignored (unknown{f'; did you mean `{near}`?' if near else ''})")
    notes += notes_on_libraries
    if storage := text_of(pipeline.get("storage"), "storage"):
        notes.append(
            f"`storage` ({storage}) belongs to the workspace: tables are stored in the location "
            "set by `--storage`, PENSTOCK_STORAGE or `penstock.yaml`, by default in `.penstock`"
        )
    configuration = {
        **cluster_configuration(pipeline),
        **texts_of(pipeline.get("configuration"), "configuration"),
    }
    manager = configuration.get(_SHUFFLE_MANAGER, "")
    if manager.startswith(_SHUFFLES_OF_DATABRICKS):  # real-time mode: Spark would not start
        del configuration[_SHUFFLE_MANAGER]
        notes.append(
            f"`{_SHUFFLE_MANAGER}` is ignored: it names a class of Databricks' Spark ({manager})"
        )
    required = (*packages, *dependencies(pipeline))
    roots = editable_folders(required)
    if (named := pipeline.get("root_path")) and (path := text_of(named, "root_path")):
        folder = files.folder(named, path)
        if folder is None:
            notes.append(
                f"`root_path` ({path}) does not exist here: modules are imported from {files.root}"
            )
        else:
            roots = (str(folder), *roots)
    return FileSettings(
        root=files.root,
        name=_label(text_of(pipeline.get("name"), "name")),
        catalog=catalog,
        schema=schema,
        continuous=truth_of(pipeline.get("continuous"), "continuous"),
        development=truth_of(pipeline.get("development"), "development"),
        configuration={
            key: _SECRET.sub(r"${secret:\1/\2}", value) for key, value in configuration.items()
        },
        parameters=texts_of(pipeline.get("parameters"), "parameters"),
        sources=tuple(dict.fromkeys(sources)),
        import_roots=roots,
        dependencies=required,
        notes=tuple(notes),
    )


def refuse_ingestion(pipeline: Node) -> None:
    """Raise for a pipeline that Databricks' own connectors feed."""
    for key, subject in _REFUSED.items():
        if (part := pipeline.get(key)) is not None:
            raise SpecError(
                "PIPELINE_NOT_SUPPORTED",
                f"{part.origin.file}: this is {subject} (`{key}`), which runs in Databricks only",
                origin=part.origin,
                hint="read its tables with `tables:` in `penstock.yaml`, or write a source file",
            )


def foreign_notes(pipeline: Node) -> Iterator[str]:
    """Yield a note for each group of keys without an effect here; `false` needs no note."""
    for reason, keys in _WITHOUT_EFFECT.items():
        present = [key for key in keys if (part := pipeline.get(key)) and part.value]
        if present:
            yield f"{', '.join(f'`{key}`' for key in present)}: {reason}"


def cluster_configuration(pipeline: Node) -> dict[str, str]:
    """Return the `spark_conf` of the clusters that run updates, without keys only for clusters."""
    values: dict[str, str] = {}
    for cluster in list_of(pipeline.get("clusters"), "clusters"):
        if text_of(cluster.get("label"), "clusters.label") != "maintenance":
            values.update(texts_of(cluster.get("spark_conf"), "clusters.spark_conf"))
    return {key: value for key, value in values.items() if key not in _CLUSTER_ONLY}


def _default_names(pipeline: Node) -> tuple[str | None, str | None]:
    catalog = text_of(pipeline.get("catalog"), "catalog")
    texts = (text_of(pipeline.get(key), key) for key in ("schema", "target", "database"))
    schema = next(filter(None, texts), None)
    if schema is not None and catalog is None and schema.count(".") == 1:
        catalog, schema = schema.split(".")  # the older `target: catalog.schema`
    return catalog, schema


def _label(name: str | None) -> str | None:
    """A pipeline name that is safe in file names; names in workspaces may have any character."""
    if name is None:
        return None
    return "".join("-" if c in "/\\" or not c.isprintable() else c for c in name).strip() or None


def dependencies(pipeline: Node) -> Iterator[str]:
    """Return the Python requirements of `environment`; paths in them become absolute."""
    environment = pipeline.get("environment")
    for part in list_of(environment and environment.get("dependencies"), "dependencies"):
        text = text_of(part, "environment.dependencies")
        if text and (match := _LOCAL_REQUIREMENT.fullmatch(text)):
            place = (part.file.parent / match["path"].strip()).resolve()
            text = f"{match['option'] or ''}{place}{match['extras']}"
        if text:
            yield text


def editable_folders(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the folders whose packages pip would make importable by `--editable`.

    Nothing is installed: source files import the packages from these folders.
    """
    folders: list[str] = []
    for requirement in requirements:
        if match := _EDITABLE.fullmatch(requirement):
            folder = Path(match.group(1).strip())
            folders += [str(path) for path in (folder, folder / "src") if path.is_dir()]
    return tuple(dict.fromkeys(folders))


def _libraries(
    entries: list[Node], files: WorkspaceFiles
) -> tuple[list[SourcePattern], list[str], list[str]]:
    """Source files and Python requirements of a list of libraries, and notes about all others."""
    sources: list[SourcePattern] = []
    dependencies: list[str] = []
    ignored: set[str] = set()
    elsewhere: list[SpecError] = []
    for entry in entries:
        if not isinstance(entry.value, dict):
            raise entry.error("an entry of `libraries` must be a mapping such as `file: {...}`")
        for key, part in entry.items():
            try:
                if key in ("file", "notebook"):
                    named, path = _required(part, key, "path")
                    sources.append(files.file(named, path, key))
                elif key == "glob":
                    sources.append(files.pattern(*_required(part, key, "include")))
                elif key == "pypi":
                    dependencies.append(_required(part, key, "package")[1])
                else:
                    ignored.add(key)
            except SpecError as error:
                if error.condition != "SOURCE_NOT_FOUND" or not _is_of_workspace(part):
                    raise
                elsewhere.append(error)
    if elsewhere and sources:
        raise elsewhere[0]
    notes = [*library_notes(ignored)]
    if elsewhere:
        notes.append(
            f"{elsewhere[0].message}: the files with declarations are used instead of those in "
            "`libraries`"
        )
    return sources, dependencies, notes


def _is_of_workspace(part: Node) -> bool:
    """Whether a library is a workspace path."""
    named = part.get("path") or part.get("include")
    return named is not None and _WORKSPACE_PATH.match(str(named.value)) is not None


def library_notes(keys: set[str]) -> tuple[str, ...]:
    """The note about entries of `libraries` that are not read."""
    if not keys:
        return ()
    listed = ", ".join(f"`{key}`" for key in sorted(keys))
    return (f"{listed} in `libraries`: not installed by Penstock",)


def _required(part: Node, key: str, inner: str) -> tuple[Node, str]:
    named = part.get(inner)
    text = text_of(named, f"{key}.{inner}")
    if named is None or text is None:
        raise part.error(f"`{key}` in `libraries` needs `{inner}`")
    return named, text
