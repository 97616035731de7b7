"""Rules of the code base: module sizes, public names, light imports, documented errors."""

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "penstock").rglob("*.py"))
DOORS = (
    "penstock",
    "penstock.batches",
    "penstock.errors",
    "penstock.sinks",
    "penstock.sources",
    "penstock.monitoring",
    "penstock.parsing",
    "penstock.pipelines",
    "penstock.quality",
    "penstock.testing",
    "penstock.timing",
)
FORBIDDEN_MODULE_NAMES = {"utils", "util", "helpers", "common", "core", "manager", "misc"}


def test_no_module_is_longer_than_600_lines():
    too_long = {
        str(path.relative_to(ROOT)): count
        for path in SOURCES
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 600
    }
    assert too_long == {}


def test_lines_of_java_have_at_most_100_characters():
    longer = [
        f"{path.name}:{number}"
        for path in sorted((ROOT / "src" / "penstock").rglob("*.java"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > 100 and not line.startswith("import ")
    ]
    assert longer == []


def test_lines_of_logs_and_checkpoints_end_at_line_feeds_only():
    # `str.splitlines` also splits at characters that JSON strings may contain, see `lines_of`.
    rooms = ("_tables", "_execution", "_repair", "_observe", "parsing", "sources")
    files = [file for room in rooms for file in (ROOT / "src/penstock" / room).rglob("*.py")]
    assert [file.name for file in files if ".splitlines(" in file.read_text("utf-8")] == []


def test_names_of_test_files_are_unique():
    # Otherwise pytest cannot collect them in one process, as `make test-long` does.
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_has_a_catch_all_name():
    assert [path for path in SOURCES if path.stem in FORBIDDEN_MODULE_NAMES] == []


def test_init_files_of_private_packages_have_no_code():
    guilty = []
    for path in SOURCES:
        if path.name == "__init__.py" and path.parent.name.startswith("_"):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            if len(body) != 1 or not isinstance(body[0], ast.Expr):
                guilty.append(path)
    assert guilty == []


def test_public_names_are_listed_in_all():
    exported = penstock.__all__
    assert len(set(exported)) == len(exported)
    visible = {
        name
        for name in vars(penstock)
        if not name.startswith("_") and not _is_module(getattr(penstock, name))
    }
    later = {"check", "dry_run", "open_pipeline", "run"}  # imported on first use
    assert visible | later == {name for name in exported if not name.startswith("_")}


def _is_module(thing: object) -> bool:
    return type(thing).__name__ == "module"


ROOMS_WITHOUT_SPARK = ("_cli", "_project", "_local", "_observe", "_runtime", "_plan", "_ui")


@pytest.fixture(scope="module")
def heavy_imports() -> dict[str, list[str]]:
    """The heavy imports that each package adds when the packages are imported in order."""
    rooms = {
        room: [
            f"penstock.{room}.{module.name}"
            for module in pkgutil.iter_modules([str(ROOT / "src" / "penstock" / room)])
        ]
        for room in ROOMS_WITHOUT_SPARK
    }
    code = (
        "import importlib, json, sys\nloaded = {}\n"
        f"for room, names in {rooms!r}.items():\n"
        "    for name in names: importlib.import_module(name)\n"
        "    heavy = {'pyspark', 'py4j', 'delta'} & set(sys.modules)\n"
        "    loaded[room] = sorted(heavy.difference(*loaded.values()))\n"
        "print(json.dumps(loaded))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("room", ROOMS_WITHOUT_SPARK)
def test_package_without_spark_does_not_import_spark(room, heavy_imports):
    assert heavy_imports[room] == []


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("penstock", ["pyspark", "pydantic", "rich", "yaml", "typer"]),
        # These modules are imported after the start of Java.
        (
            "penstock.pipelines, penstock._update",
            ["pandas", "pyarrow", "penstock._analysis.analysis", "penstock._execution.queries"],
        ),
    ],
    ids=["package", "update"],
)
def test_import_is_light(modules: str, unwanted: list[str]):
    code = f"import sys, {modules}; print([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@cache
def _trees() -> list[ast.Module]:
    return [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES]


def _conditions() -> set[str]:
    conditions = set()
    for tree in _trees():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            first = node.args[0]
            value = first.value if isinstance(first, ast.Constant) else None
            if (
                name.endswith(("Error", "_error", "_failure", "_error_of"))
                and isinstance(value, str)
                and re.fullmatch(r"[A-Z][A-Z0-9_]+", value)
            ):
                conditions.add(value)
    return conditions


def test_every_error_condition_is_documented():
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"(?m)^### `([A-Z][A-Z0-9_]+)`", text))
    assert _conditions() - documented == set()


def _unknown(documented: set[str]) -> set[str]:
    """Conditions that are neither a string in the source nor match an f-string in it."""
    spelled, patterns = set(), []
    for tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant):
                spelled.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else None for p in node.values]
                if all(part is None or re.fullmatch("[A-Z_]{5,}", part) for part in parts):
                    patterns.append("".join("[A-Z]+" if part is None else part for part in parts))
    return {
        name
        for name in documented - spelled
        if not any(re.fullmatch(pattern, name) for pattern in patterns)
    }


def test_documented_conditions_are_used_in_the_source():
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"(?m)^### `([A-Z][A-Z0-9_]+)`", text))
    # The added condition shows that the check can fail: a common prefix is not a match.
    assert _unknown({*documented, "KAFKA_NEVER_RAISED"}) == {"KAFKA_NEVER_RAISED"}


@pytest.mark.parametrize("door", DOORS)
def test_public_modules_can_be_imported(door):
    assert importlib.import_module(door)


def test_no_tracked_file_names_a_machine_path_or_a_registry_host():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: the list of tracked files is unknown")
    # Split, so that this file does not match.
    words = ["/work" + "/", "/root" + "/", "repo." + "maven", "repo1." + "maven", "pypi." + "org"]
    guilty = []
    for name in filter(None, listed.stdout.split("\0")):
        content = (ROOT / name).read_bytes()
        if b"\0" in content[:1000]:
            continue
        text = content.decode("utf-8", errors="replace")
        guilty += [f"{name}: {word}" for word in words if word in text]
    assert guilty == []
