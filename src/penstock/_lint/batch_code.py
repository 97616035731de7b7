"""Rules about functions that process micro-batches: `foreach_batch_sink`, `foreachBatch`."""

import ast
from collections.abc import Callable, Iterable, Iterator

from penstock._lint.calls import ApiNames, Hit, chain, constant_text, is_grouped, root_name

_ACTIONS = {
    *("count", "collect", "toPandas", "show", "foreach"),
    *("save", "saveAsTable", "insertInto", "jdbc", "execute", "foreachPartition"),
}
_WRITES = {"save", "saveAsTable", "insertInto", "jdbc", "parquet", "json", "csv", "orc", "append"}
_SAFE_CALLS = {"merge", "overwritePartitions", "createOrReplace", "replace"}
_SAFE_TEXTS = (
    "merge into",
    "on conflict",
    "on duplicate key",
    "txnversion",
    "txnappid",
    "replacewhere",
    "overwrite",
    # Their writers replace rows with the same key.
    "sql.cassandra",
    "cosmos.oltp",
)
_COLUMNS = {"lit", "createDataFrame"}
_LOGGING = {"print", "debug", "info", "warning", "error", "exception", "log"}


def batch_functions(tree: ast.Module, names: ApiNames) -> dict[ast.FunctionDef, tuple[str, str]]:
    """Functions that process micro-batches, with the names of their rows and batch id."""
    values = [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "foreachBatch"
        and node.args
    ]
    used = {_function_name(value) for value in values}
    functions: dict[ast.FunctionDef, tuple[str, str]] = {}
    for value in values:
        if isinstance(value, ast.Lambda) and len(value.args.args) >= 2:
            body: list[ast.stmt] = [ast.Expr(value.body)]
            made = ast.FunctionDef(name="a lambda", args=value.args, body=body, decorator_list=[])
            made.lineno = value.lineno
            functions[made] = (value.args.args[0].arg, value.args.args[1].arg)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        arguments = [argument.arg for argument in node.args.args if argument.arg != "self"]
        if len(arguments) >= 2 and (
            node.name in used or "foreach_batch_sink" in names.decorators(node)
        ):
            functions[node] = (arguments[0], arguments[1])
    return functions


def _function_name(node: ast.expr) -> str:
    """`f` for `f`, `self.f`, `partial(f, a=1)` and `lambda rows, batch_id: f(rows, batch_id)`."""
    if isinstance(node, ast.Lambda) and isinstance(node.body, ast.Call):
        arguments = [argument.arg for argument in node.args.args]
        values = [getattr(value, "id", "") for value in node.body.args[:2]]
        return _function_name(node.body.func) if values == arguments else ""
    if isinstance(node, ast.Call):
        is_partial = getattr(node.func, "attr", getattr(node.func, "id", "")) == "partial"
        return _function_name(node.args[0]) if is_partial and len(node.args) == 1 else ""
    if isinstance(node, ast.Attribute):
        return node.attr if getattr(node.value, "id", "") == "self" else ""
    return node.id if isinstance(node, ast.Name) else ""


def findings(function: ast.FunctionDef, rows: str, batch_id: str) -> Iterator[Hit]:
    frames, grouped = _made_of(function, rows)
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    writes = [call for call in calls if _is_write(call, frames)]
    unsafe = [call for call in writes if not _is_safe(call, function)]
    if unsafe and not _is_guarded(function, calls, batch_id):
        first = _method(min(unsafe, key=lambda call: call.lineno))
        message = f"{function.name} calls {first}() without the batch id"
        yield Hit("PSL305", function.lineno, message)

    def is_action(call: ast.Call) -> bool:
        if not isinstance(call.func, ast.Attribute):
            return False
        if call.func.attr not in _ACTIONS:
            return _is_write(call, frames)
        if call.func.attr == "count" and is_grouped(call.func.value, grouped):
            return False
        return root_name(call.func) in frames or _merges(call, frames)

    actions = _in_one_run(function.body, is_action)
    kept = {"persist", "cache", "localCheckpoint", "checkpoint"}
    if len(actions) > 1 and not kept & set(map(_method, calls)):
        yield Hit("PSL306", actions[1].lineno, f"{function.name} recomputes its rows")
    of_frames = [call for call in calls if root_name(call.func) in frames]
    persists = [call for call in of_frames if _method(call) in ("persist", "cache")]
    if persists and not {"unpersist", "clearCache"} & set(map(_method, calls)):
        yield Hit("PSL311", persists[0].lineno, f"{function.name} does not call unpersist()")
    for call in of_frames:
        if _method(call) == "subtract" and any(root_name(part) in frames for part in call.args):
            yield Hit("PSL308", call.lineno, f"subtract in {function.name}")


def _method(call: ast.Call) -> str:
    return getattr(call.func, "attr", "")


def _merges(call: ast.Call, frames: set[str]) -> bool:
    return (
        _method(call) == "execute"
        and not call.args
        and any(isinstance(node, ast.Name) and node.id in frames for node in ast.walk(call))
    )


def _in_one_run(body: list[ast.stmt], is_action: Callable[[ast.Call], bool]) -> list[ast.Call]:
    """The longest list of actions that one run can execute: one branch of each `if`."""
    actions: list[ast.Call] = []
    for position, statement in enumerate(body):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        if isinstance(statement, ast.If):
            actions += _in_expressions([statement.test], is_action)
            before = _in_one_run(statement.body, is_action)
            after = _in_one_run(statement.orelse, is_action)
            if isinstance(statement.body[-1], ast.Return | ast.Raise | ast.Continue):
                after += _in_one_run(body[position + 1 :], is_action)
                return actions + (before if len(before) > len(after) else after)
            actions += before if len(before) > len(after) else after
        elif isinstance(statement, ast.Try | ast.With | ast.For | ast.While):
            if isinstance(statement, ast.For):
                actions += _in_expressions([statement.iter], is_action)
            actions += _in_one_run(statement.body, is_action)
            actions += _in_one_run(getattr(statement, "finalbody", []), is_action)
        else:
            actions += _in_expressions([statement], is_action)
    return actions


def _in_expressions(
    nodes: Iterable[ast.AST], is_action: Callable[[ast.Call], bool]
) -> list[ast.Call]:
    return [
        inner
        for node in nodes
        for inner in ast.walk(node)
        if isinstance(inner, ast.Call) and is_action(inner)
    ]


def _made_of(function: ast.FunctionDef, rows: str) -> tuple[set[str], set[str]]:
    """Names bound to DataFrames that are derived from the batch, and those bound to groups."""
    names, grouped = {rows}, set[str]()
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    for node in sorted(assigned, key=lambda assignment: assignment.lineno):
        if root_name(node.value) in names:
            targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
            names |= targets
            if is_grouped(node.value, grouped):
                grouped |= targets
    return names, grouped


def _is_write(call: ast.Call, frames: set[str]) -> bool:
    name = _method(call)
    if name == "execute":
        # The statement of a database may be in a variable: only a visible INSERT counts.
        return not call.args or "insert" in ast.unparse(call.args[0]).lower()
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
    """Whether the batch id is used outside of messages and columns."""
    beside = {
        id(inner)
        for call in calls
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in _LOGGING | _COLUMNS
        for inner in ast.walk(call)
    }
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=text)], value=value) if all(
                id(name) in beside
                for name in names
                if name.id == text and isinstance(name.ctx, ast.Load)
            ):
                beside |= {id(inner) for inner in ast.walk(value)}
    return any(node.id == batch_id and id(node) not in beside for node in names)
