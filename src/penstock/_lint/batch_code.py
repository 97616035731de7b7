"""Rules about functions of micro-batches: `foreach_batch_sink`, `foreachBatch`."""

import ast
from collections.abc import Iterator

from penstock._lint.calls import ApiNames, Hit, chain, constant_text, root_name

_ACTIONS = {
    *("count", "collect", "toPandas", "isEmpty", "first", "head", "take", "show", "foreach"),
    *("save", "saveAsTable", "insertInto", "jdbc", "execute", "foreachPartition"),
}
_WRITES = {"save", "saveAsTable", "insertInto", "jdbc", "parquet", "json", "csv", "orc", "append"}
_SAFE_CALLS = {"merge", "overwritePartitions", "createOrReplace", "replace"}
_SAFE_TEXTS = ("merge into", "on conflict", "txnversion", "txnappid", "replacewhere", "overwrite")
_COLUMNS = {"lit", "createDataFrame"}
_LOGGING = {"print", "debug", "info", "warning", "error", "exception", "log"}


def batch_functions(tree: ast.Module, names: ApiNames) -> list[ast.FunctionDef]:
    """Functions of a file that process micro-batches."""
    used = {
        node.args[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "foreachBatch"
        and node.args
        and isinstance(node.args[0], ast.Name)
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and (node.name in used or "foreach_batch_sink" in names.decorators(node))
        and len(node.args.args) >= 2
    ]


def findings(function: ast.FunctionDef) -> Iterator[Hit]:
    rows, batch_id = (argument.arg for argument in function.args.args[:2])
    frames = _made_of(function, rows)
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    writes = [call for call in calls if _is_write(call, frames)]
    unsafe = [call for call in writes if not _is_safe(call, function)]
    if unsafe and not _is_guarded(function, calls, batch_id):
        first = getattr(min(unsafe, key=lambda call: call.lineno).func, "attr", "")
        yield Hit(
            "PSL305", function.lineno, f"{function.name} calls {first}() without the batch id"
        )
    actions = [
        call
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in _ACTIONS
        and root_name(call.func) in frames
    ]
    kept = {"persist", "cache", "localCheckpoint", "checkpoint"}
    if len(actions) > 1 and not any(getattr(call.func, "attr", "") in kept for call in calls):
        yield Hit("PSL306", actions[1].lineno, f"{function.name} recomputes its rows")
    for call in calls:
        if getattr(call.func, "attr", "") == "subtract" and root_name(call.func) in frames:
            yield Hit("PSL308", call.lineno, f"subtract in {function.name}")


def _made_of(function: ast.FunctionDef, rows: str) -> set[str]:
    """Names bound to rows of the batch or to values derived from them."""
    names = {rows}
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    for node in sorted(assigned, key=lambda assignment: assignment.lineno):
        if root_name(node.value) in names:
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _is_write(call: ast.Call, frames: set[str]) -> bool:
    name = getattr(call.func, "attr", "")
    if name == "execute":
        return True
    if name not in _WRITES or root_name(call.func) not in frames:
        return False
    return bool({"write", "writeTo"} & set(chain(call.func)))


def _is_safe(call: ast.Call, function: ast.FunctionDef) -> bool:
    root = root_name(call.func)
    parts: list[ast.AST] = [call]
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == root for target in node.targets
        ):
            parts.append(node.value)
    for node in (inner for part in parts for inner in ast.walk(part)):
        if isinstance(node, ast.Attribute) and node.attr in _SAFE_CALLS:
            return True
        text = constant_text(node) if isinstance(node, ast.expr) else None
        if text is not None and any(safe in text.lower() for safe in _SAFE_TEXTS):
            return True
    return False


def _is_guarded(function: ast.FunctionDef, calls: list[ast.Call], batch_id: str) -> bool:
    """Whether the batch id is used other than in a message or a column."""
    beside = {
        id(inner)
        for call in calls
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in _LOGGING | _COLUMNS
        for inner in ast.walk(call)
    }
    return any(
        isinstance(node, ast.Name) and node.id == batch_id and id(node) not in beside
        for node in ast.walk(function)
    )
