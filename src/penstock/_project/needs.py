"""What a project needs from its surroundings, read from its sources without executing them.

For the command that checks a project before its first run. Sources are read as text: a key or path
that is computed at run time may be missing or shown with its expression (`/Volumes/{catalog}/raw`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock._model.origin import SourceLocation, source_location
from penstock._model.pipeline import PipelineSettings
from penstock._project.databricks.magics import Cell, CellKind
from penstock._project.databricks.notebook import cells_or_none
from penstock._project.findings import Finding, FindingKind, python_findings, sql_findings
from penstock._project.imports import module_folders
from penstock._project.job_files import imported_files
from penstock._project.module_search import ModuleSearch
from penstock._project.packages import is_installed, requested_packages
from penstock._project.secrets import resolve_secrets
from penstock._project.sources import find_sources
from penstock.errors import SpecError


@dataclass(frozen=True)
class Need:
    """Something that a source needs; computed parts of its name are in braces.

    `scheme` is the start of a path: `/Volumes`, `dbfs:`, `s3:`, ...
    """

    name: str
    origin: SourceLocation
    scheme: str = ""


@dataclass(frozen=True, kw_only=True)
class ProjectNeeds:
    """What the sources need and do not have here, in their order; each location once.

    Attributes:
        settings: Configuration keys, parameters and widgets without a value.
        secrets: Secrets that were not found: `scope/key` or `NAME`, some of them computed.
        paths: All paths that need a mapping on this machine, or access to a store.
        imports: Modules that are neither installed nor in the project, and not optional.
        packages: Distributions that a notebook installs with `%pip`.
    """

    settings: tuple[Need, ...] = ()
    secrets: tuple[Need, ...] = ()
    paths: tuple[Need, ...] = ()
    imports: tuple[Need, ...] = ()
    packages: tuple[Need, ...] = ()

    def files_that_assume(self) -> frozenset[str]:
        """Files that read a secret, a setting or a widget whose value is not known."""
        return frozenset(need.origin.file for need in (*self.settings, *self.secrets))


def needs(settings: PipelineSettings) -> ProjectNeeds:
    """Return what the sources of a pipeline need; nothing is executed.

    Modules of the project that sources import, and notebooks that they run, are read as well.
    Files that are not valid Python are searched line by line.
    """
    reader = _Reader(settings)
    configured = {*settings.configuration, *settings.parameters}
    keys = configured | reader.names(FindingKind.KEY_SET)
    widgets = configured | reader.names(FindingKind.WIDGET_DEFAULT)
    return ProjectNeeds(
        settings=(
            *reader.needs(FindingKind.KEY, lambda key: key in keys or "{" in key),
            *reader.needs(FindingKind.WIDGET, lambda name: name in widgets or "{" in name),
        ),
        secrets=reader.needs(FindingKind.SECRET, lambda name: _has_secret(name, settings)),
        paths=reader.needs(FindingKind.PATH, lambda _: False),
        imports=reader.needs(FindingKind.IMPORT, reader.modules.is_known),
        packages=reader.needs(FindingKind.PACKAGE, is_installed),
    )


def _has_secret(name: str, settings: PipelineSettings) -> bool:
    if "{" in name:
        return False
    try:
        resolve_secrets(f"${{secret:{name}}}", root=settings.root)
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
        self.cells: list[Cell] = []
        self._findings: dict[tuple[Finding, SourceLocation], None] = {}
        self._read_files(list(sources))

    def names(self, kind: FindingKind) -> set[str]:
        return {finding.name for finding, _ in self._findings if finding.kind is kind}

    def needs(self, kind: FindingKind, is_met: Callable[[str], bool]) -> tuple[Need, ...]:
        """Findings of a kind that have no default, and for whose names `is_met` is false."""
        return tuple(
            Need(finding.name, origin, finding.scheme)
            for finding, origin in self._findings
            if finding.kind is kind and not finding.has_default and not is_met(finding.name)
        )

    def _read_files(self, waiting: list[Path]) -> None:
        seen = set(waiting)
        while waiting:
            path = waiting.pop(0)
            cells = cells_or_none(path) or []
            self.cells += cells
            for cell in cells:
                for finding in _findings_in(cell, path.parent):
                    origin = source_location(cell.file, cell.line + finding.line - 1)
                    self._findings.setdefault((finding, origin))
            for _, file in imported_files(cells, path, path, self._root, self.modules):
                if file not in seen:
                    seen.add(file)
                    waiting.append(file)


def _findings_in(cell: Cell, folder: Path) -> Iterable[Finding]:
    if cell.kind is CellKind.SQL:
        return sql_findings(cell.text)
    if cell.kind is CellKind.PACKAGES:
        names = requested_packages(cell.text, folder)
        return [Finding(FindingKind.PACKAGE, name) for name in names]
    return python_findings(cell.text).findings if cell.kind is CellKind.PYTHON else ()
