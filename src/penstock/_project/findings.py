"""What source files need: configuration keys, secrets, paths and modules, found in their text."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto


class FindingKind(Enum):
    KEY = auto()
    KEY_SET = auto()
    WIDGET = auto()
    WIDGET_DEFAULT = auto()
    SECRET = auto()
    PATH = auto()
    IMPORT = auto()
    PACKAGE = auto()


@dataclass(frozen=True)
class Finding:
    """Something that a source needs: a key, `scope/key`, path, module or package.

    `line` is counted in the text that was searched. `has_default`: the source continues without it.
    `scheme` is the scheme of a path.
    """

    kind: FindingKind
    name: str
    line: int = 1
    has_default: bool = False
    scheme: str = ""


_PATH = re.compile(
    r"(?:(?P<scheme>dbfs|abfss?|wasbs?|s3[an]?|gs|adl|hdfs):/"
    r"|(?P<folder>/Volumes|/mnt|/dbfs|/FileStore|/databricks-datasets|/Workspace|/Repos)(?=/|$))"
)
_REFERENCE = re.compile(r"\$\{\s*([\w.\-:/]+)\s*\}")
_FOREIGN_REFERENCES = ("env:", "system:", "bundle.", "var.", "workspace.", "resources.")
# Spark always has values for these keys.
_OF_SPARK = ("spark.sql.", "spark.app.", "spark.master", "spark.driver.", "spark.databricks.delta.")


def path_in(text: str, line: int = 1) -> Finding | None:
    """Return a string literal if it is a path of Databricks or of an object store."""
    match = _PATH.match(text)
    if match is None or "\n" in text:
        return None
    scheme = match.group("folder") or f"{match.group('scheme')}:"
    return Finding(FindingKind.PATH, text, line, scheme=scheme)


def references_in(text: str, line: int = 1) -> Iterator[Finding]:
    """Yield the `${key}` and `${secret:...}` references in a string."""
    for match in _REFERENCE.finditer(text):
        at = line + text.count("\n", 0, match.start())
        name = match.group(1)
        if name.startswith("secret:"):
            yield Finding(FindingKind.SECRET, name.removeprefix("secret:"), at)
        elif not name.startswith(_FOREIGN_REFERENCES):
            yield key(name, line=at)


def key(name: str, *, line: int, has_default: bool = False) -> Finding:
    is_of_spark = name.startswith(_OF_SPARK)
    return Finding(FindingKind.KEY, name, line, has_default=has_default or is_of_spark)


_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<string>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")",
    re.DOTALL,
)
_SECRET = re.compile(
    r"\b(?:try_)?secret\(\s*(['\"])([^'\"]+)\1\s*,\s*(['\"])([^'\"]+)\3", re.IGNORECASE
)
_SET = re.compile(r"(?:^|;)\s*SET\s+([\w.\-]+)\s*=", re.IGNORECASE)


def sql_findings(text: str) -> Iterator[Finding]:
    """Yield what a SQL string needs, without its comments."""
    text = without_sql_comments(text)
    for match in _SET.finditer(text):
        line = 1 + text.count("\n", 0, match.start(1))
        yield Finding(FindingKind.KEY_SET, match.group(1), line)
    yield from references_in(text)
    for match in _SECRET.finditer(text):
        line = 1 + text.count("\n", 0, match.start())
        yield Finding(FindingKind.SECRET, f"{match[2]}/{match[4]}", line)
    for match in _TOKEN.finditer(text):
        line = 1 + text.count("\n", 0, match.start())
        # Shown like Python's f-strings: `/Volumes/{catalog}/raw`.
        literal = re.sub(r"\$\{\s*([^}]*?)\s*\}", r"{\1}", match.group()[1:-1])
        if finding := path_in(literal, line):
            yield finding


def without_sql_comments(text: str) -> str:
    """The text with comments of SQL removed; its lines stay the same."""

    def blank(match: re.Match[str]) -> str:
        comment = match.group("comment")
        return match.group() if comment is None else "\n" * comment.count("\n")

    return _TOKEN.sub(blank, text)


_ARGUMENTS = {
    "conf": ("key", "default"),
    "secrets": ("scope", "key"),
    "widgets": ("name", "defaultValue"),
}
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}

_CALL = re.compile(
    r"\b(?P<part>conf|secrets|widgets)\s*\.\s*(?P<function>get\w*|text|dropdown|combobox|multiselect)"
    r"\s*\(\s*(?:\w+\s*=\s*)?(?P<one>'[^'\n]*'|\"[^\"\n]*\")"
    r"(?:\s*(?P<comma>,)\s*(?:\w+\s*=\s*)?(?P<two>'[^'\n]*'|\"[^\"\n]*\")?)?"
)
_LITERAL = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"")


@dataclass
class PythonFindings:
    """What Python code needs, in the order of the code.

    `modules` are dotted names, relative ones with their dots; `folders` are added to `sys.path`, as
    written.
    """

    findings: list[Finding] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


def python_findings(code: str) -> PythonFindings:
    """Return what code needs; code with syntax errors is searched line by line."""
    result = PythonFindings()
    try:
        tree = ast.parse(code)
        _Visitor(result, _constants(tree)).visit(tree)
    # The visitor raises a RecursionError as well, for an expression of a thousand terms.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        result.findings = list(_line_findings(code))
    return result


class _Visitor(ast.NodeVisitor):
    def __init__(self, result: PythonFindings, constants: dict[str, str]) -> None:
        self.result = result
        self._constants = constants
        self._is_guarded = False

    # -- what it imports

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._import(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        if node.level == 0:
            self._import(module, node.lineno)
        else:
            self.result.modules.append(module)
        # `from package import module`
        joint = "" if module.endswith(".") else "."
        self.result.modules += [f"{module}{joint}{alias.name}" for alias in node.names]

    def _import(self, module: str, line: int) -> None:
        self.result.modules.append(module)
        finding = Finding(FindingKind.IMPORT, module, line, has_default=self._is_guarded)
        self.result.findings.append(finding)

    def visit_Try(self, node: ast.Try) -> None:
        before = self._is_guarded
        self._is_guarded = before or any(_catches_import(handler) for handler in node.handlers)
        self._visit_all(node.body)
        self._is_guarded = before
        self._visit_all([*node.handlers, *node.orelse, *node.finalbody])

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.dump(node.test):
            self._visit_all(node.orelse)
        else:
            self.generic_visit(node)

    def _visit_all(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    # -- what it calls

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Attribute):
            owner = function.value
            part = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            self._call(part, function.attr, node)
            if function.attr == "sql":
                self._sql(node)
            if ast.unparse(owner) == "sys.path" and function.attr in ("append", "insert"):
                self.result.folders += [
                    text for value in node.args[-1:] if "{" not in (text := self._folder(value))
                ]
        elif isinstance(function, ast.Name):
            if function.id == "sql":
                self._sql(node)
            elif function.id == "getArgument":
                self._call("widgets", "getArgument", node)
        self.generic_visit(node)

    def _call(self, part: str, function: str, node: ast.Call) -> None:
        if part in _ARGUMENTS:
            first, second = _ARGUMENTS[part]
            name = self._argument(node, 0, first)
            self.result.findings += _called(
                part, function, name or "", self._argument(node, 1, second), node.lineno
            )

    def _sql(self, node: ast.Call) -> None:
        text = self._argument(node, 0, "sqlQuery")
        if text is not None:
            self.result.findings += references_in(text, node.args[0].lineno if node.args else 1)

    def _argument(self, node: ast.Call, position: int, name: str) -> str | None:
        """An argument as a string with computed parts in braces; `None` if it is absent."""
        value: ast.expr | None = None
        if position < len(node.args):
            value = node.args[position]
        for keyword in node.keywords:
            if keyword.arg == name:
                value = keyword.value
        return None if value is None else self._text(value)

    def _folder(self, value: ast.expr) -> str:
        """A folder as a string; evaluates `os.path.abspath` and `join` of strings."""
        if isinstance(value, ast.Call) and not value.keywords and value.args:
            function = getattr(value.func, "attr", getattr(value.func, "id", ""))
            parts = [self._folder(part) for part in value.args]
            if function in ("abspath", "realpath", "normpath", "str", "Path"):
                return parts[0]
            if function == "join":
                return "/".join(parts)
        return self._text(value)

    def _text(self, value: ast.expr) -> str:
        if isinstance(value, ast.Constant):
            return str(value.value)
        if isinstance(value, ast.JoinedStr):
            return "".join(self._text(part) for part in value.values)
        if isinstance(value, ast.FormattedValue):
            return self._text(value.value)
        if isinstance(value, ast.Name) and value.id in self._constants:
            return self._constants[value.id]
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            return self._text(value.left) + self._text(value.right)
        return f"{{{ast.unparse(value)}}}"

    # -- its strings

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._literal(node.value, node.lineno)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._literal(self._text(node), node.lineno)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = self._text(node) if isinstance(node.op, ast.Add) else ""
        if path_in(text) is None:
            self.generic_visit(node)
        else:
            self._literal(text, node.lineno)

    def _literal(self, text: str, line: int) -> None:
        if finding := path_in(text, line):
            self.result.findings.append(finding)
        secrets = [item for item in references_in(text, line) if item.kind is FindingKind.SECRET]
        self.result.findings += secrets


def _constants(tree: ast.Module) -> dict[str, str]:
    values: dict[str, str] = {}
    several: set[str] = set()
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name):
                if target.id in values or not isinstance(node.value, ast.Constant):
                    several.add(target.id)
                else:
                    values[target.id] = str(node.value.value)
    return {name: value for name, value in values.items() if name not in several}


def _catches_import(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(
        isinstance(node, ast.Name) and node.id in _IMPORT_ERRORS for node in ast.walk(handler.type)
    )


def _called(
    part: str, function: str, first: str, second: str | None, line: int
) -> Iterator[Finding]:
    """What a call with these arguments needs; the second one is `None` if it is absent."""
    has_default = second is not None
    match part, function:
        case _ if not first:
            return
        case "conf", "set":
            yield Finding(FindingKind.KEY_SET, first, line)
        case "conf", "get":
            yield key(first, line=line, has_default=has_default)
        case "secrets", "get" | "getBytes" if second:
            yield Finding(FindingKind.SECRET, f"{first}/{second}", line)
        case "widgets", "text" | "dropdown" | "combobox" | "multiselect":
            yield Finding(FindingKind.WIDGET_DEFAULT, first, line)
        case "widgets", "get" | "getArgument":
            yield Finding(FindingKind.WIDGET, first, line, has_default=has_default)


def _line_findings(code: str) -> Iterator[Finding]:
    """Findings of a search by line, without a syntax tree."""
    for number, line in enumerate(code.split("\n"), start=1):
        if line.lstrip().startswith("#"):
            continue
        for match in _CALL.finditer(line):
            second = (match["two"] or "")[1:-1] if match["comma"] else None
            yield from _called(match["part"], match["function"], match["one"][1:-1], second, number)
        for match in _LITERAL.finditer(line):
            if finding := path_in(match.group(1) or match.group(2) or "", number):
                yield finding
