"""Databricks Asset Bundles: `databricks.yml`, the files that it includes, and its targets.

The keys `bundle.name`, `include`, `variables`, `targets` (or `environments`), `workspace` and
`resources.pipelines` are read. Everything else, such as jobs, is ignored. Name prefixes of
development targets are not applied.
"""

import glob
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock._model.missing import assumed_value
from penstock._model.similar import suggested
from penstock._project.databricks.lakeflow import READ_KEYS, is_ingestion, read_lakeflow
from penstock._project.documents import Node, list_of, text_of, truth_of
from penstock._project.file_settings import FileSettings
from penstock._project.substitution import Substitution
from penstock._project.workspace_files import SourcePattern, WorkspaceFiles
from penstock._project.yaml_text import read_document
from penstock.errors import SpecError

BUNDLE_NAMES = ("databricks.yml", "databricks.yaml", "bundle.yml", "bundle.yaml")
_SUFFIXES = {".yml", ".yaml", ".json"}
# Keys of a target that are merged over the bundle; its other keys are read separately.
_OVERRIDABLE = ("bundle", "workspace", "resources")


class SeveralPipelinesError(SpecError):
    """A bundle has several pipelines, and none was selected; `keys` are their keys."""

    def __init__(self, keys: Sequence[str], condition: str, message: str, *, hint: str) -> None:
        super().__init__(condition, message, hint=hint)
        self.keys = tuple(keys)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The selected pipeline and target of a bundle.

    `source` is a source file or folder: its pipeline is selected.
    """

    pipeline: str | None
    target: str | None
    source: Path | None
    environ: Mapping[str, str]

    def names_sources_in(self, root: Path) -> bool:
        """Whether a source other than the project's folder was named."""
        return self.source is not None and self.source != root

    @property
    def wanted_pipeline(self) -> str | None:
        """Key of the pipeline, also from the environment."""
        return self.pipeline or self.environ.get("PENSTOCK_PIPELINE") or None

    @property
    def wanted_target(self) -> str | None:
        """Name of the target, also from the environment; the last variable is Databricks' own."""
        return (
            self.target
            or self.environ.get("PENSTOCK_TARGET")
            or self.environ.get("DATABRICKS_BUNDLE_TARGET")
            or None
        )


def is_bundle(document: Node) -> bool:
    """Whether a file is a bundle or one of the files that a bundle includes."""
    return document.file.name in BUNDLE_NAMES or any(
        isinstance(part.value, dict) and key in ("bundle", "resources")
        for key, part in document.items()
    )


def declares_bundle(path: Path) -> bool:
    """Whether a file with one of the names is a bundle: other tools have a `bundle.yml` too."""
    if path.name.startswith("databricks."):
        return True
    text = path.read_text(encoding="utf-8", errors="replace")
    return any(line.startswith("bundle:") for line in text.splitlines())


def read_bundle(document: Node, choice: Choice) -> FileSettings | None:
    """Read the settings of one pipeline of a bundle; `None` if it declares none.

    `document` is the main file of the bundle, or a file that it includes; then a pipeline of that
    file is selected.
    """
    main, only = _main_of(document)
    whole = _with_includes(main, only)
    if choice.wanted_pipeline is None and not _has_pipelines(whole):
        return None
    tree, target, over = with_target(whole, choice, _OVERRIDABLE)
    pipelines = {
        key: pipeline
        for key, pipeline in (tree.get("resources", "pipelines") or Node({}, main.file, 1)).items()
        if isinstance(pipeline.value, dict)
    }
    if not pipelines and choice.wanted_pipeline is None:
        return None
    root = main.file.parent.resolve()
    substitution = Substitution(
        tree=tree,
        root=root,
        target=target,
        variables=over.get("variables"),
        overrides=_overrides(root, target),
        environ=choice.environ,
    )
    files = WorkspaceFiles(root)
    bundle = _Bundle(main, pipelines, substitution, files)
    key = bundle.chosen(choice, None if only is None else only.file)
    if key is None:
        return None
    substitution.notes.clear()  # of the choice of a pipeline
    settings = read_lakeflow(
        bundle.filled(key), files, without_sources=choice.names_sources_in(root)
    )
    mode = text_of(over.get("mode") or tree.get("bundle", "mode"), "mode")
    return replace(
        settings,
        name=settings.name or key,
        development=(mode == "development") or settings.development,
        target=target,
        targets=tuple(name for name, _ in targets_of(whole).items()),
        notes=(*settings.notes, *substitution.notes),
    )


