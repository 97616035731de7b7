"""Executes the source files of a pipeline and collects what they declare."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock._api.modules import installed_modules
from penstock._api.registry import registration
from penstock._model.origin import source_location
from penstock._model.pipeline import PipelineDefinition, PipelineSettings
from penstock._project.imports import ProjectImports, project_imports
from penstock._project.source_registry import SourceRegistry
from penstock._project.user_code import user_code_error
from penstock.errors import DefinitionError, PenstockError


def load_definitions(
    settings: PipelineSettings, *, namespace: Mapping[str, object]
) -> PipelineDefinition:
    """Execute every source file of a pipeline, once, and return what they declare.

    All files are executed, even if one of them is wrong; `DefinitionErrors` has all errors. Query
    functions are not called. Loaded again, files and the modules that they import are read again.
    """
    registry, sources = _load(settings, namespace)
    if registry.is_empty and not registry.errors:
        shown = ", ".join(source_location(str(source), 1).file for source in sources[:3])
        more = f" and {len(sources) - 3} more" if len(sources) > 3 else ""
        raise DefinitionError(
            "PIPELINE_EMPTY",
            f"the source files of pipeline `{settings.name}` declare nothing: {shown}{more}",
            hint="put `@dp.table` on a function that returns a DataFrame "
            "or write `CREATE STREAMING TABLE` in SQL",
        )
    return registry.build()


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
) -> tuple[SourceRegistry, tuple[Path, ...]]:
    registry = SourceRegistry()
    with (
        project_imports(settings) as imports,
        installed_modules(),
        registration(registry),
        shared_session(namespace.get("spark")),
    ):
        imports.drop()
        _run_all(imports, namespace, registry)
        return registry, imports.sources


def _run_all(
    imports: ProjectImports, namespace: Mapping[str, object], registry: SourceRegistry
) -> None:
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
            # A file that several others import or run fails in each of them.
            key = (error.condition, error.message, str(error.origin))
            if key not in reported:
                reported.add(key)
                registry.record(error)


_REMOTE = ("spark.remote", "spark.api.mode")


@contextmanager
def shared_session(spark: Any) -> Iterator[None]:
    """Prevent source files from stopping the session, by patching its classes."""
    with ExitStack() as patches:
        for owner in (spark, getattr(spark, "sparkContext", None)):
            if holder := _holder(type(owner), "stop"):
                patches.enter_context(_replaced(holder, "stop", _ignored))
        builder = getattr(type(spark), "Builder", None)
        if isinstance(builder, type) and "getOrCreate" in vars(builder):
            get_or_create = _without_remote(vars(builder)["getOrCreate"])
            patches.enter_context(_replaced(builder, "getOrCreate", get_or_create))
        yield


def _holder(kind: type, name: str) -> type | None:
    return next((base for base in kind.__mro__ if name in vars(base)), None)


def _ignored(*_arguments: Any, **_parameters: Any) -> None:
    return None


def _without_remote(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_or_create(builder: Any) -> Any:
        for key in _REMOTE:
            builder._options.pop(key, None)
        return original(builder)

    return get_or_create


@contextmanager
def _replaced(holder: type, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    before = vars(holder)[name]
    setattr(holder, name, replacement)
    try:
        yield
    finally:
        setattr(holder, name, before)
