"""Which file holds the settings of a project, of what kind it is, and what is merged over it.

A file is searched in a folder, then in those above. In each folder:

1. `pipeline.yaml`, `pipeline.yml`, `spark-pipeline.yaml`, `spark-pipeline.yml`
2. a bundle: `databricks.yml`, `databricks.yaml`, `bundle.yml`, `bundle.yaml`
3. `pipeline.json`, or a file that ends in `.pipeline.yml`, `.pipeline.yaml` or `.pipeline.json`
4. `penstock.yaml`, `penstock.yml`

Several files of one line are ambiguous; an earlier line takes precedence over a later one. A
`penstock.yaml` next to the file that was found is merged over it.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from penstock._project.databricks.bundle import (
    BUNDLE_NAMES,
    Choice,
    declares_bundle,
    is_bundle,
    read_bundle,
    targets_of,
    with_target,
)
from penstock._project.databricks.lakeflow import (
    READ_KEYS,
    looks_foreign,
    read_lakeflow,
    unwrapped,
)
from penstock._project.documents import Node, text_of
from penstock._project.file_settings import FileSettings
from penstock._project.locations import nearest_file
from penstock._project.spec_file import PipelineSpec, keys_of, spec_of
from penstock._project.spec_settings import spec_settings
from penstock._project.workspace_files import WorkspaceFiles
from penstock._project.yaml_text import read_document
from penstock.errors import SpecError

SPEC_NAMES = ("pipeline.yaml", "pipeline.yml", "spark-pipeline.yaml", "spark-pipeline.yml")
OVERLAY_NAMES = ("penstock.yaml", "penstock.yml")
SUFFIXES = (".yaml", ".yml", ".json")
_MARK = re.compile(r"\b(?:libraries|(?:ingestion|gateway)_definition)\b")
_PIPELINE_SUFFIXES = tuple(f".pipeline{suffix}" for suffix in SUFFIXES)
# Keys that only our own files have: with one of them, a file is read strictly.
_OWN_KEYS = frozenset(keys_of(PipelineSpec)) - frozenset(READ_KEYS)


def find_spec(folder: Path) -> Path | None:
    """Return the settings file of a folder or of the nearest folder above it."""
    return next(filter(None, map(spec_in, (folder, *folder.parents))), None)


def spec_in(folder: Path) -> Path | None:
    """Return the settings file of a folder; several are an error."""
    return next(filter(None, (_only(folder, paths) for paths in _candidates(folder))), None)


def existing_spec(path: Path) -> Path:
    """Return the settings file that a user named: itself, or the one of its folder."""
    if path.is_dir():
        if (file := spec_in(path)) is not None:
            return file
        raise SpecError(
            "SPEC_NOT_FOUND",
            f"the folder {path} has no spec file",
            hint=f"it is named {', '.join((*SPEC_NAMES, BUNDLE_NAMES[0]))} or `*.pipeline.yml`",
        )
    if not path.is_file():
        raise SpecError("SPEC_NOT_FOUND", f"there is no spec file {path}", hint=nearest_file(path))
    return path


def read_settings(path: Path, choice: Choice, *, explicit: bool) -> FileSettings | None:
    """Read a settings file of any kind, what it extends, and a `penstock.yaml` next to it.

    A bundle that was found by searching (not `explicit`) and declares no pipeline is ignored:
    `None`.
    """
    beside = None if path.name in OVERLAY_NAMES else _overlay_in(path.parent)
    if beside is not None and _is_over(beside, path, explicit=explicit):
        return _read(beside.file, choice, ())
    settings = _read(path, choice, ())
    if settings is None and explicit:
        raise SpecError(
            "PIPELINE_NOT_FOUND",
            f"{path} declares no pipeline",
            hint="bundles declare them in YAML below `resources.pipelines`; those in Python are "
            "not read",
        )
    if beside is None and settings is not None and settings.root != path.parent.resolve():
        beside = _overlay_in(settings.root)  # of the bundle that includes the file
    if beside is None:
        return settings
    own = _own_settings(beside, spec_of(beside), choice, settings)
    return own if settings is None else replace(own.over(settings), root=settings.root)


def _is_over(overlay: Node, path: Path, *, explicit: bool) -> bool:
    """Whether an overlay has `extends`; if a file was named, whether it extends that one."""
    extends = spec_of(overlay).extends
    if extends is None:
        return False
    return not explicit or (overlay.file.parent / extends.file).resolve() == path.resolve()


def _overlay_in(folder: Path) -> Node | None:
    path = _only(folder, _present(folder, OVERLAY_NAMES))
    return None if path is None else read_document(path)


def _only(folder: Path, paths: list[Path]) -> Path | None:
    if len(paths) > 1:
        names = " and ".join(path.name for path in paths)
        raise SpecError(
            "SPEC_AMBIGUOUS",
            f"the folder {folder} has several spec files: {names}",
            hint="keep one of them, or name one with --spec",
        )
    return paths[0] if paths else None


def _candidates(folder: Path) -> Iterator[list[Path]]:
    yield _present(folder, SPEC_NAMES)
    yield [path for path in _present(folder, BUNDLE_NAMES) if declares_bundle(path)]
    yield sorted(_pipeline_files(folder))
    yield _present(folder, OVERLAY_NAMES)


def _pipeline_files(folder: Path) -> Iterator[Path]:
    try:
        entries = list(folder.iterdir())
    except OSError:  # a folder above that the user may not list
        return
    for path in entries:
        is_named_so = path.name == "pipeline.json" or path.name.endswith(_PIPELINE_SUFFIXES)
        # Other tools use these file names too.
        if is_named_so and path.is_file() and _MARK.search(path.read_text("utf-8", "replace")):
            yield path


def _present(folder: Path, names: tuple[str, ...]) -> list[Path]:
    return [folder / name for name in names if (folder / name).is_file()]


def _read(path: Path, choice: Choice, below: tuple[Path, ...]) -> FileSettings | None:
    document = read_document(path)
    content = unwrapped(document)
    if is_bundle(document):
        return read_bundle(document, choice)
    if _is_lakeflow(content):
        _refuse_choice(document, choice)
        files = WorkspaceFiles(path.parent.resolve())
        return read_lakeflow(content, files, without_sources=choice.names_sources_in(files.root))
    spec = spec_of(document)
    if spec.extends is None:
        _refuse_choice(document, choice, has_targets=bool(spec.targets))
        return _own_settings(document, spec, choice)
    named = document.at(("extends",))
    base_path = (path.parent / spec.extends.file).resolve()
    if base_path in below or base_path == path.resolve():
        raise named.error(f"`extends` leads back to {base_path}")
    if not base_path.is_file():
        raise SpecError(
            "SPEC_NOT_FOUND",
            f"{named.origin.file} extends {base_path}, which does not exist",
            origin=named.origin,
            hint=nearest_file(base_path),
        )
    target = choice.wanted_target or spec.extends.target
    is_own = spec.targets and not any(targets_of(read_document(base_path)).items())
    chosen = replace(
        choice,
        pipeline=choice.wanted_pipeline or spec.extends.pipeline,
        target=None if is_own else target,
    )
    base = _read(base_path, chosen, (*below, path.resolve()))
    if base is None:
        raise SpecError(
            "PIPELINE_NOT_FOUND",
            f"{named.origin.file} extends {base_path}, which declares no pipeline",
            origin=named.origin,
        )
    return _own_settings(document, spec, replace(choice, target=target), base).over(base)


def _is_lakeflow(document: Node) -> bool:
    keys = {key for key, _ in document.items()}
    name = document.file.name
    if keys & _OWN_KEYS or name in OVERLAY_NAMES or name.startswith("spark-pipeline."):
        return False
    return looks_foreign(document) or name.endswith((".json", *_PIPELINE_SUFFIXES))


def _own_settings(
    document: Node, spec: PipelineSpec, choice: Choice, base: FileSettings | None = None
) -> FileSettings:
    """The settings of a spec file with its target; a target of the file below it wins."""
    if base is not None and base.target is not None:
        choice = replace(choice, target=base.target)
    if not spec.targets or (base is not None and base.target and base.target not in spec.targets):
        return spec_settings(spec, document)
    merged, name, target = with_target(document, choice)
    assert isinstance(merged.value, dict)
    own = {k: v for k, v in merged.value.items() if k not in ("targets", "default", "mode")}
    document = Node(own, document.file, document.line)
    settings = spec_settings(spec_of(document), document)
    is_development = text_of(target.get("mode"), "mode") == "development"
    return replace(
        settings,
        development=is_development or settings.development,
        target=name,
        targets=tuple(spec.targets),
        own_targets=tuple(spec.targets),
    )


def _refuse_choice(document: Node, choice: Choice, *, has_targets: bool = False) -> None:
    for condition, what, name in (
        ("UNKNOWN_PIPELINE", "pipeline", choice.pipeline),
        ("UNKNOWN_TARGET", "target", None if has_targets else choice.target),
    ):
        if name is not None:
            raise SpecError(
                condition,
                f"{document.origin.file} is not a bundle: it has no {what} `{name}`",
                hint=f"leave --{what} out, or name the bundle with --spec",
            )
