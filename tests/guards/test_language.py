"""Names and texts follow the rules about plain English in CONTRIBUTING.md."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "penstock"
TESTS = ROOT / "tests"
PRONOUNS = {"found", "one", "told", "asked", "given", "reached"}
PHRASES = re.compile(
    r"\b(nobody|somebody|goes on|go on|anew|lost or doubled|at any moment)\b", re.IGNORECASE
)
NAMES_OF_TESTS = re.compile(
    r"_(told|tells|asked|goes_on|go_on|anew|doubled|nobody|somebody|way_out|stands|lies)(_|$)"
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
OTHER_TEXTS = [
    *(SRC / "_local" / "jvm").glob("*.java"),
    *SRC.rglob("*.tmpl"),
    *(ROOT / "ui" / "src").glob("*.ts*"),
    *(ROOT / "examples").rglob("*.md"),
    *(ROOT / "examples").rglob("*.yaml"),
]
# Exceptions to the rules. No entry may be added.
NAMES_TODAY = {"_observe/events.py": 1}  # `told` is a key in event logs
PHRASES_TODAY: dict[str, int] = {}


def bound_names(tree: ast.AST) -> Counter[str]:
    """The number of variables, arguments, attributes and functions per name."""
    names: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names[name] += 1
            case ast.FunctionDef(name=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                names[name] += 1
    return names


def strings(tree: ast.AST) -> list[str]:
    """All string literals: messages, help texts and docstrings."""
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.parametrize(("folder", "today"), [(SRC, NAMES_TODAY), (TESTS, {})])
def test_no_variable_is_named_by_a_pronoun_or_participle(folder: Path, today: dict[str, int]):
    uses = {}
    for file in folder.rglob("*.py"):
        names = bound_names(ast.parse(file.read_text(encoding="utf-8")))
        if count := sum(names[name] for name in PRONOUNS):
            uses[str(file.relative_to(folder))] = count
    assert uses == today


def test_no_name_of_a_test_has_a_banned_word():
    tests = {
        name
        for file in TESTS.rglob("test_*.py")
        for name in bound_names(ast.parse(file.read_text(encoding="utf-8")))
        if name.startswith("test_") and NAMES_OF_TESTS.search(name)
    }
    assert tests == set()


def test_no_banned_phrase_is_in_messages_or_docs():
    uses = {}
    for file in SRC.rglob("*.py"):
        texts = strings(ast.parse(file.read_text(encoding="utf-8")))
        if count := sum(len(PHRASES.findall(text)) for text in texts):
            uses[str(file.relative_to(SRC))] = count
    for page in [*PAGES, *OTHER_TEXTS]:
        if page.name == "decisions.md":  # a log of decisions; entries are not rewritten
            continue
        if count := len(PHRASES.findall(page.read_text(encoding="utf-8"))):
            uses[page.name] = count
    assert uses == PHRASES_TODAY


def test_guard_detects_a_name_and_a_phrase():
    tree = ast.parse('def f(found):\n    """Goes on."""\n    self.told = [one for one in x]\n')
    assert sum(bound_names(tree)[name] for name in PRONOUNS) == 3
    assert sum(len(PHRASES.findall(text)) for text in strings(tree)) == 1
