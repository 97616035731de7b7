"""Streaming queries that a program starts, read from its syntax tree."""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from penstock._lint.bindings import Bindings, Scope
from penstock._lint.calls import arguments_of

_DEPTH = 200
GROUPS = ("groupBy", "groupby", "rollup", "cube")
DEDUPLICATION = ("dropDuplicates", "drop_duplicates", "distinct")


@dataclass(frozen=True)
class Step:
    """One part of a method chain, such as `.option(key, value)`, with the scope of its arguments.

    `value` is the expression on its left.
    """

    name: str
    scope: Scope
    call: ast.Call | None = None
    value: ast.expr | None = None

    @property
    def line(self) -> int:
        """The line of the method's name."""
        return (self.call.func.end_lineno or self.call.lineno) if self.call is not None else 0

    def texts(self) -> list[str | None]:
        """Its arguments as strings; `None` for an unknown argument."""
        if self.call is None:
            return []
        values = [*self.call.args, *(word.value for word in self.call.keywords)]
        return [self.scope.text(value) for value in values]


@dataclass(frozen=True)
class Query:
    """A query that is started: the steps of its rows, beginning at the source, and of its writer.

    `is_complete`: whether `rows` begins with the source and contains all steps.
    """

    rows: list[Step]
    writer: list[Step]
    is_complete: bool

    @property
    def start(self) -> Step:
        return self.writer[-1]

    def option(self, key: str) -> tuple[ast.expr, Scope] | None:
        """The last value of an option; `key` is in lower case."""
        values = [
            (value, step.scope)
            for step in self.writer
            for name, value in options(step)
            if name.lower() == key
        ]
        return values[-1] if values else None

    @property
    def has_known_options(self) -> bool:
        return are_known(self.writer)

    def text_of(self, name: str) -> str | None:
        """The value (in lower case) that a step or `start` sets; `None` if it is unknown."""
        values = [text for step in self.steps(name) for text in step.texts()[:1]]
        values += [self.start.scope.text(word.value) for word in self._words if word.arg == name]
        texts = {text.lower() if text is not None else None for text in values}
        return texts.pop() if len(texts) == 1 else None

    def steps(self, name: str) -> list[Step]:
        """The steps of the writer with the given name."""
        return [step for step in self.writer if step.name == name]

    def has(self, *names: str) -> bool:
        known = [step.name for step in self.writer] + [word.arg for word in self._words]
        return any(name in known for name in names)

    @property
    def _words(self) -> list[ast.keyword]:
        """The keyword arguments of `start` or `toTable`, such as `format`."""
        return self.start.call.keywords if self.start.call is not None else []

    @property
    def keeps_state(self) -> bool:
        """Whether a step aggregates, deduplicates, joins streams or has "State" in its name."""
        return any(
            step.name in (*GROUPS, *DEDUPLICATION, "dropDuplicatesWithinWatermark")
            or "State" in step.name
            or (step.name == "join" and joins_stream(step))
            for step in self.rows
            if step.call is not None
        )


def options(step: Step) -> Iterator[tuple[str, ast.expr]]:
    """Options that a step sets, with the keys as written."""
    if step.call is not None and step.name in ("option", "options"):
        yield from arguments_of(step.call)
    elif step.call is not None and step.name in ("start", "toTable", "load"):
        yield from arguments_of(ast.Call(step.call.func, [], step.call.keywords))


def are_known(steps: list[Step]) -> bool:
    """Whether the keys of all options in these steps are known."""
    for step in steps:
        if step.call is None:
            continue
        if step.name == "option" and not any(options(step)):
            return False
        for word in step.call.keywords:
            if word.arg is None and not isinstance(word.value, ast.Dict):
                return False
    return True


def queries(code: Bindings) -> Iterator[Query]:
    """Queries that are started, once for each call of the function that starts them."""
    for call, function in code.calls:
        if getattr(call.func, "attr", "") not in ("start", "toTable"):
            continue
        for scope in code.scopes(function):
            steps, is_complete = unrolled(call, scope)
            names = [step.name for step in steps]
            if "writeStream" in names:
                at = len(names) - 1 - names[::-1].index("writeStream")
                yield Query(steps[:at], steps[at:], is_complete)


def unrolled(node: ast.expr, scope: Scope) -> tuple[list[Step], bool]:
    """The steps of a chain from left to right, through names and functions of the file.

    Returns the steps, and whether they begin at the source (`readStream`).
    """
    steps: list[Step] = []
    for _ in range(_DEPTH):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inside = scope.code.called(node, scope)
            if inside is None:
                steps.append(Step(node.func.attr, scope, node, node.func.value))
                node = node.func.value
                continue
            bound = _result(inside)
        elif isinstance(node, ast.Call):
            inside = scope.code.called(node, scope)
            bound = _result(inside) if inside is not None else None
        elif isinstance(node, ast.Attribute):
            steps.append(Step(node.attr, scope, value=node.value))
            if node.attr == "readStream":
                return steps[::-1], True
            node = node.value
            continue
        elif isinstance(node, ast.Name):
            bound = scope.value(node)
        else:
            bound = None
        if bound is None:
            break
        node, scope = bound
    return steps[::-1], False


def joins_stream(step: Step, *, without: Collection[str] = ()) -> bool:
    """Whether a join is with another stream that has none of the steps `without`."""
    assert step.call is not None
    if not step.call.args:
        return False
    other, is_complete = unrolled(step.call.args[0], step.scope)
    return is_complete and all(known.name not in without for known in other)


def _result(scope: Scope) -> tuple[ast.expr, Scope] | None:
    """The expression that a function returns, if it has exactly one `return`."""
    function = scope.function
    assert function is not None
    returns = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None
    ]
    return (returns[0], scope) if len(returns) == 1 else None
