"""Extracts the dependencies of an expression of a job: assignments, functions, imports."""

import ast
import builtins
import json
import sys
from collections.abc import Iterator
from itertools import accumulate

from penstock._lint.bindings import Bindings, Scope
from penstock._lint.calls import chain, root_name

_DEFINITIONS = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
_WHOLE = _DEFINITIONS | ast.Assign | ast.AnnAssign
_INNER = ast.FunctionDef | ast.ClassDef | ast.Lambda
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class NotRecognizedError(Exception):
    """A part of a job whose equivalent cannot be derived from its text."""


class Program:
    """The text of a job, with the statements of its module that a proposal keeps.

    `edits` replace parts of the text, by start and end; `above` has lines to write above a
    statement.
    """

    def __init__(self, text: str) -> None:
        self._data = text.encode()
        self.tree = ast.parse(text)
        self.code = Bindings(self.tree)
        self.edits: dict[tuple[int, int], str] = {}
        self.module: dict[ast.stmt, str] = {}
        self.above: dict[ast.stmt, str] = {}
        self.sessions = {"spark"} | {
            node.value.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Attribute) and node.attr == "readStream"
            if isinstance(node.value, ast.Name)
        }
        self.has_star_import = any(
            isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
            for node in ast.walk(self.tree)
        )
        self._lines = self._data.splitlines(keepends=True)
        self._offsets = [0, *accumulate(map(len, self._lines))]

    def block(self, function: ast.FunctionDef | None) -> list[ast.stmt]:
        """Statements of a function or of the module, including those in `try` and `__main__`."""
        return list(_flat((function or self.tree).body))

    def replace_call(self, call: ast.Call, text: str) -> None:
        """Replace a method and its arguments with other text."""
        assert isinstance(call.func, ast.Attribute)
        self.edits[self._end(call.func.value), self._end(call)] = text

    def source(self, node: ast.expr | ast.stmt, indent: int | None = None) -> str:
        """The text of a node with its edits, indented except for lines inside strings."""
        line, end = _first_line(node), self._end(node)
        start = self._offsets[line - 1] + node.col_offset
        edits = [(*part, text) for part, text in self.edits.items() if start <= part[0] < end]
        if indent is not None:
            edits += self._indents(node, line, indent, edits)
        text = ""
        for begin, stop, new in sorted(edits):
            text += self._data[start:begin].decode() + new
            start = stop
        return " " * (indent or 0) + text + self._data[start:end].decode()

    def _indents(
        self,
        node: ast.expr | ast.stmt,
        first: int,
        indent: int,
        edits: list[tuple[int, int, str]],
    ) -> Iterator[tuple[int, int, str]]:
        inside = {
            line
            for part in ast.walk(node)
            if isinstance(part, ast.JoinedStr | ast.Constant)
            for line in range(part.lineno + 1, (part.end_lineno or 0) + 1)
        }
        widths = {
            line: len(text) - len(text.lstrip())
            for line in range(first + 1, (node.end_lineno or 0) + 1)
            if line not in inside and (text := self._lines[line - 1]).strip()
        }
        is_statement = isinstance(node, ast.stmt)
        base = node.col_offset if is_statement else min(widths.values(), default=0)
        for line, width in widths.items():
            at = self._offsets[line - 1]
            if not any(begin <= at < stop for begin, stop, _ in edits):
                yield at, at + width, " " * max(0, indent + width - base)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._offsets[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def keep(self, name: str) -> None:
        """Keep the definition of a name of the module, and what it depends on."""
        bindings = [node for node in self.block(None) if _binds(node, name)]
        if name in self.sessions:
            if name != "spark" and bindings:
                self.module[bindings[0]] = f"{name} = spark"
            return
        if not bindings or bindings[0] in self.module:
            return
        whole = [node for node in bindings if isinstance(node, _WHOLE)]
        if len(whole) > 1 or bindings[0] not in whole:
            raise NotRecognizedError(f"`{name}` has several values, line {bindings[-1].lineno}")
        if isinstance(bindings[0], ast.Assign | ast.AnnAssign) and self.reads_stream(name):
            raise NotRecognizedError(f"`{name}` is a stream that a function uses")
        for node in bindings:
            self.module[node] = ""
            for inner in free_names(node):
                self.keep(inner)

    def reads_stream(self, name: str) -> bool:
        """Whether a name of the module depends on `readStream`."""
        return any(
            getattr(part, "attr", "") == "readStream"
            for node in self._reached(name)
            for part in ast.walk(node)
        )

    def uses_session(self, name: str) -> bool:
        """Whether a name of the module depends on the session."""
        return any(free_names(node) & self.sessions for node in self._reached(name))

    def _reached(self, name: str) -> Iterator[ast.stmt]:
        """The definition of a name of the module, and those that it depends on."""
        pending, known = {name}, set[str]()
        while pending:
            name = pending.pop()
            known.add(name)
            for node in self.block(None):
                if not isinstance(node, ast.Expr) and _binds(node, name):
                    yield node
                    pending |= free_names(node) - known

    def value(self, node: ast.expr, scope: Scope) -> str:
        """The text of an expression, for the module of the proposal."""
        while isinstance(node, ast.Name) and node.id in scope.arguments:
            node, scope = scope.arguments[node.id]
        text = scope.text(node)
        if scope.function is None:
            try:
                for name in free_names(node):
                    self.keep(name)
                return self.source(node)
            except NotRecognizedError:
                if text is None or "{" in text:
                    raise
        if text is None or "{" in text:
            raise NotRecognizedError(
                f"`{self.source(node)}` is known only when the program runs, line {node.lineno}"
            )
        return json.dumps(text, ensure_ascii=False)


class Body:
    """The dependencies of the query of a dataset; `statements` of the job are copied."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._scopes: dict[str, ast.FunctionDef | None] = {}
        self._kept: dict[ast.AST, tuple[int, int, str]] = {}
        self.statements: set[ast.stmt] = set()

    def lines(self) -> list[str]:
        """Statements, those of callers first."""
        kept = sorted(self._kept.values(), key=lambda part: part[:2])
        return list(dict.fromkeys(text for *_, text in kept))

    def add(self, node: ast.AST, scope: Scope, line: int, depth: int = 0) -> None:
        """Keep what an expression at a line depends on."""
        for name in sorted(free_names(node)):
            self._name(name, scope, line, depth)

    def _name(self, name: str, scope: Scope, line: int, depth: int) -> None:
        program = self._program
        bound = [
            node
            for node in program.block(scope.function)
            if node.lineno < line and _binds(node, name)
        ]
        whole = [at for at, node in enumerate(bound) if isinstance(node, _WHOLE)]
        if name in program.sessions:
            if name != "spark":
                self._kept[ast.Name(name)] = (-sys.maxsize, 0, f"    {name} = spark")
        elif bound:
            known = _WHOLE | ast.AugAssign | ast.Expr
            if not whole or any(not isinstance(node, known) for node in bound):
                raise NotRecognizedError(
                    f"`{name}` gets its value in a branch, a loop or by parts, line "
                    f"{bound[-1].lineno}"
                )
            for node in bound[whole[-1] :]:
                self._statement(node, name, scope, depth)
        elif name in scope.arguments:
            self._check_meaning(name, scope)
            value, outer = scope.arguments[name]
            self.add(value, outer, value.lineno, depth - 1)
            if not (isinstance(value, ast.Name) and value.id == name):
                text = f"    {name} = {program.source(value)}"
                self._kept[value] = (depth, 0, text)
        elif scope.function is not None and name in program.code.local_names(scope.function):
            raise NotRecognizedError(f"`{name}` is known only when the program runs, line {line}")
        elif scope.function is not None:
            self._name(name, Scope(program.code), sys.maxsize, depth - 1)
        elif not (hasattr(builtins, name) or name == "dbutils" or program.has_star_import):
            raise NotRecognizedError(f"`{name}` is not defined in this file, line {line}")

    def _statement(self, node: ast.stmt, name: str, scope: Scope, depth: int) -> None:
        program = self._program
        if node in self._kept:
            return
        others = [other for other in program.block(None) if _binds(other, name)]
        is_single = len([other for other in others if isinstance(other, _WHOLE)]) == 1
        is_plain = is_single and not program.uses_session(name)
        if scope.function is None and (isinstance(node, _DEFINITIONS) or is_plain):
            program.keep(name)
            return
        self._check_meaning(name, scope)
        self.statements.add(node)
        self._kept[node] = (depth, node.lineno, program.source(node, 4))
        self.add(node, scope, node.lineno, depth)

    def _check_meaning(self, name: str, scope: Scope) -> None:
        if self._scopes.setdefault(name, scope.function) is not scope.function:
            raise NotRecognizedError(f"`{name}` has another meaning in each function")


def free_names(node: ast.AST) -> set[str]:
    """Names that a node reads from the scope around it."""
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    inner = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        inner |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    for part in ast.walk(node):
        if isinstance(part, ast.comprehension):
            inner |= {n.id for n in ast.walk(part.target) if isinstance(n, ast.Name)}
    return {name.id for name in names if isinstance(name.ctx, ast.Load)} - inner


def _binds(node: ast.stmt, name: str) -> bool:
    """Whether a statement binds a name, or modifies its value."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.Import | ast.ImportFrom):
        return name in {alias.asname or alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.Expr):
        call = node.value
        is_method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        keeps = {*chain(call)} & _KEEPS
        return is_method and not keeps and root_name(call) == name
    targets = node.targets if isinstance(node, ast.Assign) else []
    parts = [root_name(target) for target in targets if not isinstance(target, ast.Name)]
    return name in parts or name in _stored(node)


# Methods that do not modify their object.
_KEEPS = {
    "createOrReplaceTempView",
    "writeStream",
    "printSchema",
    "explain",
    "awaitTermination",
    "processAllAvailable",
    "stop",
}


def _stored(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _INNER | _COMPREHENSIONS):
            yield from _stored(child)


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        is_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        if isinstance(node, ast.Try) or (isinstance(node, ast.If) and is_main):
            yield from _flat(node.body)
        else:
            yield node


def _first_line(node: ast.expr | ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
