"""The test files that a change in some rooms affects, by the import graph of src.

    python tests/rooms.py kafka,cli

A room is a package or module below `penstock`, without its underscore (`engine`, `errors`), or a
word in the names of modules (`kafka`: `sources/kafka`, ...). A test is affected

* if it, or a helper that it imports, imports a module that imports the room, over any number of
  steps; what the text of a pipeline in a test imports counts as well;
* if its own path contains the word (`tests/kafka`, `test_kafka_lag.py`).

The composition root imports everything, so the search stops there: tests that run whole pipelines
are listed only if they match the rules above as well. `make test` without ROOMS runs all tests.
"""

import ast
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
WIRING = frozenset(
    {"penstock._launch", "penstock._update", "penstock._cli.main", "penstock.__main__"}
)


def reached_tests(rooms: Iterable[str]) -> list[str]:
    """Paths of the test files, relative to the repository.

    Raises:
        ValueError: No module has this name; the message lists the rooms.
    """
    rooms = list(rooms)
    graph = _graph()
    modules = reached_modules(graph, {m for room in rooms for m in modules_of(graph, room)})
    return [
        str(file.relative_to(ROOT))
        for file in sorted(TESTS.rglob("test_*.py"))
        if any(_has_word(str(file.relative_to(TESTS)), room) for room in rooms)
        or _imports(file) & modules
    ]


def modules_of(graph: grimp.ImportGraph, room: str) -> set[str]:
    """The modules of the package with this name, or else those with this word in their name."""
    packages = [f"penstock._{room}", f"penstock.{room}"]
    own = {
        module
        for module in graph.modules
        if any(module == package or module.startswith(f"{package}.") for package in packages)
    }
    own = own or {module for module in graph.modules if _has_word(module, room)}
    if not own:
        rooms = ", ".join(sorted(all_rooms()))
        raise ValueError(f"no room and no module is called {room!r}; rooms: {rooms}")
    return own


def reached_modules(graph: grimp.ImportGraph, modules: set[str]) -> set[str]:
    """These modules and all modules that import them, up to the composition root."""
    affected, left = set(modules), list(modules)
    while left:
        importers = graph.find_modules_that_directly_import(left.pop()) - affected - WIRING
        affected |= importers
        left += importers
    return affected


def all_rooms() -> set[str]:
    """Every package and module right below `penstock`."""
    children = _graph().find_children("penstock") - WIRING
    return {module.removeprefix("penstock.").lstrip("_") for module in children} | {"launch"}


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("penstock", exclude_type_checking_imports=True, cache_dir=None)


def _has_word(name: str, word: str) -> bool:
    return word in re.split(r"[^a-z0-9]+", name.lower())


@cache
def _imports(file: Path) -> frozenset[str]:
    """Modules of `penstock` that a test imports, also through helpers that run no pipelines."""
    graph, own, helpers = _graph(), set(), set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Source text of pipelines that the test writes.
            names = re.findall(r"\bpenstock\.[\w.]+\w", node.value)
        else:
            continue
        own |= graph.modules & set(names)
        helpers |= {path for name in names for path in _helpers().get(name, ())}
    for helper in helpers - {file}:
        imported = _imports(helper)
        own |= imported & WIRING or imported
    return frozenset(own)


@cache
def _helpers() -> dict[str, list[Path]]:
    helpers: dict[str, list[Path]] = {}
    for file in TESTS.rglob("*.py"):
        helpers.setdefault(file.stem, []).append(file)
    return helpers


if __name__ == "__main__":
    try:
        listed = reached_tests(filter(None, sys.argv[1].replace("_", "").split(",")))
    except ValueError as error:
        sys.exit(f"ROOMS: {error}")
    print(f"ROOMS: {len(listed)} files of tests are reached", file=sys.stderr)
    print("\n".join(listed))
