"""Executes the source files of a pipeline and collects what they declare, or those of a job."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock._api.modules import installed_modules
from penstock._api.registry import Registry, registration
from penstock._model.origin import source_location
from penstock._model.pipeline import PipelineDefinition, PipelineSettings
from penstock._project.execution import parse
from penstock._project.imports import ProjectImports, project_imports
from penstock._project.job_files import refuse_job
from penstock._project.sources import find_sources
from penstock._project.user_code import code_origin, user_code_error
from penstock.errors import DefinitionError, DefinitionErrors, PenstockError, UserCodeError

# Not certain for files that are not executed: another file may set the variable.
_UNSURE = ("SQL_VARIABLE_UNKNOWN", "USER_CODE_RAISED")


def load_definitions(
    settings: PipelineSettings, *, namespace: Mapping[str, object]
) -> PipelineDefinition:
    """Execute every source file of a pipeline, once, and return what they declare.

    All files are executed, even if one of them is wrong; `DefinitionErrors` has all errors. Query
    functions are not called. Each load reads the files and the modules that they import again.
    """
    registry, sources = _load(settings, namespace)
    if registry.is_empty and not registry.errors:
        raise empty_pipeline(settings.name, sources)
    return registry.build()


def empty_pipeline(name: str, sources: Sequence[Path]) -> DefinitionError:
    """Return the error of a pipeline whose source files declare nothing."""
    shown = ", ".join(source_location(str(source), 1).file for source in sources[:3])
    more = f" and {len(sources) - 3} more" if len(sources) > 3 else ""
    return DefinitionError(
        "PIPELINE_EMPTY",
        f"the source files of pipeline `{name}` declare nothing: {shown}{more}",
        hint="put `@dp.table` on a function that returns a DataFrame "
        "or write `CREATE STREAMING TABLE` in SQL",
    )


@dataclass(frozen=True, kw_only=True)
class LoadedSources:
    """The valid declarations of source files, all errors, and the files that were executed."""

    definition: PipelineDefinition
    errors: tuple[PenstockError, ...]
    sources: tuple[Path, ...]


def load_sources(settings: PipelineSettings, *, namespace: Mapping[str, object]) -> LoadedSources:
    """Execute every source file of a pipeline; errors are part of the result."""
    registry, sources = _load(settings, namespace)
    return LoadedSources(
        definition=registry.declared(), errors=tuple(registry.errors), sources=sources
    )


def _load(
    settings: PipelineSettings, namespace: Mapping[str, object]
) -> tuple[Registry, tuple[Path, ...]]:
    registry = Registry()
    with (
        project_imports(settings) as imports,
        installed_modules(),
        registration(registry),
        shared_session(namespace.get("spark")),
    ):
        imports.drop()
        refuse_job(imports.sources, Path(imports.root))
        _run_all(imports, namespace, registry)
        return registry, imports.sources


def _run_all(imports: ProjectImports, namespace: Mapping[str, object], registry: Registry) -> None:
    reported: set[tuple[str, str, str]] = set()
    for source in imports.sources:
        try:
            imports.run(source, namespace)
        except (Exception, SystemExit) as raised:
            error = raised
            if not isinstance(error, PenstockError):
                error = user_code_error(
                    raised, source, imports.root, imports.executor.missing_packages
                )
            error.origin = error.origin or code_origin(raised.__traceback__, source, imports.root)
            # A file that several others import or run fails in each of them.
            key = (error.condition, error.message, str(error.origin))
            if key not in reported:
                reported.add(key)
                registry.record(error)


def check_syntax(settings: PipelineSettings) -> None:
    """Read every source file of a pipeline, without executing it.

    Raises:
        DefinitionError: The files are a job.
        DefinitionErrors: Files cannot be read, or have invalid Python syntax or SQL statements.
        SpecError: There are no sources.
    """
    registry, sources = Registry(), find_sources(settings)
    refuse_job(sources, Path(settings.root))
    with registration(registry), warnings.catch_warnings(action="ignore"):
        for source in sources:
            try:
                parse(source, settings)
            except PenstockError as error:
                registry.record(error)
            except Exception as error:
                registry.record(user_code_error(error, source, settings.root))
    errors = [error for error in registry.errors if error.condition not in _UNSURE]
    if errors:
        raise DefinitionErrors(errors)


@contextmanager
def job_programs(
    settings: PipelineSettings,
    sources: Sequence[Path],
    spark: Any,
    *,
    arguments: Sequence[str] = (),
    on_configure: Callable[[Mapping[str, Any]], Any],
    on_stop: Callable[[], None],
) -> Iterator[None]:
    """Let files of a job be executed as programs by `run_job_file`, several on separate threads.

    `arguments` are those of all programs; see `shared_session` for the functions.
    """
    with (
        project_imports(settings) as imports,
        _as_program(sources[0], arguments),
        shared_session(spark, on_stop=lambda _: on_stop(), on_configure=on_configure),
    ):
        imports.drop()
        yield


def run_job_file(
    settings: PipelineSettings, source: Path, *, namespace: Mapping[str, object]
) -> None:
    """Execute a file of a job as a program; return when it has ended.

    Raises:
        BaseException: Whatever the file raises, as `UserCodeError` if it is an `Exception`.
    """
    with project_imports(settings) as imports:
        try:
            imports.run(source, namespace, is_main=True)
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise UserCodeError(
                    "JOB_EXITED",
                    f"the job ended itself with exit code {ended.code!r}",
                    origin=source_location(str(source), 1),
                    hint="its own output says why; its arguments follow the path: "
                    f"`penstock run {source.name} -- ARGS`",
                ) from ended
        except Exception as raised:
            if isinstance(raised, PenstockError):
                raise
            raise user_code_error(
                raised, source, imports.root, imports.executor.missing_packages
            ) from raised


@contextmanager
def _as_program(source: Path, arguments: Sequence[str]) -> Iterator[None]:
    before, main = sys.argv, sys.modules["__main__"]
    sys.argv = [str(source), *arguments]
    try:
        yield
    finally:
        sys.argv, sys.modules["__main__"] = before, main


_REMOTE = ("spark.remote", "spark.api.mode")


@contextmanager
def shared_session(
    spark: Any,
    *,
    on_stop: Callable[[Any], None] = lambda _: None,
    on_configure: Callable[[Mapping[str, Any]], Any] = lambda _: None,
) -> Iterator[None]:
    """Prevent source files from stopping the session, by patching its classes.

    `on_stop` is called instead, and `on_configure` with the options of a builder; it returns the
    session that the caller gets, or `None` for the one of this process.
    """
    with ExitStack() as patches:
        for owner in (spark, getattr(spark, "sparkContext", None)):
            holder = next((base for base in type(owner).__mro__ if "stop" in vars(base)), None)
            if holder is not None:
                patches.enter_context(replaced(holder, "stop", on_stop))
        builder = getattr(type(spark), "Builder", None)
        if isinstance(builder, type) and "getOrCreate" in vars(builder):
            get_or_create = _without_remote(vars(builder)["getOrCreate"], on_configure)
            patches.enter_context(replaced(builder, "getOrCreate", get_or_create))
        yield


def _without_remote(
    original: Callable[..., Any], on_configure: Callable[[Mapping[str, Any]], Any]
) -> Callable[..., Any]:
    def get_or_create(builder: Any) -> Any:
        for key in _REMOTE:
            builder._options.pop(key, None)
        session = on_configure(builder._options)
        return original(builder) if session is None else session

    return get_or_create


@contextmanager
def replaced(holder: type, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of a class while this is open."""
    before = vars(holder)[name]
    setattr(holder, name, replacement)
    try:
        yield
    finally:
        setattr(holder, name, before)