def _main_of(document: Node) -> tuple[Node, Node | None]:
    """The main file around a file, and the file itself if it is another one."""
    if document.get("bundle") is not None or document.file.name in BUNDLE_NAMES:
        return document, None
    folder = document.file.parent.resolve()
    for place in (
        candidate / name for candidate in (folder, *folder.parents) for name in BUNDLE_NAMES
    ):
        if place.is_file() and declares_bundle(place):
            return read_document(place), document
    return document, None


def _with_includes(main: Node, only: Node | None) -> Node:
    tree, seen = main, {main.file.resolve()}
    for path in _included(main):
        if path.resolve() not in seen:
            seen.add(path.resolve())
            tree = read_document(path).over(tree)
    if only is not None and only.file.resolve() not in seen:
        tree = only.over(tree)
    return Node(tree.value, main.file, main.line)


def _included(main: Node) -> Iterator[Path]:
    folder = main.file.parent
    for entry in list_of(main.get("include"), "include"):
        pattern = text_of(entry, "include")
        if pattern is None:
            continue
        # Not Path.glob: it refuses absolute patterns.
        matches = sorted(glob.glob(pattern, root_dir=folder, recursive=True))  # noqa: PTH207
        if not matches and not glob.has_magic(pattern):
            raise SpecError(
                "SPEC_NOT_FOUND",
                f"{entry.origin.file}: there is no file `{pattern}` to include",
                origin=entry.origin,
            )
        yield from (folder / name for name in matches if Path(name).suffix in _SUFFIXES)


def targets_of(tree: Node) -> Node:
    """The targets of a file, by name."""
    return tree.get("targets") or tree.get("environments") or Node({}, tree.file, 1)


def _has_pipelines(tree: Node) -> bool:
    """Whether a bundle declares a pipeline, even if only in another target."""
    places = [tree, *(target for _, target in targets_of(tree).items())]
    return any(place.get("resources", "pipelines") is not None for place in places)


def with_target(
    tree: Node, choice: Choice, overridable: Collection[str] | None = None
) -> tuple[Node, str, Node]:
    """Merge a target over a file; also return its name and the target.

    `overridable` are the keys of a target that are merged; `None` means all.
    """
    nothing = Node({}, tree.file, 1)
    declared = targets_of(tree)
    if not isinstance(declared.value, dict):
        raise declared.error("`targets` must be a mapping of keys to values")
    names = list(declared.value)
    defaults = [name for name, part in declared.items() if truth_of(part.get("default"), "default")]
    wanted = choice.wanted_target
    if wanted is None:
        if len(defaults) == 1 or len(names) == 1:
            wanted = (defaults or names)[0]
        elif len(developed := _development(declared)) == 1:
            wanted = developed[0]
        elif names and assumed_value("bundle.target") is not None:
            wanted = names[0]
        elif names:
            raise SpecError(
                "TARGET_AMBIGUOUS",
                f"{tree.origin.file} has the targets {', '.join(f'`{name}`' for name in names)}, "
                f"and {'several are' if defaults else 'none is'} the default",
                origin=declared.origin,
                hint="name one with --target or PENSTOCK_TARGET, or write `default: true` in one",
            )
        else:
            return tree, "default", nothing
    if wanted not in names:
        raise SpecError(
            "UNKNOWN_TARGET",
            f"{tree.origin.file} has no target `{wanted}`",
            origin=declared.origin if names else None,
            hint=suggested(wanted, names, f"its targets are {', '.join(names) or 'none'}"),
        )
    target = declared.get(wanted) or nothing
    over = {key: part for key, part in target.items() if overridable is None or key in overridable}
    return Node(over, target.file, target.line).over(tree), wanted, target


def _development(targets: Node) -> list[str]:
    """Targets in development mode; a single one is the default."""
    return [
        name for name, part in targets.items() if text_of(part.get("mode"), "mode") == "development"
    ]


def _overrides(root: Path, target: str) -> Node | None:
    path = root / ".databricks" / "bundle" / target / "variable-overrides.json"
    return read_document(path) if path.is_file() else None


