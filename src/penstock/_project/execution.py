"""Executes the cells of source files: in order, those of a file in one namespace."""

import __future__

import linecache
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from penstock._api.registry import active_registry
from penstock._model.origin import SourceLocation, source_location
from penstock._model.pipeline import PipelineSettings
from penstock._project.databricks.dbutils import widget_values
from penstock._project.databricks.dbutils_notebook import NotebookExit
from penstock._project.databricks.magics import Cell, CellKind
from penstock._project.databricks.notebook import (
    file_of_cell,
    find_run_target,
    read_cells,
    run_arguments,
)
from penstock._project.packages import is_installed, requested_packages
from penstock._project.source_registry import SourceRegistry
from penstock._sql.declare import SqlContext, declare_sql
from penstock.errors import DefinitionError, SpecError

_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


class SourceExecutor:
    """Executes source files of one project. Used by one thread at a time.

    `missing_packages` are those of `%pip` cells that are not installed, by name, in order.
    """

    def __init__(self, settings: PipelineSettings) -> None:
        self.missing_packages: dict[str, SourceLocation] = {}
        self._settings = settings
        self._executed: set[Path] = set()
        self._running: list[Path] = []

    def execute(
        self, path: Path, namespace: dict[str, Any], context: SqlContext | None = None
    ) -> None:
        """Execute a file. What it declared before at the same line is not declared again.

        Args:
            path: The file.
            namespace: Globals of its Python cells.
            context: Of the file that runs it with `%run`: both are one session.

        Raises:
            BaseException: Whatever a Python cell raises; the cells below it are not executed.
            DefinitionError: The file is no notebook, or runs one that does not exist or runs it.
        """
        is_again = path in self._executed
        self._executed.add(path)
        cells = read_cells(path)
        if context is None:
            context = SqlContext(
                variables=dict(self._settings.configuration),
                parameters=self._settings.parameters,
                pipeline_schema=self._settings.schema,
            )
        registry = active_registry(path.name) if is_again else None
        repeating = registry.repeating() if isinstance(registry, SourceRegistry) else nullcontext()
        self._running.append(path)
        try:
            with repeating:
                self._execute_cells(cells, namespace, context)
        except NotebookExit:
            pass  # the rest of this notebook is not wanted
        finally:
            self._running.pop()

    def forget(self) -> None:
        self.missing_packages.clear()
        self._executed.clear()

    def _execute_cells(
        self, cells: Sequence[Cell], namespace: dict[str, Any], context: SqlContext
    ) -> None:
        flags = 0
        is_lost_told = False
        for cell in cells:
            match cell.kind:
                case CellKind.PYTHON:
                    flags = _run_python(cell, namespace, flags)
                case CellKind.SQL:
                    declare_sql(
                        cell.text,
                        file=source_location(cell.file, 1).file,
                        context=context,
                        first_line=cell.line,
                        declarations_only=bool(cell.magic),
                    )
                case CellKind.RUN:
                    self._run_notebook(cell, namespace, context)
                case CellKind.PACKAGES:
                    for name in requested_packages(cell.text, self._running[-1].parent):
                        if not is_installed(name):
                            origin = source_location(cell.file, cell.line)
                            self.missing_packages.setdefault(name, origin)
                case CellKind.LOST if cell.magic or not is_lost_told:
                    # Of a notebook in another language, one cell tells it.
                    is_lost_told = is_lost_told or not cell.magic
                    active_registry("a notebook").record(_lost(cell))

    def _run_notebook(self, cell: Cell, namespace: dict[str, Any], context: SqlContext) -> None:
        origin = source_location(cell.file, cell.line)
        target, arguments = run_arguments(cell.text)
        path = find_run_target(target, self._running[-1], Path(self._settings.root))
        if path is None:
            raise SpecError(
                "SOURCE_NOT_FOUND",
                f"`%run {target}`: there is no such notebook",
                origin=origin,
                hint=f"paths are relative to {self._running[-1].parent}; the extension may be .py, "
                ".sql or .ipynb",
            )
        if path in self._running:
            circle = [*self._running[self._running.index(path) :], path]
            raise DefinitionError(
                "NOTEBOOK_CYCLE",
                "notebooks run each other in a cycle: " + " -> ".join(p.name for p in circle),
                origin=origin,
                hint="move the shared code to a third notebook",
            )
        with widget_values(namespace.get("dbutils"), arguments):
            self.execute(path, namespace, context)


def _run_python(cell: Cell, namespace: dict[str, Any], flags: int) -> int:
    """Run a cell; return the compiler flags of `from __future__` for the cells below it."""
    text = "\n" * (cell.line - 1) + cell.text
    if file_of_cell(cell.file) != cell.file:
        # There is no such file to take the lines of a traceback from.
        lines = text.splitlines(keepends=True)
        linecache.cache[cell.file] = (len(text), None, lines, cell.file)
    code = compile(text, cell.file, "exec", flags=flags, dont_inherit=True)
    exec(code, namespace)  # noqa: S102 (the user's code)
    return flags | int(code.co_flags & _FUTURES)


def _lost(cell: Cell) -> SpecError:
    subject = f"a `%{cell.magic}` cell" if cell.magic else "a notebook of this language"
    return SpecError(
        "SOURCE_NOT_SUPPORTED",
        f"{subject} is not supported",
        origin=source_location(cell.file, cell.line),
        hint="rewrite it in Python or SQL, or remove the cell if the pipeline does not need it",
    )
