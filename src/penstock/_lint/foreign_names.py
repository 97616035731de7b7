"""Rules about names that PySpark does not have or does not support in this place."""

import ast
from collections.abc import Iterator

from penstock._lint.calls import Hit, chain, constant_text, is_partition_of_writer

_STATE = {"mapGroupsWithState", "flatMapGroupsWithState"}
_SCALA_CLASSES = {"Trigger", "OutputMode"}
_COLUMNS = {"current_timestamp", "current_date", "now", "lit", "col", "expr"}
_FUNCTIONS = {"F", "f", "fn", "functions", "sf", "psf"}


def foreign_names(tree: ast.Module) -> Iterator[Hit]:
    columns = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "pyspark.sql.functions"
        for alias in node.names
        if alias.name in _COLUMNS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "pyspark.sql.streaming":
            for alias in node.names:
                if alias.name in _SCALA_CLASSES:
                    yield Hit("PSL313", node.lineno, f"PySpark has no class {alias.name}")
        elif isinstance(node, ast.FunctionDef) and _is_state_function_of_scala(node):
            message = f"{node.name} returns a tuple, as a function of mapGroupsWithState does"
            yield Hit("PSL109", node.lineno, message)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, line = node.func.attr, node.func.end_lineno or node.lineno
            if name in _STATE:
                yield Hit("PSL109", line, f"PySpark has no {name}")
            elif name == "createDataFrame":
                yield from _columns_as_values(node, columns)
            elif is_partition_of_writer(node):
                for argument in node.args:
                    field = constant_text(argument)
                    if field is not None and "." in field and "`" not in field:
                        yield Hit("PSL312", line, f"{field} is a field, not a column")


def _is_state_function_of_scala(function: ast.FunctionDef) -> bool:
    arguments = function.args.args
    has_state = any(
        argument.annotation is not None and ast.unparse(argument.annotation).endswith("GroupState")
        for argument in arguments
    )
    return has_state and any(
        isinstance(node, ast.Return)
        and isinstance(node.value, ast.Tuple)
        and len(node.value.elts) > 1
        for node in ast.walk(function)
    )


def _columns_as_values(call: ast.Call, columns: set[str]) -> Iterator[Hit]:
    for rows in call.args[:1]:
        for node in ast.walk(rows) if isinstance(rows, ast.List | ast.Tuple) else ():
            if not isinstance(node, ast.Call):
                continue
            names = chain(node)
            is_column = names[:1] and names[0] in columns and isinstance(node.func, ast.Name)
            if is_column or (len(names) == 2 and names[0] in _FUNCTIONS and names[1] in _COLUMNS):
                yield Hit("PSL314", node.lineno, f"{names[-1]}() is a column, not a value")
