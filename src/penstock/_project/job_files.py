"""Jobs: source files that declare no datasets, but start streaming queries themselves."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from penstock._model.origin import source_location
from penstock._model.pipeline import PipelineSettings
from penstock._project.databricks.magics import Cell, CellKind
from penstock._project.databricks.notebook import cells_or_none, find_run_target, run_arguments
from penstock._project.findings import python_findings
from penstock._project.imports import module_folders
from penstock._project.module_search import ModuleSearch
from penstock._project.query_starts import query_lines, starts_queries
from penstock._project.sources import declares, find_sources
from penstock.errors import DefinitionError


def job_files(settings: PipelineSettings) -> tuple[Path, ...]:
    """Return the files to run if the sources of a project are jobs; empty for a pipeline.

    Reads the files, and executes nothing.

    Raises:
        SpecError: There are no sources.
    """
    return _jobs_of(find_sources(settings), Path(settings.root))


def _jobs_of(sources: Sequence[Path], root: Path) -> tuple[Path, ...]:
    jobs: list[Path] = []
    used: set[Path] = set()
    search = ModuleSearch(module_folders(root, sources))
    for source in sources:
        cells = cells_or_none(source) or []
        if declares(cells):
            return ()
        used.update(path for path in _used_files(cells, source, root, search) if path != source)
        if starts_queries(cells):
            jobs.append(source)
    # A file with functions that start queries belongs to the job that calls them.
    return tuple(path for path in jobs if path not in used) or tuple(jobs)


def _used_files(
    cells: Iterable[Cell], source: Path, root: Path, search: ModuleSearch
) -> Iterator[Path]:
    """Files of the project that a source imports, and notebooks that it runs."""
    for cell in cells:
        files: list[Path | None] = []
        if cell.kind is CellKind.PYTHON:
            findings = python_findings(cell.text)
            for folder in findings.folders:
                search.add(source.parent / folder)
            files = [search.file_of(module, source.parent) for module in findings.modules]
        elif cell.kind is CellKind.RUN:
            files = [find_run_target(run_arguments(cell.text)[0], source, root)]
        yield from (path for path in files if path is not None)


def refuse_modules_of_one_name(settings: PipelineSettings, jobs: Sequence[Path]) -> None:
    """Check that jobs of one process do not import different files by the same name.

    Raises:
        DefinitionError: Two of them do: Python has one module of each name.
    """
    search = ModuleSearch(module_folders(Path(settings.root), jobs))
    importers: dict[str, tuple[Path, Path]] = {}
    for job in jobs if len(jobs) > 1 else ():
        python = [cell for cell in cells_or_none(job) or [] if cell.kind is CellKind.PYTHON]
        for module in (name for cell in python for name in python_findings(cell.text).modules):
            file = search.file_of(module, job.parent)
            if file is None or module.startswith("."):
                continue
            other, importer = importers.setdefault(module, (file, job))
            if other != file:
                raise DefinitionError(
                    "JOB_MODULES_CONFLICT",
                    f"{job} and {importer} run together, but their module `{module}` is not the "
                    f"same file: {file} and {other}",
                    origin=source_location(str(job), 1),
                    hint="rename one of the modules, or run the jobs separately, each with a "
                    "`--storage` of its own",
                )


def refuse_job(sources: Sequence[Path], root: Path) -> None:
    """Raise `SOURCE_IS_JOB` for a job, which must not be executed to look at it."""
    for job in _jobs_of(sources, root):
        raise DefinitionError(
            "SOURCE_IS_JOB",
            f"{job.name} is a job: it declares no datasets, and starts its streaming queries "
            "itself",
            origin=source_location(str(job), next(query_lines(cells_or_none(job) or []), 1)),
            hint="`penstock run` without a selection of tables runs it; what needs declared "
            "datasets does not apply to it",
        )