@dataclass(frozen=True)
class _Bundle:
    main: Node
    pipelines: Mapping[str, Node]
    substitution: Substitution
    files: WorkspaceFiles

    def filled(self, key: str) -> Node:
        """A pipeline with references filled in for the keys that have an effect."""
        pipeline = self.pipelines[key]
        assert isinstance(pipeline.value, dict)
        parts = dict(pipeline.value)
        # Variables in keys for people, compute or a schedule may have no values here.
        for name in READ_KEYS:
            if name in parts:
                parts[name] = self.substitution.fill(parts[name])
        parts.pop("clusters", None)
        if (clusters := pipeline.get("clusters")) is not None:
            parts["clusters"] = self._sparks(clusters)
        return Node(parts, pipeline.file, pipeline.line)

    def _sparks(self, clusters: Node) -> Node:
        """Clusters with their `spark_conf` only."""
        kept: list[Node] = []
        for cluster in list_of(self._or_nothing(clusters), "clusters"):
            filled = {
                name: self.substitution.fill(part)
                for name, part in self._or_nothing(cluster).items()
                if name in ("label", "spark_conf")
            }
            kept.append(Node(filled, cluster.file, cluster.line))
        return Node(kept, clusters.file, clusters.line)

    def _or_nothing(self, part: Node) -> Node:
        """The value of a reference; null if it cannot be filled in, as for clusters."""
        if not isinstance(part.value, str):
            return part
        try:
            filled = self.substitution.fill(part)
        except SpecError:
            return Node(None, part.file, part.line)
        return Node(None, part.file, part.line) if isinstance(filled.value, str) else filled

    def chosen(self, choice: Choice, only: Path | None) -> str | None:
        """Key of the selected pipeline; `None` if the source belongs to none of several."""
        keys = list(self.pipelines)
        wanted = choice.wanted_pipeline
        if wanted is not None:
            if wanted in self.pipelines:
                return wanted
            raise SpecError(
                "UNKNOWN_PIPELINE",
                f"{self.main.origin.file} has no pipeline `{wanted}`",
                hint=suggested(wanted, keys, f"its pipelines are {', '.join(keys) or 'none'}"),
            )
        for narrowed in self._narrowed(choice, only):
            if len(narrowed) == 1:
                return narrowed[0]
            if narrowed:
                keys = narrowed
            elif choice.names_sources_in(self.files.root) and len(keys) > 1:
                return None
        raise SeveralPipelinesError(
            keys,
            "PIPELINE_AMBIGUOUS",
            f"{self.main.origin.file} has several pipelines: "
            + ", ".join(f"`{key}`" for key in keys),
            hint="name one with --pipeline or PENSTOCK_PIPELINE, or in `penstock.yaml`: "
            f"`extends: {{file: {self.main.file.name}, pipeline: {keys[0]}}}`",
        )

    def _narrowed(self, choice: Choice, only: Path | None) -> Iterator[list[str]]:
        """Keys of pipelines, from all to those that match the choice best."""
        keys = list(self.pipelines)
        if only is not None:
            here = [key for key in keys if self._is_in(key, only)]
            keys = here or keys
        yield keys
        own = [key for key in keys if not is_ingestion(self.pipelines[key])]
        yield own
        if choice.source is not None:
            yield [key for key in own or keys if self._uses(key, choice.source)]

    def _is_in(self, key: str, file: Path) -> bool:
        """Whether a file configures a pipeline."""
        pipeline = self.pipelines[key]
        parts = [pipeline, *(part for _, part in pipeline.items())]
        return any(part.file.resolve() == file.resolve() for part in parts)

    def _uses(self, key: str, source: Path) -> bool:
        """Whether a source file or folder is listed by a pipeline, or contains what is listed."""
        try:
            settings = read_lakeflow(self.filled(key), self.files)
        except SpecError:
            return False
        return any(_touches(pattern, source) for pattern in settings.sources)


def _touches(pattern: SourcePattern, source: Path) -> bool:
    folder, text = pattern
    place = Path(folder, text.partition("*")[0]).resolve()
    if place == source or place.is_relative_to(source):
        return True
    return "*" in text and source.is_relative_to(place)
