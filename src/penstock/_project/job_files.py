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
        imported = imported_files(cells, source, source, root, search)
        used.update(path for _, path in imported if path != source)
        if starts_queries(cells):
            jobs.append(source)
    # A file with functions that start queries belongs to the job that calls them.
    return tuple(path for path in jobs if path not in used) or tuple(jobs)


def imported_files(
    cells: Iterable[Cell], file: Path, source: Path, root: Path, search: ModuleSearch
) -> Iterator[tuple[str, Path]]:
    """Modules of the project that a file of a source imports, and notebooks that it runs.

    Yields names and files; the name is empty for a relative import and a notebook.
    """
    for cell in cells:
        if cell.kind is CellKind.PYTHON:
            findings = python_findings(cell.text)
            for folder in findings.folders:
                search.add(file.parent / folder)
            for module in findings.modules:
                is_relative = module.startswith(".")
                path = search.file_of(module, (file if is_relative else source).parent)
                if path is not None:
                    yield "" if is_relative else module, path
        elif cell.kind is CellKind.RUN:
            notebook = find_run_target(run_arguments(cell.text)[0], file, root)
            if notebook is not None:
                yield "", notebook


def _modules(job: Path, root: Path, folders: list[str]) -> Iterator[tuple[str, Path]]:
    """The modules of a job by name, with those that they import."""
    search, waiting, seen = ModuleSearch(folders), [job], {job}
    while waiting:
        file = waiting.pop()
        for name, path in imported_files(cells_or_none(file) or [], file, job, root, search):
            if name:
                yield name, path
            if path not in seen:
                seen.add(path)
                waiting.append(path)


def refuse_modules_of_one_name(settings: PipelineSettings, jobs: Sequence[Path]) -> None:
    """Check that jobs of one process do not import different files by the same name.

    Raises:
        DefinitionError: Two of them do; Python has only one module of each name.
    """
    root = Path(settings.root)
    folders = module_folders(root, jobs)
    importers: dict[str, tuple[Path, Path]] = {}
    for job in jobs if len(jobs) > 1 else ():
        for module, file in _modules(job, root, folders):
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
    """Raise `SOURCE_IS_JOB` for a job: executing it would start its queries."""
    for job in _jobs_of(sources, root):
        raise DefinitionError(
            "SOURCE_IS_JOB",
            f"{job.name} is a job: it declares no datasets, and starts its streaming queries "
            "itself",
            origin=source_location(str(job), next(query_lines(cells_or_none(job) or []), 1)),
            hint="`penstock run` without a selection of tables runs it; what needs declared "
            "datasets does not apply to it",
        )
