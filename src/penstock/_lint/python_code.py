"""Rules about Python code, from its syntax tree."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock._lint import batch_code
from penstock._lint.bindings import Bindings
from penstock._lint.calls import (
    ApiNames,
    Hit,
    arguments_of,
    chain,
    constant_text,
    is_grouped,
    root_name,
)
from penstock._lint.foreign_names import foreign_names
from penstock._lint.job_code import job_findings
from penstock._lint.job_queries import queries
from penstock._lint.secret_literals import BY_NAME, secret_form, secret_kind
from penstock._lint.sql_code import is_distinct_count

_QUERY = {"table", "view", "materialized_view", "temporary_view", "append_flow", "update_flow"}
_ACTIONS = {"collect", "toPandas", "toLocalIterator", "show", "foreachPartition", "toArrow"}
_ACTIONS_OF_FRAMES = _ACTIONS | {"count", "first", "head", "take", "tail", "isEmpty"}
_DISTINCT = {"countDistinct", "count_distinct"}
_CHECKPOINT = "checkpointlocation"
PIPELINE_RULES = {"PSL302", "PSL304"}
"""Rules against operations that a job has to perform itself."""
_CONF_RULES = {
    "spark.sql.streaming.schemainference": ("true", "PSL203", "the schema of all file streams"),
    "spark.databricks.delta.retentiondurationcheck.enabled": (
        "false",
        "PSL310",
        "VACUUM may delete files that are in use",
    ),
}


@dataclass
class CodeFindings:
    """Findings in one piece of code, and its structure.

    Attributes:
        hits: Rule, line and message of each finding.
        checkpoints: Code and line of each checkpoint location.
        spans: For each function, its first line (including decorators) and the line of its `def`;
            for each simple statement, its first and last line.
        functions: Line of the `def` and last line of each function.
    """

    hits: list[Hit] = field(default_factory=list)
    checkpoints: list[tuple[str, int]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    functions: list[tuple[int, int]] = field(default_factory=list)


def python_code_findings(
    text: str, *, is_job: bool = False, has_default_checkpoint: bool = False
) -> CodeFindings:
    """Findings about Python code; none for invalid code, which the analysis reports.

    A job starts its queries itself; for `has_default_checkpoint` see `job_findings`.
    """
    findings = CodeFindings()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return findings
    names = ApiNames.of(tree)
    for function, arguments in batch_code.batch_functions(tree, names).items():
        findings.hits += batch_code.findings(function, *arguments)
    for query in queries(Bindings(tree)):
        message = f"{query.start.name}() starts a streaming query"
        findings.hits.append(Hit("PSL304", query.start.line, message))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            findings.spans.append((first, node.lineno))
            findings.functions.append((node.lineno, node.end_lineno or node.lineno))
            if names.decorators(node) & _QUERY:
                findings.hits += _query_function(node, names)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
            findings.spans.append((node.lineno, node.end_lineno or node.lineno))
        elif isinstance(node, ast.Call):
            findings.hits += _call(node, findings.checkpoints)
    findings.hits += _secrets(tree)
    findings.hits += foreign_names(tree)
    if is_job:
        findings.checkpoints.clear()
        findings.hits = [hit for hit in findings.hits if hit.rule not in PIPELINE_RULES]
        findings.hits += job_findings(tree, has_default_checkpoint=has_default_checkpoint)
    findings.hits = sorted(set(findings.hits), key=lambda hit: (hit.line, hit.rule, hit.message))
    return findings


def setting_findings(key: str, value: str) -> Iterator[tuple[str, str]]:
    """Rule and message for one setting in code or in the settings file."""
    wanted = _CONF_RULES.get(key.lower())
    if wanted is not None and value.strip().lower() == wanted[0]:
        yield wanted[1], f"{key} is {wanted[0]}: {wanted[2]}"
    if key.lower() == "spark.sql.streaming.checkpointlocation":
        yield "PSL302", f"{key} is set"
    if (kind := secret_kind(key, value)) is not None:
        yield "PSL601", f"the value of {key} is {kind}"


# -- query functions ----------------------------------------------------------------------------


def _query_function(function: ast.FunctionDef, names: ApiNames) -> Iterator[Hit]:
    frames = {"spark", *names.modules}
    grouped: set[str] = set()
    streams: set[str] = set()
    # In the order of the text: a name is assigned before it is used.
    steps = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.Call)]
    for step in sorted(steps, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0)):
        if isinstance(step, ast.Assign):
            targets = {target.id for target in step.targets if isinstance(target, ast.Name)}
            grouped -= targets
            if is_grouped(step.value, grouped):
                grouped |= targets
            if _is_frame(step.value, frames):
                frames |= targets
            if _is_stream(step.value, streams):
                streams |= targets
        elif hit := _action(step, frames, grouped):
            yield hit
    if not any(_reads_stream(node) for node in ast.walk(function)):
        return
    calls = [step for step in steps if isinstance(step, ast.Call)]
    static = {
        id(inner)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("agg", "select")
        if not _is_stream(call.func.value, streams)
        for inner in ast.walk(call)
    }
    for call in calls:
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name in _DISTINCT and id(call) not in static:
            yield Hit("PSL107", call.lineno, f"{name} on a stream")
        elif name == "subtract" and root_name(call) in frames:
            yield Hit("PSL308", call.lineno, "subtract on a stream")


def _action(node: ast.Call, frames: set[str], grouped: set[str]) -> Hit | None:
    if not isinstance(node.func, ast.Attribute):
        return None
    name, owner = node.func.attr, node.func.value
    if name not in _ACTIONS_OF_FRAMES or not _is_frame(owner, frames):
        return None
    if name == "count" and is_grouped(owner, grouped):
        return None
    if name not in _ACTIONS and not isinstance(owner, ast.Call | ast.Name):
        return None
    return Hit("PSL307", node.lineno, f"{name}() runs a job in a query function")


def _is_frame(node: ast.expr, frames: set[str]) -> bool:
    """Whether an expression begins with a DataFrame or the session, except `conf`, `catalog`."""
    return root_name(node) in frames and chain(node)[1:2] not in (["conf"], ["catalog"])


def _is_stream(node: ast.expr, streams: set[str]) -> bool:
    return any(
        _reads_stream(part) or (isinstance(part, ast.Name) and part.id in streams)
        for part in ast.walk(node)
    )


def _reads_stream(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in ("readStream", "read_stream"):
        return True
    if isinstance(node, ast.Name) and node.id in ("readStream", "read_stream"):
        return True
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and "STREAM(" in text


# -- calls anywhere -----------------------------------------------------------------------------


def _call(node: ast.Call, checkpoints: list[tuple[str, int]]) -> Iterator[Hit]:
    function = node.func
    if not isinstance(function, ast.Attribute):
        return
    name = function.attr
    if name == "trigger":
        for keyword in node.keywords:
            if keyword.arg == "once":
                yield Hit("PSL303", keyword.value.lineno, "the trigger is once")
    elif name in ("option", "options"):
        for key, value in arguments_of(node):
            if key.lower() == _CHECKPOINT:
                if not isinstance(value, ast.Name):  # a name may differ between functions
                    checkpoints.append((ast.unparse(value), value.lineno))
                yield Hit("PSL302", value.lineno, "checkpointLocation is set in the code")
    elif name == "set" and chain(function)[-2:-1] == ["conf"] and len(node.args) == 2:
        name_text, value_text = (constant_text(argument) for argument in node.args)
        if name_text is not None and value_text is not None:
            for rule, message in setting_findings(name_text, value_text):
                if rule != "PSL601":  # reported by `_secrets`
                    yield Hit(rule, node.lineno, message)
    elif name == "sql":
        for argument in node.args[:1]:
            query = constant_text(argument)
            if query is not None and is_distinct_count(query):
                yield Hit("PSL107", node.lineno, "COUNT(DISTINCT ...) on a stream")


# -- secrets ------------------------------------------------------------------------------------


def _secrets(tree: ast.Module) -> Iterator[Hit]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = secret_form(node.value)
            if kind is not None:
                yield Hit("PSL601", node.lineno, f"the string is {kind}")
        for name, value in _named_values(node):
            text = constant_text(value)
            if text is not None and secret_kind(name, text) == BY_NAME:
                yield Hit("PSL601", value.lineno, f"a literal is the value of {name}")


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        yield node.target.id, node.value
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and (name := constant_text(key)):
                yield name, value
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg:
                yield keyword.arg, keyword.value
        function = getattr(node.func, "attr", "")
        first = constant_text(node.args[0]) if len(node.args) == 2 else None
        if first and function in ("option", "set", "config"):
            yield first, node.args[1]
