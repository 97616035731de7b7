"""Checks a project on a machine without its data, secrets and packages.

Nothing runs and nothing is written. Assumptions replace missing parts where possible, so that
everything else can be checked; see `_analysis.assumptions` and `_project.databricks.stand_ins`.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock._analysis.assumptions import Assumptions
from penstock._analysis.evaluation import Evaluator
from penstock._analysis.external_reads import ExternalReads
from penstock._analysis.survey import Survey, survey
from penstock._graph.index import DefinitionIndex
from penstock._graph.indexing import build_index
from penstock._launch import execute, project_session, read_context
from penstock._model.dataset import Dataset
from penstock._model.missing import missing_values_assumed
from penstock._model.pipeline import PipelineSettings
from penstock._plan.planner import PlanOptions, make_plan
from penstock._project.databricks.stand_ins import stand_ins
from penstock._project.loader import LoadedSources, empty_pipeline, load_sources
from penstock._project.needs import ProjectNeeds, needs
from penstock._project.user_code import misspells_dlt
from penstock.errors import DefinitionErrors, PenstockError

_TABLE = "table "
# Conditions of exceptions in user code, which a missing part may have caused.
_RAISED = ("USER_CODE_RAISED", "QUERY_FUNCTION_RAISED")

# Mistakes in the code itself, independent of the data.
_NOT_ABOUT_ROWS = (NameError, SyntaxError, ImportError)
# Each round changes an assumed source, usually by adding missing columns.
_MOST_ROUNDS = 40


@dataclass(frozen=True, kw_only=True)
class MissingSource:
    """A table or folder that is not available, such as `table a.b.c` or `json /Volumes/x`.

    `columns` are those that the pipeline uses, with their types; `void` if any type fits.
    """

    name: str
    reason: str
    columns: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ProjectCheck:
    """Result of a check.

    Attributes:
        settings: The loaded settings.
        sources: The files that were executed.
        datasets: Declared datasets, with their kinds: `streaming table`, ...
        flows: Names of all flows, including those of datasets.
        planned: Flows that could be planned, possibly with assumed columns.
        refused: Errors that do not depend on missing parts.
        unsure: Flow or source file to the error that missing parts may have caused.
        missing: Sources that are not available.
        assumed_settings: Settings without a value, with the assumed values.
        servers: Kafka brokers that the code names, and that are not on this machine.
        needs: Requirements of the sources, derived from their text.
        notes: Notes for the user, one sentence each.
    """

    settings: PipelineSettings
    sources: tuple[Path, ...]
    datasets: Mapping[str, str]
    flows: tuple[str, ...]
    planned: tuple[str, ...]
    refused: tuple[PenstockError, ...]
    unsure: Mapping[str, PenstockError]
    missing: tuple[MissingSource, ...]
    assumed_settings: Mapping[str, str]
    servers: tuple[str, ...]
    needs: ProjectNeeds
    notes: tuple[str, ...]


def check_project(
    settings: PipelineSettings, assumed_before: Mapping[str, str] | None = None
) -> ProjectCheck:
    """Load and plan a project with assumptions about everything that is missing.

    Called on the main thread; changes the working directory to the project's root.

    Args:
        settings: Settings of the project.
        assumed_before: Values that were assumed to load the settings.

    Raises:
        SpecError: The source files cannot be found.
        SetupError: Java, jars or Spark are missing.
    """
    os.chdir(settings.root)  # origins are relative to it
    needed = needs(settings)
    # A misspelt `dlt` is an error, not a package that is missing here.
    absent = {
        need.name: need.origin.file for need in needed.imports if not misspells_dlt(need.name)
    }
    with opened_project(settings, absent, assuming=needed.files_that_assume()) as opened:
        survey = opened.survey
        refused, unsure = opened.problems()
        # Files may declare a table for each row of a missing source.
        declared = opened.index.flows or opened.index.sinks
        if not (declared or refused or unsure or opened.read_while_loaded):
            refused = (empty_pipeline(settings.name, opened.loaded.sources),)
        return ProjectCheck(
            settings=settings,
            sources=opened.loaded.sources,
            datasets={
                dataset.name: _kind(dataset, survey)
                for dataset in opened.loaded.definition.datasets
            },
            flows=tuple(opened.index.flows),
            planned=tuple(survey.analyses),
            refused=refused,
            unsure=unsure,
            missing=tuple(opened.missing()),
            assumed_settings={**(assumed_before or {}), **opened.assumed_settings},
            servers=tuple(opened.servers),
            needs=needed,
            notes=(*opened.notes, *opened.read_too_early()),
        )


@dataclass(frozen=True, kw_only=True)
class OpenedProject:
    """A project whose sources were executed and whose flows were analysed.

    `guessing` are files that were executed with assumed rows in place of a missing source,
    `assuming` those that read a missing secret or setting. `servers` are Kafka brokers that the
    code names and that are not on this machine. `read_while_loaded` are missing sources that a file
    read while it was loaded: code that depends on their rows may fail, in any file.
    """

    loaded: LoadedSources
    index: DefinitionIndex
    survey: Survey
    notes: tuple[str, ...]
    assumed_settings: Mapping[str, str]
    servers: tuple[str, ...]
    guessing: frozenset[str]
    assuming: frozenset[str] = frozenset()
    read_while_loaded: frozenset[str] = frozenset()

    def problems(self) -> tuple[tuple[PenstockError, ...], Mapping[str, PenstockError]]:
        """The certain errors, and the uncertain ones by flow or location."""
        unsure: dict[str, PenstockError] = dict(self.survey.unsure)
        flows = {id(error): name for name, error in self.survey.failed.items()}
        refused: list[PenstockError] = []
        for error in _flat((*self.loaded.errors, *self.survey.errors)):
            if self._may_be_right(error):
                unsure[flows.get(id(error), str(error.origin))] = error
            else:
                refused.append(error)
        for name, error in self.survey.failed.items():
            if any(error is known for known in unsure.values()):
                unsure[name] = error  # it reads the output of a failed flow
        return tuple(refused), unsure

    def missing(self) -> Iterator[MissingSource]:
        """Sources that are not available, without the pipeline's own datasets."""
        for source in self.survey.missing:
            name = source.name.removeprefix(_TABLE)
            if name != source.name and (self._declared(name) or self._is_guessed_name(name)):
                continue
            near = self.index.nearest(name) if name != source.name else None
            is_like = near is not None and near.count(".") == name.count(".")
            reason = f"{source.reason}; did you mean {near!r}?" if is_like else source.reason
            yield MissingSource(name=source.name, reason=reason, columns=source.column_types)

    def read_too_early(self) -> Iterator[str]:
        """A note for each dataset that a source file reads while it is loaded."""
        for source in sorted(self.read_while_loaded):
            name = source.removeprefix(_TABLE)
            if name != source and self._declared(name):
                yield (
                    f"a source file reads dataset {name!r} of this pipeline while it is loaded: "
                    "it does not exist before the first update; read it inside of a query function"
                )

    def _declared(self, name: str) -> bool:
        return self.index.find(name) is not None

    def _is_guessed_name(self, name: str) -> bool:
        """Whether a dataset of the pipeline is read with a catalog or schema that was assumed."""
        *qualifiers, last = name.lower().split(".")
        assumed = {value.lower() for value in self.assumed_settings.values()}
        own = {key.rpartition(".")[2] for key in self.index.datasets}
        return last in own and not assumed.isdisjoint(qualifiers)

    def _may_be_right(self, error: PenstockError) -> bool:
        """Whether a missing part may have caused an error."""
        if getattr(error, "is_elsewhere", False):
            return True
        if error.condition not in _RAISED:
            return False
        if isinstance(error.__cause__, OSError | ModuleNotFoundError):
            return True
        file = error.origin.file if error.origin is not None else None
        if isinstance(error.__cause__, _NOT_ABOUT_ROWS):
            return file in self.guessing
        return bool(self.read_while_loaded) or file in self.guessing | self.assuming


