"""Executes the source files of a pipeline and collects what they declare."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock._api.modules import installed_modules
from penstock._api.registry import Registry, registration
from penstock._model.origin import source_location
from penstock._model.pipeline import PipelineDefinition, PipelineSettings
from penstock._project.imports import project_imports
from penstock._project.user_code import user_code_error
from penstock.errors import DefinitionError, PenstockError, SpecError

_NOTEBOOK_HEADER = "# Databricks notebook source"
# Cells of other languages would be skipped without a word: they are comments to Python.
_LOST_MAGIC = re.compile(r"^#\s*MAGIC\s+%(sql|run|python|scala|r)\b")


def load_definitions(
    settings: PipelineSettings, *, namespace: Mapping[str, object]
) -> PipelineDefinition:
    """Execute every source file of a pipeline, once, and return what they declare.

    All files are executed, whatever is wrong with one of them. Query functions are not called.
    Loaded again, files and the modules that they import are read again.

    Args:
        settings: Of the pipeline.
        namespace: Globals that every source file finds, such as `spark`.

    Raises:
        DefinitionErrors: Everything that is wrong in the source files.
        DefinitionError: They declare nothing.
        SpecError: The source files cannot be found.
    """
    registry = Registry()
    with project_imports(settings) as imports, installed_modules(), registration(registry):
        imports.drop()
        seen: set[int] = set()
        for source in imports.sources:
            for lost in _lost_cells(source):
                registry.record(lost)
            try:
                imports.run(source, namespace)
            except (Exception, SystemExit) as error:
                # A file that several siblings import fails in each of them with the same object.
                if id(error) not in seen:
                    seen.add(id(error))
                    registry.record(
                        error
                        if isinstance(error, PenstockError)
                        else user_code_error(error, source, settings.root)
                    )
        sources = imports.sources
    if registry.is_empty and not registry.errors:
        shown = ", ".join(source_location(str(source), 1).file for source in sources[:3])
        more = f" and {len(sources) - 3} more" if len(sources) > 3 else ""
        raise DefinitionError(
            "PIPELINE_EMPTY",
            f"the source files of pipeline `{settings.name}` declare nothing: {shown}{more}",
            hint="put `@dp.table` on a function that returns a DataFrame (`import penstock as dp`)",
        )
    return registry.build()


def _lost_cells(source: Path) -> Iterator[PenstockError]:
    try:
        lines = source.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError:
        return  # executing it tells
    if not lines or not lines[0].startswith(_NOTEBOOK_HEADER):
        return
    for number, line in enumerate(lines, start=1):
        if match := _LOST_MAGIC.match(line):
            yield SpecError(
                "SOURCE_NOT_SUPPORTED",
                f"a `%{match.group(1)}` cell in a notebook source is not supported yet",
                origin=source_location(str(source), number),
                hint="write it in Python: `spark.sql(...)` for SQL, `import` for `%run`",
            )
