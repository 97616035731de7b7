"""The targets of the queries of a job, and queries that read the targets of others."""

import ast
import re
from dataclasses import dataclass

from penstock._adopt.excerpt import Program
from penstock._lint.bindings import Scope
from penstock._lint.job_queries import Query
from penstock.sinks.delta import DeltaSink
from penstock.sinks.registry import sink_of

TABLE_FORMAT = "delta"

_CONDITIONAL = ast.Lambda | ast.IfExp | ast.BoolOp | ast.ListComp | ast.DictComp | ast.GeneratorExp
_READ_STEPS = ("format", "load", "table", "option", "options", "schema", "readStream")


@dataclass
class Target:
    """The target of a query: `place` is the expression of its path or table, `key` the value.

    `reads` is a dataset that the query reads and whose location differs from the job's table.
    """

    query: Query
    format: str
    place: tuple[ast.expr, Scope] | None
    is_path: bool
    key: str | None
    name: str
    reads: str = ""


def target_of(program: Program, query: Query) -> Target:
    """The target of a query, as far as the text shows it."""
    start = query.start
    assert start.call is not None
    place = query.option("path")
    is_path = True
    if start.call.args:
        place, is_path = (start.call.args[0], start.scope), start.name == "start"
    elif start.name == "toTable":
        place, is_path = query.option("tablename"), False
    known = query.text_of("format") or ("parquet" if is_path else TABLE_FORMAT)
    key = None if place is None else place[1].text(place[0])
    last = (key or "").rstrip("/").rpartition("/")[2] if is_path else key
    topic = query.option("topic")
    names = [
        *(text for step in query.steps("queryName") for text in step.texts()[:1]),
        last,
        None if topic is None else topic[1].text(topic[0]),
        _variable(statement_of(program, query)),
    ]
    name = next((name for name in names if name and "{" not in name), "query")
    name = re.sub(r"\W" if is_path else r"[^\w.]", "_", name)
    return Target(query, known, place, is_path, key, name)


def statement_of(program: Program, query: Query) -> ast.stmt:
    """The statement that starts a query."""
    start = query.start
    statements = [*program.block(start.scope.function), *program.tree.body]
    return next(node for node in statements if any(part is start.call for part in ast.walk(node)))


def is_straight(statement: ast.stmt, query: Query) -> bool:
    """Whether a statement starts its query exactly once, unconditionally."""
    if not isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return):
        return False
    inner = (part for part in ast.walk(statement) if isinstance(part, _CONDITIONAL))
    return not any(part is query.start.call for node in inner for part in ast.walk(node))


def read_datasets(program: Program, target: Target, others: list[Target]) -> None:
    """Replace reads of the targets of other queries with reads of their datasets."""
    steps = target.query.rows
    at = next((n for n, step in enumerate(steps) if step.name in ("load", "table")), None)
    if at is None or any(step.name not in _READ_STEPS for step in steps[:at]):
        return
    last = steps[at]
    text = (last.texts() or [None])[0]
    for other in others:
        is_table = isinstance(sink_of(other.format), DeltaSink) and other is not target
        if not is_table or text is None or other.key is None or other.query.has("foreachBatch"):
            continue
        if other.is_path is (last.name == "load") and _same(text, other.key):
            for step in steps[:at]:
                if step.name == "format" and step.call is not None:
                    program.replace_call(step.call, "")
            if last.call is not None:
                program.replace_call(last.call, f'.table("{other.name}")')
            if not other.is_path and other.query.option("path") is None:
                target.reads = other.name


def _same(first: str, second: str) -> bool:
    return first.rstrip("/").removeprefix("./") == second.rstrip("/").removeprefix("./")


def _variable(node: ast.stmt) -> str | None:
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return target.id if isinstance(target, ast.Name) else None
