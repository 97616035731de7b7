"""Values of names in a syntax tree: assignments, arguments, constants."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

_DEPTH = 25
# Functions that return the same result for the same arguments.
_LOOKUPS = ("getenv", "get", "getArgument", "join")


@dataclass(frozen=True, eq=False)
class Scope:
    """A function that is called with certain arguments, or the module if it has no function."""

    code: "Bindings"
    function: ast.FunctionDef | None = None
    arguments: dict[str, tuple[ast.expr, "Scope"]] = field(default_factory=dict)

    def value(self, name: ast.Name) -> "tuple[ast.expr, Scope] | None":
        """The expression that is the value of a name where it is used; `None` if it is unknown."""
        assigned = [
            node
            for node in self.code.assignments.get((self.function, name.id), [])
            if node.lineno < name.lineno
        ]
        if assigned:
            last = assigned[-1]
            return (last.value, self) if last.value is not None else None
        if self.function is None:
            return None
        if name.id in self.arguments:
            return self.arguments[name.id]
        if name.id in self.code.local_names(self.function):
            return None
        everywhere = self.code.assignments.get((None, name.id), [])
        if len(everywhere) == 1 and everywhere[0].value is not None:
            return everywhere[0].value, Scope(self.code)
        return None

    def text(self, node: ast.expr, depth: int = _DEPTH) -> str | None:
        """A string, with unknown parts as code in braces; `None` if it depends on the caller."""
        match node:
            case ast.Constant(value=str() | bool() | int() as value):
                return str(value)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                parts = [self.text(left, depth), self.text(right, depth)]
            case ast.JoinedStr(values=values):
                parts = [
                    self.text(part.value if isinstance(part, ast.FormattedValue) else part, depth)
                    for part in values
                ]
            case ast.Name() if depth:
                if (bound := self.value(node)) is not None:
                    return bound[1].text(bound[0], depth - 1)
                known = (None, node.id) in self.code.assignments
                return None if self.function is not None or not known else f"{{{node.id}}}"
            case _:
                names = [inner for inner in ast.walk(node) if isinstance(inner, ast.Name)]
                local = self.code.local_names(self.function) if self.function else set()
                return None if local & {name.id for name in names} else f"{{{ast.unparse(node)}}}"
        return None if any(part is None for part in parts) else "".join(map(str, parts))

    def beginning(self, node: ast.expr) -> str:
        """Like `text`; for a string that depends on the caller, its known prefix and a brace."""
        text = self.text(node)
        match node:
            case ast.BinOp(op=ast.Add(), left=first) | ast.JoinedStr(values=[first, *_]):
                return self.beginning(first) + "{" if text is None else text
            case ast.FormattedValue(value=value):
                return self.beginning(value)
        return text or ""


class Bindings:
    """Assignments, functions and calls of a file."""

    def __init__(self, tree: ast.Module) -> None:
        self.assignments: dict[
            tuple[ast.FunctionDef | None, str], list[ast.Assign | ast.AnnAssign]
        ] = {}
        self.functions: dict[str, list[ast.FunctionDef]] = {}
        self.calls: list[tuple[ast.Call, ast.FunctionDef | None]] = []
        self._locals: dict[ast.FunctionDef, set[str]] = {}
        self._read(tree)
        for assigned in self.assignments.values():
            assigned.sort(key=lambda node: node.lineno)

    def local_names(self, function: ast.FunctionDef) -> set[str]:
        if function not in self._locals:
            arguments = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
            self._locals[function] = arguments | {
                node.id
                for node in ast.walk(function)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
        return self._locals[function]

    def function(self, call: ast.Call) -> ast.FunctionDef | None:
        """The function of this file that is called."""
        name = getattr(call.func, "id", "")
        if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "self":
            name = call.func.attr
        known = self.functions.get(name, [])
        return known[0] if len(known) == 1 else None

    def called(self, call: ast.Call, scope: Scope) -> Scope | None:
        """The scope of a function of this file when it is called."""
        function = self.function(call)
        if function is None:
            return None
        names = [argument.arg for argument in function.args.args]
        if isinstance(call.func, ast.Attribute):
            names = names[1:]
        defaults = zip(names[::-1], function.args.defaults[::-1], strict=False)
        bound = {name: (default, Scope(self)) for name, default in defaults}
        bound |= {name: (value, scope) for name, value in zip(names, call.args, strict=False)}
        bound |= {word.arg: (word.value, scope) for word in call.keywords if word.arg}
        return Scope(self, function, bound)

    def scopes(self, function: ast.FunctionDef | None, depth: int = 4) -> Iterator[Scope]:
        """The module, or a function with the arguments of each of its calls in this file."""
        sites = [
            (call, caller)
            for call, caller in self.calls
            if function is not None and self.function(call) is function and caller is not function
        ]
        if not sites or not depth:
            yield Scope(self, function)
        for call, caller in sites if depth else ():
            for scope in self.scopes(caller, depth - 1):
                if (inside := self.called(call, scope)) is not None:
                    yield inside

    def _read(self, tree: ast.Module) -> None:
        # In the order of the text; without recursion, as a chain may have hundreds of calls.
        pending: list[tuple[ast.AST, ast.FunctionDef | None]] = [(tree, None)]
        while pending:
            node, function = pending.pop()
            if isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, []).append(node)
                function = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.assignments.setdefault((function, target.id), []).append(node)
            elif isinstance(node, ast.Call):
                self.calls.append((node, function))
            pending += [(child, function) for child in ast.iter_child_nodes(node)][::-1]


def is_stable(text: str) -> bool:
    """Whether a string with code in braces always has the same value."""
    try:
        calls = [
            node
            for part in text.split("{")[1:]
            for node in ast.walk(ast.parse(part.split("}")[0], mode="eval"))
            if isinstance(node, ast.Call)
        ]
    except SyntaxError:
        return False
    return all(
        getattr(call.func, "attr", getattr(call.func, "id", "")) in _LOOKUPS for call in calls
    )
