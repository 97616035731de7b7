"""Recognizes functions of `foreachBatch`: a split by a condition, or a merge by keys."""

import ast
import re
from dataclasses import dataclass

from penstock._adopt.excerpt import free_names
from penstock._lint.calls import chain, constant_text, root_name
from penstock.sinks.delta import DeltaSink
from penstock.sinks.registry import sink_of

_FILTERS = ("filter", "where")
_SILENT = ("persist", "cache", "unpersist", "print", "info", "debug")
_EQUAL = re.compile(r"\s*\w+\.(\w+)\s*=\s*\w+\.(\w+)\s*")


@dataclass(frozen=True)
class Split:
    """Rows that match a condition are appended to one table, all others to another."""

    condition: ast.expr
    good: ast.expr
    bad: ast.expr
    is_path: bool


def split_of(function: ast.FunctionDef) -> Split | None:
    """The split that a function consists of; `None` if it does anything else."""
    rows = function.args.args[0].arg
    filters: dict[str, ast.expr] = {}
    rests: dict[str, str] = {}
    writes: dict[str, tuple[ast.expr, bool]] = {}
    for node in _statements(function.body):
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            call = node.value
            if not (isinstance(call, ast.Call) and chain(call)[:-1] == [rows] and call.args):
                return None
            name, argument = chain(call)[-1], call.args[0]
            good = next((g for g, known in filters.items() if _is_opposite(argument, known)), None)
            if name in ("subtract", "exceptAll") and root_name(argument) in filters:
                rests[target.id] = root_name(argument)
            elif name in _FILTERS and good is not None:
                rests[target.id] = good
            elif name in _FILTERS:
                filters[target.id] = argument
            else:
                return None
        elif isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call):
            names = chain(call)
            if names[-1] in _SILENT:
                continue
            place = _appended(call)
            if place is None or names[0] in writes:
                return None
            writes[names[0]] = place
        elif not isinstance(node, ast.Return | ast.Pass):
            return None
    if len(rests) != 1 or len(filters) != 1 or set(writes) != {*rests, *rests.values()}:
        return None
    (bad, good) = next(iter(rests.items()))
    (target, is_path), (other, _) = writes[good], writes[bad]
    condition = filters[good]
    inner = {rows, *rests, *filters, *(argument.arg for argument in function.args.args)}
    if (free_names(condition) | free_names(target)) & inner:
        return None
    return Split(condition, target, other, is_path)


def merge_keys(function: ast.FunctionDef) -> list[str]:
    """The keys if a function is an upsert of all columns by equal keys, and nothing else."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    names = [chain(call)[-1] for call in calls if chain(call)]
    merges = [call for call in calls if getattr(call.func, "attr", "") == "merge"]
    wanted = {"whenMatchedUpdateAll", "whenNotMatchedInsertAll", "execute"}
    extra = {"whenMatchedUpdate", "whenMatchedDelete", "whenNotMatchedInsert", "save", "append"}
    if len(merges) != 1 or not wanted <= set(names) or extra & set(names):
        return []
    if any(call.args for call in calls if getattr(call.func, "attr", "") in wanted):
        return []
    source, condition = (*merges[0].args, None, None)[:2]
    if source is None or root_name(source) != function.args.args[0].arg:
        return []
    text = constant_text(condition) if condition is not None else None
    pairs = [_EQUAL.fullmatch(part) for part in re.split(r"(?i)\band\b", text or "")]
    keys = [pair[1] for pair in pairs if pair is not None and pair[1] == pair[2]]
    return keys if len(keys) == len(pairs) else []


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements, including those in an `if` that checks whether there are rows."""
    result: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If) and not node.orelse and _asks_for_rows(node.test):
            result += _statements(node.body)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            result.append(node)
    return result


def _asks_for_rows(test: ast.expr) -> bool:
    calls = [chain(node)[-1:] for node in ast.walk(test) if isinstance(node, ast.Call)]
    return bool(calls) and all(names in (["isEmpty"], ["count"], ["take"]) for names in calls)


def _is_opposite(condition: ast.expr, known: ast.expr) -> bool:
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Invert):
        return ast.dump(condition.operand) == ast.dump(known)
    first, second = constant_text(condition), constant_text(known)
    if first is None or second is None:
        return False
    return re.sub(r"\s", "", first.lower()) == re.sub(r"\s", "", f"not({second})".lower())


def _appended(call: ast.Call) -> tuple[ast.expr, bool] | None:
    """The path or table that a writer appends rows to, and whether it is a path."""
    names = chain(call)
    steps, node = [call], call.func
    while isinstance(node, ast.Attribute):
        node = node.value
        if isinstance(node, ast.Call):
            steps.append(node)
            node = node.func
    known = {"write", "format", "mode", "option", "save", "saveAsTable"}
    values = {
        getattr(step.func, "attr", ""): constant_text(step.args[0]) for step in steps if step.args
    }
    is_delta = isinstance(sink_of(values.get("format") or ""), DeltaSink)
    if names[-1] not in ("save", "saveAsTable") or len(call.args) != 1 or not is_delta:
        return None
    is_plain = values.get("mode") == "append" and set(names[1:]) <= known
    return (call.args[0], names[-1] == "save") if is_plain else None
