"""The diagram in docs/architecture.md must match the import graph of the packages.

A node represents one or several packages. The arrows are the transitive reduction of the imports:
an import that a longer path of arrows implies has no arrow. import-linter checks the direction of
the imports; these tests compare only the diagram with the imports.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import grimp

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
ROOT = "penstock"
Edges = set[tuple[str, str]]


@cache
def imports() -> grimp.ImportGraph:
    """The same graph as that of import-linter, see pyproject.toml."""
    return grimp.build_graph(ROOT, exclude_type_checking_imports=True, cache_dir=None)


def package_of(module: str) -> str:
    """The package or module right below `penstock`; `penstock` for its own `__init__`."""
    return module.split(".")[1] if "." in module else module


def drawing(page: str) -> tuple[dict[str, str], Edges]:
    """The node of each package, and the arrows between nodes."""
    (block,) = re.findall(r"(?ms)^```mermaid\n(.*?)^```", page)
    nodes: dict[str, str] = {}
    edges: Edges = set()
    for line in map(str.strip, block.splitlines()[1:]):
        if node := re.fullmatch(r'(\w+)\["([\w, ]+)"\]', line):
            for package in node[2].split(", "):
                assert nodes.setdefault(package, node[1]) == node[1], f"{package} is drawn twice"
        elif arrows := re.fullmatch(r"(\w+) --> (\w+(?: & \w+)*)", line):
            edges |= {(arrows[1], end) for end in arrows[2].split(" & ")}
        else:
            raise AssertionError(f"neither a node nor arrows: {line}")
    return nodes, edges


def edges_between(nodes: Mapping[str, str]) -> Edges:
    """The imports between nodes."""
    edges: Edges = set()
    for module in imports().modules - {f"{ROOT}.__main__"}:
        start = nodes[package_of(module)]
        for imported in imports().find_modules_directly_imported_by(module):
            edges.add((start, nodes[package_of(imported)]))
    return {(start, end) for start, end in edges if start != end}


def reduced(edges: Edges) -> Edges:
    """The transitive reduction of an acyclic graph."""
    return {(start, end) for start, end in edges if end not in reach(start, edges - {(start, end)})}


def reach(start: str, edges: Edges) -> set[str]:
    packages: set[str] = set()
    left = [start]
    while left:
        node = left.pop()
        ends = {end for begin, end in edges if begin == node} - packages
        packages |= ends
        left += ends
    return packages


def test_every_package_is_in_the_diagram():
    nodes, _ = drawing(PAGE.read_text(encoding="utf-8"))
    assert set(nodes) == {package_of(module) for module in imports().modules} - {"__main__"}


def test_the_arrows_are_the_imports_of_the_packages():
    nodes, drawn = drawing(PAGE.read_text(encoding="utf-8"))
    real = edges_between(nodes)
    cycles = {start for start, _ in real if start in reach(start, real)}
    assert cycles == set(), "packages that are drawn as one node hide the direction of an import"
    wanted = reduced(real)
    assert {"missing": wanted - drawn, "wrong": drawn - wanted} == {
        "missing": set(),
        "wrong": set(),
    }


def test_guard_detects_a_redundant_arrow():
    page = '```mermaid\nflowchart TD\n    a["x, y"]\n    b["z"]\n    a --> b & c\n```\n'
    assert drawing(page) == ({"x": "a", "y": "a", "z": "b"}, {("a", "b"), ("a", "c")})
    assert reduced({("a", "b"), ("b", "c"), ("a", "c")}) == {("a", "b"), ("b", "c")}
