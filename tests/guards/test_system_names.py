"""Only the folder of a system in `sources` and `sinks` compares the name of the system.

Other code calls its `Source` or `Sink` instead. The test counts string literals with the name of a
system that are operands of a comparison, patterns, keys of mappings or elements of collections.
"""

import ast
from collections import Counter
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src" / "penstock"
CONNECTORS = ("sources", "sinks")
# Modules of `sources` and `sinks` that do not belong to a system.
SHARED = {"base", "registry", "flow", "options", "checkpoints", "memory"}
SYSTEMS = {
    *("kafka", "eventhubs", "kinesis", "jdbc", "delta", "cloudfiles"),
    *("console", "memory", "noop", "foreach", "foreachbatch", "foreach_batch"),
}
# Remaining comparisons. Lower a number when comparisons are removed; no entry may be added.
TODAY: dict[str, int] = {
    "_analysis/external_reads.py": 3,  # tables of the pipeline's own format
    "_analysis/external_tables.py": 1,  # likewise
    "_analysis/query_facts.py": 1,  # options of a source that a plan shows
    "_lint/batch_code.py": 4,  # methods of Spark's writers
    "_lint/plans.py": 8,  # options of sources
    "_local/jars.py": 3,  # sets of jars
    "_observe/lineage_delivery.py": 2,  # transports of OpenLineage
    "_plan/remarks.py": 1,  # tables of the pipeline's own format
    "_plan/triggers.py": 2,  # sources without micro-batches
    "_project/imports.py": 1,  # Python packages
    "_project/module_search.py": 1,  # likewise
    "_tables/metastore.py": 1,  # formats of entries in a metastore
}


def names_of_systems(tree: ast.AST) -> list[str]:
    """Names of systems that the code compares with a value."""
    operands: list[ast.expr | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                operands += [left, *others]
            case ast.MatchValue(value=value):
                operands.append(value)
            case ast.Dict(keys=keys):
                operands += keys
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                operands += elements
    return [
        node.value.lower()
        for node in operands
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.lower() in SYSTEMS
    ]


def is_of_a_system(module: Path) -> bool:
    room, *rest = module.relative_to(SRC).with_suffix("").parts
    return room in CONNECTORS and rest[0] not in SHARED


def test_comparisons_with_names_of_systems_are_detected():
    code = """
kind == "kafka" or kind.lower() in ("JDBC", "x") or kind not in {"delta"}
match kind:
    case "console" | "memory": pass
LIMITS = {"cloudFiles": 1, **more}
reader.format("kafka"); name = "kafka"; "kafka" "esque" == kind
"""
    assert sorted(names_of_systems(ast.parse(code))) == [
        *("cloudfiles", "console", "delta", "jdbc", "kafka", "memory")
    ]


def test_code_does_not_compare_names_of_systems():
    counts = Counter(
        {
            str(module.relative_to(SRC)): len(
                names_of_systems(ast.parse(module.read_text("utf-8")))
            )
            for module in sorted(SRC.rglob("*.py"))
            if not is_of_a_system(module)
        }
    )
    assert dict(+counts) == TODAY
