"""The target of a job's query, and its name as a flow."""

import ast
import linecache
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from penstock._model.origin import SourceLocation
from penstock._tables.jvm import private_field

_TARGETS = ("topic", "path", "dbtable")


@dataclass(frozen=True, kw_only=True)
class QueryTarget:
    """Format, output mode, and table, path or topic of a query; `None` where it has none."""

    format: str = ""
    mode: str = ""
    name: str | None = None


def target_of(writer: Any, name: str | None) -> QueryTarget:
    """The target of a `DataStreamWriter` that has started a query.

    `name` is the table or path with which it was started.
    """
    java = writer._jwrite
    try:
        # Spark has no public API to read them.
        source, options = str(private_field(java, "source")), private_field(java, "extraOptions")
        mode = str(private_field(java, "outputMode").toString()).upper()
        if name is None:
            named = (options.get(key) for key in _TARGETS)
            name = next((str(option.get()) for option in named if option.isDefined()), None)
    except Py4JError:
        return QueryTarget(name=name)
    return QueryTarget(format=source, mode=mode, name=name)


def flow_name(
    query_name: str | None, target: QueryTarget, origin: SourceLocation, *, program: str = ""
) -> str:
    """The name of the query, or else of its target or variable, or `query`.

    Programs of a job may use the same variables, so the name of the `program` is prepended to them.
    """
    if query_name:
        return query_name
    if last := (target.name or "").rstrip("/").rpartition("/")[2]:
        return last
    variable = _variable(origin) or "query"
    return f"{program}_{variable}" if program else variable


def _variable(origin: SourceLocation) -> str | None:
    """The variable that the statement at a line assigns."""
    text = "".join(linecache.getlines(str(Path(origin.file).absolute())))
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return None
    for node in nodes:
        if isinstance(node, ast.Assign) and node.lineno <= origin.line <= (node.end_lineno or 0):
            target = node.targets[0]
            if isinstance(target, ast.Name):
                return target.id
    return None
