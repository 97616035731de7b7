"""Executes the cells of source files: in order, those of a file in one namespace."""

import __future__

import linecache
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import CodeType
from typing import Any

from penstock._api.registry import active_registry, is_collecting
from penstock._model.origin import SourceLocation, source_location
from penstock._model.pipeline import PipelineSettings
from penstock._project.databricks.dbutils import widget_values
from penstock._project.databricks.dbutils_notebook import running_notebook
from penstock._project.databricks.magics import Cell, CellKind
from penstock._project.databricks.notebook import (
    file_of_cell,
    find_run_target,
    read_cells,
    run_arguments,
)
from penstock._project.packages import is_installed, requested_packages
from penstock._sql.declare import SqlContext, declare_sql
from penstock._sql.source import SqlSource
from penstock._sql.statements import split_statements
from penstock.errors import DefinitionError, SpecError

_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


class SourceExecutor:
    """Executes the source files of a project: a pipeline on one thread, each job on its own.

    `missing_packages` are packages of `%pip` cells that are not installed, by name, in order.
    `executed` are all files: sources, modules that they import and notebooks that they run.
    """

    def __init__(self, settings: PipelineSettings) -> None:
        self.missing_packages: dict[str, SourceLocation] = {}
        self.executed: set[Path] = set()
        self._settings = settings

    def execute(
        self,
        path: Path,
        namespace: dict[str, Any],
        context: SqlContext | None = None,
        running: tuple[Path, ...] = (),
    ) -> None:
        """Execute a file. If it was executed before, its declarations are not repeated.

        The Python cells have the `namespace` as globals. A file that is run with `%run` has the
        `context` of the file that runs it: both share a session; `running` are that file and those
        that run it, the innermost last.

        Raises:
            BaseException: Whatever a Python cell raises; the cells below it are not executed.
            DefinitionError: The file is not a valid notebook, or notebooks run each other.
            SpecError: The file runs a notebook that does not exist.
        """
        is_again = path in self.executed
        self.executed.add(path)
        cells = read_cells(path)
        if context is None:
            context = _sql_context(self._settings)
        is_repeated = is_again and is_collecting()
        repeating = active_registry(path.name).repeating() if is_repeated else nullcontext()
        with running_notebook(), repeating:
            self._execute_cells(cells, namespace, context, (*running, path))

    def forget(self) -> None:
        self.missing_packages.clear()
        self.executed.clear()

    def _execute_cells(
        self,
        cells: Sequence[Cell],
        namespace: dict[str, Any],
        context: SqlContext,
        running: tuple[Path, ...],
    ) -> None:
        flags = 0
        is_lost_recorded = False
        for cell in cells:
            match cell.kind:
                case CellKind.PYTHON:
                    flags = _run_python(cell, namespace, flags)
                case CellKind.SQL if not is_collecting():
                    _run_sql(cell, namespace)
                case CellKind.SQL:
                    _declare(cell, context)
                case CellKind.RUN:
                    self._run_notebook(cell, namespace, context, running)
                case CellKind.PACKAGES:
                    for name in requested_packages(cell.text, running[-1].parent):
                        if not is_installed(name):
                            origin = source_location(cell.file, cell.line)
                            self.missing_packages.setdefault(name, origin)
                case CellKind.LOST if not is_collecting():
                    raise _lost(cell)
                case CellKind.LOST if cell.magic or not is_lost_recorded:
                    # A notebook in another language has one error, not one for each cell.
                    is_lost_recorded = is_lost_recorded or not cell.magic
                    active_registry("a notebook").record(_lost(cell))

    def _run_notebook(
        self,
        cell: Cell,
        namespace: dict[str, Any],
        context: SqlContext,
        running: tuple[Path, ...],
    ) -> None:
        origin = source_location(cell.file, cell.line)
        target, arguments = run_arguments(cell.text)
        path = find_run_target(target, running[-1], Path(self._settings.root))
        if path is None:
            raise SpecError(
                "SOURCE_NOT_FOUND",
                f"`%run {target}`: there is no such notebook",
                origin=origin,
                hint=f"paths are relative to {running[-1].parent}; the extension may be .py, "
                ".sql or .ipynb",
            )
        if path in running:
            circle = [*running[running.index(path) :], path]
            raise DefinitionError(
                "NOTEBOOK_CYCLE",
                "notebooks run each other in a cycle: " + " -> ".join(p.name for p in circle),
                origin=origin,
                hint="move the shared code to a third notebook",
            )
        with widget_values(namespace.get("dbutils"), arguments):
            self.execute(path, namespace, context, running)


def parse(path: Path, settings: PipelineSettings) -> None:
    """Compile the Python of a file and declare its SQL, but execute nothing.

    Raises:
        SyntaxError: A Python cell is wrong.
        DefinitionError: The file is not a valid notebook.
    """
    flags, context = 0, _sql_context(settings)
    for cell in read_cells(path):
        if cell.kind is CellKind.PYTHON:
            flags |= _compiled(cell, flags).co_flags & _FUTURES
            if "notebook.exit" in cell.text:
                break  # cells below it may not be executed
        elif cell.kind is CellKind.SQL:
            _declare(cell, context)


def _sql_context(settings: PipelineSettings) -> SqlContext:
    return SqlContext(
        variables=dict(settings.configuration),
        parameters=settings.parameters,
        pipeline_schema=settings.schema,
    )


def _declare(cell: Cell, context: SqlContext) -> None:
    declare_sql(
        cell.text,
        file=source_location(cell.file, 1).file,
        context=context,
        first_line=cell.line,
        declarations_only=bool(cell.magic),
    )


def _run_python(cell: Cell, namespace: dict[str, Any], flags: int) -> int:
    """Run a cell; return the compiler flags of `from __future__` for the cells below it."""
    code = _compiled(cell, flags)
    exec(code, namespace)  # noqa: S102 (the user's code)
    return flags | int(code.co_flags & _FUTURES)


def _compiled(cell: Cell, flags: int) -> CodeType:
    text = "\n" * (cell.line - 1) + cell.text
    if file_of_cell(cell.file) != cell.file:
        # A cell is not a file from which a traceback could read its lines.
        lines = text.splitlines(keepends=True)
        linecache.cache[cell.file] = (len(text), None, lines, cell.file)
    code: CodeType = compile(text, cell.file, "exec", flags=flags, dont_inherit=True)
    return code


def _run_sql(cell: Cell, namespace: dict[str, Any]) -> None:
    """Run the SQL of a job, which declares nothing."""
    source = SqlSource.of(cell.text, file=cell.file, first_line=cell.line)
    for statement in split_statements(source):
        if statement.error is not None:
            raise statement.error
        namespace["spark"].sql(statement.source.text)


def _lost(cell: Cell) -> SpecError:
    subject = f"a `%{cell.magic}` cell" if cell.magic else "a notebook of this language"
    return SpecError(
        "SOURCE_NOT_SUPPORTED",
        f"{subject} is not supported",
        origin=source_location(cell.file, cell.line),
        hint="rewrite it in Python or SQL, or remove the cell if the pipeline does not need it",
    )
