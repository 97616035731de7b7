"""Jobs: source files that declare no datasets, but start streaming queries themselves."""

from collections.abc import Iterable
from pathlib import Path

from penstock._model.origin import source_location
from penstock._model.pipeline import PipelineSettings
from penstock._project.databricks.magics import Cell
from penstock._project.databricks.notebook import read_cells
from penstock._project.query_starts import query_lines, starts_queries
from penstock._project.sources import cell_declares, find_sources
from penstock.errors import DefinitionError, PenstockError, SpecError


def job_file(settings: PipelineSettings) -> Path | None:
    """Return the file to run if the sources of a project are a job; `None` for a pipeline.

    Reads the files, and executes nothing.

    Raises:
        SpecError: There are no sources, or several of them start queries.
    """
    return job_of(find_sources(settings))


def job_of(sources: Iterable[Path]) -> Path | None:
    """As `job_file`, of source files that are known."""
    jobs = jobs_of(sources)
    if len(jobs) > 1:
        names = ", ".join(path.name for path in jobs)
        raise SpecError(
            "JOB_AMBIGUOUS",
            f"several source files start streaming queries: {names}",
            hint=f"name the file of the job: `penstock run {jobs[0].name}`",
        )
    return jobs[0] if jobs else None


def jobs_of(sources: Iterable[Path]) -> list[Path]:
    """Source files that start queries; none if one of the files declares a dataset."""
    jobs: list[Path] = []
    for source in sources:
        cells = _cells(source)
        if any(cell_declares(cell) for cell in cells):
            return []
        if starts_queries(cells):
            jobs.append(source)
    return jobs


def refuse_job(sources: Iterable[Path]) -> None:
    """Raise `SOURCE_IS_JOB` for a job, which must not be executed to look at it."""
    job = job_of(sources)
    if job is not None:
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