@contextlib.contextmanager
def opened_project(
    settings: PipelineSettings,
    absent: Mapping[str, str],
    evaluator: Callable[..., Evaluator] = Evaluator,
    *,
    assuming: Iterable[str] = (),
) -> Iterator[OpenedProject]:
    """Execute the sources of a project and analyse its flows, with assumptions.

    Called on the main thread; changes the working directory to the project's root. `absent` are
    missing modules, with the files that import them. Raises the errors of `check_project`.
    """
    with (
        stand_ins(absent),
        project_session(settings) as spark,
        contextlib.closing(Assumptions(spark)) as assumptions,
    ):
        context = read_context(settings, spark, assumptions=assumptions)
        for _ in range(_MOST_ROUNDS):
            reads = ExternalReads(spark, context)
            with missing_values_assumed(assumptions.setting):
                loaded = execute(settings, spark, context, load_sources, reads)
            index = build_index(loaded.definition, settings)
            seen = survey(spark, index, context, evaluator)
            # Flows do not cover the sources that files read while they are loaded.
            if not _learns(assumptions, reads.guessing, (*loaded.errors, *seen.errors)):
                break
        notes = index.notes
        if seen.graph is not None:
            try:
                plan = make_plan(
                    seen.graph,
                    PlanOptions(),
                    configuration=settings.configuration,
                    notes=index.notes,
                    registered_catalog=settings.registered_catalog,
                )
                notes = (*plan.notes, *plan.warnings)
            except PenstockError as error:
                seen = replace(seen, errors=(*seen.errors, error))
        yield OpenedProject(
            loaded=loaded,
            index=index,
            survey=seen,
            notes=(*notes, *context.notes),
            assumed_settings=dict(assumptions.settings),
            servers=_elsewhere(assumptions),
            guessing=frozenset(reads.guessing).union(absent.values()),
            assuming=frozenset(assuming),
            read_while_loaded=frozenset(n for names in reads.guessing.values() for n in names),
        )


