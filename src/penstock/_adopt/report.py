"""What `penstock adopt` reports about a job."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock._adopt.excerpt import Program

_IMPORTS = ast.Import | ast.ImportFrom
_ARGUMENTS = r"\bsys\.argv\b|\.parse_(?:known_)?args\(\)"
_WAITS = "awaitTermination|awaitAnyTermination|processAllAvailable|lastProgress|spark.stop"


@dataclass(kw_only=True)
class AdoptedQuery:
    """A query of a job with its equivalent.

    `kind` is `table` or `sink`; `checkpoint` is `None` if it is not known from the text.
    """

    line: int
    flow: str
    target: str
    kind: str
    checkpoint: str | None
    keeps_state: bool
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class NotRecognized:
    """A query or statement of a job without an equivalent in the proposal."""

    line: int
    text: str
    reason: str
    is_query: bool = False


@dataclass(frozen=True)
class Proposal:
    text: str
    queries: list[AdoptedQuery]
    not_recognized: list[NotRecognized]


def left_out(program: Program, kept: set[ast.stmt]) -> Iterator[NotRecognized]:
    """Statements that are not kept, except imports and constants; and kept program arguments."""
    functions = {
        function
        for same_name in program.code.functions.values()
        for function in same_name
        if kept.intersection(program.block(function))
    }
    for function in [None, *functions]:
        for node in program.block(function):
            value, text = getattr(node, "value", None), program.source(node)
            if node in kept and re.search(_ARGUMENTS, text):
                reason = "kept, but a pipeline has no arguments: use `spark.conf.get`"
                yield NotRecognized(node.lineno, short_text(text), reason)
            if (
                node in kept
                or node in functions
                or isinstance(node, _IMPORTS)
                or isinstance(value, ast.Constant | ast.Name | ast.JoinedStr)
            ):
                continue
            is_session = isinstance(node, ast.Assign) and "SparkSession" in text
            if is_session or ".conf.set(" in text:
                reason = "Penstock has its own session: set what it needs in `configuration`"
            elif re.search(_WAITS, text):
                reason = "Penstock starts, watches and ends the flows"
            else:
                reason = "no query needs it, or it has no declared equivalent"
            yield NotRecognized(node.lineno, short_text(text), reason)


def short_text(text: str) -> str:
    """The beginning of the first line."""
    line, _, rest = text.strip().partition("\n")
    return line[:60] + (" ..." if rest or len(line) > 60 else "")
