"""Where a source file starts streaming queries itself, from its syntax tree."""

import ast
from collections.abc import Iterable, Iterator

from penstock._project.databricks.magics import Cell, CellKind

_STARTS = frozenset({"start", "toTable"})
_WAITS = frozenset({"awaitTermination", "awaitAnyTermination", "processAllAvailable"})


def starts_queries(cells: Iterable[Cell]) -> bool:
    """Whether a file starts queries, or waits for those that its modules start."""
    return next(query_lines(cells), None) is not None


def query_lines(cells: Iterable[Cell]) -> Iterator[int]:
    """Yield the lines of the calls that start or await queries."""
    for cell in cells:
        if cell.kind is not CellKind.PYTHON:
            continue
        try:
            nodes = list(ast.walk(ast.parse(cell.text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # executing it reports that
            continue
        writes = any(isinstance(n, ast.Attribute) and n.attr == "writeStream" for n in nodes)
        calls = _STARTS | _WAITS if writes else _WAITS
        for node in nodes:
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in calls:
                yield cell.line + node.lineno - 1
