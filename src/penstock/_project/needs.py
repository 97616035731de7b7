"""What a project needs from its surroundings, read from its sources without executing them.

For the command that checks a project before its first run. Sources are read as text: what they
compute is not known, so a key or path that is put together at run time may be missing or shown
with its expression (`/Volumes/{catalog}/raw`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from penstock._model.origin import SourceLocation, source_location
from penstock._model.pipeline import PipelineSettings
from penstock._project.databricks.magics import Cell, CellKind
from penstock._project.databricks.notebook import find_run_target, read_cells, run_arguments
from penstock._project.findings import Finding, FindingKind, python_findings, sql_findings
from penstock._project.imports import module_folders
from penstock._project.module_search import ModuleSearch
from penstock._project.packages import is_installed, requested_packages
from penstock._project.secrets import resolve_secrets
from penstock._project.sources import find_sources, ignored_sources
from penstock._project.user_code import user_code_error
from penstock.errors import PenstockError, SpecError


@dataclass(frozen=True, kw_only=True)
class ConfigurationNeed:
    """A configuration key, or the name of a widget, that a source reads.

    `has_default`: the source, or Spark, has a value for it; `is_set`: the settings, or a source,
    set it.
    """

    key: str
    has_default: bool
    is_set: bool
    origin: SourceLocation

    @property
    def is_missing(self) -> bool:
        """Whether reading it will fail, as far as is known: parts of it may be computed."""
        return not (self.has_default or self.is_set or "{" in self.key)


@dataclass(frozen=True, kw_only=True)
class SecretNeed:
    """A secret that a source reads: `scope/key`, or `NAME`.

    `is_found` is `None` where the name is computed.
    """

    name: str
    is_found: bool | None
    origin: SourceLocation


@dataclass(frozen=True, kw_only=True)
class PathNeed:
    """A path that is mapped on this machine, or needs access to a store.

    Computed parts are in braces; `scheme` is its start: `/Volumes`, `dbfs:`, `s3:`, ...
    """

    path: str
    scheme: str
    origin: SourceLocation


@dataclass(frozen=True, kw_only=True)
class ImportNeed:
    """A module that is neither installed nor in the project.

    `is_optional`: the source continues without it.
    """

    module: str
    is_optional: bool
    origin: SourceLocation


@dataclass(frozen=True, kw_only=True)
class PackageNeed:
    """A distribution that a notebook installs with `%pip`; `is_installed` in any version."""

    name: str
    is_installed: bool
    origin: SourceLocation


@dataclass(frozen=True, kw_only=True)
class ProjectNeeds:
    """Everything that the sources need, in their order; each location once.

    `ignored` are files in source folders in another language. `problems` are sources that cannot be
    read or are not valid Python; the latter are still searched line by line.
    """

    configuration: tuple[ConfigurationNeed, ...] = ()
    widgets: tuple[ConfigurationNeed, ...] = ()
    secrets: tuple[SecretNeed, ...] = ()
    paths: tuple[PathNeed, ...] = ()
    imports: tuple[ImportNeed, ...] = ()
    packages: tuple[PackageNeed, ...] = ()
    ignored: tuple[Path, ...] = ()
    problems: tuple[PenstockError, ...] = ()

    def files_that_assume(self) -> frozenset[str]:
        """Files that read a secret, a setting or a widget whose value is not known."""
        values = (*self.configuration, *self.widgets)
        return frozenset(
            [need.origin.file for need in values if need.is_missing]
            + [need.origin.file for need in self.secrets if not need.is_found]
        )


def needs(settings: PipelineSettings) -> ProjectNeeds:
    """Return what the sources of a pipeline need; nothing is executed.

    Modules of the project that sources import, and notebooks that they run, are read as well.
    """
    reader = _Reader(settings)
    of = {kind: [item for item in reader.findings if item.kind is kind] for kind in FindingKind}
    keys_set = {*settings.configuration, *(item.name for item in of[FindingKind.KEY_SET])}
    declared = {item.name for item in of[FindingKind.WIDGET_DEFAULT]}
    return ProjectNeeds(
        configuration=tuple(
            ConfigurationNeed(
                key=item.name,
                has_default=item.has_default,
                is_set=item.name in keys_set,
                origin=item.origin,
            )
            for item in of[FindingKind.KEY]
        ),
        widgets=tuple(
            ConfigurationNeed(
                key=item.name,
                has_default=item.has_default or item.name in declared,
                is_set=item.name in settings.configuration,
                origin=item.origin,
            )
            for item in of[FindingKind.WIDGET]
        ),
        secrets=tuple(
            SecretNeed(name=item.name, is_found=_is_found(item.name, settings), origin=item.origin)
            for item in of[FindingKind.SECRET]
        ),
        paths=tuple(
            PathNeed(path=item.name, scheme=item.detail, origin=item.origin)
            for item in of[FindingKind.PATH]
        ),
        imports=tuple(
            ImportNeed(module=item.name, is_optional=item.has_default, origin=item.origin)
            for item in of[FindingKind.IMPORT]
            if not reader.modules.is_known(item.name)
        ),
        packages=tuple(
            PackageNeed(name=item.name, is_installed=is_installed(item.name), origin=item.origin)
            for item in of[FindingKind.PACKAGE]
        ),
        ignored=ignored_sources(settings),
        problems=tuple(reader.problems),
    )


def _is_found(secret: str, settings: PipelineSettings) -> bool | None:
    if "{" in secret:
        return None
    try:
        resolve_secrets(f"${{secret:{secret}}}", root=settings.root)
    except SpecError:
        return False
    return True


def project_cells(settings: PipelineSettings) -> tuple[Cell, ...]:
    """Return the text of the sources of a pipeline, and of what they import and run."""
    return tuple(_Reader(settings).cells)


class _Reader:
    """Reads the sources, and files of the project that they import or run, each once."""

    def __init__(self, settings: PipelineSettings) -> None:
        sources = find_sources(settings)
        self._root = Path(settings.root)
        self.modules = ModuleSearch(module_folders(self._root, sources))
        self.problems: list[PenstockError] = []
        self.cells: list[Cell] = []
        self.findings: dict[Finding, None] = {}
        self._read: set[Path] = set()
        for source in sources:
            self._read_file(source)

    def _read_file(self, path: Path) -> None:
        waiting = [path]
        while waiting:
            path = waiting.pop(0)
            if path in self._read:
                continue
            self._read.add(path)
            try:
                cells = read_cells(path)
            except PenstockError as error:
                self.problems.append(error)
                continue
            except (SyntaxError, ValueError, OSError) as error:
                self.problems.append(user_code_error(error, path, str(self._root)))
                continue
            self.cells += cells
            for cell in cells:
                waiting += self._read_cell(cell, path)

    def _read_cell(self, cell: Cell, path: Path) -> list[Path]:
        if cell.kind is CellKind.SQL:
            self._add(sql_findings(cell.text), cell)
        elif cell.kind is CellKind.RUN:
            target, _ = run_arguments(cell.text)
            notebook = find_run_target(target, path, self._root)
            return [] if notebook is None else [notebook]
        elif cell.kind is CellKind.PACKAGES:
            names = requested_packages(cell.text, path.parent)
            self._add([Finding(FindingKind.PACKAGE, name) for name in names], cell)
        elif cell.kind is CellKind.PYTHON:
            result = python_findings(cell.text)
            if result.error is not None:
                error = result.error
                error.filename = cell.file
                error.lineno = (error.lineno or 1) + cell.line - 1
                self.problems.append(user_code_error(error, path, str(self._root)))
            self._add(result.findings, cell)
            for folder in result.folders:
                self.modules.add(path.parent / folder)
            places = (self.modules.file_of(name, path.parent) for name in result.modules)
            return [place for place in places if place is not None]
        return []

    def _add(self, findings: Iterable[Finding], cell: Cell) -> None:
        for finding in findings:
            origin = source_location(cell.file, cell.line + finding.line - 1)
            self.findings.setdefault(replace(finding, origin=origin))
