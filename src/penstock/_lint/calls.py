"""Reads calls in a syntax tree: method chains and names of the declarative API."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_API = {"penstock", "dlt", "pyspark.pipelines"}
_GROUPING = {"groupBy", "groupby", "rollup", "cube", "pivot", "groupingSets"}


class Hit(NamedTuple):
    """A rule, a line of the source (from 1) and a message."""

    rule: str
    line: int
    message: str


@dataclass(frozen=True)
class ApiNames:
    """Names under which code imports the declarative API: of its modules and functions."""

    modules: frozenset[str]
    functions: dict[str, str]

    @classmethod
    def of(cls, tree: ast.Module) -> "ApiNames":
        """The names that a file imports; `dlt` and `dp` are always included, as in notebooks."""
        modules, functions = {"dlt", "dp"}, {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in _API:
                        modules.add(alias.asname or alias.name.split(".")[0])
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if node.module in _API:
                        functions[alias.asname or alias.name] = alias.name
                    elif f"{node.module}.{alias.name}" in _API:
                        modules.add(alias.asname or alias.name)
        return cls(frozenset(modules), functions)

    def decorators(self, function: ast.FunctionDef) -> set[str]:
        """Names of the API's decorators on a function."""
        names = set()
        for decorator in function.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(target, ast.Name) and target.id in self.functions:
                names.add(self.functions[target.id])
            elif isinstance(target, ast.Attribute) and root_name(target) in self.modules:
                names.add(target.attr)
        return names


def chain(node: ast.expr) -> list[str]:
    """Names of `a.b(...).c` from left to right: `a`, `b`, `c`."""
    names: list[str] = []
    while True:
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            break
    if isinstance(node, ast.Name):
        names.append(node.id)
    return names[::-1]


def root_name(node: ast.expr) -> str:
    """The leftmost name of a chain; empty if it does not begin with a name."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_partition_of_writer(node: ast.Call) -> bool:
    """Whether a call is `partitionBy` of a writer, not of a window."""
    names = chain(node)
    return names[-1:] == ["partitionBy"] and bool({"write", "writeStream"} & set(names))


def is_grouped(node: ast.expr, grouped: set[str]) -> bool:
    """Whether an expression is a `GroupedData`: `df.groupBy(...)`, or a name bound to one."""
    if isinstance(node, ast.Name):
        return node.id in grouped
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _GROUPING


def arguments_of(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Key and value of `option(key, value)`, `options(key=value)` and `options(**{...})`."""
    if len(node.args) == 2 and (key := constant_text(node.args[0])) is not None:
        yield key, node.args[1]
    for keyword in node.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value
        elif isinstance(keyword.value, ast.Dict):
            for name, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if name is not None and (key := constant_text(name)) is not None:
                    yield key, value


def constant_text(node: ast.expr) -> str | None:
    """A string literal, including concatenations with `+`; `None` for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bool | int):
        return str(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = constant_text(node.left), constant_text(node.right)
        return None if left is None or right is None else left + right
    return None
