"""What differs between systems is in their folders: nothing else looks at their names."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "penstock"
NAMES = {"kafka", "eventhubs", "kinesis", "cloudfiles", "jdbc"}
# Rules of lint know systems, and so does what `penstock.sinks` does not do yet.
ALLOWED = {
    "_engine/output_modes.py",
    "_engine/query_facts.py",
    "_engine/sink_writers.py",
    "_lint/plans.py",
    "_plan/planner.py",
    "_plan/triggers.py",
    "_repair/reset.py",
}


def branches(tree: ast.AST) -> Iterator[int]:
    """Lines that compare something with the name of a system."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            values = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
            if values & NAMES:
                yield node.lineno


def test_no_module_branches_on_the_name_of_a_system():
    guilty = {
        f"{name}:{line}"
        for path in SOURCE.rglob("*.py")
        if not (name := str(path.relative_to(SOURCE))).startswith(("sources/", "sinks/"))
        and name not in ALLOWED
        for line in branches(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert guilty == set()


def test_the_guard_sees_a_branch():
    code = 'if kind in ("rate", "kafka"):\n match kind:\n  case "jdbc":\n   pass\n'
    assert list(branches(ast.parse(code))) == [1, 3]
    assert list(branches(ast.parse('reader.format("kafka")'))) == []