def _learns(
    assumptions: Assumptions, guessing: Mapping[str, Sequence[str]], errors: Iterable[PenstockError]
) -> bool:
    """Whether a source that a file read was changed because of one of the errors."""
    if not guessing:
        return False
    everything = [name for names in guessing.values() for name in names]
    changed = False
    # Two files may fail at the same line of a third: learning twice would undo the first change.
    different = {(error.condition, str(error.origin)): error for error in errors}
    for error in different.values():
        if error.__cause__ is None or error.origin is None:
            continue
        names = dict.fromkeys([*reversed(guessing.get(error.origin.file, ())), *everything])
        where = f"{error.condition} {error.origin}"
        changed |= assumptions.learn(where, error.__cause__, list(names)) is not None
    return changed


def _elsewhere(assumptions: Assumptions) -> tuple[str, ...]:
    """Brokers of sources and sinks that are not mapped, not assumed and not on this machine."""
    return tuple(
        servers
        for servers in assumptions.servers
        if servers not in assumptions.settings.values()
        and not servers.startswith(("localhost:", "127.0.0.1:"))
    )


def _flat(errors: Iterable[PenstockError]) -> Iterator[PenstockError]:
    for error in errors:
        yield from error.errors if isinstance(error, DefinitionErrors) else (error,)


def _kind(dataset: Dataset, survey: Survey) -> str:
    if dataset.kind is not None:
        return dataset.kind.value
    for name, analysis in survey.analyses.items():
        if name.lower() == dataset.name.lower():
            return "streaming table" if analysis.is_streaming else "materialized view"
    return "table"
