"""Jobs: source files that declare no datasets, but start streaming queries themselves."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock._model.origin import source_location
from penstock._model.pipeline import PipelineSettings
from penstock._project.databricks.magics import Cell, CellKind
from penstock._project.databricks.notebook import read_cells, run_arguments
from penstock._project.findings import python_findings
from penstock._project.query_starts import query_lines, starts_queries
from penstock._project.sources import cell_declares, find_sources
from penstock.errors import DefinitionError, PenstockError


def job_files(settings: PipelineSettings) -> tuple[Path, ...]:
    """Return the files to run if the sources of a project are jobs; empty for a pipeline.

    Reads the files, and executes nothing.

    Raises:
        SpecError: There are no sources.
    """
    return jobs_of(find_sources(settings))


def jobs_of(sources: Iterable[Path]) -> tuple[Path, ...]:
    """As `job_files`, of source files that are known."""
    jobs: list[Path] = []
    modules: set[str] = set()
    for source in sources:
        cells = _cells(source)
        if any(cell_declares(cell) for cell in cells):
            return ()
        modules.update(_imported(cells))
        if starts_queries(cells):
            jobs.append(source)
    # A file with functions that start queries belongs to the job that calls them.
    return tuple(path for path in jobs if not _is_imported(modules, path)) or tuple(jobs)


def _imported(cells: Iterable[Cell]) -> Iterator[str]:
    """Modules that are imported, and notebooks that are run, with dots."""
    for cell in cells:
        match cell.kind:
            case CellKind.PYTHON:
                yield from python_findings(cell.text).modules
            case CellKind.RUN:
                yield Path(run_arguments(cell.text)[0]).stem


def _is_imported(modules: Iterable[str], path: Path) -> bool:
    names = path.with_suffix("").parts
    parts = (tuple(module.strip(".").split(".")) for module in modules)
    return any(names[-len(module) :] == module for module in parts)


def refuse_job(sources: Iterable[Path]) -> None:
    """Raise `SOURCE_IS_JOB` for a job, which must not be executed to look at it."""
    for job in jobs_of(sources):
        raise DefinitionError(
            "SOURCE_IS_JOB",
            f"{job.name} is a job: it declares no datasets, and starts its streaming queries "
            "itself",
            origin=source_location(str(job), next(query_lines(_cells(job)), 1)),
            hint="`penstock run` without a selection of tables runs it; what needs declared "
            "datasets does not apply to it",
        )


def _cells(source: Path) -> list[Cell]:
    try:
        return read_cells(source)
    except (PenstockError, SyntaxError, ValueError, OSError):
        return []  # executing it reports what is wrong
